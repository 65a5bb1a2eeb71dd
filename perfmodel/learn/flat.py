"""One row through a boosted tree without the library's call overhead: all trees walk down together in numpy."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.learn.residual import Residual

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Flat:
    """Nodes of all trees in one array; `roots` are their first nodes. Siblings stand side by side, leaves point at themselves."""

    feature: npt.NDArray[np.intp]
    threshold: npt.NDArray[np.float32]
    left: npt.NDArray[np.intp]
    value: npt.NDArray[np.float32]
    roots: npt.NDArray[np.intp]
    depth: int


@functools.lru_cache(maxsize=64)
def flatten(model: Residual) -> Flat:
    """Nodes of a fitted tree, level by level: all roots, then the children of all of them, and so on."""
    trees = json.loads(bytes(model.booster.save_raw("json")))["learner"]["gradient_booster"]["model"]["trees"]
    start = np.cumsum([0, *(len(tree["left_children"]) for tree in trees)])

    def joined(name: str, kind: type) -> npt.NDArray[Any]:
        return np.concatenate([np.array(tree[name], dtype=kind) for tree in trees])

    owner = np.repeat(start[:-1], np.diff(start))
    go_left, go_right = joined("left_children", np.intp), joined("right_children", np.intp)
    split, condition = joined("split_indices", np.intp), joined("split_conditions", np.float32)
    levels = [start[:-1]]
    while len(levels[-1]):
        inner = levels[-1][go_left[levels[-1]] >= 0]
        levels.append((np.stack([go_left[inner], go_right[inner]], axis=1) + owner[inner, None]).ravel())
    order = np.concatenate(levels)
    place = np.empty(len(split), dtype=np.intp)
    place[order] = np.arange(len(order))
    leaf = go_left[order] < 0
    left = np.where(leaf, np.arange(len(order)), place[np.where(leaf, order, go_left[order] + owner[order])])
    return Flat(
        feature=np.where(leaf, 0, split[order]),
        threshold=np.where(leaf, np.float32(np.inf), condition[order]),
        left=left,
        value=np.where(leaf, condition[order], np.float32(0)),
        roots=np.arange(len(trees), dtype=np.intp),
        depth=len(levels) - 2,
    )


def log_ratio_of_one(model: Residual, features: Mapping[str, Floats]) -> float:
    """Same as `model.log_ratio` for one row, to float32 rounding. Features must not be NaN."""
    flat = flatten(model)
    row = np.array([features[name].item() for name in model.names], dtype=np.float32)
    node = flat.roots
    for _ in range(flat.depth):
        node = flat.left.take(node) + (row.take(flat.feature.take(node)) >= flat.threshold.take(node))
    return float(flat.value.take(node).sum(dtype=np.float64))
