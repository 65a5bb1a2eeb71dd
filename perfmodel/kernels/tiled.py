"""The law of a tiled, pipelined multiply with a K loop: what one launch of such a kernel costs, whoever shares out its tiles.

Used by the families whose inner loop it is (gemm, fused_moe); constants: calibration/physics/gemm.toml, whatever the family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.analytic import tile as law
from perfmodel.analytic.occupancy import LIMITERS, Occupancy, blocks_per_sm
from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels.configs import Configs
from perfmodel.kernels.facts import Facts
from perfmodel.kernels.terms import Floats


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launch has to do, arrays or scalars beside the configs.

    tiles_m, tiles_n: output tiles; split: programs that share a tile's k; k: length of the K loop in elements; rows, cols: rows and
    columns of a tile that lie in the matrix; asked_rows: rows of A that a tile asks L2 for; once_bytes: operands read once;
    again_bytes: what DRAM reads of them beyond that; out_bytes: what goes back to DRAM; dram_share: of the sustained DRAM rate that the
    pattern of these loads reaches.
    """

    tiles_m: Any
    tiles_n: Any
    split: Any
    k: Any
    rows: Any
    cols: Any
    asked_rows: Any
    once_bytes: Any
    again_bytes: Any
    out_bytes: Any
    dram_share: Any = 1.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a launch costs beside its launch overhead: `seconds` by resource, `latency_s` of all, and what the features need."""

    latency_s: Floats
    seconds: Mapping[str, Any]
    mean_waves: Floats
    busiest: Floats
    blocks_per_sm: npt.NDArray[np.int32]
    limiter: npt.NDArray[np.str_]
    resident: Floats
    alone_over_throughput: Floats
    k_steps: Floats
    miss: Floats


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The blocks of n configs: sides, bytes of a step along K (depth), steps, how many blocks there are, and how many share an SM."""

    bm: Floats
    bn: Floats
    bk: Floats
    depth: Floats
    warps: Floats
    units: Floats
    k_steps: Floats
    split: Floats
    resident: Floats
    occupancy: Occupancy

    @property
    def step_bytes(self) -> Floats:
        """Bytes of both operands of one iteration."""
        return (self.bm + self.bn) * self.depth


@dataclass(frozen=True, slots=True)
class _Iteration:
    """Cycles that one iteration of one block asks of each resource of its SM, and of all together."""

    tensor: Floats
    port: Floats
    shared: Floats
    issue: Floats

    @property
    def throughput(self) -> Floats:
        """Cycles of an iteration while other blocks hide its latency."""
        found: Floats = law.smooth_max4(self.tensor, self.port, self.shared, self.issue)
        return found


def cost(
    gpu: GpuSpec,
    dtype: str,
    size: float,
    configs: Configs,
    facts: Facts,
    c: Mapping[str, float],
    work: Launch,
    *,
    tma: npt.NDArray[np.bool_],
    swap: npt.NDArray[np.bool_],
    persistent: npt.NDArray[np.bool_],
) -> Cost:
    """Cost of one launch. `size`: bytes an operand element.

    An iteration of the K loop of one block costs soft-max(tensor, L2 port, shared memory, issue); alone it cannot be faster than its
    latency (analytic/tile.exposed_latency_cycles); tiles fill SMs in waves; compulsory DRAM traffic comes on top:

        soft-max2( (iterations + fill + epilogue) / clock, bytes / DRAM rate + ramp ) + split-K reduction

    Sources and validity of each law: analytic/tile.py.
    """
    clock = gpu.max_clock_hz * c["clock_share"]
    b = _blocks(gpu, size, configs, facts, work, persistent)
    each = _iteration(gpu, dtype, b, facts, c, work, tma=tma, swap=swap)
    throughput = each.throughput
    alone, load, miss = _alone(gpu, b, each, configs["num_stages"].astype(np.float64), facts, c, work)
    mean, busiest = law.waves(b.units, gpu.sms)
    per_step, rounds = law.core_cycles(busiest, mean, b.resident, throughput, alone, c["tail_weight"])
    edges = _edges(b, load, rounds, busiest, c, persistent)
    spill = 1.0 + facts.spill_bytes / 64.0 * c["spill_share_per_64_bytes"]
    core_s = (per_step * b.k_steps * spill + edges) / clock
    dram_s, reduce_s = _dram(gpu, b, c, work)
    share = per_step * b.k_steps / np.maximum(throughput, 1.0) / clock  # seconds for each cycle of an iteration's demand
    return Cost(
        latency_s=law.smooth_max2(core_s, dram_s) + reduce_s,
        seconds={
            "compute": each.tensor * share,
            "shared memory": each.shared * share,
            "issue": each.issue * share,
            "L2": each.port * share,
            "latency": np.where(alone > np.minimum(b.resident, busiest) * throughput, per_step * b.k_steps / clock, 0.0),
            "DRAM": dram_s,
            "fill and epilogue": edges / clock + reduce_s,
        },
        mean_waves=mean,
        busiest=busiest,
        blocks_per_sm=b.occupancy.blocks_per_sm,
        limiter=np.array(LIMITERS)[b.occupancy.limiter],
        resident=b.resident,
        alone_over_throughput=alone / throughput,
        k_steps=b.k_steps,
        miss=miss,
    )


def _blocks(gpu: GpuSpec, size: float, configs: Configs, facts: Facts, work: Launch, persistent: npt.NDArray[np.bool_]) -> _Blocks:
    """Blocks of each config and their occupancy; a persistent kernel has one an SM."""
    bm, bn, bk, warps = (configs[x].astype(np.float64) for x in ("block_m", "block_n", "block_k", "num_warps"))
    split, kk = np.asarray(work.split, dtype=np.float64), np.asarray(work.k, dtype=np.float64)
    occupancy = blocks_per_sm(gpu, 32.0 * warps, facts.regs, facts.shared_bytes)
    resident = np.where(persistent, 1.0, np.maximum(occupancy.blocks_per_sm, 1).astype(np.float64))
    k_steps = np.ceil(np.ceil(kk / bk) / split)
    return _Blocks(bm, bn, bk, bk * size, warps, work.tiles_m * work.tiles_n * split, k_steps, split, resident, occupancy)


def _iteration(
    gpu: GpuSpec,
    dtype: str,
    b: _Blocks,
    facts: Facts,
    c: Mapping[str, float],
    work: Launch,
    *,
    tma: npt.NDArray[np.bool_],
    swap: npt.NDArray[np.bool_],
) -> _Iteration:
    """What one iteration of one block asks of each resource, in cycles of its SM."""
    per_cycle = gpu.tensor_rate(parse_dtype(dtype).rate) / (gpu.sms * gpu.boost_clock_hz)
    sync_per_cycle = per_cycle * facts.rate_share * (c["mma_sync_share"] if gpu.capability >= (9, 0) else 1.0)
    tensor = law.tensor_cycles(2.0 * b.bm * b.bn * b.bk, np.where(facts.warpgroup, per_cycle, sync_per_cycle))
    wide, narrow = np.where(swap, b.bn, b.bm), np.where(swap, b.bm, b.bn)
    operands = np.where(facts.warpgroup, law.warpgroup_operand_bytes(wide, narrow, b.depth), facts.fragment_bytes * b.warps)
    shared = (operands + b.step_bytes) / c["smem_bytes_per_cycle"]
    segment = np.where(tma, 1.0, law.segment_efficiency(b.depth, c["line_share_64"], c["line_share_32"]))
    request = (work.asked_rows + work.cols) * b.depth / segment
    l2_per_cycle = gpu.l2_bytes_per_s * c["l2_rate_factor"] / gpu.max_clock_hz
    width = c["port_bytes_per_cycle"] * np.where(tma, c["tma_port_gain"], 1.0)
    port = law.port_cycles(request, np.minimum(b.units, gpu.sms), width, l2_per_cycle)
    return _Iteration(tensor, port, shared, facts.loop_instructions * b.warps / 4.0)


def _alone(
    gpu: GpuSpec, b: _Blocks, each: _Iteration, stages: Floats, facts: Facts, c: Mapping[str, float], work: Launch
) -> tuple[Floats, Floats, Floats]:
    """(cycles of an iteration of one block that nothing hides, cycles of its load, share of loads that come from DRAM)."""
    k_instructions = b.depth / 32.0 / np.where(facts.rate_share < 1.0, facts.rate_share, 1.0)
    dependent = np.where(facts.warpgroup, each.tensor + c["warpgroup_latency_cycles"], k_instructions * c["multiply_latency_cycles"])
    chain = dependent + facts.serialised * c["serial_multiply_cycles"]
    miss = np.minimum(1.0, c["miss_weight"] * work.once_bytes / (b.units * b.k_steps * b.step_bytes))
    far, near = _latencies_s(gpu, c)
    clock = gpu.max_clock_hz * c["clock_share"]
    load = (near + np.maximum(far - near, 0.0) * miss) * clock + (work.rows + b.bn) * b.depth / c["request_bytes_per_cycle"]
    # mma.sync reads its fragments before the buffer is free for the next load: that hides under nothing
    serial = c["sync_cycles"] * b.warps / 4.0 + np.where(facts.warpgroup, 0.0, c["fragment_latency_cycles"])
    return law.exposed_latency_cycles(load + c["load_wait_share"] * each.tensor, stages, chain, serial), load, miss


def _latencies_s(gpu: GpuSpec, c: Mapping[str, float]) -> tuple[float, float]:
    """Seconds of a loaded access to (DRAM, L2)."""
    return gpu.dram_latency_s * c["dram_latency_factor"], gpu.l2_latency_s * c["l2_latency_factor"]


def _edges(b: _Blocks, load: Floats, rounds: Floats, busiest: Floats, c: Mapping[str, float], persistent: npt.NDArray[np.bool_]) -> Floats:
    """Cycles beside the iterations of the busiest SM: first loads, stores and starts of blocks; rounds of several blocks overlap them."""
    epilogue = b.bm * b.bn * np.where(b.split > 1, 8.0, 2.0) / c["epilogue_bytes_per_cycle"]
    shared_rounds = 1.0 + c["round_overlap"] * (rounds - 1.0)
    counted = np.where(np.minimum(b.resident, busiest) > 1.0, shared_rounds, rounds)
    return np.where(persistent, load + epilogue * rounds, (load + epilogue + c["block_start_cycles"]) * counted)


def _dram(gpu: GpuSpec, b: _Blocks, c: Mapping[str, float], work: Launch) -> tuple[Floats, Floats]:
    """Seconds of (DRAM traffic, partial sums of a split K among it; the reduction that follows them)."""
    parts = np.where(b.split > 1, 2.0 * b.split * work.tiles_m * work.tiles_n * b.bm * b.bn * 4.0, 0.0)
    moved = work.once_bytes + work.again_bytes + work.out_bytes + parts
    rate = gpu.dram_bytes_per_s * c["dram_efficiency"] * work.dram_share
    far, near = _latencies_s(gpu, c)
    return law.dram_seconds(moved, rate, c["dram_ramp_s"]), np.where(b.split > 1, 2.0 * far + b.split * near, 0.0)


def shares(seconds: Mapping[str, Any], latency: Floats) -> dict[str, Any]:
    """Columns for the residual: the logarithm of each of `seconds` over the latency."""
    return {f"log_{name.replace(' ', '_')}": np.log(np.maximum(v, 1e-9) / latency) for name, v in seconds.items()}


def shape(configs: Configs, size: float) -> dict[str, Any]:
    """Columns for the residual: the config itself."""
    return {
        "log2_block_m": np.log2(configs["block_m"]),
        "log2_block_n": np.log2(configs["block_n"]),
        "log2_depth_bytes": np.log2(configs["block_k"] * size),
        "stages": configs["num_stages"].astype(np.float64),
        "warps": configs["num_warps"].astype(np.float64),
        "group_m": np.log2(configs["group_m"]),
    }


def code(facts: Facts, found: Cost) -> dict[str, Any]:
    """Columns for the residual: misses, and what the compiler made of the config."""
    return {
        "miss": np.broadcast_to(found.miss, found.latency_s.shape),
        "serialised": facts.serialised / np.maximum(facts.multiplies, 1.0),
        "warpgroup": facts.warpgroup.astype(np.float64),
        "registers": facts.regs / 255.0,
        "spill": np.minimum(facts.spill_bytes / 64.0, 4.0),
    }
