"""The least time that a table of operators takes on a GPU, whoever runs it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.bound import beats, least_seconds
from perfmodel.hw.spec import GpuSpec
from perfmodel.ops import OperatorTable, names
from perfmodel.ops.work import Floats


def least_s(gpu: GpuSpec, table: OperatorTable) -> Floats:
    """Seconds below which no program does each row's work on a GPU (analytic/bound.py)."""
    return least_seconds(gpu, table.least_work(), _rates(gpu, table))


def _rates(gpu: GpuSpec, table: OperatorTable) -> Floats:
    """The fastest tensor rate that each row may be multiplied at: that of its element type or, in attention, of the cache's."""
    rates = names.fastest_rates(gpu)
    found = rates[table["dtype"].astype(np.intp)]
    if "kv_dtype" in table:
        found = np.maximum(found, rates[table["kv_dtype"].astype(np.intp)])
    return found


def faster_than_physics(gpu: GpuSpec, table: OperatorTable, latency_us: Floats) -> npt.NDArray[np.bool_]:
    """Which rows of a table of measured latencies, microseconds, cannot be: faster than the GPU by more than a margin for clocks."""
    return beats(latency_us * 1e-6, least_s(gpu, table))
