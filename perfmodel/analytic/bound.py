"""The least time that any program takes for given work: what no answer may beat, and no row that teaches."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.ops.work import Work

Floats = npt.NDArray[np.float64]
CLOCK_MARGIN = 0.03
"""A measured row beats physics where it takes this much less than the bound: events resolve 0.5 us, and a memory clock or a board's boost
may lie some per cent over the datasheet."""


def least_seconds(gpu: GpuSpec, work: Work, flops_per_s: Any) -> Floats:
    """Seconds below which no program does `work`, broadcast over arrays.

        t >= max(flops / (rate x highest clock / boost clock), (bytes - L2) / DRAM rate)

    flops_per_s: the datasheet's dense rate, quoted at the boost clock; a device may clock up to max_clock_hz. Bytes: every input read
    once, every output written once; as many as the whole L2 holds may be there already, or stay. No efficiency is in it: it is a bound,
    not an estimate. Source: S. Williams et al., "Roofline", CACM 52(4), 2009.
    """
    compute = np.asarray(work.flops) / (np.asarray(flops_per_s) * (max(gpu.max_clock_hz, gpu.boost_clock_hz) / gpu.boost_clock_hz))
    memory = np.maximum(np.asarray(work.bytes) - gpu.l2_bytes, 0.0) / gpu.dram_bytes_per_s
    return np.asarray(np.maximum(compute, memory), dtype=np.float64)


def link_seconds(sent_bytes: Any, link_bytes_per_s: Any) -> Floats:
    """Seconds below which no algorithm sends `sent_bytes` over a GPU's link: bytes / rate of one direction. Broadcast over arrays."""
    return np.asarray(np.asarray(sent_bytes) / np.asarray(link_bytes_per_s), dtype=np.float64)


def within(latency: Any, low: Any, high: Any, least: Any) -> tuple[Any, Any, Any]:
    """(latency, low, high) that keep the bound and each other: least <= low <= latency <= high. Arrays or numbers of one unit."""
    latency = np.maximum(latency, least)
    return latency, np.clip(low, least, latency), np.maximum(high, latency)


def beats(latency_s: Any, least_s: Any) -> npt.NDArray[np.bool_]:
    """Which measured latencies are faster than the bound by more than CLOCK_MARGIN."""
    return np.asarray(np.asarray(latency_s) < np.asarray(least_s) * (1.0 - CLOCK_MARGIN), dtype=bool)
