"""Trees of the operator models: robust loss, row weights, and correction rounds on top of a tree that already exists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.learn.residual import Residual, load_xgboost, matrix

Floats = npt.NDArray[np.float64]

SHARED = {"max_depth": 5, "eta": 0.1, "min_child_weight": 30.0, "subsample": 0.7, "colsample_bytree": 0.6, "reg_lambda": 5.0}
"""One tree for all GPUs: leaves of many rows, so that it learns what GPUs have in common."""
NAMED = {"max_depth": 6, "eta": 0.1, "min_child_weight": 15.0, "subsample": 0.8, "colsample_bytree": 0.8, "reg_lambda": 3.0}
"""Rounds of that tree which may use stack and kernel: deeper, because they only speak where the same code was measured."""
OWN = {"max_depth": 7, "eta": 0.1, "min_child_weight": 6.0, "subsample": 0.9, "colsample_bytree": 0.9, "reg_lambda": 2.0}
"""The tree of one GPU with thousands of rows."""
CORRECTION = {"max_depth": 3, "eta": 0.08, "min_child_weight": 3.0, "subsample": 0.8, "colsample_bytree": 0.5, "reg_lambda": 4.0}
"""Rounds that correct an existing tree with a few dozen to a few hundred rows."""

DEEP_CORRECTION = {"max_depth": 7, "eta": 0.04, "min_child_weight": 3.0, "subsample": 0.6, "colsample_bytree": 0.4, "reg_lambda": 4.0}
"""The same with around a thousand rows or more: deeper, slower, from smaller samples."""

OWN_DRAWS = {"seed_per_iteration": True}
"""For rounds on top of a tree: their draws are then their own, not what an earlier fit of the process left of its random numbers."""


def boost(
    features: Mapping[str, Floats],
    target: Floats,
    weight: Floats | None,
    *,
    rounds: int,
    params: Mapping[str, Any],
    robust: bool = True,
    start: Residual | None = None,
    seed: int = 0,
) -> Residual:
    """Fit log(measured / analytic); `robust` minimises the absolute error, else the squared one. `start`: the tree to correct.

    Deterministic for the same rows, seed and xgboost version (one thread).
    """
    xgb = load_xgboost()
    names = start.names if start is not None else tuple(features)
    data = xgb.DMatrix(matrix(names, features, len(target)), label=target, weight=weight)
    settings = {
        **params,
        "objective": "reg:absoluteerror" if robust else "reg:squarederror",
        "base_score": 0.0,
        "tree_method": "hist",
        "max_bin": 128,
        "seed": seed,
        "nthread": 1,
    }
    booster = xgb.train(settings, data, rounds, xgb_model=None if start is None else start.booster)
    booster.set_param({"nthread": 1})
    return Residual(names, booster)


def sliced(model: Residual, rounds: int) -> Residual:
    """The first `rounds` trees of a model."""
    return Residual(model.names, model.booster[:rounds])
