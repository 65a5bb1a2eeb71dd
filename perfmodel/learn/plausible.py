"""Latencies of a user's table: positive microseconds, of one GPU, that grow with the work. Rows that cannot be are left out, by number.

The limits were set where no measured table comes near: of the 1.4 million operator rows of data/ none is further from the model than a row
may be, and of 8,800 random tables of 24 rows of one stack the least rank agreement with the law is 0.39.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError, InputWarning
from perfmodel.ops.cells import plain_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
LIMIT = 20.0
"""How far the median row may lie from what a model says, as a factor. Of the measured tables in data/ none is further off than 2.4."""
FASTEST, SLOWEST = 1.0 / 50.0, 500.0
"""How far a single row may, measured over predicted. Measured tables have rows from 0.099 to 161: bad tactics run long."""
MOST_LEFT_OUT = 0.5  # share of a table's rows beyond which it is wrong as a whole
AGREEMENT = 0.3  # least rank correlation of latencies with what the law says of them
VARIED = 0.5  # where the law's log latencies have at least this standard deviation
AGREEING_ROWS = 16
EQUAL = 0.9  # share of the rows that may have one and the same latency, where the law's vary
APART = np.log(2.0)  # repeats of one question that far from their median were not measured alike
APART_SHARE = 0.5  # share of the rows that may be such repeats
SHOWN = 5  # row numbers that a line shows
_UNITS = {-2: "seconds", -1: "milliseconds", 1: "nanoseconds"}


def latencies_us(table: str, frame: pd.DataFrame) -> Floats:
    """Column latency_us of a table that has it; raises InputError naming the rows that are not positive numbers."""
    latency = plain_numbers(table, "latency_us", frame["latency_us"])
    bad = np.flatnonzero(~(np.isfinite(latency) & (latency > 0)))
    if len(bad):
        rows = ", ".join(str(frame.index[i]) for i in bad[:SHOWN])
        raise InputError(f"the {table} table: latency_us must be a positive number of microseconds: rows {rows} are not ({len(bad)})")
    return latency


def check_microseconds(table: str, log_ratio: Floats) -> None:
    """Raise InputError where the median of log(measured / predicted) says that latency_us of a table is not microseconds."""
    shift = float(np.median(log_ratio))
    if abs(shift) <= np.log(LIMIT):
        return
    raise InputError(
        f"latencies of the {table} table are {np.exp(shift):.2g} times what the model says: "
        f"latency_us must be microseconds, these look like {_unit(shift) or 'another unit, or another GPU'}"
    )


def _unit(shift: float) -> str | None:
    thousands = shift / np.log(1000.0)
    return _UNITS.get(round(thousands)) if abs(thousands - round(thousands)) < 0.25 else None


def numbered(labels: Sequence[object] | npt.NDArray[np.object_], at: npt.NDArray[np.intp]) -> str:
    """'row 3', or 'rows 3, 17, 21 (of 12)' with the first few."""
    shown = ", ".join(str(labels[i])[:20] for i in at[:SHOWN])
    return f"row{'s' if len(at) > 1 else ''} {shown}{f' ({len(at)} such rows)' if len(at) > SHOWN else ''}"


def usable(
    table: str,
    labels: Sequence[object],
    log_measured: Floats,
    log_model: Floats,
    log_law: Floats,
    too_fast: Bools | None,
    agreement: float = AGREEMENT,
) -> Bools:
    """Which rows of a table may teach; says in one warning a reason which are left out.

    log_model: what the model that answers says of each row, log_law: what the law alone does (log seconds); too_fast: rows that beat the
    card's peaks. Raises InputError where the table is wrong as a whole: another unit, one latency for all, no relation to the work.
    """
    log_ratio = log_measured - log_model
    _check_varied(table, log_measured, log_law)
    check_microseconds(table, log_ratio)
    _check_agreement(table, log_measured, log_law, agreement)
    off = (log_ratio < np.log(FASTEST)) | (log_ratio > np.log(SLOWEST))
    beyond = np.zeros(len(off), dtype=bool) if too_fast is None else too_fast & ~off
    good: Bools = ~off & ~beyond
    if good.mean() <= 1.0 - MOST_LEFT_OUT:
        why = "beat the card's peaks" if beyond.sum() > off.sum() else "are far from what the card can do"
        raise InputError(f"the {table} table: {numbered(labels, np.flatnonzero(~good))} {why}: wrong GPU, unit or sizes?")
    for rows, why in ((off, _why_off(log_ratio[off])), (beyond, "faster than the card's peaks allow")):
        if rows.any():
            warnings.warn(f"the {table} table: left out {numbered(labels, np.flatnonzero(rows))}: {why}", InputWarning, stacklevel=4)
    return good


def _why_off(log_ratio: Floats) -> str:
    if not len(log_ratio):
        return ""
    unit = _unit(float(np.median(log_ratio)))
    ends = " to ".join(f"{np.exp(x):.2g}" for x in sorted({float(log_ratio.min()), float(log_ratio.max())}))
    return f"{ends} times what the model says{f', perhaps {unit}' if unit else ''}"


def _check_varied(table: str, log_measured: Floats, log_law: Floats) -> None:
    """Raise InputError for one latency of all rows, where the law says that they differ."""
    if len(log_measured) < AGREEING_ROWS or float(np.std(log_law)) < VARIED:
        return
    values, count = np.unique(log_measured, return_counts=True)
    if count.max() > EQUAL * len(log_measured):
        us = float(np.exp(values[count.argmax()])) * 1e6
        low, high = (float(np.exp(x)) * 1e6 for x in (log_law.min(), log_law.max()))
        raise InputError(
            f"the {table} table: {count.max()} of {len(log_measured)} rows have the latency {us:.4g} us, "
            f"where the law says {low:.3g} to {high:.3g} us: not measured?"
        )


def _check_agreement(table: str, log_measured: Floats, log_law: Floats, least: float) -> None:
    """Raise InputError for latencies that do not grow with the work."""
    if len(log_measured) < AGREEING_ROWS or float(np.std(log_law)) < VARIED:
        return
    found = rank_correlation(log_measured, log_law)
    if found < least:
        raise InputError(
            f"the {table} table: latencies and the work of their rows are unrelated (rank correlation {found:.2f}, expected {least:g} "
            "or more): are rows shuffled, or columns swapped?"
        )


def rank_correlation(one: Floats, other: Floats) -> float:
    """Spearman's: the correlation of mean ranks."""
    ranks = [_ranks(one), _ranks(other)]
    if min(float(r.std()) for r in ranks) == 0.0:
        return 0.0
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def _ranks(values: Floats) -> Floats:
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return ((last - (count - 1) / 2.0).astype(np.float64))[group.reshape(-1)]


def check_repeats(table: str, labels: Sequence[object], key: Floats, log_measured: Floats) -> None:
    """Repeats of one question (equal rows of `key`) far from their median: said in a line, refused where most rows are such."""
    order = np.lexsort((log_measured, *key.T))
    ordered, values = np.nan_to_num(key[order], nan=-1.0), log_measured[order]
    start = np.flatnonzero(np.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)]))
    count = np.diff(np.append(start, len(values)))
    median = 0.5 * (values[start + (count - 1) // 2] + values[start + count // 2])
    off = np.zeros(len(values), dtype=bool)
    off[order] = np.abs(values - np.repeat(median, count)) > APART
    if not off.any():
        return
    said = f"{numbered(labels, np.flatnonzero(off))} repeat questions with latencies over {np.exp(APART):.2g} times off their median"
    if len(key) >= AGREEING_ROWS and off.mean() > APART_SHARE:
        raise InputError(f"the {table} table: {said}: is a column missing that tells them apart (dtype, stack, kernel ...)?")
    warnings.warn(f"the {table} table: {said}: the median is taken", InputWarning, stacklevel=4)
