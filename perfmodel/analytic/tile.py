"""Laws of a tiled, software-pipelined loop on one GPU: what an iteration costs, how blocks share an SM, how tiles share the GPU.

All are pure and broadcast over arrays. Times inside an SM are in clock cycles (`_cycles`), whole-GPU times in seconds (`_s`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LINE_BYTES = 128.0  # an L2 line; four 32-byte sectors (NVIDIA, CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory")


def smooth_max4(*terms: Any) -> Any:
    """Soft maximum (sum x^4)^(1/4): within 19 % of the larger of two equals, equal to the maximum when one dominates.

    Overlapped resources do not overlap perfectly near balance. Exponent 4 is a choice of form, not a fit.
    """
    total = np.square(np.square(terms[0]))
    for term in terms[1:]:
        total = total + np.square(np.square(term))
    return np.sqrt(np.sqrt(total))


def smooth_max2(a: Any, b: Any) -> Any:
    """Soft maximum (a^2 + b^2)^(1/2), for phases that overlap poorly (a whole kernel's SM work and its DRAM traffic)."""
    return np.sqrt(np.square(a) + np.square(b))


def waves(tiles: Floats, sms: float) -> tuple[Floats, Floats]:
    """Tiles an SM gets on average, and on the busiest SM: (tiles / sms, ceil of it).

    Source: NVIDIA, Matrix Multiplication Background User's Guide, "Wave Quantization".
    """
    mean = tiles / sms
    return mean, np.ceil(mean)


def tensor_cycles(flops: Floats, flops_per_cycle: Floats) -> Floats:
    """Cycles of the tensor cores of one SM for `flops`, padding of the tile included by the caller."""
    return flops / flops_per_cycle


def warpgroup_operand_bytes(rows: Floats, cols: Floats, depth_bytes: Floats) -> Floats:
    """Shared memory read by warp-group multiplies of a rows x cols x depth step, bytes.

    Every 64-row instruction reads its rows and all the columns: rows d + ceil(rows / 64) cols d.
    Source: PTX ISA, "wgmma.mma_async" (both operands from shared memory, M = 64).
    """
    return (rows + np.ceil(rows / 64.0) * cols) * depth_bytes


def segment_efficiency(row_bytes: Floats, line_share_64: float, line_share_32: float) -> Floats:
    """Share of an L2 request that is useful when a tile row is `row_bytes` long: shorter than a line wastes tag look-ups.

    1 at 128 bytes and over; `line_share_64` at 64, `line_share_32` at 32 or less.
    """
    return np.where(row_bytes >= LINE_BYTES, 1.0, np.where(row_bytes > 32.0, line_share_64, line_share_32))


def shared_line_efficiency(distinct_lines: Floats, half_lines: float) -> Floats:
    """Slow-down of loads when all SMs ask for the same few lines at once: d / (d + half_lines).

    A line lives in one or two L2 slices, so a handful of them cannot be read at the whole cache's rate.
    Matters where tile rows beyond the matrix repeat its last or first rows (m smaller than the tile).
    """
    return distinct_lines / (distinct_lines + half_lines)


def port_cycles(request_bytes: Floats, active_sms: Floats, port_bytes_per_cycle: Any, l2_bytes_per_cycle: float) -> Floats:
    """Cycles to bring `request_bytes` from L2 to one SM while `active_sms` do the same.

    bytes / min(port, l2 / active): an SM's own port is 64 bytes a cycle, the slices together `l2_bytes_per_cycle`.
    Source: NVIDIA A100 whitepaper, "A100 L2 Cache" (5120 bytes a cycle in all).
    """
    cycles: Floats = request_bytes / np.minimum(port_bytes_per_cycle, l2_bytes_per_cycle / active_sms)
    return cycles


def exposed_latency_cycles(load_cycles: Floats, stages: Floats, chain_cycles: Floats, serial_cycles: Floats | float) -> Floats:
    """Cycles of an iteration of one block alone, when `stages - 1` iterations' loads are in flight.

    max(load / max(stages - 1, 1), chain) + serial: Little's law for the ring of buffers or the block's dependent multiplies, and what hides
    under neither (wait, barrier, and reading fragments out of a buffer before the next load may go there).
    """
    return np.maximum(load_cycles / np.maximum(stages - 1.0, 1.0), chain_cycles) + serial_cycles


def core_cycles(
    busiest: Floats, mean: Floats, blocks_per_sm: Floats, throughput: Floats, alone: Floats, tail_weight: float
) -> tuple[Floats, Floats]:
    """Cycles per K iteration summed over the tiles of the busiest SM, and the number of rounds it works through.

    With j blocks resident an iteration of all j costs soft-max(j throughput, alone). `busiest` tiles go through in full rounds of
    blocks_per_sm and one partial round. The tail wave counts with `tail_weight` of its whole length (SMs finish unevenly).
    """
    resident = np.minimum(blocks_per_sm, busiest)
    full = np.floor(busiest / resident)
    rest = busiest - full * resident
    total = full * smooth_max4(resident * throughput, alone) + np.where(rest > 0, smooth_max4(rest * throughput, alone), 0.0)
    share = np.where(mean <= 1.0, 1.0, tail_weight + (1.0 - tail_weight) * mean / busiest)
    return total * share, full + (rest > 0)


def reread_bytes(
    tiles_m: Floats, tiles_n: Floats, block_m: Floats, block_n: Floats, depth_bytes: Floats, group_m: Floats, sms: float, l2_bytes: float
) -> Floats:
    """DRAM bytes of operands beyond one read of each, when tiles run in waves of `sms` in bands of `group_m` tile rows.

    A wave covers about group_m rows by sms / group_m columns of tiles and needs those rows of A and columns of B once each,
    `depth_bytes` (k times the element size) long. What the last waves brought stays in L2 as far as it fits, so the surplus over the
    compulsory (m + n) depth is scaled by 1 - L2 / operands.
    Source: Origami's L2 hit-rate estimate (AMD, tritonBLAS); grouped ordering of the Triton matmul tutorial.
    """
    rows = np.minimum(group_m, tiles_m)
    cols = np.minimum(np.maximum(sms / rows, 1.0), tiles_n)
    waves_ = np.maximum(tiles_m * tiles_n / (rows * cols), 1.0)
    once = (tiles_m * block_m + tiles_n * block_n) * depth_bytes
    each_wave = waves_ * (rows * block_m + cols * block_n) * depth_bytes
    surplus: Floats = np.maximum(each_wave - once, 0.0) * np.maximum(1.0 - l2_bytes / once, 0.0)
    return surplus


def dram_seconds(bytes_moved: Floats, bytes_per_s: float, ramp_s: float) -> Floats:
    """Time of compulsory DRAM traffic at the sustained rate, plus the time to fill the machine (`ramp_s`)."""
    return bytes_moved / bytes_per_s + ramp_s
