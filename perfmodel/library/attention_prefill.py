"""Attention prefill: many query tokens over their own keys (FlashAttention and its relatives)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.analytic.power import power_seconds
from perfmodel.analytic.roofline import cache, dram_seconds, miss_share, overlap
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.arch import FULL_MMA, FULL_WGMMA, dram_efficiency, joule_per_flop, warpgroup_path
from perfmodel.library.attention_append import append_s, indexed
from perfmodel.library.attention_kernels import (
    ALWAYS,
    MASKS,
    SCREENS,
    WARPGROUP,
    PrefillKernel,
    prefill_kernels,
)
from perfmodel.library.attention_paths import PATHS, paths
from perfmodel.library.attention_tiles import tiles
from perfmodel.library.launch import launch_floor_s, named_values, stack_values
from perfmodel.library.law import OperatorLaw, register
from perfmodel.library.records import Codes, Flags, Kernels
from perfmodel.library.stacks import attention_kernel
from perfmodel.library.terms import Floats, OperatorTerms
from perfmodel.ops import names
from perfmodel.ops.attention import visited_pairs

LAW = "library_attention_prefill"
KV_BLOCK = 64.0  # keys of a step of the chain
FP8_HEADS = (64, 128, 192, 256)  # head dims that fp8 multiplies were measured at
WIDE_HEAD = 128.0  # from here on an accumulator takes more registers than a warp has to itself
SPILL_DIMS = (192.0, 256.0)  # heads over the one and up to the other, whose window test spills registers (spills_under_window)


@dataclass(frozen=True, slots=True)
class _Calls:
    """n calls: sizes, codes, the kernels that run, and what follows of those."""

    batch: Floats
    q_len: Floats
    kv_len: Floats
    q_heads: Floats
    kv_heads: Floats
    dim: Floats
    window: Floats  # as asked
    causal: Flags
    dtype: Codes
    kv_dtype: Codes
    stack: Codes
    kernel: Codes
    k: Kernels[PrefillKernel]
    fp8_math: Flags  # multiplies in 8 bits
    native: Flags  # issues warp-group multiplies

    @property
    def q_bytes(self) -> Floats:
        """Bytes of an element of the queries."""
        return names.A_BYTES[self.dtype]

    @property
    def kv_bytes(self) -> Floats:
        """Bytes of an element of keys and values."""
        return names.A_BYTES[self.kv_dtype]


@dataclass(frozen=True, slots=True)
class _Visits:
    """Query-key pairs of one head: the exact ones, and those that the kernel multiplies; what it shares out over the SMs.

    window: that limits which blocks are visited (0: none); q_tile, heads: query tokens and query heads of a tile; longest: keys of the
    longest query block; waves: blocks over SMs; share: of the mean time, that the busiest SM takes.
    """

    exact: Floats
    pairs: Floats
    window: Floats
    masked: Flags
    q_tile: Floats
    heads: Floats
    longest: Floats
    waves: Floats
    share: Floats

    @property
    def filled(self) -> Floats:
        """Share of the SMs that have a block."""
        return np.minimum(self.waves, 1.0)


def terms(gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float]) -> OperatorTerms:
    """Terms of n prefill calls.

        t = floor x launches + overlap(SM, DRAM, L2),   SM = max(power, overlap(tensor, exp), chain) nearly

    Which pairs of query and key are multiplied: `_visits`; tensor flop = 4 d a pair, one exponential a pair at the special-function rate.
    Units = b h ceil(q / query rows of a tile); chain = KV tiles of the longest unit.
    Source: FlashAttention-2, arXiv 2307.08691; FlashAttention-3, arXiv 2407.08608 (exp throughput). Valid: head_dim 64 to 256.
    Evidence: 254,000 public rows of four GPUs; `perfmodel evaluate operators --operator attention_prefill`.
    """
    a = _calls(gpu, columns)
    v = _visits(gpu, a, c)
    clock, sms = gpu.max_clock_hz, float(gpu.sms)
    elements = a.batch * a.q_heads * v.pairs
    tensor, flops = _tensor_s(gpu, a, v, elements, c)
    exp = v.share * elements * c["sfu_per_pair"] / (gpu.sfu_per_clock_per_sm * sms * clock)
    chain = _chain_s(gpu, a, v, c)
    dram, l2, tokens, cold = _traffic_s(gpu, a, v, elements, c)
    switched = flops * np.where(a.fp8_math, np.sqrt(0.5), 1.0)
    power = power_seconds(switched, joule_per_flop(gpu, c), tokens * cold, c["pj_per_byte"] * 1e-12, gpu.power_w, c["idle_share"])
    unit_power = np.where(a.native, c["unit_power_wgmma"], c["unit_power"])
    busy = overlap(c["power_power"], overlap(unit_power, overlap(c["exp_power"], tensor, exp), chain), power)
    fixed = _fixed_s(gpu, a, c)
    prepare = append_s(
        gpu, a.stack, columns, cold, a.kv_bytes < 2, a.k.flag("multiplies_cache_type", ALWAYS), a.k.flag("indexed_append"), c
    )
    latency = fixed + prepare + overlap(c["overlap_power"], busy, dram, l2)
    seconds = {"tensor": tensor, "exp": exp, "kv chain": chain, "dram": dram, "l2": l2, "power": power, "prepare": prepare, "launch": fixed}
    capacity, _ = cache(gpu, c)
    one = np.ones_like(latency)
    return OperatorTerms(latency, seconds, _features(a, v, seconds, latency, tokens / capacity), variant=a.fp8_math * one)


def _calls(gpu: GpuSpec, columns: Mapping[str, Floats]) -> _Calls:
    """The calls with the kernels that their stacks run."""
    dtype, kv_dtype, stack = (columns[name].astype(np.intp) for name in ("dtype", "kv_dtype", "stack"))
    narrow = names.A_BYTES[kv_dtype] < 2
    kernel = attention_kernel(gpu, stack, columns["kernel"].astype(np.intp), narrow)
    k = prefill_kernels(stack, kernel)
    grouped = warpgroup_path(gpu)
    cache_type = k.flag("multiplies_cache_type", ALWAYS) | (k.flag("multiplies_cache_type", WARPGROUP) & grouped)
    dim = columns["head_dim"]
    return _Calls(
        batch=columns["batch"],
        q_len=columns["q_len"],
        kv_len=columns["kv_len"],
        q_heads=columns["q_heads"],
        kv_heads=columns["kv_heads"],
        dim=dim,
        window=columns["window"],
        causal=columns["causal"] > 0,
        dtype=dtype,
        kv_dtype=kv_dtype,
        stack=stack,
        kernel=kernel,
        k=k,
        fp8_math=(names.A_BYTES[dtype] < 2) | (narrow & cache_type),
        native=(dim <= k.number("warpgroup_to_dim")) & grouped,
    )


def _visits(gpu: GpuSpec, a: _Calls, c: Mapping[str, float]) -> _Visits:
    """Pairs that are multiplied, and how blocks of queries share the SMs.

    Exact pairs are enlarged by (query rows + keys) / 2 of the kernel's tile a query on the causal edge, twice that in a window, and by the
    empty rows of the last query tile. A kernel that masks a window visits every block; one that screens makes every block's mask and
    multiplies those with a key in view. Evidence: public rows of L40S, windowed over full: 1.9 and 1.2 where the window holds all keys,
    0.7 and 0.4 where it holds hardly any, at head_dim 64 and 192.
    """
    inside = (a.window > 0) & (a.window < a.kv_len)
    masks, screens = a.k.flag("window", MASKS) & inside, a.k.flag("window", SCREENS) & inside
    window = np.where(masks, 0.0, a.window)  # all blocks, then a mask
    screened = a.k.constant(c, "screen_cost") * 64.0 / a.dim * screens
    exact = visited_pairs(a.q_len, a.kv_len, window, a.causal)
    q_tile, kv_tile, heads = tiles(gpu, a.k, a.dim, a.q_heads / a.kv_heads, a.fp8_math)
    rows = np.ceil(a.q_len / q_tile)
    edge = (q_tile + kv_tile) / 2.0 * np.where((window > 0) & (window < a.kv_len), c["window_edges"], c["causal_edges"])
    rest = (rows * q_tile - a.q_len) * np.minimum(a.kv_len, np.where(window > 0, window + edge, a.kv_len))
    swapped = (a.q_len == 1) & a.k.flag("single_query_as_rows")
    rest = rest * np.where(swapped, a.kv_heads / a.q_heads, 1.0)
    most = a.q_len * np.ceil(a.kv_len / kv_tile) * kv_tile
    pairs = np.minimum(exact + np.minimum(a.q_len, a.kv_len) * edge, most) + c["empty_row_cost"] * rest
    pairs = pairs + screened * visited_pairs(a.q_len, a.kv_len, 0.0, a.causal)
    pairs = pairs + (a.native & a.k.flag("fills_pipeline")) * c["pipeline_fill"] * rows * q_tile * kv_tile
    waves = a.batch * np.where(swapped, a.kv_heads, a.q_heads / heads) * rows / float(gpu.sms)
    share = np.where(waves <= 1.0, 1.0 / np.minimum(waves, 1.0), 1.0 + c["tail_weight"] * (np.ceil(waves) / waves - 1.0))
    longest = np.where(window > 0, np.minimum(a.kv_len, window + q_tile), a.kv_len) + screened * a.kv_len
    return _Visits(exact, pairs, window, masks | screens, q_tile, heads, longest, waves, share)


def _tensor_s(gpu: GpuSpec, a: _Calls, v: _Visits, elements: Floats, c: Mapping[str, float]) -> tuple[Floats, Floats]:
    """(seconds of the multiplies, their flops) of all SMs: flops / (tensor rate x the share that the kernel reaches).

    Heads wider than 128 lose tensor efficiency (registers), but where two groups of warps keep the accumulator.
    """
    grouped = warpgroup_path(gpu)
    multiplied = np.where(a.q_bytes < 2, a.dtype, np.where(a.fp8_math, a.kv_dtype, 0))
    rate = names.tensor_rates(gpu, multiplied) * gpu.max_clock_hz / gpu.boost_clock_hz
    reached = a.k.constant(c, "tensor_share")
    if grouped:
        reached = np.where(a.native, a.k.constant(c, "tensor_share_warpgroup", other="tensor_share"), reached * c["mma_on_wgmma_share"])
    cut = min(1.0, gpu.tensor_rate("bf16") / (gpu.boost_clock_hz * float(gpu.sms)) / (FULL_WGMMA if grouped else FULL_MMA))
    reached = 1.0 - (1.0 - reached) * cut  # what the data paths cost stays, the multiplies they feed are fewer
    reached = reached * np.where(a.fp8_math, _fp8_share(a, grouped, c), 1.0)
    two_level = a.fp8_math & a.k.flag("two_level_fp8")
    reached = reached * np.where(two_level, np.where(a.dim > WIDE_HEAD, c["two_level_share_wide"], c["two_level_share"]), 1.0)
    flops = 4.0 * elements * a.dim
    wide = (a.dim > WIDE_HEAD) & ~(a.native & a.k.flag("two_accumulators"))
    tensor = v.share * flops / (rate * reached) * np.where(wide, c["wide_head_cost"], 1.0)
    mixed = (a.kv_bytes < 2) & ~a.fp8_math  # converts every key for the 32 query rows that it takes at such widths
    very_wide = a.dim > a.k.number("narrow_from_dim")
    narrow = a.k.constant(c, "narrow_cost") * np.where(mixed, a.k.constant(c, "narrow_mixed_cost"), 1.0)
    tensor = tensor * np.where(very_wide, narrow, 1.0)
    spilled = a.k.flag("spills_under_window") & (a.window > 0) & (a.dim > SPILL_DIMS[0]) & (a.dim <= SPILL_DIMS[1])
    half_size = np.where(a.kv_bytes < 2, a.k.constant(c, "spill_cost_fp8"), 1.0)
    return tensor * np.where(spilled, a.k.constant(c, "spill_cost") * half_size, 1.0), flops


def _fp8_share(a: _Calls, grouped: bool, c: Mapping[str, float]) -> Floats:
    """Share of the 16-bit efficiency that 8-bit multiplies keep, by tensor path, width of a head and kernel."""
    if grouped:
        kept = np.full_like(a.dim, c["fp8_share_wgmma"])
    else:
        kept = named_values(c, "fp8_share_mma", FP8_HEADS, np.searchsorted(FP8_HEADS, np.minimum(a.dim, FP8_HEADS[-1])))
    own = a.k.constant(c, "fp8_share", missing=np.nan)
    found: Floats = np.where(np.isnan(own), kept, own)
    return found


def _chain_s(gpu: GpuSpec, a: _Calls, v: _Visits, c: Mapping[str, float]) -> Floats:
    """Seconds of the longest unit whose steps follow each other: KV tiles, and what starting a unit costs."""
    unit_cycles = np.where(a.native, a.k.constant(c, "unit_cycles_warpgroup"), a.k.constant(c, "unit_cycles"))
    steps = np.ceil(v.longest / KV_BLOCK) * (c["tile_cycles"] + c["tile_dim_cycles"] * a.dim / 128.0)
    found: Floats = (steps + unit_cycles * v.share * v.waves) / gpu.max_clock_hz
    return found


def _traffic_s(gpu: GpuSpec, a: _Calls, v: _Visits, elements: Floats, c: Mapping[str, float]) -> tuple[Floats, Floats, Floats, Floats]:
    """(DRAM seconds, L2 seconds, bytes of queries, outputs, keys and values, share of them that comes from DRAM)."""
    read = np.where(v.window > 0, np.minimum(a.kv_len, v.window + a.q_len), a.kv_len)  # keys; those before every query's window are not
    queries = a.q_len * a.q_heads * a.dim * (a.q_bytes + 2.0)
    tokens = a.batch * (queries + 2.0 * read * a.kv_heads * a.dim * a.kv_bytes)
    capacity, sharpness = cache(gpu, c)
    cold = miss_share(tokens, capacity, sharpness)
    active = v.filled * float(gpu.sms)
    dram = dram_seconds(
        tokens * cold, gpu.dram_bytes_per_s, dram_efficiency(gpu, c), 2.0 * gpu.dram_latency_s, active, c["bytes_in_flight"]
    )
    again = elements / (v.q_tile * v.heads) * 2.0 * a.dim * a.kv_bytes  # keys and values, once a query tile
    return dram, (tokens + again) / (gpu.l2_bytes_per_s * c["l2_rate_factor"] * v.filled), tokens, cold


def _fixed_s(gpu: GpuSpec, a: _Calls, c: Mapping[str, float]) -> Floats:
    """Seconds of launches, and of what a stack does for each sequence."""
    fp8 = (a.kv_bytes < 2) * 1.0
    calls = named_values(c, "launches", PATHS, paths(a.stack, a.kernel)) + fp8 * (a.q_bytes > 1) * stack_values(c, "fp8_launches", a.stack)
    calls = calls + c["varlen_launches"] * a.k.flag("varlen")
    calls = calls + c["uneven_launches"] * indexed(a.k.flag("indexed_append"), a.dim)
    found: Floats = calls * launch_floor_s(gpu, c) + stack_values(c, "sequence_ns", a.stack) * 1e-9 * a.batch
    return found


def _features(a: _Calls, v: _Visits, seconds: Mapping[str, Floats], latency: Floats, in_l2: Floats) -> dict[str, Floats]:
    """Dimensionless columns for the residual."""
    one = np.ones_like(latency)
    binding = {name: np.log(seconds[name] / latency) for name in ("tensor", "exp")}
    return {
        **binding,
        "chain": np.log(seconds["kv chain"] / latency),
        "dram": np.log((seconds["dram"] + 1e-9) / latency),
        "l2": np.log(seconds["l2"] / latency),
        "power": np.log(seconds["power"] / latency),
        "fixed": np.log(seconds["launch"] / latency),
        "prepare": seconds["prepare"] / latency,
        "waves": np.log(v.waves),
        "tail": np.ceil(v.waves) / v.waves,
        "edge": np.log(v.pairs / v.exact),
        "acts_in_l2": np.log(in_l2),
        "log2_q": np.log2(a.q_len),
        "cached": np.log(a.kv_len / a.q_len),
        "log2_batch": np.log2(a.batch),
        "log2_heads": np.log2(a.q_heads),
        "group": a.q_heads / a.kv_heads,
        "head_dim": a.dim,
        "windowed": np.where(v.window > 0, np.log2(np.maximum(a.kv_len / np.maximum(v.window, 1), 1 / 64)), -9.0),
        "masked": v.masked * one,
        "fp8_cache": (a.kv_bytes < 2).astype(np.float64),
        "fp8_math": a.fp8_math * one,
        "path": paths(a.stack, a.kernel).astype(np.float64),
        "stack": a.stack.astype(np.float64),
        "kernel": a.kernel.astype(np.float64),
    }


register(
    OperatorLaw(
        "attention_prefill",
        "attention",
        LAW,
        terms,
        ("q_heads", "kv_heads", "head_dim", "window"),
        ("log2_q", "cached", "log2_batch", "head_dim", "group"),
        "attention_prefill",
        lambda columns: columns["decode"] == 0,
        rules="attention",
        records="attention_kernels",
    )
)
