"""A few rows through a boosted tree without the library that made it: all trees walk down together in numpy, to the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float32]
Nodes = npt.NDArray[np.intp]
BLOCK = 64  # rows at a time: their nodes stay in cache


@dataclass(frozen=True, slots=True)
class Flat:
    """Nodes of all trees in one array, level by level: first the roots, siblings side by side, leaves point at themselves.

    features: how many a row has; feature, threshold: a row goes right where its feature is no less, which no row is in leaves;
    number: place of a node in its own tree.
    """

    features: int
    feature: Nodes
    threshold: npt.NDArray[np.float32]
    left: Nodes
    value: npt.NDArray[np.float32]
    number: npt.NDArray[np.uint16]
    trees: int
    depth: int

    def ends(self, rows: Rows) -> Nodes:
        """The leaves in which rows end, shape (trees, rows). No feature may be NaN."""
        first = np.arange(len(rows)) * self.features
        node: Nodes = np.arange(self.trees).repeat(len(rows)).reshape(self.trees, len(rows))
        for _ in range(self.depth):
            node = self.left.take(node) + (rows.take(self.feature.take(node) + first) >= self.threshold.take(node))
        return node

    def values(self, rows: Rows) -> npt.NDArray[np.float32]:
        """What each tree says of each row, shape (trees, rows)."""
        return self.value.take(self.ends(rows))

    def sums(self, rows: Rows) -> Floats:
        """Sum over the trees for each row: in float32, one tree after the other, as the library adds."""
        found = np.empty(len(rows))
        for start in range(0, len(rows), BLOCK):
            found[start : start + BLOCK] = np.add.accumulate(self.values(rows[start : start + BLOCK]), axis=0)[-1]
        return found

    def leaves(self, rows: Rows) -> npt.NDArray[np.uint16]:
        """Place of each row's leaf in each tree, shape (rows, trees)."""
        found = np.empty((len(rows), self.trees), dtype=np.uint16)
        for start in range(0, len(rows), BLOCK):
            found[start : start + BLOCK] = self.number.take(self.ends(rows[start : start + BLOCK])).T
        return found


def flatten(stored: Mapping[str, Any]) -> Flat:
    """Nodes of the trees in a booster as the library stores it; raises ValueError for one that makes no sense or adds to its trees."""
    learner = stored["learner"]
    size, trees = learner["learner_model_param"], learner["gradient_booster"]["model"]["trees"]
    if float(size["base_score"].strip("[]")) != 0.0:
        raise ValueError("its base_score is not 0")
    start = np.cumsum([0, *(len(tree["left_children"]) for tree in trees)])
    go_left, go_right, split = (
        np.concatenate([np.asarray(tree[name], dtype=np.intp) for tree in trees])
        for name in ("left_children", "right_children", "split_indices")
    )
    condition = np.concatenate([np.asarray(tree["split_conditions"], dtype=np.float32) for tree in trees])
    owner = np.repeat(start[:-1], np.diff(start))
    levels = [start[:-1]]
    while len(levels[-1]):
        inner = levels[-1][go_left[levels[-1]] >= 0]
        levels.append((np.stack([go_left[inner], go_right[inner]], axis=1) + owner[inner, None]).ravel())
        if sum(map(len, levels)) > len(owner):
            raise ValueError("nodes that lead in a circle")
    order = np.concatenate(levels)
    place = np.empty(len(split), dtype=np.intp)
    place[order] = np.arange(len(order))
    leaf = go_left[order] < 0
    return Flat(
        features=int(size["num_feature"]),
        feature=np.where(leaf, 0, split[order]),
        threshold=np.where(leaf, np.float32(np.nan), condition[order]),
        left=np.where(leaf, np.arange(len(order)), place[np.where(leaf, order, go_left[order] + owner[order])]),
        value=np.where(leaf, condition[order], np.float32(0)),
        number=(order - owner[order]).astype(np.uint16),
        trees=len(trees),
        depth=len(levels) - 2,
    )
