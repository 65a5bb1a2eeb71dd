"""Constants of the communication laws from measured rows: robust least squares, shrunk to a prior, and errors on sizes left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.bound import beats
from perfmodel.analytic.constants import Constant, constant_values, physics
from perfmodel.errors import InputError
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.intervals import out_of_fold
from perfmodel.learn.plausible import check_microseconds, latencies_us
from perfmodel.library.collective import LAW, CollectiveTerms, model
from perfmodel.library.collective_stacks import from_python
from perfmodel.ops import OperatorTable
from perfmodel.units import US_PER_S

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
MIN_ROWS = 12
NOISE = 0.1  # log error of a row that the laws do not explain at best: what a row weighs against the prior
PRIOR_WIDTH = 0.5  # standard deviation of log(constant / prior), times the share of its range that the constant's file allows
Z80 = 1.2816  # half width of a normal's 80 % interval in standard deviations
STEP = 2e-4  # of a log constant, for slopes
INSET = 0.05  # share of its range that a constant starts away from the ends: at an end the solver's first steps are too small to go on
MACHINES = (4, 8)  # GPUs of usual machines
BEYOND = 0.15  # weight of a prior's answers for more GPUs than were measured, beside all rows together
BEYOND_ROWS = 120  # of them are asked for each number of GPUs
FTOL = 1e-4  # share of the cost below which another step is not worth taking


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured collectives of one GPU, checked: columns as `model` takes them, log latency in seconds, and size groups."""

    gpu: GpuSpec
    columns: OperatorTable
    log_latency: Floats
    sizes: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.log_latency)

    def take(self, mask: Bools) -> Rows:
        """The rows of a mask."""
        return Rows(self.gpu, self.columns.take(mask), self.log_latency[mask], self.sizes[mask])

    def terms(self, constants: Mapping[str, float]) -> CollectiveTerms:
        """The law's answer for every row."""
        return model(self.gpu, self.columns, constants)

    def faster_than_physics(self) -> Bools:
        """Which rows take less than their links need at the datasheet's rate, by more than a margin for clocks."""
        return beats(np.exp(self.log_latency), self.terms({}).least_s)

    def errors(self, constants: Mapping[str, float]) -> Floats:
        """log(measured / predicted)."""
        return self.log_latency - np.log(self.terms(constants).latency_s)


def read_rows(gpu: GpuSpec, frame: pd.DataFrame) -> Rows:
    """Check a frame of measured collectives: kind, message_bytes, n_gpus, latency_us; optional stack, version, dtype, nodes, topology.

    Rows whose `status` is not ok are left out. Raises InputError for missing columns, non-positive or NaN latencies, and latencies
    that cannot be microseconds.
    """
    if "latency_us" not in frame.columns:
        raise InputError(f"the table of collectives lacks column latency_us; it has {', '.join(map(str, frame.columns))}")
    if "status" in frame.columns:
        frame = frame[frame["status"] == "ok"]
    latency = latencies_us(LAW, frame)
    columns = OperatorTable.read(LAW, frame)
    sizes = np.unique(columns["message_bytes"], return_inverse=True)[1].astype(np.int64)
    rows = Rows(gpu, columns, np.log(latency / US_PER_S), sizes)
    if len(rows):
        check_microseconds(LAW, rows.errors({}))
    return rows


def free_constants() -> dict[str, Constant]:
    """Constants that a fit may move: positive, with a range, and not an interval's width."""
    return {n: c for n, c in physics(LAW).items() if c.high > c.low and c.value > 0 and not n.startswith("sigma_")}


def fit_constants(tables: Sequence[Rows], prior: Mapping[str, float] | None = None, *, beyond: bool = False) -> dict[str, float]:
    """Constants that explain the rows of one or several GPUs at once, shrunk to `prior` (default: the spec tier's) within their ranges.

    Robust least squares (soft-l1) over log constants: the log error of each row, plus a Gaussian prior on each log constant. A
    constant that no row depends on keeps its prior. `beyond`: for questions about more GPUs than were measured, drawn weakly to the
    prior's answers there as well: rows of two GPUs cannot tell a start from a hop, and eight pay for seven hops.
    """
    from scipy.optimize import least_squares  # here, so that predicting does not wait two seconds for it

    known = free_constants()
    base = constant_values(LAW, prior)
    more = [t for rows in tables for t in answers_beyond(rows, base)] if beyond else []
    weights = [1.0] * len(tables) + [BEYOND] * len(more)
    tables = [*tables, *more]
    plain = [t.errors(base) for t in tables]
    moved = {n: [bool((t.errors({**base, n: base[n] * 1.05}) != e).any()) for t, e in zip(tables, plain, strict=True)] for n in known}
    names = [n for n, where in moved.items() if any(where)]
    start = np.array([base[n] for n in names])
    low = np.array([np.log(max(known[n].low, 1e-3 * known[n].value)) for n in names]) - np.log(start)
    high = np.log([known[n].high for n in names]) - np.log(start)
    width = np.clip((high - low) / 4, 0.03, PRIOR_WIDTH)
    scale = [w * np.sqrt(max(len(t) for t in tables) / len(t)) / NOISE for w, t in zip(weights, tables, strict=True)]
    at = np.cumsum([0, *map(len, tables)])

    def constants(x: Floats) -> dict[str, float]:
        return {**base, **dict(zip(names, (start * np.exp(x)).tolist(), strict=True))}

    def residuals(x: Floats) -> Floats:
        found = constants(x)
        return np.concatenate([*(s * t.errors(found) for s, t in zip(scale, tables, strict=True)), x / width])

    def slopes(x: Floats) -> Floats:
        """Forward differences, each constant on the tables that depend on it."""
        here, found = constants(x), np.zeros((int(at[-1]) + len(names), len(names)))
        errors = [t.errors(here) for t in tables]
        for j, name in enumerate(names):
            there = {**here, name: here[name] * float(np.exp(STEP))}
            for i, table in enumerate(tables):
                if moved[name][i]:
                    found[at[i] : at[i + 1], j] = scale[i] * (table.errors(there) - errors[i]) / STEP
        found[at[-1] :] = np.diag(1.0 / width)
        return found

    fitted = least_squares(
        residuals,
        np.clip(0.0, low + INSET * (high - low), high - INSET * (high - low)),
        slopes,
        bounds=(low - 1e-6, high + 1e-6),
        loss="soft_l1",
        f_scale=1.5,
        ftol=FTOL,
        max_nfev=25,
        x_scale=width,
    )
    return constants(fitted.x)


def answers_beyond(rows: Rows, constants: Mapping[str, float]) -> list[Rows]:
    """What a model says of the rows' questions for more GPUs of one machine than were measured; nothing where the machine has no more."""
    count = rows.columns["n_gpus"]
    grows = np.broadcast_to(rows.columns["kind"], count.shape) != "p2p"  # which stays between two
    inside = np.flatnonzero(grows & (np.broadcast_to(rows.columns.get("nodes", 1.0), count.shape) == 1))
    found = []
    for more in MACHINES:
        if not len(inside) or more <= count.max():
            continue
        few = np.zeros(len(rows), dtype=bool)
        few[inside[np.linspace(0, len(inside) - 1, min(BEYOND_ROWS, len(inside))).astype(int)]] = True
        asked = rows.take(few)
        asked = replace(asked, columns=asked.columns.having(n_gpus=np.full(len(asked), float(more))))
        try:
            found.append(replace(asked, log_latency=np.log(asked.terms(constants).latency_s)))
        except InputError:  # the machine holds fewer
            break
    return found


def held_out_errors(rows: Rows, prior: Mapping[str, float] | None, folds: int, seed: int) -> Floats:
    """log(measured / predicted) of each row by a fit that saw none of its message size."""
    return out_of_fold(
        rows.sizes, lambda train, held: rows.take(held).errors(fit_constants([rows.take(train)], prior)), folds=folds, seed=seed
    )


def sigmas(rows: Rows, errors: Floats) -> dict[str, float]:
    """Widths of the interval by regime: the nominal quantile of |log error| over a normal's, where steps, bandwidth or launch rule."""
    terms = rows.terms({})
    share = terms.seconds["bandwidth"] / terms.latency_s
    eager = np.zeros(len(rows), dtype=bool)
    if (stack := rows.columns.get("stack")) is not None:
        eager = np.isin(stack, [name for name in dict.fromkeys(stack) if from_python(name)])
    known = physics(LAW)
    found = {}
    for name, mask in (("sigma_steps", ~eager & (share < 0.5)), ("sigma_bandwidth", share >= 0.5), ("sigma_eager", eager & (share < 0.5))):
        limit = known[name]
        value = float(np.quantile(np.abs(errors[mask]), 0.8)) / Z80 if mask.sum() >= MIN_ROWS else limit.value
        found[name] = float(np.clip(value, limit.low, limit.high))
    return found
