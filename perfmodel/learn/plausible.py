"""Latencies of a table of measurements: positive numbers, and microseconds, since another unit differs from a model by a thousand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError
from perfmodel.library.columns import plain_numbers

if TYPE_CHECKING:
    import pandas as pd

LIMIT = 20.0
"""How far the median row may lie from what a model says, as a factor. Of the measured tables in data/ none is further off than 2.4."""
_UNITS = {-2: "seconds", -1: "milliseconds", 1: "nanoseconds"}


def latencies_us(table: str, frame: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Column latency_us of a table that has it; raises InputError naming the rows that are not positive numbers."""
    latency = plain_numbers(table, "latency_us", frame["latency_us"])
    bad = np.flatnonzero(~(np.isfinite(latency) & (latency > 0)))
    if len(bad):
        rows = ", ".join(str(frame.index[i]) for i in bad[:5])
        raise InputError(f"the {table} table: latency_us must be a positive number of microseconds: rows {rows} are not ({len(bad)})")
    return latency


def check_microseconds(table: str, log_ratio: npt.NDArray[np.float64]) -> None:
    """Raise InputError where the median of log(measured / predicted) says that latency_us of a table is not microseconds."""
    shift = float(np.median(log_ratio))
    if abs(shift) <= np.log(LIMIT):
        return
    thousands = shift / np.log(1000.0)
    unit = _UNITS.get(round(thousands)) if abs(thousands - round(thousands)) < 0.25 else None
    raise InputError(
        f"latencies of the {table} table are {np.exp(shift):.2g} times what the model says: "
        f"latency_us must be microseconds, these look like {unit or 'another unit, or another GPU'}"
    )
