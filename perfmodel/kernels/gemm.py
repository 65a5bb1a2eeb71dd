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
from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError, unknown_name
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels import tiled
from perfmodel.kernels.configs import Configs
from perfmodel.kernels.facts import Facts
from perfmodel.kernels.family import register
from perfmodel.kernels.terms import Rule, Terms
from perfmodel.ops import Gemm, Work, gemm_work

NAME = "gemm"
PLAIN = "plain"
VARIANTS = ("pointer", "tma", "tma_swap", "persistent", PLAIN)
SIZES = ("m", "n", "k")
FLAGS: tuple[str, ...] = ()
ALIASES: Mapping[str, tuple[str, ...]] = {}
DEFAULTS: Mapping[str, int] = {}
ARGUMENTS = {"m": ("m", "size_m", "num_rows", "rows"), "n": ("n", "size_n", "num_cols", "cols"), "k": ("k", "size_k", "hidden")}
REQUIRED = ("block_m", "block_n", "block_k")
COLUMNS = (*REQUIRED, "group_m", "split_k", "num_warps", "num_stages")
TWINS = ("block_m", "block_n")
BINARY = (*REQUIRED, "num_warps", "num_stages")
FIXED = {"split": False, "even_k": True, "align": 16}
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
_BARRIER_BYTES = 8.0  # of a buffer that the tensor-memory accelerator fills
_TWO_STORES = 128 * 256  # output elements from which the persistent kernel stores a tile in two halves (measure/kernels/gemm.py)


def computes(op: Any) -> bool:
    """Whether the operator is a GEMM."""
    return bool(op.kind == "gemm")


def operator(dtype: str, **sizes: Any) -> Gemm:
    """The Gemm of these sizes."""
    return Gemm(**sizes, dtype=dtype)


def sizes_of(op: Any) -> dict[str, int]:
    """m, n and k of a Gemm; raises InputError for a batched one."""
    if op.batch != 1:
        raise InputError(f"the gemm kernel has no batch dimension, got batch={op.batch}")
    return {name: int(getattr(op, name)) for name in SIZES}


def work(dtype: str, **sizes: Any) -> Work:
    """Flops and compulsory bytes of a problem, broadcast over arrays."""
    d, (m, n, k) = parse_dtype(dtype), (sizes[name] for name in SIZES)
    return gemm_work(m, n, k, d.a_bytes, d.b_bytes, d.out_bytes)


def code_of(configs: Configs, sizes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The BINARY columns: the sizes do not change the code."""
    return {name: configs[name] for name in BINARY}


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
    return [{"variant": VARIANTS[row[0]], **dict(zip(BINARY, row[1:], strict=True)), **FIXED} for row in rows]


def space(gpu: GpuSpec, dtype: str, **sizes: Any) -> Configs:
    """Every config worth asking about for this problem on this GPU, before the rules.

    Tiles of at most twice the problem's sides; group_m only where there is more than one tile row; split_k only where the tiles alone
    leave SMs idle and each split keeps four steps of k (stream-K paper, arXiv 2301.03598).
    """
    m, n, k = (sizes[name] for name in SIZES)
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
    columns = {name: table[index, i] for i, name in enumerate(BINARY)}
    columns["split_k"] = np.concatenate([np.full(len(at), split) for at, split, _ in parts])
    columns["group_m"] = np.concatenate([np.full(len(at), group) for at, _, group in parts])
    return Configs(columns, variant[index], VARIANTS)


def portable_space(gpu: GpuSpec, dtype: str, **sizes: Any) -> Configs:
    """The pointer kernel's whole grid of tiles, which every GPU can run: what other people's kernels usually offer."""
    variant, table = tiles(80, dtype)
    fits = (table[:, 0] <= max(16, 2 * sizes["m"] - 1)) & (table[:, 1] <= max(32, 2 * sizes["n"] - 1))
    at = np.flatnonzero(fits)
    columns = {name: table[at, i] for i, name in enumerate(BINARY)}
    columns |= {"split_k": np.ones(len(at), dtype=np.int64), "group_m": np.full(len(at), 8)}
    return Configs(columns, variant[at], VARIANTS)


def rate_of(dtype: str) -> str:
    """The tensor-core rate a dtype needs; raises InputError for one the kernels do not have."""
    if dtype not in _BYTES:
        raise unknown_name("dtype of the Triton GEMM kernels", dtype, _BYTES)
    return parse_dtype(dtype).rate


def formula(gpu: GpuSpec, dtype: str, configs: Configs, sizes: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Facts estimated without compiling, for configs that no table holds.

    Shared memory: a ring of (stages - 1) operand buffers where multiplies read registers (mma.sync), `stages` where they read
    shared memory (warp-group multiplies, sm_90 and sm_100, 64 rows or more), each with a barrier where the tensor-memory accelerator
    fills it; or the 16-bit output tile if that is larger, and beside the ring in the persistent kernel.
    Registers: accumulators m n / (32 warps), fragments, and about 40 for addresses; what exceeds the block's share of the SM spills.
    Serialised: two warp groups with 256 columns each.
    Evidence: on the sm_80, sm_86, sm_89 and sm_90 tables in data/ shared memory is within 64 bytes of the compiled figure on 99 % of the
    configs (equal on 93 %), the kind and number of multiplies equal on all, registers within 14 (median, 44 at p90); on sm_100 shared
    memory within 64 bytes on 99 %, registers within 18, the number of multiplies equal on 80 % (tests/unit/test_compile_facts.py).
    """
    size = parse_dtype(dtype).a_bytes
    bm, bn, bk = (configs[x].astype(np.float64) for x in ("block_m", "block_n", "block_k"))
    warps, stages = configs["num_warps"].astype(np.float64), configs["num_stages"].astype(np.float64)
    swap = configs.of("tma_swap")
    rows, cols = np.where(swap, bn, bm), np.where(swap, bm, bn)
    warpgroup = (gpu.capability[0] in (9, 10)) & (rows >= 64) & (warps % 4 == 0)
    buffers = np.where(warpgroup, stages, np.maximum(stages - 1, 1))
    tma, persistent = configs.of("tma", "tma_swap", "persistent"), configs.of("persistent")
    barriers = np.where(tma, _BARRIER_BYTES * buffers, 0.0)
    ring = buffers * (bm + bn) * bk * size
    out = bm * bn * 2.0
    shared = barriers + np.where(persistent, ring + np.where(bm * bn >= _TWO_STORES, out / 2.0, out), np.maximum(ring, out))
    accumulators = bm * bn / (32.0 * warps)
    depth16 = bk * size / 32.0
    grid_m = np.where(rows >= 32, np.minimum(2.0, warps), 1.0)
    grid_n = warps / grid_m
    fragments = np.where(warpgroup, 0.0, (rows / grid_m + cols / grid_n) * size * 16.0 / 128.0)
    registers = accumulators + fragments + 40.0
    ceiling = np.minimum(float(gpu.max_regs_per_thread), gpu.regs_per_sm / (32.0 * warps))  # a block must fit its SM
    spill = np.maximum(registers - ceiling, 0.0) * 4.0
    promoted = (dtype == "fp8") & ~warpgroup & (gpu.capability != (8, 9))
    rate_share = np.where(promoted, 0.5, 1.0)
    per_warp = np.where(
        warpgroup, np.ceil(rows / 64.0 / np.maximum(warps / 4.0, 1.0)) * depth16, rows * cols / (128.0 * warps) * depth16 / rate_share
    )
    per_warp = np.maximum(per_warp, 1.0)
    serialised = np.where(warpgroup & (((cols >= 256) & (warps >= 8)) | (accumulators >= 255)), per_warp, 0.0)
    copies = np.where(tma, 1.0, (bm + bn) * bk * size / 16.0 / (32.0 * warps))
    return {
        "shared_bytes": shared,
        "regs": np.minimum(registers, ceiling),
        "spill_bytes": spill,
        "loop_instructions": 40.0 + 6.0 * copies + per_warp * np.where(promoted, 4.0, 1.5),
        "multiplies": per_warp,
        "warpgroup": warpgroup.astype(np.float64),
        "rate_share": rate_share,
        "serialised": serialised,
        "fragment_bytes": np.where(warpgroup, 0.0, (rows / grid_m + cols / grid_n) * bk * size),
    }


def rules(gpu: GpuSpec, dtype: str, configs: Configs, facts: Facts, **sizes: Any) -> list[Rule]:
    """Configs to prune, with reasons: limits of the hardware and the kernel's semantics (hard), and dominated choices."""
    size, (m, n, k) = _BYTES[dtype], (sizes[name] for name in SIZES)
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


def terms(gpu: GpuSpec, dtype: str, configs: Configs, facts: Facts, constants: Mapping[str, float], **sizes: Any) -> Terms:
    """Physical terms of each config for SIZES (scalars or arrays beside the configs).

    latency = launch + cost of the tiles (kernels/tiled.py). Constants: calibration/physics/gemm.toml.
    Evidence: `perfmodel evaluate ranking` on exhaustive sweeps of an H200 (README, accuracy table).
    """
    c = constants
    launch = _launch(gpu, dtype, configs, c, sizes)
    size = float(_BYTES[dtype])
    which = {"tma": configs.of(*_TMA), "swap": configs.of("tma_swap"), "persistent": configs.of("persistent")}
    cost = tiled.cost(gpu, dtype, size, configs, facts, c, launch, **which)
    latency = c["launch_s"] + cost.latency_s
    seconds = {**cost.seconds, "launch": np.full_like(latency, c["launch_s"])}
    features = {
        **tiled.shares(cost.seconds, latency),
        "log_launch": np.log(c["launch_s"] / latency),
        "log_alone_over_throughput": np.log(cost.alone_over_throughput),
        "waves": np.minimum(cost.mean_waves, 8.0),
        "tail": cost.mean_waves / cost.busiest,
        "resident": cost.resident,
        "warps_per_sm": np.minimum(cost.resident, cost.busiest) * configs["num_warps"],
        **tiled.shape(configs, size),
        "log_reread": np.log1p(launch.again_bytes / launch.once_bytes),
        "split_k": np.log2(launch.split),
        "log2_k_steps": np.log2(cost.k_steps),
        "fill_m": np.broadcast_to(sizes["m"] / (launch.tiles_m * configs["block_m"]), latency.shape),
        "fill_n": np.broadcast_to(sizes["n"] / (launch.tiles_n * configs["block_n"]), latency.shape),
        "log_l2_share": np.broadcast_to(np.log(launch.once_bytes / gpu.l2_bytes), latency.shape),
        **tiled.code(facts, cost),
        "variant": np.where(configs.of(PLAIN), 0, configs.code).astype(np.float64),
    }
    return Terms(latency, seconds, cost.mean_waves, cost.blocks_per_sm, cost.limiter, features, facts.exact)


def _launch(gpu: GpuSpec, dtype: str, configs: Configs, c: Mapping[str, float], sizes: Mapping[str, Any]) -> tiled.Launch:
    """The tiles of C, and the bytes of A, B and C."""
    size = float(_BYTES[dtype])
    mm, nn, kk = (np.asarray(sizes[name], dtype=np.float64) for name in SIZES)
    bm, bn, bk = (configs[x].astype(np.float64) for x in REQUIRED)
    tiles_m, tiles_n = np.ceil(mm / bm), np.ceil(nn / bn)
    real_rows = np.minimum(bm, mm)
    lines = real_rows * np.ceil(bk * size / law.LINE_BYTES)
    group = configs["group_m"].astype(np.float64)
    compulsory = work(dtype, m=mm, n=nn, k=kk)
    return tiled.Launch(
        tiles_m=tiles_m,
        tiles_n=tiles_n,
        split=configs["split_k"].astype(np.float64),
        k=kk,
        rows=real_rows,
        cols=np.minimum(bn, nn),
        asked_rows=np.where(configs.of(*_TMA), real_rows, bm / law.shared_line_efficiency(lines, c["hot_lines"])),
        once_bytes=compulsory.read_bytes,
        again_bytes=law.reread_bytes(tiles_m, tiles_n, bm, bn, kk * size, group, gpu.sms, gpu.l2_bytes),
        out_bytes=compulsory.write_bytes,
    )


from perfmodel.kernels import gemm as _this  # noqa: E402, PLW0406  the module itself, so that its type is checked

register(_this)
