"""What an answer is where nobody named a stack: between the stacks that could run, with an interval that holds every one of them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
BY_STACK = ("attention", "mla")  # kinds whose stacks bring kernels of their own
INSIDE = 0.8  # of the stacks' mixture; the ends also keep every stack's own answer
MARGIN = 1.25
"""Widening of each stack's distribution: a stack named without its kernel runs several, and was judged with the kernel known."""
_STEPS = 12  # halvings: 1/4096 of the distance between the outermost ends
_LOGISTIC = math.log((1.0 + INSIDE) / (1.0 - INSIDE))  # half-width of a logistic distribution's middle INSIDE, in its scale


def between(latency_us: Floats, half: Floats) -> tuple[Floats, Floats, Floats]:
    """(latency, low, high), us, of n operators from the answers of s stacks, each (s, n); `half`: half-widths of their intervals in logs.

    Latency: the median of the stacks' (of an even number the geometric mean of the middle two), which no switch of one stack's kernel
    moves past its neighbours. Interval: the middle INSIDE of the stacks' distributions with equal weights, widened to hold every answer.
    """
    centres, half = np.log(latency_us), MARGIN * half
    scale = np.maximum(half, 1e-6) / _LOGISTIC
    ordered = np.sort(centres, axis=0)
    bottom, top = (centres - 2.0 * half).min(axis=0), (centres + 2.0 * half).max(axis=0)
    at = np.stack([bottom + top, bottom + top]) / 2.0  # where the interval's ends may be
    step = (top - bottom) / 4.0
    share = np.empty((2, *centres.shape))
    wanted = np.array([[(1.0 - INSIDE) / 2.0], [(1.0 + INSIDE) / 2.0]]) * len(centres)
    with np.errstate(over="ignore"):
        for _ in range(_STEPS):
            np.subtract(centres, at[:, None], out=share)
            share /= scale
            np.exp(share, out=share)
            share += 1.0
            np.divide(1.0, share, out=share)  # of each stack's distribution, below `at`
            at += np.where(np.add.reduce(share, axis=1) < wanted, step, -step)
            step /= 2.0
        below = 1.0 / (1.0 + np.exp((centres - at[:, None]) / scale))
    slope = np.add.reduce(below * (1.0 - below) / scale, axis=1)
    missing = wanted - np.add.reduce(below, axis=1)  # one of Newton's steps: without it rounding may move an end by a whole halving
    at += np.clip(missing / np.maximum(slope, 1e-9), -2.0 * step, 2.0 * step)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2.0
    return np.exp(middle), np.exp(np.minimum(at[0], ordered[0])), np.exp(np.maximum(at[1], ordered[-1]))
