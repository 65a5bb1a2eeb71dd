"""Fused-MoE rankings without a measurement of the GPU, against what others found best: figures may not worsen.

What is counted, and what `perfmodel evaluate published-moe` prints for all problems, is in perfmodel/tune/published_moe.py.
"""

from __future__ import annotations

from functools import cache

import pandas as pd
import pytest

from perfmodel.tune import published_moe


@cache
def near_best(replayed: str) -> pd.DataFrame:
    return published_moe.near_best(every=4, replayed=replayed)


@cache
def tuned() -> pd.DataFrame:
    return published_moe.tuned(every=5)


def test_a_near_best_config_is_among_the_first_eight() -> None:
    figures = near_best("projection")
    assert len(figures) == 124 and figures["hit"].mean() >= 0.75 and figures["shortlist"].mean() >= 0.79
    assert figures.groupby("gpu")["shortlist"].mean().min() >= 0.72


def test_cold_weights_are_ranked_as_before_where_no_cache_holds_them() -> None:
    cold, replayed = (f[~f["warm"]] for f in (near_best("nothing"), near_best("projection")))
    assert cold["hit"].mean() >= 0.77 and cold["shortlist"].mean() >= 0.79
    assert cold.groupby("gpu")["hit"].mean().min() >= 0.65
    assert abs(cold["shortlist"].mean() - replayed["shortlist"].mean()) <= 0.01


@pytest.mark.parametrize(
    ("gpu", "dtype", "place"), [("a100_sxm4_80gb", "bf16", 0.04), ("h100_sxm", "bf16", 0.06), ("h100_sxm", "fp8", 0.05)]
)
def test_shipped_configs_are_ranked_high(gpu: str, dtype: str, place: float) -> None:
    figures = tuned()
    figures = figures[(figures["gpu"] == gpu) & (figures["dtype"] == dtype)]
    assert len(figures) > 50
    assert figures["place"].median() <= place and figures["slower"].median() <= 0.06
    assert (figures["place"] < 1.0).mean() >= 0.9, "a shipped config was pruned"
