"""Occupancy: how many blocks of a kernel one SM holds at once, and which resource says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.errors import InputError
from perfmodel.hw.spec import GpuSpec

WARP = 32  # threads in a warp (CUDA programming guide, "Compute Capabilities")
PARTITIONS = 4  # SM sub-partitions, each with a quarter of the registers and warp slots (same; sm_70 and later)
LIMITERS = ("warps", "registers", "shared memory", "blocks")
_NO_LIMIT = np.int32(1 << 30)

Int = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Residency on one SM, as arrays of the broadcast shape of the inputs.

    blocks_per_sm is 0 where the block cannot be launched at all; limiter is an index into LIMITERS, the first of equals.
    """

    blocks_per_sm: Int
    active_warps: Int
    limiter: NDArray[np.int8]
    max_warps: int

    @property
    def fraction(self) -> NDArray[np.float64]:
        """Active warps over the SM's warp slots, 0 to 1."""
        return self.active_warps / self.max_warps

    @property
    def limiter_names(self) -> NDArray[np.str_]:
        """`limiter` in words."""
        return np.array(LIMITERS)[self.limiter]


def blocks_per_sm(gpu: GpuSpec, threads: ArrayLike, regs_per_thread: ArrayLike, smem_bytes: ArrayLike) -> Occupancy:
    """Resident blocks of a kernel on one SM.

    Inputs, broadcast against each other: threads of a block (1 or more), registers of a thread as the compiler reports them
    (0 = does not count), shared memory of a block in bytes, static plus dynamic.

        w      = ceil(threads / 32)                                            warps of a block
        r      = regs_per_thread * 32, rounded up to reg_alloc_unit (256)      registers of a warp: 8 a thread
        s      = smem_bytes + smem_reserved_bytes, rounded up to smem_alloc_unit_bytes
        blocks = min( max_warps_per_sm // w,
                      4 * (regs_per_sm // 4 // r) // w,                        a warp lives in one of four sub-partitions
                      smem_per_sm_bytes // s,
                      max_blocks_per_sm )

    and 0 where the launch fails: threads over max_threads_per_block, registers over max_regs_per_thread or shared memory over
    smem_per_block_bytes. (The driver also refuses r times w, w rounded up to four, over regs_per_sm; the second line is 0 there.)

    Source: CUDA C++ Programming Guide, "Compute Capabilities" (limits) and the occupancy calculator of the CUDA toolkit
    (Nsight Compute, "Occupancy Calculator"; cuda_occupancy.h), which round as above.
    Valid for sm_80 to sm_120, the largest shared-memory carve-out, no clusters.
    Evidence: the worked cases of tests/unit/test_occupancy.py; integer rules, so exact or wrong.
    """
    t = _whole("threads", threads, least=1)
    regs = _whole("regs_per_thread", regs_per_thread, least=0)
    smem = _whole("smem_bytes", smem_bytes, least=0)

    warps = -(-t // WARP)
    by_warps = np.where(t > gpu.max_threads_per_block, 0, gpu.max_warps_per_sm // warps)

    per_warp = np.maximum(_round_up(regs * WARP, gpu.reg_alloc_unit), 1)
    warps_with_regs = np.where(regs == 0, _NO_LIMIT, PARTITIONS * (gpu.regs_per_sm // PARTITIONS // per_warp))
    by_regs = np.where(regs > gpu.max_regs_per_thread, 0, warps_with_regs // warps)

    by_smem = gpu.smem_per_sm_bytes // _round_up(smem + gpu.smem_reserved_bytes, gpu.smem_alloc_unit_bytes)
    by_smem = np.where(smem > gpu.smem_per_block_bytes, 0, by_smem)

    blocks, limiter = _first_smallest(by_warps, by_regs, by_smem, np.int32(gpu.max_blocks_per_sm))
    return Occupancy(blocks, np.asarray(blocks * warps), limiter, gpu.max_warps_per_sm)


def _first_smallest(*limits: NDArray[np.integer] | np.integer) -> tuple[Int, NDArray[np.int8]]:
    """Elementwise minimum and the position of the first limit that attains it (faster than stacking and argmin)."""
    shape = np.broadcast_shapes(*(np.shape(limit) for limit in limits))
    best = np.broadcast_to(limits[0], shape).astype(np.int32)
    code = np.zeros(shape, dtype=np.int8)
    for position, limit in enumerate(limits[1:], start=1):
        code[limit < best] = position
        np.minimum(best, limit, out=best, casting="same_kind")
    return best, code


def _round_up(value: Int, unit: int) -> Int:
    return -(-value // np.int32(unit)) * np.int32(unit)


def _whole(name: str, values: ArrayLike, least: int) -> Int:
    """Whole numbers of at least `least`, as int32; anything above a million is as illegal as a million is."""
    array: NDArray[Any] = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise InputError(f"{name} must be whole numbers, not {array.dtype}")
    if array.dtype.kind == "f" and not np.all(array == np.floor(array)):  # False for NaN
        raise InputError(f"{name} must be whole numbers: got {array[~(array == np.floor(array))].flat[0]}")
    if array.size and array.min() < least:
        raise InputError(f"{name} must be at least {least}: got {array.min()}")
    whole: Int = np.minimum(array, 1_000_000).astype(np.int32)
    return whole
