"""The sweep's bookkeeping: pairing, resuming, surviving hanging and crashing kernels. The timing process is a fake."""

from __future__ import annotations

import json
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from perfmodel.errors import InputError
from perfmodel.measure import sweep
from perfmodel.measure.kernels import family
from perfmodel.measure.rows import Appender, read
from perfmodel.measure.runner import fact_index_key
from perfmodel.measure.timing import Policy

GEMM = family("gemm")
PROBLEM = {"m": 16, "n": 4096, "k": 4096, "dtype": "bf16"}


def config(block_n: int = 64, variant: str = "tma", split_k: int = 1) -> dict[str, Any]:
    return {
        "variant": variant,
        "block_m": 16,
        "block_n": block_n,
        "block_k": 128,
        "group_m": 8,
        "split_k": split_k,
        "num_warps": 4,
        "num_stages": 4,
    }


CONFIGS = [config(32), config(64), config(128), config(256)]
FACT = {"status": "ok", "regs": 40, "stack_bytes": 0, "shared_bytes": 1000}


def row_of(problem: dict[str, Any], conf: dict[str, Any], latency_us: float) -> dict[str, Any]:
    return {"kernel": "gemm", **problem, **dict.fromkeys(GEMM.config_keys), **conf, "status": "ok", "reason": "", "latency_us": latency_us}


def fake_child(kernel: str, facts: dict[str, Any], work: list[sweep.Work], deadline: float, policy: Policy, pipe: Connection) -> None:
    """Crashes on block_n 64, falls silent on block_n 128, answers the rest."""
    for item in work:
        for name in item.baselines:
            pipe.send(("start", item.problem, {"variant": name}))
            pipe.send(("row", row_of(item.problem, {"variant": name}, 9.0)))
        for conf in item.configs:
            pipe.send(("start", item.problem, conf))
            if conf["block_n"] == 64:
                os._exit(3)
            if conf["block_n"] == 128:
                time.sleep(60)
            pipe.send(("row", row_of(item.problem, conf, 10.0 + conf["block_n"])))
    pipe.send(("done",))


def facts_for(work: list[sweep.Work]) -> dict[str, Any]:
    return {fact_index_key(GEMM.binary_of(w.problem, c), "bf16"): FACT for w in work for c in w.configs}


def test_survives_crash_and_hang_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_SILENCE_S", 1.0)
    work = sweep.make_work(GEMM, [PROBLEM], {"*": CONFIGS}, done=[], arch=90)
    job = sweep.Sweep("gemm", work, tmp_path, 60.0, 90)
    rows = sweep.supervise(job, facts_for(work), child_main=fake_child)
    by_width = {r["block_n"]: r["status"] for r in rows}
    assert by_width == {None: "ok", 32: "ok", 64: "crash", 128: "timeout", 256: "ok"}
    stored = read(tmp_path / "rows.jsonl")
    assert stored == rows
    again = sweep.make_work(GEMM, [PROBLEM], {"*": CONFIGS}, done=stored, arch=90)
    assert again[0].configs == () and again[0].baselines == () and again[0].best_us == 42.0
    assert "ours / library 4.667" in sweep.summary(rows, GEMM)


def test_uncompiled_configs_wait_for_the_next_run(tmp_path: Path) -> None:
    work = sweep.make_work(GEMM, [PROBLEM], {"*": CONFIGS[:1]}, done=[], arch=90)
    job = sweep.Sweep("gemm", work, tmp_path, 30.0, 90)
    rows = sweep.supervise(job, {}, child_main=fake_child)
    assert [r["variant"] for r in rows] == ["cublas"]


def test_make_work_order_seed_and_legality() -> None:
    mixed = [*CONFIGS, config(64, "persistent", split_k=2)]
    given = sweep.make_work(GEMM, [PROBLEM], {"*": mixed}, done=[], arch=90)[0].configs
    assert list(given) == CONFIGS
    one, two = (sweep.make_work(GEMM, [PROBLEM], {"*": CONFIGS}, done=[], arch=90, seed=7)[0].configs for _ in range(2))
    assert one == two and sorted(map(str, one)) == sorted(map(str, CONFIGS))
    assert sweep.make_work(GEMM, [PROBLEM], {"*": mixed}, done=[], arch=80)[0].configs == ()
    special = sweep.make_work(GEMM, [PROBLEM], {"16x4096x4096": CONFIGS[:1], "*": CONFIGS}, done=[], arch=90)[0].configs
    assert list(special) == CONFIGS[:1]
    with pytest.raises(InputError, match="lacks split_k"):
        sweep.make_work(GEMM, [PROBLEM], {"*": [{k: v for k, v in CONFIGS[0].items() if k != "split_k"}]}, done=[], arch=90)


def test_reads_shapes_as_lists_or_objects(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps([[1, 2, 3], {"m": 4, "n": 5, "k": 6}]))
    assert sweep.read_shapes(path, "bf16", ("m", "n", "k")) == [
        {"dtype": "bf16", "m": 1, "n": 2, "k": 3},
        {"dtype": "bf16", "m": 4, "n": 5, "k": 6},
    ]
    path.write_text("{}")
    with pytest.raises(InputError, match="non-empty"):
        sweep.read_shapes(path, "bf16", ("m", "n", "k"))


def test_half_written_last_row_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2')
    assert read(path) == [{"a": 1}]
    log = Appender(path)
    log.add({"a": 3})
    log.close()
    assert read(path) == [{"a": 1}, {"a": 3}]


def child_without_a_device(
    kernel: str, facts: dict[str, Any], work: list[sweep.Work], deadline: float, policy: Policy, pipe: Connection
) -> None:
    def start(*_: Any, **named: Any) -> Any:
        raise ImportError("libcuda.so.1 is too old")

    sweep.LiveRunner = start  # type: ignore[assignment,misc]
    sweep._child(kernel, facts, work, deadline, policy, pipe)


def test_a_runner_that_cannot_start_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = [sweep.Work(PROBLEM, (config(32),))]
    facts = {fact_index_key(GEMM.binary_of(PROBLEM, config(32)), "bf16"): FACT}
    asked = sweep.Sweep("gemm", work, tmp_path, 60.0, 90, 1)
    assert sweep.supervise(asked, facts, child_main=child_without_a_device) == []
    assert "ended before its first kernel (crash: ImportError: libcuda.so.1 is too old)" in capsys.readouterr().err


def test_a_policy_from_the_command_line() -> None:
    assert sweep.read_policy(["hopeless=2", "reps_final=9"]) == Policy(hopeless=2.0, reps_final=9)
    for wrong, said in (("hops=2", "field of the timing policy"), ("reps_final=many", "must be a number"), ("poor=-1", "above 0")):
        with pytest.raises(InputError, match=said):
            sweep.read_policy([wrong])


def test_what_a_slow_start_left_out_is_measured_in_a_second_round() -> None:
    class Slow:
        """The first config of all takes a share of the time; the others none."""

        def __init__(self) -> None:
            self.first = True

        def measure(self, problem: dict[str, Any], conf: dict[str, Any], *, best_us: float) -> dict[str, Any]:
            if self.first:
                time.sleep(0.3)
            self.first = False
            return row_of(problem, conf, 5.0)

    work = [sweep.Work({**PROBLEM, "m": m}, tuple(CONFIGS)) for m in (16, 32, 64)]
    sent: list[Any] = []
    sweep.run_work(Slow(), work, time.monotonic() + 0.8, sent.append)  # type: ignore[arg-type]
    measured = [m[1]["m"] for m in sent if m[0] == "row"]
    assert sorted(measured) == sorted([16, 32, 64] * 4) and measured[:2] == [16, 32]
