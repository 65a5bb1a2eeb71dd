"""Tiles of the grouped GEMMs: what each stack's kernel takes for shapes that nobody tuned."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.library.names import KERNELS, STACKS
from perfmodel.library.terms import Floats

PATHS = ("any", "vllm_triton", "vllm_cutlass", "sglang_triton", "sglang_cutlass", "trtllm")
"""Grouped GEMM by stack: each has its own count of launches and share of the tensor rate."""
VLLM_TRITON, VLLM_CUTLASS, SGLANG_TRITON, SGLANG_CUTLASS = (PATHS.index(name) for name in PATHS[1:5])
_CUTLASS = ("cutlass", "flashinfer", "deepgemm", "trtllm")
_KIB = 1024.0


def _path(stack: str, kernel: str) -> int:
    """Place in PATHS; vLLM and SGLang run Triton unless a kernel says otherwise."""
    name = f"{stack}_cutlass" if kernel in _CUTLASS else f"{stack}_triton"
    return PATHS.index(stack if stack == "trtllm" else name) if stack in ("vllm", "sglang", "trtllm") else 0


PATH = np.array([[_path(stack, kernel) for kernel in KERNELS] for stack in STACKS])


def layer_tiles(
    gpu: GpuSpec, path: npt.NDArray[np.intp], tokens: Floats, experts: Floats, mean: Floats, blockwise: npt.NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """(rows, columns) of a tile in a whole layer. TensorRT-LLM tunes its CUTLASS tiles: the power of two over the mean load, 16 to 128 rows.

    FlashInfer's CUTLASS kernels are those of TensorRT-LLM with the first tile of their list, unless somebody tunes them: 128 by 16 on
    sm_90 (but for block-scaled fp8, another kernel), 32 by 128 elsewhere. Source: FlashInfer, cutlass_heuristic.cpp (candidate tiles of a
    grouped GEMM); get_default_config of vLLM (16, 32, 64, 128 rows up to 32, 96, 512, more tokens; 64 columns up to 64 tokens, else
    128) and SGLang (16 by 32 up to as many tokens as experts, else 64 by 64).
    """
    fitting = np.clip(np.exp2(np.ceil(np.log2(mean))), 16.0, 128.0)
    untuned = ((path == VLLM_CUTLASS) | (path == SGLANG_CUTLASS)) & ~blockwise
    hopper = gpu.capability[0] == 9
    few = tokens <= experts
    vllm = np.select([tokens <= 32, tokens <= 96, tokens <= 512], [16.0, 32.0, 64.0], 128.0)
    kinds = [path == VLLM_TRITON, path == SGLANG_TRITON, untuned]
    rows = np.select(kinds, [vllm, np.where(few, 16.0, 64.0), np.full_like(tokens, 128.0 if hopper else 32.0)], fitting)
    wide = np.select(kinds, [np.where(tokens <= 64, 64.0, 128.0), np.where(few, 32.0, 64.0), np.full_like(tokens, 16.0 if hopper else 128.0)], 128.0)
    return rows, wide


def kernel_tiles(gpu: GpuSpec, tokens: Floats, experts: Floats, hidden: Floats) -> tuple[Floats, Floats]:
    """(rows, columns) of a tile of the fused-MoE Triton kernel alone, as its public benchmark configures both GEMMs.

    Source: PipeWeave, analytical_model/triton_moe_calculator.py (Apache-2.0): by tokens, hidden size and shared memory an SM (up to 100,
    up to 164, or more KiB). Evidence: the steps of the H20 rows at 128, 256 and 512 tokens.
    """
    small = gpu.smem_per_sm_bytes <= 100 * _KIB
    middle = not small and gpu.smem_per_sm_bytes <= 164 * _KIB
    many = np.where(experts < 64, 64.0, 128.0) if small else np.full_like(tokens, 64.0 if middle else 128.0)
    rows = np.select([tokens <= 128, tokens <= 256, tokens <= 512, tokens <= 2048], [16.0, 32.0, 64.0, 64.0 if middle else 128.0], many)
    narrow = np.where((hidden <= 1536) & (tokens <= 128), 16.0, 64.0)
    return rows, narrow if small else np.full_like(tokens, 128.0)
