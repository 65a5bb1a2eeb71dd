"""Replaying stored rows: the same answers as a live runner, from JSONL and parquet, and a search that runs on them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from perfmodel._resources import shipped
from perfmodel.errors import InputError
from perfmodel.measure.kernels.gemm import CONFIG_KEYS, FAMILY
from perfmodel.measure.replay import ReplayRunner
from perfmodel.measure.rows import export_parquet, row_key
from perfmodel.measure.runner import STATUSES
from perfmodel.measure.sweep import Work, run_work

SIZES = ("m", "n", "k")
PROBLEM = {"m": 16, "n": 4096, "k": 4096, "dtype": "bf16"}
CONFIG = {"variant": "tma", "block_m": 16, "block_n": 64, "block_k": 128, "group_m": 8, "split_k": 1, "num_warps": 4, "num_stages": 4}
OTHER = {**CONFIG, "block_n": 128}
ROWS = [
    {**PROBLEM, **dict.fromkeys(CONFIG_KEYS), "variant": "cublas", "status": "ok", "reason": "", "latency_us": 9.5},
    {**PROBLEM, **CONFIG, "status": "ok", "reason": "", "latency_us": 10.25},
    {**PROBLEM, **OTHER, "status": "out_of_resources", "reason": "too much shared memory"},
    {**PROBLEM, "m": 32, **CONFIG, "status": "ok", "reason": "", "latency_us": 12.5},
]


@pytest.fixture(params=["memory", "jsonl", "parquet"])
def runner(request: pytest.FixtureRequest, tmp_path: Path) -> ReplayRunner:
    if request.param == "memory":
        return ReplayRunner(ROWS, SIZES, CONFIG_KEYS)
    path = tmp_path / f"rows.{request.param}"
    if request.param == "jsonl":
        path.write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    else:
        export_parquet(ROWS, path)  # None becomes NaN, and whole numbers floats, beside it
    return ReplayRunner.from_file(path, SIZES, CONFIG_KEYS)


def test_answers_from_any_kind_of_file(runner: ReplayRunner) -> None:
    assert runner.problems() == [{**{k: PROBLEM[k] for k in SIZES}, "dtype": "bf16"}, {"m": 32, "n": 4096, "k": 4096, "dtype": "bf16"}]
    assert runner.measure(PROBLEM, CONFIG)["latency_us"] == 10.25
    assert runner.measure(PROBLEM, CONFIG, best_us=0.001)["latency_us"] == 10.25
    assert runner.measure({**PROBLEM, "m": 32}, CONFIG)["latency_us"] == 12.5
    assert runner.measure(PROBLEM, OTHER)["reason"] == "too much shared memory"
    assert runner.baseline(PROBLEM, "cublas")["latency_us"] == 9.5
    assert runner.asked == 5


def test_what_was_never_measured_says_so(runner: ReplayRunner) -> None:
    row = runner.measure(PROBLEM, {**CONFIG, "num_stages": 5})
    assert row["status"] == "missing" and row["reason"] == "never measured" and "latency_us" not in row
    assert (row["num_stages"], row["m"], row["dtype"]) == (5, 16, "bf16")
    assert runner.baseline(PROBLEM, "nobody")["status"] == "missing"
    assert runner.measure({**PROBLEM, "dtype": "fp8"}, CONFIG)["status"] == "missing"


def test_answers_are_copies(runner: ReplayRunner) -> None:
    runner.measure(PROBLEM, CONFIG)["latency_us"] = 0.0
    assert runner.measure(PROBLEM, CONFIG)["latency_us"] == 10.25


def test_nothing_to_replay() -> None:
    with pytest.raises(InputError, match="no rows"):
        ReplayRunner([], SIZES, CONFIG_KEYS)
    with pytest.raises(InputError, match="no rows"):
        ReplayRunner.from_file(Path("/nowhere/rows.jsonl"), SIZES, CONFIG_KEYS)


def test_a_sweep_runs_on_stored_rows(runner: ReplayRunner) -> None:
    sent: list[Any] = []
    run_work(runner, [Work(PROBLEM, (CONFIG, OTHER), ("cublas",))], math.inf, sent.append)
    assert [m[0] for m in sent] == ["start", "row"] * 3
    assert [m[1]["status"] for m in sent if m[0] == "row"] == ["ok", "ok", "out_of_resources"]


def test_row_keys_do_not_depend_on_how_a_number_is_stored() -> None:
    keys = ("a", "b", "c", "d")
    assert row_key({"a": 4.0, "b": math.nan, "c": 0.5, "d": math.inf}, keys) == row_key({"a": 4, "c": 0.5, "d": math.inf}, keys)
    assert row_key({"a": "tma"}, keys) == ("tma", None, None, None)


def test_the_shipped_sweep_replays() -> None:
    stored = pd.read_parquet(shipped("data") / "gemm" / "evaluation_h200_sxm.parquet")
    first = stored[(stored["m"] == stored["m"].iloc[0]) & (stored["n"] == stored["n"].iloc[0]) & (stored["dtype"] == "bf16")]
    rows = first.astype(object).where(first.notna(), None).to_dict("records")
    runner = ReplayRunner(rows, SIZES, FAMILY.config_keys)
    problem = runner.problems()[0]
    for row in rows[1:20]:
        assert runner.measure(problem, {k: row[k] for k in FAMILY.config_keys})["latency_us"] == row["latency_us"]
    assert runner.baseline(problem, "cublas")["status"] == "ok"
    assert set(stored["status"]) <= set(STATUSES)
