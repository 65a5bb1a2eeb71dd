"""The measuring of collectives: planning and topology by hand, and a real run of two processes over gloo on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.measure.collectives import Plan, batch_for, classify, sizes_between

HEADER = "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\n"


def matrix(rows: list[list[str]]) -> str:
    return HEADER + "".join(f"GPU{i}\t" + "\t".join(row) + "\tSYS\t0-31\n" for i, row in enumerate(rows))


SWITCH = matrix([["X" if i == j else "NV18" for j in range(4)] for i in range(4)])
PAIRS = matrix([["X", "NV12", "SYS", "SYS"], ["NV12", "X", "SYS", "SYS"], ["SYS", "SYS", "X", "NV12"], ["SYS", "SYS", "NV12", "X"]])
PCIE = matrix([["X", "PIX", "NODE", "SYS"], ["PIX", "X", "NODE", "SYS"], ["NODE", "NODE", "X", "SYS"], ["SYS", "SYS", "SYS", "X"]])


@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [
        (SWITCH, [0, 1, 2, 3], "nvswitch"),
        (PAIRS, [0, 1], "nvswitch"),
        (PAIRS, [0, 1, 2, 3], "nvlink_pair"),
        (PCIE, [0, 1], "pcie_switch"),
        (PCIE, [0, 1, 2], "pcie_root"),
        (PCIE, [0, 1, 2, 3], "pcie_sockets"),
        (PCIE, [0, 7], "unknown"),
        ("no such thing", [0, 1], "unknown"),
    ],
)
def test_the_worst_pair_names_the_path(text: str, gpus: list[int], expected: str) -> None:
    assert classify(text, gpus) == expected


def test_sizes_and_batches() -> None:
    assert sizes_between(256, 2048) == (256, 512, 1024, 2048)
    assert sizes_between(300, 1024) == (512, 1024)
    with pytest.raises(InputError, match="256"):
        sizes_between(8, 1024)
    assert batch_for(256, 20) == 20
    assert batch_for(2**30, 20) == 2


def test_a_run_goes_on_with_what_has_no_row() -> None:
    plan = Plan(("all_reduce", "p2p"), (256, 512))
    assert len(plan.left("cuda")) == 8 and {mode for _, mode, _ in plan.left("cpu")} == {"eager"}
    rows = [{"kind": "all_reduce", "mode": "eager", "message_bytes": 256, "status": "failed"}]
    assert plan.left("cpu", rows) == [("all_reduce", "eager", 512), ("p2p", "eager", 256), ("p2p", "eager", 512)]


def test_outside_torchrun_says_how_to_start(tmp_path: Path) -> None:
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel.measure.collectives", "--out", str(tmp_path / "x.jsonl")],
        env=clean,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 1
    assert "torchrun" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_two_processes_over_loopback_write_rows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "rows.jsonl"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "perfmodel.measure.collectives",
    ]
    kinds = ["all_reduce", "all_gather", "alltoall", "broadcast", "send_recv"]
    options = ["--out", str(out), "--min-bytes", "256", "--max-bytes", "4096", "--batch", "3", "--repeats", "2", "--dtype", "fp32"]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([*command, *options, "--kinds", *kinds], env=env, capture_output=True, check=False, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 5 * 5  # kinds x sizes; no graph without a GPU
    assert {r["kind"] for r in rows} == {"all_reduce", "all_gather", "all_to_all", "broadcast", "p2p"}
    ok = [r for r in rows if r["status"] == "ok"]
    assert {r["kind"] for r in ok} >= {"all_reduce", "all_gather", "broadcast", "p2p"}
    for row in ok:
        assert row["latency_us"] >= row["min_us"] > 0
        assert (row["n_gpus"], row["nodes"], row["topology"], row["stack"], row["mode"]) == (2, 1, "loopback", "gloo", "eager")
        assert row["torch"] and row["timing"] and "host" not in row
    one = next(r for r in ok if r["kind"] == "all_reduce")
    assert one["bus_bytes_per_s"] == pytest.approx(one["message_bytes"] / one["latency_us"] * 1e6)  # 2 (n-1)/n = 1 at two
    assert all(r["reason"] for r in rows if r["status"] != "ok")
