"""How attention decode cuts its work: which query heads share a pass over the keys, and into how many shares the keys go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.library.arch import warpgroup_path
from perfmodel.library.attention_kernels import BLOCKS, GIVEN, WAVES, DecodeKernel
from perfmodel.library.attention_tiles import NARROW_FROM, NARROW_ROWS, narrow_tiles
from perfmodel.library.records import Flags, Kernels
from perfmodel.library.terms import Floats

TILE_ROWS = 64.0  # query heads of a pass at most
PREFILL_ROWS = 128.0  # query rows of the kernel of prefill
FEWEST_BLOCKS = 4.0  # key blocks up to which FlashAttention-3 does not split (hopper/heuristics.h, num_splits_heuristic)
MOST_SEQUENCES = 992.0  # of a batch whose shares are planned on the GPU (flash_prepare_scheduler.cu: 32 warps of 31 lanes)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a kernel cuts the work: query heads that share a pass over the keys, blocks along the keys, and whether a combine follows."""

    passes: Floats  # passes over the keys of one KV head: 1 where its query heads are packed into one tile
    rows: Floats  # padded query rows of a pass
    splits: Floats
    blocks_per_sm: Floats
    combined: npt.NDArray[np.bool_]  # a combine kernel is launched, whether or not this row's keys are split


def plan(
    gpu: GpuSpec,
    k: Kernels[DecodeKernel],
    columns: Mapping[str, Floats],
    seen: Floats,
    fp8: Floats,
    given: Floats,
    c: Mapping[str, float],
) -> Plan:
    """Packing and splits of each row; `given`: the shares of kernels that are told them by the call.

    A kernel that goes head by head passes over the keys once for each query head of a KV head. Splits are by rule of the kernel
    (DecodeKernel.splits): into whole waves of blocks (`full_waves`), as many as slots are idle, by blocks of keys (`_by_blocks`), or given.
    Before a window, shares of a kernel that is given them end at once; with an fp8 cache such kernels do not split on mma.sync.
    Evidence: public rows: a step of 2 us at the second block where a bound is given, window on over off = group (2 to 50) for
    FlashAttention-2 alone, 8x from group 48 on for kernels that go head by head, time = 18 ns x tokens for one unsplit head on L40S.
    """
    group = columns["q_heads"] / columns["kv_heads"]
    apart = (k.flag("head_by_head_under_window") & (columns["window"] > 0)) | k.flag("head_by_head")
    wide = k.number("query_rows_wide")
    tile = np.where((wide > 0) & (columns["head_dim"] > 128), wide, k.number("query_rows"))
    passes = np.where(apart, group, np.ceil(group / np.maximum(tile, TILE_ROWS)))
    rows = np.ceil(np.where(apart, 1.0, np.minimum(group, TILE_ROWS)) / tile) * tile
    own, widest = k.number("block_tokens"), k.number("widest_block")
    by_dim = np.where(widest > 0, np.clip(128.0 / columns["head_dim"], 0.5, np.maximum(widest, 0.5)), 1.0)
    blocks = np.ceil(seen / np.where(own > 0, own, c["split_tokens"] * by_dim))
    resident = k.number("blocks_per_sm")
    per_sm = np.where(resident > 0, resident, c["blocks_per_sm"])
    slots = gpu.sms * np.where(k.flag("slots_of_one_block"), 1.0, per_sm)
    heads = columns["kv_heads"] * passes
    units = columns["batch"] * heads
    wanted = np.where(k.flag("splits", WAVES), full_waves(units, 2.0 * gpu.sms), np.floor(slots / units))
    splits = np.clip(wanted, 1.0, np.minimum(blocks, k.constant(c, "max_splits")))
    splits = np.where(k.flag("splits_only_packed") & (apart | (group == 1)), 1.0, splits)
    by_blocks = k.flag("splits", BLOCKS)
    may, shares = _by_blocks(gpu, k, columns["batch"], heads, blocks)
    splits = np.where(by_blocks, np.where(may, shares, 1.0), splits)
    dense = k.flag("prefill_kernel_unsplit") & (splits <= 1.0)
    narrow = (columns["head_dim"] > NARROW_FROM) & narrow_tiles(gpu)
    rows = np.where(dense, np.where(narrow, NARROW_ROWS, PREFILL_ROWS), rows)
    busy = np.maximum(given * seen / columns["kv_len"], 1.0)
    cut = np.where(fp8 > 0, busy if warpgroup_path(gpu) else 1.0, given)
    splits = np.where(k.flag("splits", GIVEN), cut, splits)
    return Plan(passes, rows, splits, per_sm, np.where(by_blocks, may, splits > 1.0))


def _by_blocks(gpu: GpuSpec, k: Kernels[DecodeKernel], batch: Floats, heads: Floats, blocks: Floats) -> tuple[Flags, Floats]:
    """(whether a kernel that cuts by blocks of keys may split, and launches its combine kernel; the shares that it then takes).

    It splits from five key blocks on while the KV heads of one sequence leave SMs idle, into shares of ceil(1.1 blocks / SMs); where the
    stack gives it a bound instead (`splits_to_bound`), from two blocks on, and batches of over MOST_SEQUENCES not at all.
    Source: flash-attention, flash_api.cpp, hopper/heuristics.h and flash_prepare_scheduler.cu.
    """
    bound = k.flag("splits_to_bound")
    may = np.where(bound, (blocks > 1.0) & (batch <= MOST_SEQUENCES), blocks > FEWEST_BLOCKS) & (heads < 0.8 * gpu.sms)
    dynamic = np.ceil(blocks / np.ceil(1.1 * blocks * batch * heads / gpu.sms))
    return may, np.minimum(dynamic, np.maximum(np.floor(gpu.sms / heads), 1.0))


def full_waves(units: Floats, slots: float) -> Floats:
    """Shares of the keys that FlashAttention-2 takes: the fewest that fill whole waves to 85 %, one from 0.8 slots on.

    Source: flash-attention 2.7, flash_api.cpp, num_splits_heuristic, asked with two blocks an SM.
    """
    shares = [np.floor(waves * slots / units) for waves in (1.0, 2.0, 3.0)]
    fills = [units * share / (waves * slots) >= 0.85 for waves, share in zip((1.0, 2.0, 3.0), shares, strict=True)]
    found: Floats = np.where(units >= 0.8 * slots, 1.0, np.select(fills[:2], shares[:2], shares[2]))
    return found
