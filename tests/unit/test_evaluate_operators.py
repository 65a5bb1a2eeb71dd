"""`perfmodel evaluate operators`: splits, baselines, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from perfmodel.cli.main import run
from perfmodel.evaluate.operators import summary

Capture = pytest.CaptureFixture[str]


def test_left_out_beats_both_baselines_and_says_how_many_rows(capsys: Capture) -> None:
    words = "evaluate operators --operator moe_kernel --sample 300 --by operator,gpu --json"
    assert run(words.split()) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["operator"] for row in rows} == {"moe_kernel"} and len(rows) > 1
    for row in rows:
        assert row["answered"] == 100.0 and 0 < row["rows"] <= 300
        assert row["median"] <= row["p90"] and row["mean"] < row["roofline"]


def test_a_table_of_rows_helps(capsys: Capture) -> None:
    means = {}
    for mode in ("left-out", "table", "stack-table"):
        assert run(f"evaluate operators --operator mla_decode --gpu l40s --sample 400 --mode {mode} --rows 100 --json".split()) == 0
        means[mode] = json.loads(capsys.readouterr().out)[0]["mean"]
    assert means["table"] < means["left-out"] and means["stack-table"] < means["left-out"]


def test_small_gemms_are_a_regime_of_their_own() -> None:
    one = {
        "operator": "gemm",
        "gpu": "l20",
        "stack": "vllm",
        "dtype": "bf16",
        "covered": True,
        "answered": True,
        "roofline": 0.5,
        "two_constants": 0.4,
    }
    scored = pd.DataFrame(
        {
            **one,
            "regime": ["under 10 us", "over 100 us"],
            "error": [0.1, 0.3],
            "roofline": 0.5,
            "two_constants": 0.4,
            "small_m": [True, False],
        }
    )
    found = summary(scored, ["regime"]).set_index("regime")
    assert found.loc["m <= 64", "rows"] == 1 and found.loc["m <= 64", "mean"] == 10.0
    assert found["rows"].sum() == 3
    assert summary(scored, ["gpu"])["mean"].tolist() == [20.0]
    assert np.isclose(summary(scored, ["gpu"])["p90"], 28.0).all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--operator gemms", "unknown operator 'gemms'"),
        ("--operator memory --mode x", "unknown mode 'x'"),
        ("--operator memory --by colour", "unknown column 'colour'"),
        ("--operator gemm --gpu l20", "no measured gemm rows of l20"),
        ("--operator memory --rows 3", "rows must be 16 or more"),
        ("--operator memory --sample 0", "sample must be"),
    ],
)
def test_refuses_in_one_line(words: str, said: str, capsys: Capture) -> None:
    assert run(["evaluate", "operators", *words.split()]) == 2
    printed = capsys.readouterr()
    assert said in printed.err.splitlines()[-1] and not printed.out  # on a slow machine progress comes before it


def test_stacks_are_compared_on_the_operators_that_both_measured(capsys: Capture) -> None:
    assert run(["evaluate", "stacks", "--operator", "gemm", "--gpu", "h100_sxm", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 3 and all(row["operators"] >= 20 and 0 < row["apart_percent"] < 20 for row in rows)
    assert run(["evaluate", "stacks", "--operator", "gemm", "--gpu", "h200_sxm"]) == 1  # torch alone
    assert run(["evaluate", "stacks", "--operator", "nothing"]) == 2
