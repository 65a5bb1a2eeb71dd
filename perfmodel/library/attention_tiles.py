"""Tiles of attention prefill: how many query rows and keys a kernel handles at once, from the kernels' public code."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.constants import tables
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.arch import warpgroup_path
from perfmodel.library.names import KERNELS, STACKS
from perfmodel.library.terms import Floats

_VLLM, _SGLANG = STACKS.index("vllm"), STACKS.index("sglang")
_FA2 = KERNELS.index("fa2")
_DIM = 256  # head_dim of FlashAttention-2's widest kernel
_STEP = 32  # head dims are looked up in steps of 32, up to 512


@functools.cache
def _table(warpgroup: bool) -> npt.NDArray[np.float64]:
    """(kernel, 8-bit multiply, paged FlashAttention-2, head_dim step, [query rows, keys, packed]) of one tensor path."""
    known: Mapping[str, Any] = tables("attention_tiles")
    out = np.zeros((len(KERNELS), 2, 2, 512 // _STEP, 3))
    for index, kernel in enumerate(KERNELS):
        for fp8 in range(2):
            for paged in range(2):
                names = [kernel]
                if kernel == "trtllm":
                    names = [f"trtllm_wgmma{'_fp8' * fp8}" if warpgroup else "trtllm_mma"]
                elif kernel == "fa2" and paged:
                    names = ["fa2_paged"]
                elif kernel == "fa3" and fp8:
                    names = ["fa3_fp8"]
                elif kernel == "triton" and warpgroup:
                    names = ["triton_wgmma"]
                entry = next((known[name] for name in names if name in known), known["other"])
                for step in range(512 // _STEP):
                    at = min(int(np.searchsorted(entry["head_dim"], (step + 1) * _STEP)), len(entry["head_dim"]) - 1)
                    out[index, fp8, paged, step] = entry["q_rows"][at], entry["keys"][at], entry.get("packed", False)
    return out


def tiles(
    gpu: GpuSpec, stack: npt.NDArray[np.intp], kernel: npt.NDArray[np.intp], head_dim: Floats, group: Floats, fp8: npt.NDArray[np.bool_]
) -> tuple[Floats, Floats, Floats]:
    """(query tokens, keys, query heads) of a tile of each row; `group`: query heads a KV head; `fp8`: 8-bit multiplies.

    Kernels that pack hold all query heads of a KV head in one tile, and fewer tokens of each. On sm_80 SGLang calls FlashAttention-3's
    code for mma.sync, which has FlashAttention-2's tiles but packs. Source: sglang, sgl-kernel/python/sgl_kernel/flash_attn.py,
    is_fa3_supported; public rows: MHA as FlashAttention-2, groups of 8 and more 1.5 to 2 times as fast at 16 query tokens.
    """
    step = np.clip(np.ceil(head_dim / _STEP) - 1, 0, 512 // _STEP - 1).astype(np.intp)
    found = _table(warpgroup_path(gpu))[kernel, fp8.astype(np.intp), ((stack == _VLLM) & (kernel == _FA2)).astype(np.intp), step]
    rows, keys, packed = found[..., 0], found[..., 1], (found[..., 2] > 0) | ((stack == _SGLANG) & (kernel == _FA2))
    if narrow_tiles(gpu):
        rows = np.where((kernel == _FA2) & (head_dim > 192), 64.0, rows)
    heads = np.where(packed, np.minimum(group, rows), 1.0)
    return rows / heads, keys, heads


def narrow_tiles(gpu: GpuSpec) -> bool:
    """Whether FlashAttention-2 takes 64 query rows instead of 128 at head_dim over 192: two such blocks fit an SM, or no larger one fits.

    Source: flash-attention 2.7, flash_fwd_launch_template.h, run_mha_fwd_hdim256: bytes of the query rows and two tiles of 64 keys.
    """
    wide, narrow = 2 * _DIM * (128 + 2 * 64), 2 * _DIM * (64 + 2 * 64)
    return gpu.smem_per_block_bytes < wide or gpu.smem_per_sm_bytes >= 2 * narrow
