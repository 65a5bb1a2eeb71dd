"""Constants of a law drawn towards many subsets of one table: the law's derivatives are taken once and serve every subset.

A fit from the same start to each of thirty subsets (folds in folds) by finite differences asks the law for each of some eighty constants at
each step. Here the derivatives at the start, which no latency is in, are shared, and what a fit learns about them on its way is its own
(Broyden's update). Constants that move no row of the table stay where they are.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from perfmodel.calibrate.operator_rows import Rows, drawn, law_of
from perfmodel.calibrate.operators import CONSTANT_ROWS, MORE_ROWS, SCALE, free_constants, prior_weight

Floats = npt.NDArray[np.float64]
STEP = 1e-2  # of a log constant, for its derivative
UNMOVED = 1e-9  # log latency that a step must move on some row


class Refit:
    """Fits of a law's constants to subsets of `rows`, each from `start` and held there by `pull` times the first fit's prior."""

    def __init__(self, rows: Rows, start: Mapping[str, float], evaluations: int, pull: float) -> None:
        self._rows, self._start, self._evaluations, self._pull = rows, start, evaluations, pull
        names, self._value, self._low, self._high = free_constants(rows.model_key, start)
        self._names = names
        self._law = self._at(names, self._value)
        moved = np.stack([self._at([n], [v * np.exp(STEP)]) - self._law for n, v in zip(names, self._value, strict=True)], axis=1)
        used = np.abs(moved).max(axis=0) > UNMOVED
        self._names = [name for name, is_used in zip(names, used, strict=True) if is_used]
        self._value, self._low, self._high = self._value[used], self._low[used], self._high[used]
        self._slope = moved[:, used] / STEP
        self._found: dict[bytes, dict[str, float]] = {}

    def _at(self, names: list[str], values: npt.ArrayLike, rows: Rows | None = None) -> Floats:
        """Log of the law with these constants in place of those of the start."""
        own = dict(zip(names, np.asarray(values, dtype=np.float64).tolist(), strict=True))
        return law_of(self._rows if rows is None else rows, {**self._start, **own})[0]

    def constants(self, keep: npt.NDArray[np.bool_]) -> dict[str, float]:
        """The start's constants with those that the rows of a mask move."""
        key = keep.tobytes()
        if key not in self._found:
            at = np.flatnonzero(keep)
            self._found[key] = self._fit(at[drawn(len(at), MORE_ROWS.get(self._rows.model_key, CONSTANT_ROWS), np.random.default_rng(0))])
        return self._found[key]

    def _fit(self, at: npt.NDArray[np.intp]) -> dict[str, float]:
        if not self._names or len(at) == 0:
            return dict(self._start)
        rows, prior = self._rows.take(at), prior_weight(len(at), self._pull)
        slope = -self._slope[at]
        trials: list[tuple[Floats, Floats]] = []
        last: list[tuple[Floats, Floats]] = [(np.zeros(len(self._names)), rows.log_latency - self._law[at])]

        def residuals(x: Floats) -> Floats:
            left = last[0][1] if not x.any() else rows.log_latency - self._at(self._names, self._value * np.exp(x), rows)
            trials.append((np.array(x), left))
            return np.concatenate([left, prior * x])

        def slopes(x: Floats) -> Floats:
            before, then = last[0]
            step = x - before
            if length := float(step @ step):
                now = next(left for where, left in reversed(trials) if np.array_equal(where, x))
                slope[:] += np.outer((now - then - slope @ step) / length, step)
                last[0] = np.array(x), now
            return np.concatenate([slope, prior * np.eye(len(x))])

        found = least_squares(
            residuals,
            np.zeros(len(self._names)),
            slopes,
            (self._low, self._high),
            max_nfev=self._evaluations,
            loss="soft_l1",
            f_scale=SCALE,
        )
        moved = zip(self._names, self._value * np.exp(found.x), strict=True)
        return {**self._start, **{name: float(f"{value:.6g}") for name, value in moved}}
