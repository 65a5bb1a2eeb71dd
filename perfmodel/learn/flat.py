"""One row through a boosted tree without the library's call overhead: all trees walk down together in numpy."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfmodel.learn.residual import Residual

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Flat:
    """Nodes of all trees in one array; `roots` are their first nodes, leaves point at themselves."""

    feature: npt.NDArray[np.intp]
    threshold: npt.NDArray[np.float32]
    left: npt.NDArray[np.intp]
    right: npt.NDArray[np.intp]
    value: npt.NDArray[np.float32]
    roots: npt.NDArray[np.intp]
    depth: int


@functools.lru_cache(maxsize=64)
def flatten(model: Residual) -> Flat:
    """Nodes of a fitted tree."""
    trees = json.loads(bytes(model.booster.save_raw("json")))["learner"]["gradient_booster"]["model"]["trees"]
    feature, threshold, left, right, value, roots, depth = [], [], [], [], [], [], 0
    start = 0
    for tree in trees:
        go_left, go_right = np.array(tree["left_children"]), np.array(tree["right_children"])
        count = len(go_left)
        leaf = go_left < 0
        own = np.arange(count)
        roots.append(start)
        feature.append(np.where(leaf, 0, np.array(tree["split_indices"])))
        threshold.append(np.where(leaf, np.float32(np.inf), np.array(tree["split_conditions"], dtype=np.float32)))
        value.append(np.where(leaf, np.array(tree["split_conditions"], dtype=np.float32), np.float32(0)))
        left.append(np.where(leaf, own, go_left) + start)
        right.append(np.where(leaf, own, go_right) + start)
        level = np.zeros(count, dtype=int)
        for node in range(count):
            if not leaf[node]:
                level[go_left[node]] = level[go_right[node]] = level[node] + 1
        depth = max(depth, int(level.max(initial=0)))
        start += count
    parts = [np.concatenate(part) for part in (feature, threshold, left, right, value)]
    whole = [part.astype(np.intp) for part in (parts[0], parts[2], parts[3])]
    return Flat(
        whole[0], parts[1].astype(np.float32), whole[1], whole[2], parts[4].astype(np.float32), np.array(roots, dtype=np.intp), depth
    )


def log_ratio_of_one(model: Residual, features: Mapping[str, Floats]) -> float:
    """Same as `model.log_ratio` for one row, to float32 rounding. Features must not be NaN."""
    flat = flatten(model)
    row = np.array([features[name][0] for name in model.names], dtype=np.float32)
    node = flat.roots
    for _ in range(flat.depth):
        node = np.where(row[flat.feature[node]] < flat.threshold[node], flat.left[node], flat.right[node])
    return float(flat.value[node].sum(dtype=np.float64))
