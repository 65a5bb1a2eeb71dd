"""Accuracy of the operator models on GPUs and shapes that they did not see: fails when a figure worsens by more than 5 %.

tests/accuracy/operators.json holds the reviewed figures, which only tighten (tightening.py). `python tests/accuracy/test_operators_gate.py`
writes them anew; a worse one is refused, or taken with `--accept-worse "reason"`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tightening import rewrite, stored

from perfmodel.evaluate.operators import evaluate

FIGURES = Path(__file__).with_name("operators.json")
MODELS = ("gemm", "attention_prefill", "attention_decode", "moe")
ROWS = 1500
LOOSEST = 1.05
BETTER: Any = {"mean": "lower", "covered": "nominal", "answered": "higher", "two_constants": "any"}


def measure(what: str, mode: str) -> dict[str, dict[str, float]]:
    scored = evaluate(what, mode, per_gpu=ROWS)
    grouped = scored.groupby("gpu")
    mean, covered, beaten = grouped["error"].mean(), grouped["covered"].mean(), grouped["two_constants"].mean()
    answered = grouped["error"].apply(lambda e: float(np.isfinite(e).mean()))
    return {
        str(name): {
            "mean": round(float(mean[name]), 4), "covered": round(float(covered[name]), 4), "answered": float(answered[name]),
            "two_constants": round(float(beaten[name]), 4),
        }
        for name in mean.index
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["left-out", "table"])
@pytest.mark.parametrize("what", MODELS)
def test_no_figure_worsens(what: str, mode: str) -> None:
    wanted: dict[str, Any] = stored(FIGURES)[f"{what} {mode}"]
    found = measure(what, mode)
    assert set(found) == set(wanted)
    for name, figures in wanted.items():
        assert found[name]["answered"] == 1.0, name
        assert found[name]["mean"] <= LOOSEST * figures["mean"], (name, found[name], figures)
        assert found[name]["mean"] < found[name]["two_constants"], name
        assert abs(found[name]["covered"] - figures["covered"]) <= 0.05, (name, found[name], figures)


if __name__ == "__main__":
    sys.exit(rewrite(FIGURES, {f"{what} {mode}": measure(what, mode) for what in MODELS for mode in ("left-out", "table")}, BETTER))
