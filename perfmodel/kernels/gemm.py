"""The Triton GEMM family: its configuration space, its rules with reasons, its physical terms.

C[m,n] = A[m,k] B[n,k]^T. Variants: `pointer`, `tma`, `tma_swap` and `persistent` are the project's own kernels
(measure/kernels/gemm.py says what each does); `plain` is anybody else's pointer kernel of the usual form (grouped tile order, K loop,
rows beyond the edge wrapped). Latencies are of one launch with a cold L2, from event to event on the device.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.analytic import tile as law
from perfmodel.analytic.occupancy import LIMITERS, blocks_per_sm
from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import unknown_name
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels.configs import Configs
from perfmodel.kernels.facts import Facts
from perfmodel.kernels.terms import Rule, Terms

NAME = "gemm"
PLAIN = "plain"
VARIANTS = ("pointer", "tma", "tma_swap", "persistent", PLAIN)
SIZES = ("m", "n", "k")
REQUIRED = ("block_m", "block_n", "block_k")
_TMA = ("tma", "tma_swap", "persistent")
_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
_TABLE = (
    # variant, least and first unsupported architecture, block_m, block_n, bytes of depth, warps, stages
    ("pointer", 80, 90, (16, 32, 64, 128, 256), (32, 64, 128, 256), (64, 128, 256), (4, 8), (2, 3, 4, 5)),
    ("pointer", 90, 999, (16, 32, 64, 128), (32, 64, 128), (128, 256), (4,), (3, 4)),
    ("tma", 90, 999, (16, 32, 64, 128, 256), (32, 64, 128, 256), (128, 256), (4, 8), (3, 4, 5, 6)),
    ("tma_swap", 90, 999, (16, 32, 64), (64, 128), (128, 256), (4,), (3, 4, 5, 6)),
    ("persistent", 90, 999, (64, 128, 256), (64, 128, 256), (128,), (4, 8), (3, 4, 5)),
)
_SPLITS = (1, 2, 4, 8, 16)
_GROUPS = (4, 8, 16)
_WIDE = 128 * 128  # output elements of a tile from which its order of visits matters for DRAM traffic
_TILE = ("block_m", "block_n", "block_k", "num_warps", "num_stages")


@functools.cache
def tiles(arch: int, dtype: str) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int64]]:
    """Variant code and (block_m, block_n, block_k, num_warps, num_stages) of every tile in the space of an architecture (90 for sm_90)."""
    size = _BYTES[dtype]
    rows = [
        (VARIANTS.index(variant), bm, bn, depth // size, w, s)
        for variant, low, high, sides_m, sides_n, depths, warps, stages in _TABLE
        if low <= arch < high
        for bm, bn, depth, w, s in itertools.product(sides_m, sides_n, depths, warps, stages)
        if 32 <= bm * bn / w <= 255 * 32 and (w == 4 or bm * bn >= 64 * 64)
    ]
    return np.array([r[0] for r in rows], dtype=np.int8), np.array([r[1:] for r in rows], dtype=np.int64)


def binaries(arch: int, dtype: str) -> list[dict[str, Any]]:
    """What measure.compile has to compile, so that every config of the space on `arch`, and of the portable one, has its facts."""
    rows = {(int(v), *map(int, row)): None for source in (arch, 80) for v, row in zip(*tiles(source, dtype), strict=True)}
    return [
        {"variant": VARIANTS[row[0]], **dict(zip(_TILE, row[1:], strict=True)), "split": False, "even_k": True, "align": 16} for row in rows
    ]


def space(gpu: GpuSpec, m: int, n: int, k: int, dtype: str) -> Configs:
    """Every config worth asking about for this problem on this GPU, before the rules.

    Tiles of at most twice the problem's sides; group_m only where there is more than one tile row; split_k only where the tiles alone
    leave SMs idle and each split keeps four steps of k (stream-K paper, arXiv 2301.03598).
    """
    variant, table = tiles(int(gpu.arch.removeprefix("sm_")), dtype)
    persistent = variant == VARIANTS.index("persistent")
    bm, bn, bk = table[:, 0], table[:, 1], table[:, 2]
    fits = (bm <= max(16, 2 * m - 1)) & (bn <= max(32, 2 * n - 1))
    count = -(-m // bm) * -(-n // bn)
    parts = []
    for split in _SPLITS:
        useful = fits if split == 1 else fits & (count * split <= 2 * gpu.sms) & (k >= 4 * split * bk) & ~persistent & (count <= gpu.sms)
        for group in _GROUPS:
            grouped = (bm * bn >= _WIDE) & (-(-m // bm) > _GROUPS[0])
            at = np.flatnonzero(useful & (grouped | (group == 8)))
            parts.append((at, split, group))
    index = np.concatenate([at for at, _, _ in parts])
    columns = {name: table[index, i] for i, name in enumerate(_TILE)}
    columns["split_k"] = np.concatenate([np.full(len(at), split) for at, split, _ in parts])
    columns["group_m"] = np.concatenate([np.full(len(at), group) for at, _, group in parts])
    return Configs(columns, variant[index], VARIANTS)


def portable_space(gpu: GpuSpec, m: int, n: int, k: int, dtype: str) -> Configs:
    """The pointer kernel's whole grid of tiles, which every GPU can run: what other people's kernels usually offer."""
    variant, table = tiles(80, dtype)
    fits = (table[:, 0] <= max(16, 2 * m - 1)) & (table[:, 1] <= max(32, 2 * n - 1))
    at = np.flatnonzero(fits)
    columns = {name: table[at, i] for i, name in enumerate(_TILE)}
    columns |= {"split_k": np.ones(len(at), dtype=np.int64), "group_m": np.full(len(at), 8)}
    return Configs(columns, variant[at], VARIANTS)


def rate_of(dtype: str) -> str:
    """The tensor-core rate a dtype needs; raises InputError for one the kernels do not have."""
    if dtype not in _BYTES:
        raise unknown_name("dtype of the Triton GEMM kernels", dtype, _BYTES)
    return parse_dtype(dtype).rate


def rules(gpu: GpuSpec, m: int, n: int, k: int, dtype: str, configs: Configs, facts: Facts) -> list[Rule]:
    """Configs to prune, with reasons: limits of the hardware and the kernel's semantics (hard), and dominated choices."""
    size = _BYTES[dtype]
    bm, bn, bk = configs["block_m"], configs["block_n"], configs["block_k"]
    warps, split = configs["num_warps"], configs["split_k"]
    tma = configs.of(*_TMA)
    threads = 32 * warps
    power = (bm & (bm - 1)) | (bn & (bn - 1)) | (bk & (bk - 1)) | (warps & (warps - 1))
    limit = gpu.smem_per_block_bytes
    hopper = gpu.capability >= (9, 0)
    return [
        Rule(power != 0, "tile sides and warps must be powers of two"),
        Rule((bm < 16) | (bn < 16) | (bk * size < 32), "tile under 16 x 16 x 32 bytes: no tensor-core instruction is that small"),
        Rule(threads > gpu.max_threads_per_block, f"more than {gpu.max_threads_per_block} threads a block"),
        Rule(((facts.regs + 7) // 8 * 8) * threads > gpu.regs_per_sm, "needs more registers than an SM has: the launch fails"),
        Rule(facts.shared_bytes > limit, f"needs more shared memory than the {limit} bytes a block of {gpu.name} may have"),
        Rule(tma & (not hopper), "the tensor-memory accelerator needs sm_90"),
        Rule(tma & ((k * size) % 16 != 0), "rows of A and B are not multiples of 16 bytes: the tensor-memory accelerator cannot load them"),
        Rule(
            configs.of("persistent") & (n % 8 != 0),
            "rows of C are not multiples of 16 bytes: the tensor-memory accelerator cannot store them",
        ),
        Rule(tma & (np.maximum(bm, bn) > 256), "tile sides over 256: outside the tensor-memory accelerator's box"),
        Rule(configs.of("tma_swap") & (bn < 64), "a transposed tile needs block_n of 64 or more"),
        Rule(split > -(-k // bk), "more splits than tiles along k"),
        Rule(configs.of("persistent") & (split > 1), "a persistent kernel does not split k"),
        Rule(bm * bn / (32.0 * warps) >= 255, "accumulators alone fill 255 registers a thread: the kernel spills", hard=False),
        Rule(facts.spill_bytes > 64, "spills more than 64 bytes a thread", hard=False),
        Rule((bm >= 2 * max(16, m)) & (bm > 64), "more than half of the tile lies below the matrix", hard=False),
        Rule((bn >= 2 * max(32, n)) & (bn > 32), "more than half of the tile lies right of the matrix", hard=False),
    ]


def terms(gpu: GpuSpec, m: Any, n: Any, k: Any, dtype: str, configs: Configs, facts: Facts, constants: Mapping[str, float]) -> Terms:
    """Physical terms of each config for sizes m, n, k (scalars or arrays beside the configs).

    An iteration of the K loop of one block costs soft-max(tensor, L2 port, shared memory, issue); alone it cannot be faster than its
    latency (analytic/tile.exposed_latency_cycles); tiles fill SMs in waves; compulsory DRAM traffic and launch come on top:

        latency = launch + soft-max2( (iterations + fill + epilogue) / clock, bytes / DRAM rate + ramp ) + split-K reduction

    Sources and validity of each law: analytic/tile.py; constants: calibration/physics/gemm.toml.
    Evidence: `perfmodel evaluate ranking` on exhaustive sweeps of an H200 (README, accuracy table).
    """
    c = constants
    size = float(_BYTES[dtype])
    mm, nn, kk = (np.asarray(x, dtype=np.float64) for x in (m, n, k))
    bm, bn, bk = (configs[x].astype(np.float64) for x in ("block_m", "block_n", "block_k"))
    warps, stages, split = (configs[x].astype(np.float64) for x in ("num_warps", "num_stages", "split_k"))
    tma, persistent = configs.of(*_TMA), configs.of("persistent")
    swap = configs.of("tma_swap")
    clock = gpu.max_clock_hz * c["clock_share"]

    tiles_m, tiles_n = np.ceil(mm / bm), np.ceil(nn / bn)
    units = tiles_m * tiles_n * split
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
    real_rows = np.minimum(bm, mm)
    lines = real_rows * np.ceil(depth / law.LINE_BYTES)
    a_rows = np.where(tma, real_rows, bm / law.shared_line_efficiency(lines, c["hot_lines"]))
    segment = np.where(tma, 1.0, law.segment_efficiency(depth, c["line_share_64"], c["line_share_32"]))
    request = (a_rows + np.minimum(bn, nn)) * depth / segment
    active = np.minimum(units, gpu.sms)
    l2_per_cycle = gpu.l2_bytes_per_s * c["l2_rate_factor"] / gpu.max_clock_hz
    width = c["port_bytes_per_cycle"] * np.where(tma, c["tma_port_gain"], 1.0)
    port = law.port_cycles(request, active, width, l2_per_cycle)
    throughput = law.smooth_max4(tensor, port, shared, issue)

    # one block alone
    k_instructions = depth / 32.0 / np.where(facts.rate_share < 1.0, facts.rate_share, 1.0)
    sync_chain = k_instructions * c["multiply_latency_cycles"] + c["fragment_latency_cycles"]
    chain = np.where(facts.warpgroup, tensor + c["warpgroup_latency_cycles"], sync_chain) + facts.serialised * c["serial_multiply_cycles"]
    compulsory = (mm * kk + nn * kk) * size
    miss = np.minimum(1.0, c["miss_weight"] * compulsory / (units * k_steps * (bm + bn) * depth))
    far, near = gpu.dram_latency_s * c["dram_latency_factor"], gpu.l2_latency_s * c["l2_latency_factor"]
    load = (near + np.maximum(far - near, 0.0) * miss) * clock + (real_rows + bn) * depth / c["request_bytes_per_cycle"]
    alone = law.exposed_latency_cycles(load + c["load_wait_share"] * tensor, stages, chain, c["sync_cycles"])

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
    group = configs["group_m"].astype(np.float64)
    surplus = law.reread_bytes(tiles_m, tiles_n, bm, bn, kk * size, group, gpu.sms, gpu.l2_bytes)
    moved = compulsory + surplus + mm * nn * 2.0 + np.where(split > 1, 2.0 * split * tiles_m * tiles_n * bm * bn * 4.0, 0.0)
    dram_rate = gpu.dram_bytes_per_s * c["dram_efficiency"]
    dram_s = law.dram_seconds(moved, dram_rate, c["dram_ramp_s"])
    reduce_s = np.where(split > 1, 2.0 * far + split * near, 0.0)
    latency = c["launch_s"] + law.smooth_max2(core_s, dram_s) + reduce_s

    share = per_step * k_steps / np.maximum(throughput, 1.0) / clock  # seconds for each cycle of an iteration's demand
    seconds = {
        "compute": tensor * share,
        "shared memory": shared * share,
        "issue": issue * share,
        "L2": port * share,
        "latency": np.where(alone > np.minimum(resident, busiest) * throughput, per_step * k_steps / clock, 0.0),
        "DRAM": dram_s,
        "fill and epilogue": edges / clock + reduce_s,
        "launch": np.full_like(latency, c["launch_s"]),
    }
    logs = {f"log_{name.replace(' ', '_')}": np.log(np.maximum(v, 1e-9) / latency) for name, v in seconds.items() if name != "launch"}
    features = {
        **logs,
        "log_launch": np.log(c["launch_s"] / latency),
        "log_alone_over_throughput": np.log(alone / throughput),
        "waves": np.minimum(mean, 8.0),
        "tail": mean / busiest,
        "resident": resident,
        "warps_per_sm": np.minimum(resident, busiest) * threads / 32.0,
        "log2_block_m": np.log2(bm),
        "log2_block_n": np.log2(bn),
        "log2_depth_bytes": np.log2(depth),
        "stages": stages,
        "warps": warps,
        "group_m": np.log2(group),
        "log_reread": np.log1p(surplus / compulsory),
        "split_k": np.log2(split),
        "log2_k_steps": np.log2(k_steps),
        "fill_m": np.broadcast_to(mm / (tiles_m * bm), latency.shape),
        "fill_n": np.broadcast_to(nn / (tiles_n * bn), latency.shape),
        "log_l2_share": np.broadcast_to(np.log(compulsory / gpu.l2_bytes), latency.shape),
        "miss": np.broadcast_to(miss, latency.shape),
        "serialised": facts.serialised / np.maximum(facts.multiplies, 1.0),
        "warpgroup": facts.warpgroup.astype(np.float64),
        "registers": facts.regs / 255.0,
        "spill": np.minimum(facts.spill_bytes / 64.0, 4.0),
        "variant": np.where(configs.of(PLAIN), 0, configs.code).astype(np.float64),
    }
    return Terms(latency, seconds, mean, occupancy.blocks_per_sm, np.array(LIMITERS)[occupancy.limiter], features, facts.exact)
