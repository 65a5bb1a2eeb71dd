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
from perfmodel.analytic.occupancy import LIMITERS, blocks_per_sm
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
    bm, bn, bk = (configs[x].astype(np.float64) for x in ("block_m", "block_n", "block_k"))
    warps, stages = (configs[x].astype(np.float64) for x in ("num_warps", "num_stages"))
    split, kk = np.asarray(work.split, dtype=np.float64), np.asarray(work.k, dtype=np.float64)
    clock = gpu.max_clock_hz * c["clock_share"]

    units = work.tiles_m * work.tiles_n * split
    k_steps = np.ceil(np.ceil(kk / bk) / split)
    threads = 32.0 * warps
    occupancy = blocks_per_sm(gpu, threads, facts.regs, facts.shared_bytes)
    resident = np.maximum(occupancy.blocks_per_sm, 1).astype(np.float64)
    resident = np.where(persistent, 1.0, resident)

    # what one iteration of one block asks of each resource, in cycles of its SM
    native = parse_dtype(dtype).rate
    per_cycle = gpu.tensor_rate(native) / (gpu.sms * gpu.boost_clock_hz)
    sync_per_cycle = per_cycle * facts.rate_share * (c["mma_sync_share"] if gpu.capability >= (9, 0) else 1.0)
    flops = 2.0 * bm * bn * bk
    tensor = law.tensor_cycles(flops, np.where(facts.warpgroup, per_cycle, sync_per_cycle))
    depth = bk * size
    wide, narrow = np.where(swap, bn, bm), np.where(swap, bm, bn)
    operands = np.where(facts.warpgroup, law.warpgroup_operand_bytes(wide, narrow, depth), facts.fragment_bytes * warps)
    shared = (operands + (bm + bn) * depth) / c["smem_bytes_per_cycle"]
    issue = facts.loop_instructions * warps / 4.0
    segment = np.where(tma, 1.0, law.segment_efficiency(depth, c["line_share_64"], c["line_share_32"]))
    request = (work.asked_rows + work.cols) * depth / segment
    active = np.minimum(units, gpu.sms)
    l2_per_cycle = gpu.l2_bytes_per_s * c["l2_rate_factor"] / gpu.max_clock_hz
    width = c["port_bytes_per_cycle"] * np.where(tma, c["tma_port_gain"], 1.0)
    port = law.port_cycles(request, active, width, l2_per_cycle)
    throughput = law.smooth_max4(tensor, port, shared, issue)

    # one block alone
    k_instructions = depth / 32.0 / np.where(facts.rate_share < 1.0, facts.rate_share, 1.0)
    dependent = np.where(facts.warpgroup, tensor + c["warpgroup_latency_cycles"], k_instructions * c["multiply_latency_cycles"])
    chain = dependent + facts.serialised * c["serial_multiply_cycles"]
    miss = np.minimum(1.0, c["miss_weight"] * work.once_bytes / (units * k_steps * (bm + bn) * depth))
    far, near = gpu.dram_latency_s * c["dram_latency_factor"], gpu.l2_latency_s * c["l2_latency_factor"]
    load = (near + np.maximum(far - near, 0.0) * miss) * clock + (work.rows + bn) * depth / c["request_bytes_per_cycle"]
    # mma.sync reads its fragments before the buffer is free for the next load: that hides under nothing
    serial = c["sync_cycles"] * warps / 4.0 + np.where(facts.warpgroup, 0.0, c["fragment_latency_cycles"])
    alone = law.exposed_latency_cycles(load + c["load_wait_share"] * tensor, stages, chain, serial)

    mean, busiest = law.waves(units, gpu.sms)
    per_step, rounds = law.core_cycles(busiest, mean, resident, throughput, alone, c["tail_weight"])
    epilogue = bm * bn * np.where(split > 1, 8.0, 2.0) / c["epilogue_bytes_per_cycle"]
    shared_rounds = 1.0 + c["round_overlap"] * (rounds - 1.0)
    edges = np.where(
        persistent,
        load + epilogue * rounds,
        (load + epilogue + c["block_start_cycles"]) * np.where(np.minimum(resident, busiest) > 1.0, shared_rounds, rounds),
    )
    spill = 1.0 + facts.spill_bytes / 64.0 * c["spill_share_per_64_bytes"]
    core_s = (per_step * k_steps * spill + edges) / clock
    parts = np.where(split > 1, 2.0 * split * work.tiles_m * work.tiles_n * bm * bn * 4.0, 0.0)
    moved = work.once_bytes + work.again_bytes + work.out_bytes + parts
    dram_s = law.dram_seconds(moved, gpu.dram_bytes_per_s * c["dram_efficiency"] * work.dram_share, c["dram_ramp_s"])
    reduce_s = np.where(split > 1, 2.0 * far + split * near, 0.0)
    share = per_step * k_steps / np.maximum(throughput, 1.0) / clock  # seconds for each cycle of an iteration's demand
    return Cost(
        latency_s=law.smooth_max2(core_s, dram_s) + reduce_s,
        seconds={
            "compute": tensor * share,
            "shared memory": shared * share,
            "issue": issue * share,
            "L2": port * share,
            "latency": np.where(alone > np.minimum(resident, busiest) * throughput, per_step * k_steps / clock, 0.0),
            "DRAM": dram_s,
            "fill and epilogue": edges / clock + reduce_s,
        },
        mean_waves=mean,
        busiest=busiest,
        blocks_per_sm=occupancy.blocks_per_sm,
        limiter=np.array(LIMITERS)[occupancy.limiter],
        resident=resident,
        alone_over_throughput=alone / throughput,
        k_steps=k_steps,
        miss=miss,
    )
