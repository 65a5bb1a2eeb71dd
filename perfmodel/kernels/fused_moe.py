"""The Triton fused-MoE family: two grouped GEMMs over rows sorted by expert, the gate between them, the sum over a token's choices.

Variants: `pointer` is the project's own kernel (measure/kernels/fused_moe.py), `plain` anybody else's of that form (vLLM's and SGLang's):
one config for both projections, each expert's rows padded to block_m. Latencies are of all four launches; routing and sorting are not
in them. The L2 is cold, as a layer that is served finds it, unless something is `replayed` (REPLAYED). `random` is 1 where tokens choose
their experts at random, 0 where rows are dealt out evenly ("balanced"). The K loop is the GEMM's, and so is its law (kernels/tiled.py).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.analytic import moe as law
from perfmodel.analytic import tile
from perfmodel.analytic.occupancy import blocks_per_sm
from perfmodel.analytic.roofline import cache, miss_share
from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError, unknown_name
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels import gemm, tiled
from perfmodel.kernels.configs import Configs
from perfmodel.kernels.facts import Facts
from perfmodel.kernels.family import register
from perfmodel.kernels.terms import Floats, Rule, Terms
from perfmodel.ops import MoE
from perfmodel.ops.moe import moe_work, skew, touched_experts
from perfmodel.ops.work import Work

NAME = "fused_moe"
PLAIN = "plain"
VARIANTS = ("pointer", PLAIN)
SIZES = ("tokens", "hidden", "inter", "num_experts", "top_k", "random")
FLAGS = ("random",)
ALIASES = {"hidden": ("hidden_size", "H"), "inter": ("inter_size", "N"), "num_experts": ("E",), "tokens": ("M",), "top_k": ("topk",)}
DEFAULTS = {"random": 1}
ARGUMENTS = {"tokens": ("tokens", "num_tokens"), "hidden": ("hidden", "hidden_size"), "num_experts": ("num_experts",), "top_k": ("top_k",)}
REQUIRED = ("block_m", "block_n", "block_k")
COLUMNS = (*REQUIRED, "group_m", "num_warps", "num_stages")
BINARY = (*REQUIRED, "num_warps", "num_stages")
TWINS = BINARY  # the same code in another order of tiles
FIXED = {"even_k": True}
REPLAYED = ("nothing", "layer", "projection")
"""What is launched over and over without a flush between, so that its operands stay in L2 as far as they fit: nothing (when a model is
served, other layers ran since), the whole layer, or each projection alone."""
_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
_ROWS = (16, 32, 64, 128, 256)
_COLS = (16, 32, 64, 128, 256)
_DEPTHS = (64, 128, 256)  # elements, whatever their size: what users' tuning scripts offer
_GROUPS = (1, 4, 16, 32, 64)
_WARPS = (4, 8)
_STAGES = (2, 3, 4, 5)


def computes(op: Any) -> bool:
    """Whether the operator is a mixture of experts."""
    return bool(op.kind == "moe")


def operator(dtype: str, **sizes: Any) -> MoE:
    """The MoE of these sizes on one GPU."""
    random = sizes.pop("random")
    return MoE(**sizes, dtype=dtype, distribution="random" if random else "balanced")


def sizes_of(op: Any) -> dict[str, int]:
    """SIZES of one GPU's share of an MoE: inter over tp; with ep, its experts and the tokens that reach them.

    Raises InputError for skewed routing, which the kernel's law does not cover, and for sizes that the kernel cannot run.
    """
    if skew(op.distribution):
        raise InputError(f"the {NAME} kernel is modelled for balanced and for random routing, got {op.distribution}")
    experts = op.num_experts // op.ep
    sizes = {
        "tokens": max(1, round(op.tokens * op.top_k / op.ep / min(op.top_k, experts))),
        "hidden": int(op.hidden),
        "inter": int(op.inter // op.tp),
        "num_experts": int(experts),
        "top_k": int(min(op.top_k, experts)),
        "random": int(op.distribution != "balanced"),
    }
    for name in ("hidden", "inter"):
        if sizes[name] % 16:
            raise InputError(f"the {NAME} kernel needs {name} a multiple of 16 on each GPU, got {sizes[name]}")
    return sizes


def work(dtype: str, **sizes: Any) -> Work:
    """Flops and compulsory bytes of a problem, broadcast over arrays; what is `replayed` does not change them."""
    d = parse_dtype(dtype)
    tokens, hidden, inter, num_experts, top_k, random = (sizes[name] for name in SIZES)
    spread = touched_experts(tokens, top_k, num_experts)
    touched = np.where(np.asarray(random) > 0, spread, np.minimum(np.asarray(tokens) * top_k, num_experts))
    return moe_work(tokens, hidden, inter, top_k, 1, touched, d.a_bytes, d.b_bytes, d.out_bytes)


def rate_of(dtype: str) -> str:
    """The tensor-core rate a dtype needs; raises InputError for one the kernels do not have."""
    if dtype not in _BYTES:
        raise unknown_name("dtype of the Triton fused-MoE kernels", dtype, _BYTES)
    return parse_dtype(dtype).rate


@functools.cache
def _tiles() -> npt.NDArray[np.int64]:
    every = itertools.product(_ROWS, _COLS, _DEPTHS, _WARPS, _STAGES)
    rows = [r for r in every if 32 * r[3] <= r[0] * r[1] <= 255 * 32 * r[3]]
    return np.array(rows, dtype=np.int64)


def space(gpu: GpuSpec, dtype: str, **sizes: Any) -> Configs:
    """Every config that users' tuning scripts offer: tiles, group_m, warps and stages, before the rules."""
    table = _tiles()
    columns = {name: np.repeat(table[:, i], len(_GROUPS)) for i, name in enumerate(BINARY)}
    columns["group_m"] = np.tile(np.array(_GROUPS, dtype=np.int64), len(table))
    return Configs({name: columns[name] for name in COLUMNS}, np.zeros(len(columns["group_m"]), dtype=np.int8), VARIANTS)


portable_space = space


def binaries(arch: int, dtype: str) -> list[dict[str, Any]]:
    """What measure.compile has to compile, so that every config has its facts."""
    return [{"variant": "pointer", **dict(zip(BINARY, map(int, row), strict=True)), **FIXED} for row in _tiles()]


def code_of(configs: Configs, sizes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The BINARY columns: the sizes do not change the code, but for a k that block_k does not divide."""
    return {name: configs[name] for name in BINARY}


def formula(gpu: GpuSpec, dtype: str, configs: Configs, sizes: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Facts without compiling: those of the GEMM's pointer kernel."""
    return gemm.formula(gpu, dtype, Configs(configs.columns, np.zeros(len(configs), dtype=np.int8), gemm.VARIANTS))


def rules(gpu: GpuSpec, dtype: str, configs: Configs, facts: Facts, **sizes: Any) -> list[Rule]:
    """Configs to prune, with reasons: limits of the hardware and the kernel's semantics (hard), and dominated choices."""
    size = _BYTES[dtype]
    bm, bn, bk, warps = (configs[name] for name in (*REQUIRED, "num_warps"))
    threads = 32 * warps
    power = (bm & (bm - 1)) | (bn & (bn - 1)) | (bk & (bk - 1)) | (warps & (warps - 1))
    limit = gpu.smem_per_block_bytes
    rows = sizes["tokens"] * sizes["top_k"]
    busiest = float(law.rows_of_busiest(sizes["tokens"], sizes["top_k"], sizes["num_experts"]))
    return [
        Rule(power != 0, "tile sides and warps must be powers of two"),
        Rule((bm < 16) | (bn < 16) | (bk * size < 32), "tile under 16 x 16 x 32 bytes: no tensor-core instruction is that small"),
        Rule(threads > gpu.max_threads_per_block, f"more than {gpu.max_threads_per_block} threads a block"),
        Rule(((facts.regs + 7) // 8 * 8) * threads > gpu.regs_per_sm, "needs more registers than an SM has: the launch fails"),
        Rule(facts.shared_bytes > limit, f"needs more shared memory than the {limit} bytes a block of {gpu.name} may have"),
        Rule(bm * bn / (32.0 * warps) >= 255, "accumulators alone fill 255 registers a thread: the kernel spills", hard=False),
        Rule(facts.spill_bytes > 64, "spills more than 64 bytes a thread", hard=False),
        Rule((bm > 64) & (bm >= 4 * min(rows, busiest)), "no expert has a quarter of the tile's rows", hard=False),
        Rule((bk >= 2 * max(32, sizes["inter"])) & (bk > 64), "the tile is twice as deep as the down projection", hard=False),
    ]


@dataclass(frozen=True, slots=True)
class _Routed:
    """A problem on its configs: token-expert pairs, experts with any, tiles of rows over all experts, and rows of a tile that are any."""

    tokens: Floats
    hidden: Floats
    inter: Floats
    experts: Floats
    pairs: Floats
    touched: Floats
    tiles_m: Floats
    rows: Floats


def terms(gpu: GpuSpec, dtype: str, configs: Configs, facts: Facts, constants: Mapping[str, float], **sizes: Any) -> Terms:
    """Physical terms of each config for SIZES (scalars or arrays beside the configs) and optionally `replayed`, an index of REPLAYED.

        latency = launches + up projection + gate + down projection + sum

    Both projections are grouped GEMMs (kernels/tiled.py) whose tile rows are the experts' rows padded to block_m (analytic/moe.py).
    Constants: calibration/physics/fused_moe.toml. Evidence: `perfmodel evaluate ranking --kernel fused_moe` (README).
    """
    c, size = constants, float(_BYTES[dtype])
    r = _routed(configs, sizes)
    false = np.zeros(len(configs), dtype=bool)
    up, down = (
        tiled.cost(gpu, dtype, size, configs, facts, c, launch, tma=false, swap=false, persistent=false)
        for launch in _projections(gpu, size, configs, facts, c, r, REPLAYED[sizes.get("replayed", 0)])
    )
    other_s = _elementwise_s(gpu, r, c) + 2.0 * c["next_launch_s"]
    latency: Floats = c["launch_s"] + up.latency_s + c["next_launch_s"] + down.latency_s + other_s
    seconds = {name: value + down.seconds[name] for name, value in up.seconds.items()}
    seconds |= {
        "gate and sum": np.broadcast_to(other_s, latency.shape),
        "launch": np.full_like(latency, c["launch_s"] + c["next_launch_s"]),
    }
    columns = {
        **tiled.shares(seconds, latency),
        "log_alone_over_throughput": np.log(up.alone_over_throughput),
        "log_up_share": np.log(up.latency_s / latency),
        "waves": np.minimum(up.mean_waves, 8.0),
        "tail": up.mean_waves / up.busiest,
        "resident": up.resident,
        **tiled.shape(configs, size),
        "fill_m": r.rows / configs["block_m"],
        "log_rows_per_expert": np.broadcast_to(np.log(r.pairs / r.touched), latency.shape),
        "touched": np.broadcast_to(r.touched / r.experts, latency.shape),
        **tiled.code(facts, up),
    }
    return Terms(latency, seconds, up.mean_waves, up.blocks_per_sm, up.limiter, columns, facts.exact)


def _routed(configs: Configs, sizes: Mapping[str, Any]) -> _Routed:
    """How the rows are shared out over experts and tiles: drawn at random, or dealt out evenly."""
    tokens, hidden, inter, experts, top_k, random = (np.asarray(sizes[n], dtype=np.float64) for n in SIZES)
    bm = configs["block_m"].astype(np.float64)
    pairs = tokens * top_k
    touched = np.where(random > 0, touched_experts(tokens, top_k, experts), np.minimum(pairs, experts))
    drawn, even = law.padded_tiles(tokens, top_k, experts, bm), law.even_tiles(tokens, top_k, experts, bm)
    tiles_m = np.where(random > 0, drawn, even)
    return _Routed(tokens, hidden, inter, experts, pairs, touched, tiles_m, np.minimum(pairs / tiles_m, bm))


def _projections(
    gpu: GpuSpec, size: float, configs: Configs, facts: Facts, c: Mapping[str, float], r: _Routed, replayed: str
) -> list[tiled.Launch]:
    """The launches of the up and the down projection; what is `replayed` finds in L2 what of its lap fits there."""
    shapes = ((2.0 * r.inter, r.hidden, r.tokens), (r.hidden, r.inter, r.pairs))
    operands = [(np.minimum(read, r.pairs) + r.touched * n) * k * size for n, k, read in shapes]
    outputs = [r.pairs * n * 2.0 for n, _, _ in shapes]
    launches = []
    for (n, k, _), read_bytes, out_bytes in zip(shapes, operands, outputs, strict=True):
        lap = {"nothing": np.inf, "layer": sum(operands) + sum(outputs), "projection": read_bytes + out_bytes}[replayed]
        cold = miss_share(lap, *cache(gpu, c))
        launches.append(_projection(gpu, size, configs, facts, c, r, n=n, k=k, read_bytes=read_bytes * cold, out_bytes=out_bytes * cold))
    return launches


def _projection(
    gpu: GpuSpec,
    size: float,
    configs: Configs,
    facts: Facts,
    c: Mapping[str, float],
    r: _Routed,
    *,
    n: Any,
    k: Any,
    read_bytes: Any,
    out_bytes: Any,
) -> tiled.Launch:
    """A grouped GEMM of n columns and depth k over the routed rows."""
    bn, group = configs["block_n"].astype(np.float64), configs["group_m"].astype(np.float64)
    tiles_n = np.ceil(n / bn)
    per_expert = tile.reread_bytes(r.tiles_m / r.touched, tiles_n, r.rows, bn, k * size, group, gpu.sms, gpu.l2_bytes)
    resident = np.maximum(blocks_per_sm(gpu, 32.0 * configs["num_warps"], facts.regs, facts.shared_bytes).blocks_per_sm, 1)
    streamed = bn * np.minimum(resident, np.maximum(r.tiles_m * tiles_n / gpu.sms, 1.0))
    losses = (c[name] for name in ("lost_bytes", "stream_loss", "band_loss", "deep_loss"))
    return tiled.Launch(
        tiles_m=r.tiles_m,
        tiles_n=tiles_n,
        split=np.ones(len(configs)),
        k=k,
        rows=r.rows,
        cols=np.minimum(bn, n),
        asked_rows=r.rows,
        once_bytes=read_bytes,
        again_bytes=np.maximum(per_expert, 0.0) * r.touched,
        out_bytes=out_bytes,
        dram_share=law.stream_share(configs["block_k"] * size, configs["num_stages"], streamed, group, *losses),
    )


def _elementwise_s(gpu: GpuSpec, r: _Routed, c: Mapping[str, float]) -> Floats:
    """Seconds of the gate and of the sum over a token's choices: their bytes, at the rate of L2 while they fit in half of it."""
    moved = (r.pairs * 3.0 * r.inter + (r.pairs + r.tokens) * r.hidden) * 2.0
    rate = np.where(moved < gpu.l2_bytes / 2.0, gpu.l2_bytes_per_s * c["elementwise_l2_share"], gpu.dram_bytes_per_s)
    return np.asarray(moved / rate, dtype=np.float64)


from perfmodel.kernels import fused_moe as _this  # noqa: E402, PLW0406  the module itself, so that its type is checked

register(_this)
