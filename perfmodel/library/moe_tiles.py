"""Tiles of the grouped GEMMs: what each stack's kernel takes for shapes that nobody tuned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.library.terms import Floats
from perfmodel.ops import names
from perfmodel.ops.names import KERNELS, STACKS

PATHS = ("any", "vllm_triton", "vllm_cutlass", "sglang_triton", "sglang_cutlass", "trtllm")
"""Grouped GEMM by stack: each has its own count of launches and share of the tensor rate."""
VLLM_TRITON, VLLM_CUTLASS, SGLANG_TRITON, SGLANG_CUTLASS = (PATHS.index(name) for name in PATHS[1:5])
_CUTLASS = ("cutlass", "flashinfer", "deepgemm", "trtllm")
_KIB, _LINE = 1024.0, 128.0
_BLOCKWISE = names.DTYPES.index("fp8_block")


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows, columns and K elements a step of the tiles of n layers, each (n,)."""

    rows: Floats
    columns: Floats
    depth: Floats

    def where(self, condition: npt.NDArray[np.bool_], other: Tile) -> Tile:
        """These tiles where the condition holds, else the other ones."""
        pairs = ((self.rows, other.rows), (self.columns, other.columns), (self.depth, other.depth))
        return Tile(*(np.where(condition, mine, theirs) for mine, theirs in pairs))


def _path(stack: str, kernel: str) -> int:
    """Place in PATHS; vLLM and SGLang run Triton unless a kernel says otherwise."""
    name = f"{stack}_cutlass" if kernel in _CUTLASS else f"{stack}_triton"
    return PATHS.index(stack if stack == "trtllm" else name) if stack in ("vllm", "sglang", "trtllm") else 0


PATH = np.array([[_path(stack, kernel) for kernel in KERNELS] for stack in STACKS])


def layer_tiles(gpu: GpuSpec, columns: Mapping[str, Floats], path: npt.NDArray[np.intp], mean: Floats) -> Tile:
    """Tiles of a whole layer whose GPU sees `mean` rows an expert.

    TensorRT-LLM tunes its CUTLASS tiles: the power of two over the mean load, 16 to 128 rows. FlashInfer's CUTLASS kernels are the same
    with the first tile of their list, unless somebody tunes them: 128 by 16 on sm_90 (but for block-scaled fp8, another kernel), 32 by
    128 elsewhere. Source: FlashInfer, cutlass_heuristic.cpp (candidate tiles of a grouped GEMM).
    Triton, rows by columns by depth: SGLang, and vLLM's older releases, 16 by 32 by 64 up to as many tokens as this GPU has experts,
    else 64 by 64 by 32; newer vLLM 16, 32, 64, 128 rows up to 32, 96, 512, more tokens, 64 columns by 128 up to 64 tokens, else 128
    by 64; block-scaled fp8 64 by 128 by 128, 16 rows up to 64 tokens in vLLM. Source: get_default_config of both.
    """
    tokens, one = columns["tokens"], np.ones_like(columns["tokens"])
    code = columns["dtype"].astype(np.intp)
    blockwise, fp8, narrow = code == _BLOCKWISE, names.A_BYTES[code] < 2, tokens <= 64
    few = tokens <= columns["num_experts"] / columns["ep"]
    untuned = ((path == VLLM_CUTLASS) | (path == SGLANG_CUTLASS)) & ~blockwise
    plain = (path == SGLANG_TRITON) | ((path == VLLM_TRITON) & (columns["old"] > 0))
    first = (128.0, 16.0) if gpu.capability[0] == 9 else (32.0, 128.0)
    line = _LINE / names.A_BYTES[code]
    newer = np.select([tokens <= 32, tokens <= 96, tokens <= 512], [16.0, 32.0, 64.0], 128.0)
    fitting = np.clip(np.exp2(np.ceil(np.log2(mean))), 16.0, 128.0)
    kinds = (
        (untuned, first[0] * one, first[1] * one, line),
        (blockwise & (path == VLLM_TRITON), np.where(narrow, 16.0, 64.0), 128.0 * one, 128.0 * one),
        (blockwise & (path == SGLANG_TRITON), 64.0 * one, 128.0 * one, 128.0 * one),
        (plain, np.where(few, 16.0, 64.0), np.where(few, 32.0, 64.0), np.where(few, 64.0, 32.0)),
        (path == VLLM_TRITON, newer, np.where(narrow, 64.0, 128.0), np.where(narrow | fp8, 128.0, 64.0)),
    )
    where = [kind[0] for kind in kinds]
    rows, wide, deep = ([kind[i] for kind in kinds] for i in (1, 2, 3))
    return Tile(np.select(where, rows, fitting), np.select(where, wide, 128.0), np.select(where, deep, line))


def kernel_tiles(gpu: GpuSpec, tokens: Floats, experts: Floats, hidden: Floats) -> Tile:
    """Tiles of the fused-MoE Triton kernel alone, as its public benchmark configures both GEMMs.

    Source: PipeWeave, analytical_model/triton_moe_calculator.py (Apache-2.0): by tokens, hidden size and shared memory an SM (up to 100,
    up to 164, or more KiB). Evidence: the steps of the H20 rows at 128, 256 and 512 tokens.
    """
    small = gpu.smem_per_sm_bytes <= 100 * _KIB
    middle, one = not small and gpu.smem_per_sm_bytes <= 164 * _KIB, np.ones_like(tokens)
    many = np.where(experts < 64, 64.0, 128.0) if small else one * (64.0 if middle else 128.0)
    rows = np.select([tokens <= 128, tokens <= 256, tokens <= 512, tokens <= 2048], [16.0, 32.0, 64.0, 64.0 if middle else 128.0], many)
    narrow = np.where((hidden <= 1536) & (tokens <= 128), 16.0, 64.0)
    deep = np.where(tokens <= 256, 256.0 if small else 128.0, 64.0)
    return Tile(rows, narrow if small else one * 128.0, deep)
