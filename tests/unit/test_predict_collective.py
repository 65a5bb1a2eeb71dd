"""pm.predict, predict_table and calibrate_table of collectives: which model answers, spellings, domain; and the command line."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import perfmodel as pm
from perfmodel._resources import shipped
from perfmodel.calibrate.collective import fit_collective
from perfmodel.cli.collectives import size_bytes, stack_name
from perfmodel.errors import InputError
from perfmodel.hw import gpu
from perfmodel.learn.calibration import resolve
from perfmodel.learn.collective_fit import fit_constants, read_rows
from perfmodel.library.collective import model
from perfmodel.ops import OperatorTable
from perfmodel.predict.collectives import priced

MEASURED = ("a100_sxm4_80gb", "h100_sxm", "l40s", "rtx_pro_6000", "h200_sxm")


def test_one_answer_says_what_runs_and_where_the_time_goes() -> None:
    found = pm.predict(pm.Collective("all_reduce", 2**24, 8), "h100_sxm")
    assert (found.detail["algorithm"], found.detail["protocol"], found.tier) == ("nvls", "Simple", "calibrated")
    assert sum(found.terms.values()) == pytest.approx(found.latency_us)
    assert found.low_us < found.latency_us < found.high_us and found.in_domain


@pytest.mark.parametrize("name", MEASURED)
def test_the_spec_tier_never_saw_the_gpu(name: str) -> None:
    assert resolve(gpu(name), "collective", "auto").tier == "calibrated"
    spec = resolve(gpu(name), "collective", None)
    assert spec.tier == "spec" and spec.constants and name not in spec.card["gpus"]


def test_no_universal_model_rests_on_the_h200() -> None:
    assert resolve(gpu("h200_sxm"), "collective", None).card["gpus"] == ["h100_sxm"]
    assert "h200_sxm" not in resolve(gpu("gh200_480gb" if "gh200_480gb" in pm.gpus() else "b200_sxm"), "collective", None).card["gpus"]


def test_outside_the_measured_counts_the_interval_is_wider_and_says_so() -> None:
    two, eight = (pm.predict(pm.Collective("all_gather", 2**28, n), "h200_sxm") for n in (2, 8))
    assert two.in_domain and not eight.in_domain
    assert np.log(eight.high_us / eight.latency_us) > np.log(two.high_us / two.latency_us)
    assert pm.predict(pm.Collective("all_gather", 256, 8), "h100_sxm").in_domain  # small messages: steps do not change with bytes
    four, eight = (pm.predict(pm.Collective("all_gather", 2**28, n), "a100_sxm") for n in (4, 8))  # two and eight were measured
    assert eight.in_domain and not four.in_domain
    assert np.log(four.high_us / four.latency_us) > 1.5 * np.log(eight.high_us / eight.latency_us)
    assert "NVLS" in resolve(gpu("h200_sxm"), "collective", "auto").card["limits"]


def test_a_table_takes_the_names_of_public_tables_and_agrees_with_single_answers() -> None:
    frame = pd.DataFrame(
        {
            "op": ["all_reduce", "alltoall", "AllGather"], "num_gpus": [8, 4, 2], "message_bytes": [4096, 2**20, 2**26],
            "impl": ["NCCL", "vllm_graph", "torch"], "framework_version": ["2.29", "0.14", None], "dtype": ["half", "bf16", "bf16"],
            "gpu": ["h100_sxm", "NVIDIA H200", "a100_sxm"], "comment": ["x", "y", "z"],
        },
        index=[7, 3, 9],
    )  # fmt: skip
    found = pm.predict_table("collective", frame)
    assert list(found.index) == [7, 3, 9]
    assert {"latency_us", "low_us", "high_us", "bound", "tier", "in_domain"} <= set(found.columns)
    one = pm.predict(pm.Collective("all_to_all", 2**20, 4), "h200", stack="vllm")
    assert found.loc[3, "latency_us"] == pytest.approx(one.latency_us)
    with pytest.raises(InputError, match=r"row 1.*n_gpus"):
        pm.predict_table("collective", frame.assign(num_gpus=[8, 1, 2]), "h100_sxm")


def test_a_table_of_ones_own_moves_the_answer_and_keeps_the_rest() -> None:
    """A host whose NVLink is a quarter slower than the shipped model says, measured on two GPUs."""
    frame = pd.DataFrame(
        {
            "kind": ["all_reduce", "all_gather"] * 12,
            "message_bytes": np.repeat(2.0 ** np.arange(12, 30, 1.5), 2),
            "n_gpus": 2,
            "dtype": "bf16",
        }
    )
    frame["message_bytes"] = frame["message_bytes"].round()
    truth = {**resolve(gpu("h100_sxm"), "collective", None).constants}
    truth["nvlink_rate"] *= 0.75
    found = OperatorTable.read("collective", frame)
    frame["latency_us"] = model(gpu("h100_sxm"), found, truth).latency_s * 1e6
    own = pm.calibrate_table("h100_sxm", {"collective": frame})
    ask = pm.Collective("all_reduce", 2**28, 2)
    expected = float(model(gpu("h100_sxm"), {"kind": "all_reduce", "message_bytes": 2**28, "n_gpus": 2}, truth).latency_s[0]) * 1e6
    assert pm.predict(ask, "h100_sxm", calibration=own).latency_us == pytest.approx(expected, rel=0.05)
    with pytest.raises(InputError, match="needs 12"):
        pm.calibrate_table("h100_sxm", {"collective": frame.head(4)})


def test_rows_of_two_gpus_help_there_and_do_not_spoil_eight() -> None:
    """Public H100 rows of two GPUs on a model that never saw the H100: better on other sizes, no worse for eight than it was."""
    rows = read_rows(
        gpu("h100_sxm"), pd.read_parquet(shipped("data") / "collectives.parquet").query("gpu == 'h100_sxm' and stack == 'nccl'")
    )
    prior, count = resolve(gpu("h100_sxm"), "collective", None).constants, rows.columns["n_gpus"]
    given = (count == 2) & (rows.sizes % 2 == 0)
    fitted, beyond = (fit_constants([rows.take(given)], prior, beyond=more) for more in (False, True))
    unseen, eight = rows.take((count == 2) & (rows.sizes % 2 == 1)), rows.take(count == 8)
    assert len(unseen) > 50
    assert np.abs(unseen.errors(fitted)).mean() < 0.5 * np.abs(unseen.errors(prior)).mean()
    assert np.abs(eight.errors(beyond)).mean() < 1.1 * np.abs(eight.errors(prior)).mean()


def test_the_shipped_calibration_of_two_gpus_says_of_eight_what_hosts_of_its_kind_take() -> None:
    """Rows of two H200s; an H100 host has the same switches and links, and its NCCL rows are public."""
    h200, h100 = gpu("h200_sxm"), pd.read_parquet(shipped("data") / "collectives.parquet").query("gpu == 'h100_sxm' and stack == 'nccl'")
    eight = h100[h100["n_gpus"] == 8].drop(columns=["gpu"])
    found = pm.predict_table("collective", eight, h200)
    assert (found["tier"] == "calibrated").all() and not found["in_domain"].any()
    assert (found["latency_us"] / eight["latency_us"] - 1).abs().mean() < 0.15
    two = OperatorTable.of(pm.Collective("all_reduce", 2**20, 2), "torch_graph")
    fitted = resolve(h200, "collective", "auto")
    assert priced(h200, two, fitted).latency_s == model(h200, two, fitted.constants).latency_s


def test_a_fit_that_is_no_better_than_what_it_draws_on_is_not_taken() -> None:
    """Rows that a model explains to the last digit leave it as it is; of two models the one that the rows speak for is drawn on."""
    prior = resolve(gpu("h100_sxm"), "collective", None).constants
    sizes = np.repeat(2.0 ** np.arange(12, 28), 2)
    asked = {"kind": np.array(["all_reduce", "all_gather"] * 16, dtype=object), "message_bytes": sizes, "n_gpus": np.full(32, 2.0)}
    frame = pd.DataFrame(asked).assign(latency_us=model(gpu("h100_sxm"), asked, prior).latency_s * 1e6)
    slower = {**prior, "nvlink_rate": 0.6 * prior["nvlink_rate"]}
    kept = fit_collective(gpu("h100_sxm"), frame, priors=[slower, prior])
    assert kept.card["corrected"] is False
    assert {name: kept.constants[name] for name in prior if not name.startswith("sigma_")} == {
        name: value for name, value in prior.items() if not name.startswith("sigma_")
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16MiB", 2**24),
        ("64 KiB", 65536),
        ("1GiB", 2**30),
        ("4096", 4096),
        ("16MB", 16_000_000),
        ("1.5KiB", 1536),
        ("1e6", 10**6),
        ("2m", 2**21),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize("text", ["16XB", "MiB", "", "1.2.3", "-"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(InputError, match="--bytes"):
        size_bytes(text)


def test_modes() -> None:
    assert stack_name("vllm", "eager") == "vllm_eager" and stack_name("torch", None) == "torch"
    with pytest.raises(InputError, match="graph"):
        stack_name("torch", "lazy")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "perfmodel.cli.main", *arguments], capture_output=True, text=True, check=False)


def test_the_command_line_names_algorithm_and_terms() -> None:
    done = run("predict", "all_reduce", "--gpu", "h100_sxm", "--n-gpus", "8", "--bytes", "16MiB", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["detail"]["algorithm"] == "nvls" and set(found["terms_us"]) == {"steps", "bandwidth", "launch"}
    eager = run("predict", "p2p", "--gpu", "h200", "--n-gpus", "2", "--bytes", "64KiB", "--stack", "torch", "--mode", "eager", "--csv")
    assert "direct" in eager.stdout.splitlines()[1] and "torch_eager" in eager.stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--n-gpus", "1", "--bytes", "1MiB"], "at least 2 GPUs"), (["--n-gpus", "8", "--bytes", "0"], "message_bytes"),
        (["--n-gpus", "8", "--bytes", "1.3"], "whole number"),
        (["--n-gpus", "8.5", "--bytes", "16"], "n_gpus"),
        (["--n-gpus", "16", "--bytes", "1MiB"], "nodes=2"),
        (["--n-gpus", "8", "--bytes", "1MiB", "--topology", "moon"], "unknown topology"),
        (["--n-gpus", "8", "--bytes", "1MiB", "--stack", "megatron"], "unknown stack"),
        (["--n-gpus", "8", "--bytes", "1MiB", "--nodes", "3"], "evenly"),
    ],
)  # fmt: skip
def test_bad_questions_are_one_line_and_exit_2(arguments: list[str], word: str) -> None:
    done = run("predict", "all_reduce", "--gpu", "h100_sxm", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert word in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_measuring_refuses_one_gpu_before_it_starts_anything() -> None:
    done = run("measure", "collectives", "--out", "rows.jsonl", "--n-gpus", "1")
    assert done.returncode == 2 and "at least 2" in done.stderr
    assert run("measure", "collectives", "--out", "r.jsonl", "--n-gpus", "2", "--kind", "gossip").returncode == 2


def test_measured_rows_become_a_table_with_a_sidecar_and_no_host_name(tmp_path: Path) -> None:
    from perfmodel.fit.collective_models import adopt

    row = {
        "kind": "all_reduce", "message_bytes": 4096, "n_gpus": 2, "dtype": "bf16", "mode": "graph", "status": "ok", "latency_us": 11.0,
        "min_us": 10.5, "calls": 20, "device": "NVIDIA H200", "topology": "nvswitch", "torch": "2.11.0", "host": "secret",
        "measured_at": "2026-11-29T17:30:59+00:00", "version": "2.28.9", "nodes": 1, "stack": "nccl_graph",
    }  # fmt: skip
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(json.dumps(r) for r in (row, {**row, "status": "failed", "reason": "timeout"})))
    table = adopt(source, "h200_sxm", {"driver": "580"}, tmp_path)
    found, side = pd.read_parquet(table), json.loads(table.with_suffix(".json").read_text())
    assert table.name == "collectives_h200.parquet" and len(found) == 1
    assert (found["stack"][0], found["timing"][0], side["driver"], side["measured"]) == ("torch_graph", "cold, max", "580", "2026-11-29")
    assert "secret" not in table.with_suffix(".json").read_text() and "host" not in found.columns
    with pytest.raises(InputError, match="h200_sxm"):
        adopt(source, "h100_sxm", {}, tmp_path)


def test_committed_h200_rows_are_what_the_sidecar_says() -> None:
    table = shipped("data") / "collectives_h200.parquet"
    side = json.loads(table.with_suffix(".json").read_text())
    found = pd.read_parquet(table)
    assert hashlib.sha256(table.read_bytes()).hexdigest() == side["sha256"] and len(found) == side["rows"]
    assert set(found.columns) == set(side["columns"])
    assert side["driver"] and "NVLS" in side["limits"] and "torchrun" in side["command"]
