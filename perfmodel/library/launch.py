"""What a graph pays before a kernel does useful work, and which kernel a stack takes when nobody says."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.library.names import KERNELS, STACKS

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


def likely_attention_kernel(
    gpu: GpuSpec, stack: npt.NDArray[np.intp], kernel: npt.NDArray[np.intp], fp8_cache: npt.NDArray[np.bool_]
) -> npt.NDArray[np.intp]:
    """Kernel of each row, with the stack's own default where none was named.

    vLLM: FlashAttention-3 on sm_90, FlashAttention-2 elsewhere, FlashInfer for an fp8 cache off Hopper and on sm_100; SGLang: FA3 on
    sm_90, FlashInfer later, FA2 on sm_80; TRT-LLM its own; torch FA2. Source: the kernels that public rows name.
    """
    return _usual_kernels(gpu.capability)[fp8_cache.astype(np.intp), stack, kernel]


@functools.lru_cache(maxsize=32)
def _usual_kernels(capability: tuple[int, int]) -> npt.NDArray[np.intp]:
    """(fp8 cache, stack, named kernel) -> kernel, of one compute capability."""
    hopper = capability[0] == 9
    flash = "fa3" if hopper else "flashinfer" if capability[0] == 10 else "fa2"
    sglang = "fa3" if hopper else "fa2" if capability == (8, 0) else "flashinfer"
    fp8 = {"vllm": flash if hopper else "flashinfer"}
    table = np.broadcast_to(np.arange(len(KERNELS)), (2, len(STACKS), len(KERNELS))).copy()
    for stack, kernel in (("vllm", flash), ("sglang", sglang), ("trtllm", "trtllm"), ("torch", "fa2")):
        table[:, STACKS.index(stack), 0] = KERNELS.index(kernel), KERNELS.index(fp8.get(stack, kernel))
    return table
