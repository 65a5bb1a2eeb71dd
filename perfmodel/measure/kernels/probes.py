"""Triton kernels that load one resource and nothing else: DRAM and L2 reads, a chain of dependent loads, exponentials, an empty launch."""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def read_kernel(src, out, rounds, passes, shift, BLOCK: tl.constexpr):
    """Read `rounds` blocks a program, interleaved over all programs, `passes` times, past L1; keeps a sum, so that nothing is dropped.

    Another pass takes the blocks of the program `shift` further on, so that no SM reads the same block twice.
    """
    programs = tl.num_programs(0)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    for p in range(passes):
        mine = (tl.program_id(0) + p * shift) % programs
        for i in range(rounds):
            block = (i * programs + mine).to(tl.int64)
            total += tl.load(src + block * BLOCK + lane, cache_modifier=".cg")
    tl.store(out + tl.program_id(0), tl.sum(total))


@triton.jit
def chase_kernel(src, place, steps):
    """Follow `steps` links of a chain in one warp, from where the last call stopped: each load's address is the last one's value."""
    at = tl.load(place)
    for _ in range(steps):
        at = tl.load(src + at, cache_modifier=".cg")
    tl.store(place, at)


@triton.jit
def exp_kernel(out, steps, BLOCK: tl.constexpr):
    """`steps` exponentials of each of BLOCK values a program; x <- 2^-x stays between 0.5 and 1."""
    x = tl.arange(0, BLOCK).to(tl.float32) / BLOCK
    for _ in range(steps):
        x = tl.exp2(-x)
    tl.store(out + tl.program_id(0), tl.sum(x))


@triton.jit
def empty_kernel(out):
    """Nothing but a launch."""
