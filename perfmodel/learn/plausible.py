"""Wrong units in a table of measurements are caught by size: seconds, milliseconds or nanoseconds differ from a model by a thousand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError

LIMIT = 20.0
"""How far the median row may lie from what a model says, as a factor. Of the measured tables in data/ none is further off than 2.4."""
_UNITS = {-2: "seconds", -1: "milliseconds", 1: "nanoseconds"}


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
