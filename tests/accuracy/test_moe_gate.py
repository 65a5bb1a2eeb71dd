"""Fused-MoE rankings without a measurement of the GPU, against what others found best: figures may not worsen.

What is counted, and what `perfmodel evaluate published-moe` prints for all problems, is in perfmodel/evaluate/published_moe.py.
tests/accuracy/moe.json holds the reviewed figures, which only tighten (tightening.py). `python tests/accuracy/test_moe_gate.py` writes
them anew; a worse one is refused, or taken with `--accept-worse "reason"`.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tightening import rewrite, stored

from perfmodel.evaluate import published_moe

FIGURES = Path(__file__).with_name("moe.json")
BETTER: Any = {
    "problems": "higher", "hit": "higher", "shortlist": "higher", "least shortlist of a GPU": "higher", "least hit of a GPU": "higher",
    "place": "lower", "slower": "lower", "kept": "higher",
}  # fmt: skip
SLACK = 0.01  # one problem of 124
TUNED = [("a100_sxm4_80gb", "bf16", 0.04), ("h100_sxm", "bf16", 0.06), ("h100_sxm", "fp8", 0.05)]


@cache
def near_best(replayed: str) -> pd.DataFrame:
    return published_moe.near_best(every=4, replayed=replayed)


@cache
def tuned() -> pd.DataFrame:
    return published_moe.tuned(every=5)


def ranked(figures: pd.DataFrame) -> dict[str, float]:
    least = figures.groupby("gpu")[["hit", "shortlist"]].mean().min()
    return {
        "problems": len(figures), "hit": float(figures["hit"].mean()), "shortlist": float(figures["shortlist"].mean()),
        "least hit of a GPU": float(least["hit"]), "least shortlist of a GPU": float(least["shortlist"]),
    }  # fmt: skip


def cold() -> dict[str, float]:
    figures = near_best("nothing")
    return ranked(figures[~figures["warm"]])


def shipped_configs(gpu: str, dtype: str) -> dict[str, float]:
    figures = tuned()
    figures = figures[(figures["gpu"] == gpu) & (figures["dtype"] == dtype)]
    return {
        "problems": len(figures), "place": float(figures["place"].median()), "slower": float(figures["slower"].median()),
        "kept": float((figures["place"] < 1.0).mean()),
    }  # fmt: skip


def hold(found: dict[str, float], wanted: dict[str, float]) -> None:
    for name, figure in wanted.items():
        if name == "problems":
            assert found[name] >= figure
        elif BETTER[name] == "higher":
            assert found[name] >= figure - SLACK, name
        else:
            assert found[name] <= figure + SLACK, name


def test_a_near_best_config_is_among_the_first_eight() -> None:
    found = ranked(near_best("projection"))
    assert found["problems"] == 124 and found["hit"] >= 0.75 and found["shortlist"] >= 0.79
    assert found["least shortlist of a GPU"] >= 0.72
    hold(found, stored(FIGURES)["replayed projection"])


def test_cold_weights_are_ranked_as_before_where_no_cache_holds_them() -> None:
    found = cold()
    assert found["hit"] >= 0.77 and found["shortlist"] >= 0.79 and found["least hit of a GPU"] >= 0.65
    replayed = near_best("projection")
    assert abs(found["shortlist"] - replayed[~replayed["warm"]]["shortlist"].mean()) <= 0.01
    hold(found, stored(FIGURES)["cold weights"])


@pytest.mark.parametrize(("gpu", "dtype", "place"), TUNED)
def test_shipped_configs_are_ranked_high(gpu: str, dtype: str, place: float) -> None:
    found = shipped_configs(gpu, dtype)
    assert found["problems"] > 50
    assert found["place"] <= place and found["slower"] <= 0.06
    assert found["kept"] >= 0.9, "a shipped config was pruned"
    hold(found, stored(FIGURES)[f"shipped configs, {gpu}, {dtype}"])


def measure() -> dict[str, dict[str, float]]:
    found = {"replayed projection": ranked(near_best("projection")), "cold weights": cold()}
    found |= {f"shipped configs, {gpu}, {dtype}": shipped_configs(gpu, dtype) for gpu, dtype, _ in TUNED}
    return {table: {name: round(value, 4) for name, value in figures.items()} for table, figures in found.items()}


if __name__ == "__main__":
    sys.exit(rewrite(FIGURES, measure(), BETTER))
