"""What a graph pays before a kernel does useful work, and constants that differ by stack or kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.ops.names import STACKS

Floats = npt.NDArray[np.float64]


def launch_floor_s(gpu: GpuSpec, c: Mapping[str, float]) -> float:
    """Shortest back-to-back kernel of a CUDA graph, seconds: fixed part + DRAM round trips + clock cycles.

    Source: shortest public GEMM rows: 1.7 us on L40S, 1.8 on RTX PRO 6000, 2.45 on A100 and H100; the order follows DRAM latency.
    """
    return c["floor_us"] * 1e-6 + c["floor_latencies"] * gpu.dram_latency_s + c["floor_cycles"] / gpu.max_clock_hz


def stack_values(c: Mapping[str, float], prefix: str, stack: npt.NDArray[np.intp]) -> Floats:
    """Constant `<prefix>_<stack>` of each row's stack; `stack`: codes."""
    return named_values(c, prefix, STACKS, stack)


def named_values(c: Mapping[str, float], prefix: str, names: Sequence[object], codes: npt.NDArray[np.intp]) -> Floats:
    """Constant `<prefix>_<name>` of each row, whose name is names[code]."""
    table = np.array([c[f"{prefix}_{name}"] for name in names])
    result: Floats = table[codes]
    return result
