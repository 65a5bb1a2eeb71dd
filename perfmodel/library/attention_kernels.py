"""What the attention laws know of a kernel: a record of attributes, read from calibration/physics/attention_kernels.toml.

A law prices a call of any such record; which record a call runs is for the stacks to say (library/stacks). Names of kernels and stacks
stand in the data and in the stacks, not in the laws.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.analytic.constants import tables
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.records import Codes, Kernels, Records, merged
from perfmodel.library.stacks import choosers, like_first, table_of_stacks
from perfmodel.library.terms import Floats
from perfmodel.ops.names import KERNELS, STACKS

FILE = "attention_kernels"
NEVER, WARPGROUP, ALWAYS = "never", "warpgroup", "always"
SKIPS, MASKS, SCREENS = "skips", "masks", "screens"
WAVES, BLOCKS, SLOTS, GIVEN = "waves", "blocks", "slots", "given"
REST = "rest"  # the record of a kernel that has none


@dataclass(frozen=True, slots=True)
class PrefillKernel:
    """One kernel of prefill.

    tiles, tiles_fp8, tiles_warpgroup, tiles_warpgroup_fp8: entries of attention_tiles.toml, for 16- and 8-bit multiplies on either tensor
    path (an empty one is the entry before it); packs_heads: the query heads of a KV head fill a tile together, whatever the entry says;
    narrow_wide_heads: takes 64 query rows in heads over 192 where two such blocks fit an SM. single_query_as_rows: with one query a
    sequence, the heads of a KV head become its query rows. multiplies_cache_type: never, on the warp-group path, or always in the type of
    the cache. window: blocks of keys outside are skipped, masked after they were multiplied, or screened (every block's mask is made).
    warpgroup_to_dim: widest head for which it issues warp-group multiplies, 0 for none; fills_pipeline: such a kernel multiplies one more
    block a query tile; two_accumulators: keeps wide heads in two groups there; varlen: a launch more for batches of different lengths.
    narrow_from_dim: heads over it run on tiles too few for full rate; spills_under_window: does in heads of
    193 to 256. two_level_fp8: adds 8-bit sums in two levels; indexed_append: appends values of uneven width by an indexed store.
    Names of constants of the law: tensor_share, tensor_share_warpgroup, fp8_share; unit_cycles, unit_cycles_warpgroup; screen_cost (a mask
    over the multiplies of its block), narrow_cost, narrow_mixed_cost (where keys are converted, too), spill_cost, spill_cost_fp8 (share of
    it with keys of half the size).
    """

    tiles: str
    tensor_share: str
    unit_cycles: str
    unit_cycles_warpgroup: str = "unit_cycles_wgmma"
    screen_cost: str = ""
    narrow_cost: str = ""
    narrow_mixed_cost: str = ""
    spill_cost: str = ""
    spill_cost_fp8: str = ""
    tiles_fp8: str = ""
    tiles_warpgroup: str = ""
    tiles_warpgroup_fp8: str = ""
    tensor_share_warpgroup: str = ""
    fp8_share: str = ""
    packs_heads: bool = False
    narrow_wide_heads: bool = False
    single_query_as_rows: bool = False
    multiplies_cache_type: str = NEVER
    window: str = SKIPS
    warpgroup_to_dim: float = 0.0
    fills_pipeline: bool = True
    two_accumulators: bool = True
    varlen: bool = False
    narrow_from_dim: float = 4096.0
    spills_under_window: bool = False
    two_level_fp8: bool = False
    indexed_append: bool = False

    def tiles_of(self, warpgroup: bool, fp8: bool) -> str:
        """The entry of attention_tiles.toml for a tensor path and the width of a multiply."""
        if warpgroup and self.tiles_warpgroup:
            return (self.tiles_warpgroup_fp8 if fp8 else "") or self.tiles_warpgroup
        return (self.tiles_fp8 if fp8 else "") or self.tiles


@dataclass(frozen=True, slots=True)
class DecodeKernel:
    """One kernel of decode.

    query_rows, query_rows_wide: rows that a multiply is padded to, and in heads over 128; head_by_head, head_by_head_under_window: each
    query head passes over the keys of its own; second_tile_over_group: query heads a KV head from which a second tile is needed.
    splits: how the keys are cut: into whole waves, by blocks of keys, by idle slots, or as the call says; splits_only_packed: only where
    heads share a pass; splits_to_bound: up to a bound that the stack gives for its graphs; prefill_kernel_unsplit: in one piece it is the
    kernel of prefill. block_tokens: keys of a block (0: split_tokens of the law), up to widest_block times that in narrow heads (0: in
    none); blocks_per_sm: resident blocks (0: the law's); slots_of_one_block: is cut as if one were.
    whole_tiles: multiplies whole warp-group tiles, fp8 as it is; transposes_values: for that, half as fast in heads over 128; one_stage:
    loads and multiplies take turns; turns_and_appends: rotates queries and appends keys itself; varlen: a launch more, for more than one
    sequence or for as many as are planned on the GPU. cuda_cores_below_group: without an 8-bit cache, smaller groups run on the CUDA cores.
    two_level_fp8, indexed_append: as in prefill. Names of constants of the law: unit_cycles, unit_dim_share, second_tile_cost,
    tensor_share, combine_cycles, convert, convert_fp8_sm_89 (where it differs), chain, launches_share (of those of a kernel that turns and
    appends itself), max_splits.
    """

    unit_cycles: str
    tensor_share: str
    combine_cycles: str = "combine_split_cycles"
    convert: str = "convert_per_clock"
    convert_fp8_sm_89: str = ""
    unit_dim_share: str = "unit_dim_share"
    second_tile_cost: str = ""
    launches_share: str = ""
    chain: str = ""
    max_splits: str = "max_splits"
    query_rows: float = 16.0
    query_rows_wide: float = 0.0
    head_by_head: bool = False
    head_by_head_under_window: bool = False
    second_tile_over_group: float = np.inf
    splits: str = SLOTS
    splits_only_packed: bool = False
    splits_to_bound: bool = False
    prefill_kernel_unsplit: bool = False
    block_tokens: float = 0.0
    widest_block: float = 0.0
    blocks_per_sm: float = 0.0
    slots_of_one_block: bool = False
    whole_tiles: bool = False
    transposes_values: bool = False
    one_stage: bool = False
    turns_and_appends: bool = False
    varlen: str = ""
    cuda_cores_below_group: float = 0.0
    two_level_fp8: bool = False
    indexed_append: bool = False


@functools.cache
def names(phase: str) -> tuple[str, ...]:
    """The records of a phase in the order of their codes."""
    return tuple(name for name in tables(FILE) if merged(name, tables(FILE), phase))


@functools.cache
def prefill_records() -> Records[PrefillKernel]:
    """The records of prefill."""
    return Records(tuple(PrefillKernel(**merged(name, tables(FILE), "prefill")) for name in names("prefill")))


@functools.cache
def decode_records() -> Records[DecodeKernel]:
    """The records of decode."""
    return Records(tuple(DecodeKernel(**merged(name, tables(FILE), "decode")) for name in names("decode")))


def prefill_kernels(stack: Codes, kernel: Codes) -> Kernels[PrefillKernel]:
    """The kernels of n prefill calls, by the codes of their stack and kernel."""
    return Kernels(prefill_records(), _codes("prefill")[stack, kernel])


def decode_kernels(
    gpu: GpuSpec, stack: Codes, kernel: Codes, columns: Mapping[str, Floats], fp8: Floats
) -> tuple[Kernels[DecodeKernel], Floats]:
    """(kernels of n decode calls, the shares that those which are told them by the call cut the keys into).

    A kernel that is several in decode is chosen call by call, as its stack says (Stack.decode_choosers).
    """
    code, shares = _codes("decode")[stack, kernel], np.ones_like(fp8)
    for name, choose in choosers().items():
        mine = kernel == KERNELS.index(name)
        if mine.any():
            records, chosen, cut = choose(gpu, columns, fp8)
            code = np.where(mine, np.array([names("decode").index(record) for record in records])[chosen], code)
            shares = np.where(mine, cut, shares)
    return Kernels(decode_records(), code), shares


@table_of_stacks
def _codes(phase: str) -> Codes:
    """(stack, kernel) -> code of its record: that of the kernel as the stack calls it, else the kernel's, else the rest's."""
    known = names(phase)

    def place(stack: str, kernel: str) -> int:
        wanted = (*(f"{caller} {kernel}" for caller in like_first(stack)), kernel, REST)
        return next(known.index(name) for name in wanted if name in known)

    return np.array([[place(stack, kernel) for kernel in KERNELS] for stack in STACKS])
