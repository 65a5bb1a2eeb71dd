"""What the law of mixture of experts knows of a kernel: a record of attributes, read from calibration/physics/moe_kernels.toml."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from perfmodel.analytic.constants import tables
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.records import Codes, Kernels, Records
from perfmodel.library.stacks import like_first, rule_of, table_of_stacks
from perfmodel.ops.names import KERNELS, STACKS

FILE = "moe_kernels"
FITTING = "fitting"
_DISPATCH = ("title", "stack", "kernels", "source")  # of an entry: which calls run it, and what it is called


@dataclass(frozen=True, slots=True)
class MoeKernel:
    """The grouped GEMMs of a layer, and what a stack runs around them.

    launches, tensor_share, tensor_share_warpgroup: names of constants of the law; small_tile_share: of the tensor rate that tiles too
    small for two warp groups reach on the warp-group path ("" for all of it). singly_per_clock: elements a clock and SM where strides keep
    loads from being vectorised ("" where they do not). shares_sms: several blocks share an SM on the warp-group path, too; masks_padding:
    padding rows are not loaded; handles_routed_rows: every routed row is allotted, activated and summed, this GPU's or not.
    tiles, and of 8-bit operands, old releases, block scales and compute capability 9 where they differ: entries of moe_tiles.toml.
    """

    launches: str
    tensor_share: str = "tensor_share_mma"
    tensor_share_warpgroup: str = "tensor_share_wgmma"
    small_tile_share: str = ""
    singly_per_clock: str = ""
    shares_sms: bool = False
    masks_padding: bool = False
    handles_routed_rows: bool = False
    tiles: str = FITTING
    tiles_8bit: str = ""
    tiles_old: str = ""
    tiles_block: str = ""
    tiles_sm_9: str = ""

    def tiles_of(self, sm_9: bool, block: bool, old: bool, narrow: bool) -> str:
        """The entry of moe_tiles.toml for compute capability 9, block scales, an old release, and 8-bit operands."""
        usual = (self.tiles_sm_9 if sm_9 else "") or (self.tiles_8bit if narrow else "") or self.tiles
        return (self.tiles_block if block else "") or (self.tiles_old if old else "") or usual


@functools.cache
def names() -> tuple[str, ...]:
    """The kernels in the order of their codes."""
    return tuple(tables(FILE))


@functools.cache
def records() -> Records[MoeKernel]:
    """Their records."""
    entries = tables(FILE).values()
    return Records(tuple(MoeKernel(**{k: v for k, v in entry.items() if k not in _DISPATCH}) for entry in entries))


def kernels(gpu: GpuSpec, stack: Codes, kernel: Codes) -> Kernels[MoeKernel]:
    """The kernels of n layers, by the codes of their stack and of the kernel that was asked for."""
    return Kernels(records(), _codes(gpu.capability)[stack, kernel])


@table_of_stacks
def _codes(capability: tuple[int, int]) -> Codes:
    """(stack, kernel) -> code of its record: that of the kernel as the stack calls it, else of the one that its rules give."""
    known = list(tables(FILE).values())

    def place(stack: str, kernel: str) -> int:
        rule = rule_of("moe", capability, stack, False)
        wanted = (kernel, rule.kernel if rule else KERNELS[0], KERNELS[0])
        pairs = ((caller, name) for caller in like_first(stack) for name in wanted)
        return next(i for pair in pairs for i, entry in enumerate(known) if pair[0] == entry["stack"] and pair[1] in entry["kernels"])

    return np.array([[place(stack, kernel) for kernel in KERNELS] for stack in STACKS])
