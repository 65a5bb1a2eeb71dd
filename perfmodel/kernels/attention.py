"""What the attention families share: facts without compiling, and the cost of one visit of a block of queries to a block of keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.analytic import attention as law
from perfmodel.analytic import roofline, tile
from perfmodel.analytic.occupancy import LIMITERS, blocks_per_sm
from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError, unknown_name
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels.configs import Configs
from perfmodel.kernels.facts import Facts
from perfmodel.kernels.terms import Floats, Rule
from perfmodel.ops.attention import attention_work
from perfmodel.ops.work import Work

DTYPES = {"bf16": 2, "fp16": 2}
ARGUMENTS = {
    "batch": ("batch", "z", "bs", "b"),
    "kv_len": ("kv_len", "seqlen_k", "n_ctx_k", "n_ctx", "seqlen", "seq_len", "seq"),
    "q_heads": ("q_heads", "num_heads", "n_heads", "heads", "h"),
    "kv_heads": ("kv_heads", "num_kv_heads", "h_kv", "num_heads", "heads", "h"),
    "head_dim": ("head_dim", "block_dmodel", "head_size", "hd", "d"),
}
"""Usual names of a kernel's arguments, the likeliest first; a kernel with one count of heads has as many of both."""
LEAST_ROWS = 16  # rows of the smallest tensor-core multiply
_SCORE_INSTRUCTIONS = (6.0, 8.7)  # of one score, without and with a mask: scale, maximum, exponential, sum, conversion; comparisons, select
_FIXED_INSTRUCTIONS = (50.0, 95.0)  # of a visit by warp-group multiplies and by mma.sync: addresses, barriers, reductions over a row
_COPY_INSTRUCTIONS = 3.0  # of 16 bytes that a thread copies
_FEED_INSTRUCTIONS = (3.0, 5.0)  # of a multiply, itself included: descriptors; fragment loads
_FRAGMENT_SHARE = 0.6  # of a block of keys and one of values that each warp loads as fragments


def rate_of(dtype: str) -> str:
    """The tensor-core rate a dtype needs; raises InputError for one the kernels do not have."""
    if dtype not in DTYPES:
        raise unknown_name("dtype of the Triton attention kernels", dtype, DTYPES)
    return parse_dtype(dtype).rate


def common_sizes(op: Any, kernel: str) -> dict[str, int]:
    """batch, kv_len, q_heads, kv_heads and head_dim of an Attention; raises InputError for what the kernels cannot do."""
    if op.window:
        raise InputError(f"the {kernel} kernel has no window, got window={op.window}")
    if op.kv_dtype != op.dtype:
        raise InputError(f"the {kernel} kernel reads keys of the queries' type, got kv_dtype={op.kv_dtype} for {op.dtype}")
    if op.head_dim & (op.head_dim - 1) or not 16 <= op.head_dim <= 256:
        raise InputError(f"the {kernel} kernel needs head_dim a power of two from 16 to 256, got {op.head_dim}")
    return {name: int(getattr(op, name)) for name in ("batch", "kv_len", "q_heads", "kv_heads", "head_dim")}


def work(dtype: str, batch: Any, q_len: Any, kv_len: Any, q_heads: Any, kv_heads: Any, head_dim: Any, causal: Any) -> Work:
    """Flops and compulsory bytes of attention whose cache has the type of its queries, broadcast over arrays."""
    width = parse_dtype(dtype).a_bytes
    return attention_work(batch, q_len, kv_len, q_heads, kv_heads, head_dim, width, width, causal=np.asarray(causal) > 0)


def is_warpgroup(gpu: GpuSpec, rows: Any, warps: Any) -> npt.NDArray[np.bool_]:
    """Whether the compiler uses warp-group multiplies: sm_90 and sm_100, 64 rows or more, whole groups of four warps."""
    found: npt.NDArray[np.bool_] = (gpu.capability[0] in (9, 10)) & (rows >= 64) & (warps % 4 == 0)
    return found


def formula(
    gpu: GpuSpec, dtype: str, rows: Any, block_n: Any, width: Any, warps: Any, stages: Any, masked: Any = True
) -> Mapping[str, Any]:
    """Facts estimated without compiling, for configs that no table holds. rows: of the query block; width: of a head; masked: the code.

    Shared memory: queries, and a ring of keys and values, (stages - 1) deep where multiplies read registers, `stages` where they read
    shared memory (one stage holds one of the two), and the weights' way to registers with mma.sync. Registers: scores and output in fp32
    and fragments. Warps of a warp-group multiply beyond rows / 16 repeat each other's softmax. Evidence: on the sm_90 tables in data/
    shared memory and multiplies are within 10 % of the compiled figure on most, instructions within a fifth
    (tests/unit/test_kernels_attention.py).
    """
    size = float(DTYPES[dtype])
    group = is_warpgroup(gpu, rows, warps)
    block = block_n * width * size
    buffers = np.where(group, stages, np.maximum(stages - 1.0, 1.0))
    queries = rows * width * size
    shared = queries + np.where(stages > 1, 2.0 * buffers * block, block) + np.where(group, 0.0, rows * block_n * size)
    busy = np.where(group, np.minimum(warps, np.maximum(rows / 16.0, 1.0)), warps)
    scores = rows * block_n / (32.0 * busy)
    output = rows * width / (32.0 * warps)
    registers = output + 1.7 * scores + 50.0
    ceiling = np.minimum(float(gpu.max_regs_per_thread), gpu.regs_per_sm / (32.0 * warps))
    multiplies = np.where(group, 2.0 * np.maximum(rows / 16.0 / warps, 1.0) * (width + block_n) / 32.0, scores * width / 32.0)
    copies = 2.0 * block / 16.0 / (32.0 * warps)
    fixed = np.where(group, *_FIXED_INSTRUCTIONS) + output + _COPY_INSTRUCTIONS * copies
    each = np.where(masked, _SCORE_INSTRUCTIONS[1], _SCORE_INSTRUCTIONS[0]) * scores
    return {
        "shared_bytes": shared,
        "regs": np.minimum(registers, ceiling),
        "spill_bytes": np.maximum(registers - ceiling, 0.0) * 4.0,
        "loop_instructions": fixed + each + np.where(group, *_FEED_INSTRUCTIONS) * multiplies,
        "multiplies": multiplies,
        "warpgroup": group.astype(np.float64),
        "rate_share": np.ones_like(scores),
        "serialised": np.where(registers > ceiling, multiplies, 0.0) * group,
        "fragment_bytes": np.where(group, 0.0, _FRAGMENT_SHARE * 2.0 * block + queries / warps),
        "special": 1.1 * scores + 2.0,
    }


def hard_rules(gpu: GpuSpec, configs: Configs, facts: Facts, rows: Any, block_n: Any) -> list[Rule]:
    """What no attention config may break: powers of two, smallest multiply, and the limits of a block on this GPU."""
    warps = configs["num_warps"]
    threads = 32 * warps
    power = (rows & (rows - 1)) | (block_n & (block_n - 1)) | (warps & (warps - 1))
    limit = gpu.smem_per_block_bytes
    return [
        Rule(power != 0, "tile sides and warps must be powers of two"),
        Rule((rows < LEAST_ROWS) | (block_n < LEAST_ROWS), "block under 16 x 16: no tensor-core instruction is that small"),
        Rule(threads > gpu.max_threads_per_block, f"more than {gpu.max_threads_per_block} threads a block"),
        Rule(((facts.regs + 7) // 8 * 8) * threads > gpu.regs_per_sm, "needs more registers than an SM has: the launch fails"),
        Rule(facts.shared_bytes > limit, f"needs more shared memory than the {limit} bytes a block of {gpu.name} may have"),
    ]


@dataclass(frozen=True, slots=True)
class Visit:
    """Cycles of one visit: of each resource of an SM (`demand`), of all together (`throughput`), and of one block `alone`.

    `resident` blocks share an SM; `load_cycles` is a cold fetch of what a visit needs.
    """

    demand: Mapping[str, Floats]
    throughput: Floats
    alone: Floats
    load_cycles: Floats
    resident: Floats
    blocks_per_sm: npt.NDArray[np.int32]
    limiter: npt.NDArray[np.str_]

    def each(self, programs_per_sm: Floats) -> Floats:
        """Cycles between two visits of one block when min(resident, programs_per_sm) blocks share its SM."""
        together = np.maximum(np.minimum(self.resident, programs_per_sm), 1.0)
        return np.asarray(tile.smooth_max4(together * self.throughput, self.alone), dtype=np.float64)


def visit(
    gpu: GpuSpec,
    dtype: str,
    configs: Configs,
    facts: Facts,
    c: Mapping[str, float],
    *,
    rows: Any,
    width: Any,
    miss: Any,
    active_sms: Any,
    extra_instructions: Any = 0.0,
) -> Visit:
    """Cost of one visit of `rows` queries to block_n keys of a head `width` wide.

    Within a block multiply and softmax wait for each other, and the measured kernels overlap little of one block's multiply with
    another's softmax, so the demands add: soft-max4(tensor, shared memory) + issue + exponentials, against the L2 port. One block alone
    also pays `stall` (waits for multiplies, reductions over a row, barriers), and cannot be faster than its loads in flight allow.
    miss: share of loads that come from DRAM; extra_instructions: of a warp, beside the loop that the facts describe.
    """
    size = float(DTYPES[dtype])
    bn, warps, stages = (configs[x].astype(np.float64) for x in ("block_n", "num_warps", "num_stages"))
    clock = gpu.max_clock_hz * c["clock_share"]
    occupancy = blocks_per_sm(gpu, 32.0 * warps, facts.regs, facts.shared_bytes)
    resident = np.maximum(occupancy.blocks_per_sm, 1).astype(np.float64)
    per_cycle = gpu.tensor_rate(parse_dtype(dtype).rate) / (gpu.sms * gpu.boost_clock_hz)
    sync_per_cycle = per_cycle * (c["mma_sync_share"] if gpu.capability >= (9, 0) else 1.0)
    tensor = tile.tensor_cycles(4.0 * rows * bn * width, np.where(facts.warpgroup, per_cycle, sync_per_cycle))
    block = bn * width * size
    operands = np.where(facts.warpgroup, rows * width * size + 2.0 * np.ceil(rows / 64.0) * block, facts.fragment_bytes * warps)
    shared = (operands + 2.0 * block) / c["smem_bytes_per_cycle"]
    issue, special = law.softmax_cycles(facts.loop_instructions + extra_instructions, facts.special, warps, gpu.sfu_per_clock_per_sm)
    l2_per_cycle = gpu.l2_bytes_per_s / gpu.max_clock_hz
    port = tile.port_cycles(2.0 * block, active_sms, c["port_bytes_per_cycle"], l2_per_cycle)
    spill = 1.0 + facts.spill_bytes / 64.0 * c["spill_share_per_64_bytes"]
    multiply, softmax, exponentials = tile.smooth_max4(tensor, shared), issue * c["issue_share"], special * c["special_share"]
    lone = 1.0 + c["idle_scheduler_share"] * (np.maximum(4.0 / warps, 1.0) - 1.0)  # fewer than four warps leave schedulers idle
    busy = (multiply + softmax + exponentials) * spill * lone
    together = roofline.overlap(c["overlap_power"], multiply, softmax, exponentials) * spill
    throughput = tile.smooth_max4(together, port)

    far, near = gpu.dram_latency_s * c["dram_latency_factor"], gpu.l2_latency_s * c["l2_latency_factor"]
    latency = (near + np.maximum(far - near, 0.0) * miss) * clock
    load = latency + 2.0 * block / c["request_bytes_per_cycle"]
    stall = np.where(facts.warpgroup, c["stall_cycles"], c["sync_stall_cycles"]) + c["stall_share"] * facts.loop_instructions
    chain = busy + stall + facts.serialised * c["serial_multiply_cycles"]
    piped = np.maximum((load + c["load_wait_share"] * busy) / np.maximum(stages - 1.0, 1.0), chain)
    alone = np.where(stages > 1, piped, chain + 2.0 * latency + load - latency)
    return Visit(
        demand={"compute": tensor, "shared memory": shared, "issue": issue, "exponentials": special, "L2": port},
        throughput=np.asarray(throughput, dtype=np.float64),
        alone=alone,
        load_cycles=load,
        resident=resident,
        blocks_per_sm=occupancy.blocks_per_sm,
        limiter=np.array(LIMITERS)[occupancy.limiter],
    )


def seconds(
    found: Visit,
    busy_cycles: Any,
    edge_cycles: Any,
    together: Any,
    clock: float,
    dram_s: Any,
    latency: Floats,
    launch_s: float,
    **after: Any,
) -> dict[str, Any]:
    """Seconds of each resource over the visits of the busiest slot (`busy_cycles`), where `together` blocks share an SM; what comes
    `after` stands before the launch."""
    share = busy_cycles / found.throughput / clock
    return {
        **{name: value * share for name, value in found.demand.items()},
        "latency": np.where(found.alone > together * found.throughput, busy_cycles / clock, 0.0),
        "DRAM": np.broadcast_to(dram_s, latency.shape),
        "fill and epilogue": edge_cycles / clock,
        **after,
        "launch": np.full_like(latency, launch_s),
    }


def features(
    seconds: Mapping[str, Any], latency: Floats, configs: Configs, facts: Facts, found: Visit, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """Dimensionless columns for the residual: shares of each resource, shape of the config, and the family's own `extra`."""
    logs = {f"log_{name.replace(' ', '_')}": np.log(np.maximum(v, 1e-9) / latency) for name, v in seconds.items()}
    return {
        **logs,
        "log_alone_over_throughput": np.log(found.alone / found.throughput),
        "resident": found.resident,
        "log2_block_n": np.log2(configs["block_n"]),
        "stages": configs["num_stages"].astype(np.float64),
        "warps": configs["num_warps"].astype(np.float64),
        "serialised": facts.serialised / np.maximum(facts.multiplies, 1.0),
        "warpgroup": facts.warpgroup.astype(np.float64),
        "registers": facts.regs / 255.0,
        "spill": np.minimum(facts.spill_bytes / 64.0, 8.0),
        **{name: np.broadcast_to(value, latency.shape) for name, value in extra.items()},
    }
