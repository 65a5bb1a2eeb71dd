"""Correction by a few hundred measured rows: what is left of a prior, interpolated between rows that are alike (Gaussian process).

Kept in a model's card as plain numbers; costs one distance to every kept row, so it is for tables of at most MAX_POINTS rows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError

Floats = npt.NDArray[np.float64]
CARD_KEY = "kriging"
MAX_POINTS = 600
SIZES = (
    "m", "n", "k", "batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "tokens", "hidden", "inter", "num_experts", "top_k",
    "tp", "ep", "num_heads",
)  # fmt: skip
TERMS = (
    "tensor", "exp", "chain", "dram", "l2", "power", "fixed", "feed", "floor", "waves", "rows_per_expert", "tail", "edge", "weights_in_l2",
    "acts_in_l2", "cache_in_l2", "quantise", "combine", "convert", "prepare", "handled", "routing",
)  # fmt: skip
"""Features of a law that place a row: rows that the same resource binds are alike."""
FURTHEST = 5.0  # a term this many e-folds under the latency does not matter, however small it is
NAMES = ("stack", "kernel", "dtype", "kv_dtype", "stage", "kind")
LENGTH = 12.0  # octaves over which two rows of one stack lose 1/e of what they share
OFFSETS, SMOOTH = 0.05, 0.15  # variance of log latency at each of three levels: all rows, same stack, all names the same
NOISE, OUTLIER = 0.02, 0.1  # variance of a row; residual from which a row counts less
BLOCK = 20_000
KEPT = 16  # entries whose arrays stay in memory


def coordinates(columns: Mapping[str, Floats], log_law: Floats, features: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """(place in octaves, names) of each row: logs of sizes, window, skew, the law's latency and terms; codes of names."""
    place = [np.log2(np.maximum(np.nan_to_num(columns[name], nan=1.0), 1.0)) for name in SIZES if name in columns]
    if "window" in columns:
        place.append(np.log2(columns["window"] + 1.0) / 2.0)
    if "skew" in columns:
        place.append(2.0 * columns["skew"])
    place.append(1.5 * log_law)
    place += [np.clip(features[name], -FURTHEST, FURTHEST) for name in TERMS if name in features]
    return np.stack(place, axis=1), np.stack([columns[name] for name in NAMES if name in columns], axis=1)


def covariance(a: Floats, a_names: Floats, b: Floats, b_names: Floats) -> Floats:
    """Covariance of every row of `a` with every row of `b`: constant parts and parts that fade with distance, by shared names."""
    square = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2.0 * a @ b.T
    near = np.exp(-np.sqrt(np.maximum(square, 0.0)) / LENGTH)
    stack = a_names[:, None, 0] == b_names[None, :, 0]
    same = stack.copy()
    for column in range(1, a_names.shape[1]):
        same &= a_names[:, None, column] == b_names[None, :, column]
    result: Floats = (OFFSETS + SMOOTH * near) * (1.0 + stack + same)
    return result


def fit(
    columns: Mapping[str, Floats], log_law: Floats, features: Mapping[str, Floats], residual: Floats, share: float = 1.0
) -> dict[str, Any]:
    """Card entry that gives `residual` (log measured over prior) times `share`; rows that disagree with their neighbours count less."""
    place, names = coordinates(columns, log_law, features)
    centre = place.mean(axis=0)
    between = covariance(place - centre, names, place - centre, names)
    trust: Floats = np.ones(len(residual))
    weights: Floats = np.zeros(len(residual))
    for _ in range(4):
        weights = np.asarray(np.linalg.solve(between + np.diag(NOISE / trust), residual), dtype=np.float64)
        trust = np.asarray(1.0 / np.maximum(1.0, np.abs(NOISE / trust * weights) / OUTLIER), dtype=np.float64)
    return {
        "place": np.round(place, 4).tolist(),
        "names": names.astype(int).tolist(),
        "centre": np.round(centre, 4).tolist(),
        "weights": np.round(share * weights, 6).tolist(),
    }


def log_ratio(entry: Mapping[str, Any], columns: Mapping[str, Floats], log_law: Floats, features: Mapping[str, Floats]) -> Floats:
    """Log of the correction of each row."""
    place, names, centre, weights = _arrays(entry)
    own, own_names = coordinates(columns, log_law, features)
    if own.shape[1] != place.shape[1]:
        raise InputError("this calibration was made by another version of perfmodel: make it again from its table")
    result = np.empty(len(log_law))
    for start in range(0, len(log_law), BLOCK):
        rows = slice(start, start + BLOCK)
        result[rows] = covariance(own[rows] - centre, own_names[rows], place - centre, names) @ weights
    return result


_Arrays = tuple[Floats, Floats, Floats, Floats]
_KEPT: OrderedDict[int, tuple[Mapping[str, Any], _Arrays]] = OrderedDict()  # by identity, with the entry held so that it stays unique


def _arrays(entry: Mapping[str, Any]) -> _Arrays:
    kept = _KEPT.get(id(entry))
    if kept is not None and kept[0] is entry:
        return kept[1]
    place, names, centre, weights = (np.asarray(entry[name], dtype=np.float64) for name in ("place", "names", "centre", "weights"))
    _KEPT[id(entry)] = (entry, (place, names, centre, weights))
    while len(_KEPT) > KEPT:
        _KEPT.popitem(last=False)
    return place, names, centre, weights
