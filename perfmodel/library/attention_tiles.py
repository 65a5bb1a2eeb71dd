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
from perfmodel.library.attention_kernels import PrefillKernel, prefill_records
from perfmodel.library.records import Kernels
from perfmodel.library.terms import Floats

_DIM = 256  # head_dim of FlashAttention-2's widest kernel
_STEP = 32  # head dims are looked up in steps of 32, up to 512
NARROW_ROWS, NARROW_FROM = 64.0, 192.0  # query rows of narrow_wide_heads, and the head_dim over which


@functools.cache
def _table(warpgroup: bool) -> npt.NDArray[np.float64]:
    """(record, 8-bit multiply, head_dim step, [query rows, keys, packed]) of one tensor path."""
    records = prefill_records().records
    known: Mapping[str, Any] = tables("attention_tiles")
    out = np.zeros((len(records), 2, 512 // _STEP, 3))
    for index, record in enumerate(records):
        for fp8 in range(2):
            entry = known[record.tiles_of(warpgroup, bool(fp8))]
            for step in range(512 // _STEP):
                at = min(int(np.searchsorted(entry["head_dim"], (step + 1) * _STEP)), len(entry["head_dim"]) - 1)
                out[index, fp8, step] = entry["q_rows"][at], entry["keys"][at], entry.get("packed", False) or record.packs_heads
    return out


def tiles(
    gpu: GpuSpec, kernels: Kernels[PrefillKernel], head_dim: Floats, group: Floats, fp8: npt.NDArray[np.bool_]
) -> tuple[Floats, Floats, Floats]:
    """(query tokens, keys, query heads) of a tile of each row; `group`: query heads a KV head; `fp8`: 8-bit multiplies.

    Kernels that pack hold all query heads of a KV head in one tile, and fewer tokens of each.
    """
    step = np.clip(np.ceil(head_dim / _STEP) - 1, 0, 512 // _STEP - 1).astype(np.intp)
    found = _table(warpgroup_path(gpu))[kernels.code, fp8.astype(np.intp), step]
    rows, keys, packed = found[..., 0], found[..., 1], found[..., 2] > 0
    if narrow_tiles(gpu):
        rows = np.where(kernels.flag("narrow_wide_heads") & (head_dim > NARROW_FROM), NARROW_ROWS, rows)
    heads = np.where(packed, np.minimum(group, rows), 1.0)
    return rows / heads, keys, heads


def narrow_tiles(gpu: GpuSpec) -> bool:
    """Whether FlashAttention-2 takes 64 query rows instead of 128 at head_dim over 192: two such blocks fit an SM, or no larger one fits.

    Source: flash-attention 2.7, flash_fwd_launch_template.h, run_mha_fwd_hdim256: bytes of the query rows and two tiles of 64 keys.
    """
    wide, narrow = 2 * _DIM * (128 + 2 * 64), 2 * _DIM * (64 + 2 * 64)
    return gpu.smem_per_block_bytes < wide or gpu.smem_per_sm_bytes >= 2 * narrow
