"""What a graph pays before a kernel does useful work, and constants that differ by stack or kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.library.stacks import like_first, table_of_stacks
from perfmodel.ops.names import STACKS

Floats = npt.NDArray[np.float64]


def launch_floor_s(gpu: GpuSpec, c: Mapping[str, float]) -> float:
    """Shortest back-to-back kernel of a CUDA graph, seconds: fixed part + DRAM round trips + clock cycles.

    Source: shortest public GEMM rows: 1.7 us on L40S, 1.8 on RTX PRO 6000, 2.45 on A100 and H100; the order follows DRAM latency.
    """
    return c["floor_us"] * 1e-6 + c["floor_latencies"] * gpu.dram_latency_s + c["floor_cycles"] / gpu.max_clock_hz


def stack_values(c: Mapping[str, float], prefix: str, stack: npt.NDArray[np.intp]) -> Floats:
    """Constant `<prefix>_<stack>` of each row's stack, or of the one that it is like where it has none; `stack`: codes."""
    table = np.array([next(c[key] for key in keys if key in c) for keys in _keys(prefix)])
    result: Floats = table[stack]
    return result


@table_of_stacks
def _keys(prefix: str) -> list[list[str]]:
    """By code of a stack: names that its constant may have, the likeliest first."""
    return [[f"{prefix}_{name}" for name in like_first(stack)] for stack in STACKS]


def named_values(c: Mapping[str, float], prefix: str, names: Sequence[object], codes: npt.NDArray[np.intp]) -> Floats:
    """Constant `<prefix>_<name>` of each row, whose name is names[code]."""
    table = np.array([c[f"{prefix}_{name}"] for name in names])
    result: Floats = table[codes]
    return result
