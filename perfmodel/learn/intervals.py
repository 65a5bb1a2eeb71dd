"""Intervals by grouped split conformal prediction: honest widths from residuals of whole groups the model did not see."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
NOMINAL = 0.80
OUTSIDE = 2.0
"""Widening of an interval (in logs) outside what its model was fitted on: a stated guess near the evidence of GPUs left out. Of the A100's
MoE rows outside the others' range the plain interval covers 27 %, the doubled one 90 %; of the H200's memory-bound rows 39 and 62 %."""


def group_folds(groups: npt.NDArray[np.int64], folds: int, seed: int = 0) -> Iterator[tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]]:
    """Yield (train, held-out) masks that split by whole groups into `folds` parts, the same for the same seed."""
    unique = np.unique(groups)
    order = np.random.default_rng(seed).permutation(unique)
    parts = np.array_split(order, min(folds, len(unique)))
    for part in parts:
        held = np.isin(groups, part)
        yield ~held, held


def out_of_fold(
    groups: npt.NDArray[np.int64],
    fit_predict: Callable[[npt.NDArray[np.bool_], npt.NDArray[np.bool_]], Floats],
    folds: int = 5,
    seed: int = 0,
) -> Floats:
    """Predictions for every row by a model that saw none of its group.

    `fit_predict(train, held)` returns those of `held`: an array whose first axis is the held-out rows.
    """
    pieces = [(held, fit_predict(train, held)) for train, held in group_folds(groups, folds, seed)]
    result = np.zeros((len(groups), *pieces[0][1].shape[1:]))
    for held, piece in pieces:
        result[held] = piece
    return result


def conformal_bounds(errors: Floats, weight: Floats | None = None, nominal: float = NOMINAL) -> tuple[float, float]:
    """(low, high) such that a new error lies between them with probability `nominal` or more, where there are 9 errors or more.

    errors are out-of-fold log(measured / predicted); the tails are equal, (1 - nominal) / 2 each: the bounds are the errors of rank
    floor((n + 1) tail) from below and from above, the standard ranks of split conformal prediction; fewer errors give their range.
    Source: Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, 2005; Lei et al., JASA 113, 2018.
    """
    mass = np.ones(len(errors)) if weight is None else weight
    share = 1.0 - (1.0 - nominal) / 2.0
    return -upper_bound(-errors, share, mass), upper_bound(errors, share, mass)


def upper_bound(errors: Floats, share: float, weight: Floats | None = None) -> float:
    """The error that a new one exceeds with probability 1 - share at most: the one of rank ceil((n + 1) share), or the largest."""
    order = np.argsort(errors)
    mass = np.ones(len(order)) if weight is None else weight[order]
    rank = np.cumsum(mass) / mass.sum() * len(order)
    wanted = share * (len(order) + 1) - 1e-9
    return float(errors[order][min(int(np.searchsorted(rank, wanted)), len(order) - 1)])
