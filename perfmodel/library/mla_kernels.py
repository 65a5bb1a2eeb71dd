"""What the laws of latent attention know of a kernel: a record of attributes, read from calibration/physics/mla_kernels.toml."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TypeVar

from perfmodel.analytic.constants import tables
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.records import Codes, Flags, Kernels, Records, merged
from perfmodel.library.stacks import ruled

FILE = "mla_kernels"


@dataclass(frozen=True, slots=True)
class MlaPrefillKernel:
    """One kernel of prefill.

    absorbed: multiplies with the up-projections absorbed; whole_blocks: blocks along the diagonal are multiplied as a whole;
    share_without_warpgroups: a constant of the law, by which its tensor rate is less where there are no warp groups.
    """

    absorbed: bool = False
    whole_blocks: bool = False
    share_without_warpgroups: str = ""


@dataclass(frozen=True, slots=True)
class MlaDecodeKernel:
    """One kernel of decode.

    head_rows: heads that a block multiplies at once; step_keys: keys of a step; whole_requests: blocks take whole requests, whose keys
    follow each other whatever the batch; most_splits: of a request's keys (0: as many as fill two blocks an SM); reads_by_block: each
    block of heads reads the cache anew; partial_sums: of 32 bits, that a second kernel adds; casts_cache: an 8-bit cache, the whole pool,
    is converted before.
    """

    head_rows: float = 64.0
    step_keys: float = 64.0
    whole_requests: bool = False
    most_splits: float = 0.0
    reads_by_block: bool = False
    partial_sums: bool = False
    casts_cache: bool = False


Record = TypeVar("Record", MlaPrefillKernel, MlaDecodeKernel)


@functools.cache
def names(phase: str) -> tuple[str, ...]:
    """The kernels of a phase in the order of their codes."""
    return tuple(name for name, entry in tables(FILE).items() if phase in entry)


@functools.cache
def _records(phase: str, kind: type[Record]) -> Records[Record]:
    return Records(tuple(kind(**merged(name, tables(FILE), phase)) for name in names(phase)))


def prefill_kernels(gpu: GpuSpec, stack: Codes, fp8_cache: Flags) -> Kernels[MlaPrefillKernel]:
    """The kernels of n prefill calls, by the rules of their stacks."""
    return Kernels(_records("prefill", MlaPrefillKernel), ruled("mla_prefill", gpu, stack, fp8_cache, names("prefill")))


def decode_kernels(gpu: GpuSpec, stack: Codes, fp8_cache: Flags) -> Kernels[MlaDecodeKernel]:
    """The kernels of n decode calls, by the rules of their stacks."""
    return Kernels(_records("decode", MlaDecodeKernel), ruled("mla_decode", gpu, stack, fp8_cache, names("decode")))
