"""Occupancy against hand-worked cases of CUDA's calculator, and against filling an SM block by block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.analytic.occupancy import LIMITERS, blocks_per_sm
from perfmodel.errors import InputError
from perfmodel.hw import GpuSpec, gpu

KIB = 1024

# gpu, threads, registers, shared memory -> blocks, limiter. Limits: CUDA C++ Programming Guide, compute capability table;
# rounding: the occupancy calculator (256 registers a warp, 128 B and 1 KiB reserved a block).
CASES = [
    # warps: 64 / 8; registers would allow 64 warps too (32 x 32 = 1024 each), the first of equals is named
    ("a100_sxm4_80gb", 256, 32, 0, 8, "warps"),
    ("h100_sxm", 1024, 32, 0, 2, "warps"),
    ("l40s", 1024, 32, 0, 1, "warps"),  # 48 warps hold one block of 32
    ("l40s", 512, 32, 0, 3, "warps"),
    # block slots: 32, 16, 24, 32, 24 of one warp each
    ("a100_sxm4_80gb", 32, 16, 0, 32, "blocks"),
    ("a10", 32, 16, 0, 16, "blocks"),
    ("l20", 32, 16, 0, 24, "blocks"),
    ("b200_sxm", 32, 16, 0, 32, "blocks"),
    ("rtx_pro_6000", 32, 16, 0, 24, "blocks"),
    # registers: 168 x 32 = 5376 = 21 x 256 a warp; a quarter, 16384, holds 3: 12 warps, 3 blocks of 4
    ("h100_sxm", 128, 168, 0, 3, "registers"),
    ("h100_sxm", 128, 169, 0, 2, "registers"),  # 5408 rounds up to 5632: 2 a quarter, 8 warps
    ("h100_sxm", 32, 88, 0, 20, "registers"),  # 2816 a warp: 5 a quarter, 20 warps; 65536 // 2816 would say 23
    ("a100_sxm4_80gb", 256, 255, 0, 1, "registers"),  # 8192 a warp: 2 a quarter, 8 warps
    ("a100_sxm4_80gb", 1024, 64, 0, 1, "registers"),
    ("a100_sxm4_80gb", 1024, 65, 0, 0, "registers"),  # 2304 a warp x 32 = 73728 of 65536
    ("a100_sxm4_80gb", 128, 256, 0, 0, "registers"),  # no thread has over 255
    # shared memory: 113 KiB + 1 KiB fits 228 KiB twice, one byte more does not
    ("h100_sxm", 128, 32, 113 * KIB, 2, "shared memory"),
    ("h100_sxm", 128, 32, 113 * KIB + 1, 1, "shared memory"),
    ("h100_sxm", 128, 32, 227 * KIB, 1, "shared memory"),
    ("h100_sxm", 128, 32, 227 * KIB + 1, 0, "shared memory"),
    # 233472 B hold five blocks of 46592 = 364 x 128 B; 45670 + 1024 rounds up to 46720, and five of those do not fit
    ("h100_sxm", 128, 32, 45_568, 5, "shared memory"),
    ("h100_sxm", 128, 32, 45_670, 4, "shared memory"),
    ("a100_sxm4_80gb", 128, 32, 40 * KIB, 4, "shared memory"),  # 41 x 4 = 164
    ("l40s", 128, 32, 49 * KIB, 2, "shared memory"),
    ("l40s", 128, 32, 99 * KIB, 1, "shared memory"),
    ("l40s", 256, 183, 122_880, 0, "shared memory"),  # a 64 x 256 x 64 bf16 GEMM with 4 stages, compiled for sm_89
    # too many threads
    ("h100_sxm", 1025, 16, 0, 0, "warps"),
    # no registers counted, no shared memory: still 1 KiB a block
    ("h100_sxm", 64, 0, 0, 32, "warps"),
    # the plain Triton GEMM 128 x 128 x 64 with 3 stages on sm_90: 112 x 32 = 3584 a warp, 4 a quarter; 99328 of 233472 B
    ("h100_sxm", 256, 108, 98_304, 2, "registers"),
]


@pytest.mark.parametrize("case", CASES)
def test_worked_cases(case: tuple[str, int, int, int, int, str]) -> None:
    name, threads, regs, smem, blocks, limiter = case
    found = blocks_per_sm(gpu(name), threads, regs, smem)
    assert (int(found.blocks_per_sm), str(found.limiter_names)) == (blocks, limiter)
    assert int(found.active_warps) == blocks * -(-threads // 32)
    assert 0 <= float(found.fraction) <= 1


def fill(spec: GpuSpec, threads: int, regs: int, smem: int) -> int:
    """Place blocks on an SM until one does not fit: an oracle that shares no arithmetic with the law."""
    if threads > spec.max_threads_per_block or regs > spec.max_regs_per_thread or smem > spec.smem_per_block_bytes:
        return 0
    registers = [spec.regs_per_sm // 4] * 4
    slots, smem_left, blocks = spec.max_warps_per_sm, spec.smem_per_sm_bytes, 0
    block_smem = next(size for size in range(0, 1 << 20, 128) if size >= smem + 1024)
    warp_regs = next(size for size in range(0, 1 << 14, 256) if size >= regs * 32)
    while blocks < spec.max_blocks_per_sm and block_smem <= smem_left:
        for _ in range(-(-threads // 32)):
            roomiest = max(range(4), key=registers.__getitem__)
            if registers[roomiest] < warp_regs or not slots:
                return blocks
            registers[roomiest] -= warp_regs
            slots -= 1
        smem_left -= block_smem
        blocks += 1
    return blocks


@given(
    name=st.sampled_from(["a100_sxm4_80gb", "a10", "l20", "h200_sxm", "b200_sxm", "rtx_pro_6000"]),
    threads=st.integers(1, 1056),
    regs=st.integers(0, 260),
    smem=st.one_of(st.just(0), st.integers(0, 240_000)),
)
@settings(max_examples=300, deadline=None)
def test_equals_filling_an_sm(name: str, threads: int, regs: int, smem: int) -> None:
    assert int(blocks_per_sm(gpu(name), threads, regs, smem).blocks_per_sm) == fill(gpu(name), threads, regs, smem)


def test_broadcasts_and_agrees_with_single_calls() -> None:
    spec, threads, regs, smem = gpu("h200_sxm"), np.array([[128], [256]]), np.array([32, 128, 255]), 65536.0
    found = blocks_per_sm(spec, threads, regs, smem)
    assert found.blocks_per_sm.shape == found.limiter.shape == found.active_warps.shape == (2, 3)
    for i, t in enumerate((128, 256)):
        for j, r in enumerate((32, 128, 255)):
            assert found.blocks_per_sm[i, j] == blocks_per_sm(spec, t, r, 65536).blocks_per_sm
    assert blocks_per_sm(spec, [], [], []).blocks_per_sm.shape == (0,)
    assert set(found.limiter_names.ravel()) <= set(LIMITERS)


@pytest.mark.parametrize(
    ("threads", "regs", "smem", "says"),
    [
        (0, 32, 0, "threads must be at least 1: got 0"),
        (128, -1, 0, "regs_per_thread must be at least 0: got -1"),
        (128, 32, -5, "smem_bytes must be at least 0: got -5"),
        (128.5, 32, 0, "threads must be whole numbers: got 128.5"),
        ([128, float("nan")], 32, 0, "threads must be whole numbers: got nan"),
        ("128", 32, 0, "threads must be whole numbers, not"),
    ],
)
def test_bad_input_is_one_line(threads: object, regs: object, smem: object, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        blocks_per_sm(gpu("h100_sxm"), threads, regs, smem)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_absurd_sizes_are_illegal_not_overflow() -> None:
    found = blocks_per_sm(gpu("h100_sxm"), [2**40, 128, 128], [32, 2**40, 32], [0, 0, 2**40])
    assert found.blocks_per_sm.tolist() == [0, 0, 0]
    assert found.limiter_names.tolist() == ["warps", "registers", "shared memory"]
