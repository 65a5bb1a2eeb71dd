"""Attention decode: one query token a sequence over its KV cache, split over the SMs and combined (Flash-Decoding)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.analytic.roofline import cache, dram_seconds, miss_share, overlap
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.arch import dram_efficiency, warpgroup_path
from perfmodel.library.attention_append import indexed
from perfmodel.library.attention_kernels import DecodeKernel, decode_kernels
from perfmodel.library.attention_paths import PATHS, paths
from perfmodel.library.attention_splits import MOST_SEQUENCES, Plan, plan
from perfmodel.library.launch import launch_floor_s, named_values, stack_values
from perfmodel.library.law import OperatorLaw, register
from perfmodel.library.records import Codes, Flags, Kernels
from perfmodel.library.stacks import attention_kernel, stack_flags
from perfmodel.library.terms import Floats, OperatorTerms
from perfmodel.ops import names

LAW = "library_attention_decode"
ROWS_OF_A_STEP = 8.0  # query heads that a kernel which turns and appends itself handles at a time
KV_BLOCK = 64.0  # tokens of a KV tile, for whole tiles loaded and the chain


@dataclass(frozen=True, slots=True)
class _Calls:
    """n calls: sizes, codes, the kernels that run, and how those cut the work.

    seen: keys in view; edge: more of them in blocks that a window cuts; share: of the mean time, that the busiest SM takes; active: SMs
    with work; idle: SMs over those.
    """

    batch: Floats
    q_heads: Floats
    kv_heads: Floats
    dim: Floats
    kv_bytes: Floats
    fp8: Floats
    stack: Codes
    kernel: Codes
    k: Kernels[DecodeKernel]
    cut: Plan
    seen: Floats
    edge: Floats
    waves: Floats
    share: Floats
    active: Floats
    idle: Floats

    @property
    def group(self) -> Floats:
        """Query heads a KV head."""
        return self.q_heads / self.kv_heads

    @property
    def held_bytes(self) -> Floats:
        """Bytes of the keys and values in view."""
        return 2.0 * self.batch * self.kv_heads * (self.seen + self.edge) * self.dim * self.kv_bytes

    @property
    def small_bytes(self) -> Floats:
        """Bytes of queries and outputs."""
        return 2.0 * self.batch * self.q_heads * self.dim * 2.0

    @property
    def own_steps(self) -> Flags:
        """Rows whose kernel rotates queries and appends keys itself."""
        return self.k.flag("turns_and_appends")


def terms(gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float]) -> OperatorTerms:
    """Terms of n decode calls.

        t = floor x launches + overlap(DRAM, L2, multiplies, exp, chain) + combine

    Keys seen L = min(kv_len, window). Bytes = 2 b h_kv L d each, read once from DRAM unless they fit in L2 and once a pass from L2
    (`plan`). Work units = b h_kv x passes x splits; chain = fixed cycles of a unit, in part by head_dim, + its KV tiles x (cycles +
    latencies) a tile. Launches: those of the stack and kernel, one more for an fp8 cache that is not read as it is, one more for
    variable-length batches (metadata); queries and new keys read and written once more by a kernel of their own (rotary, cache append);
    one more for the combine pass of split keys, which then adds up one split after the other.
    Source: Flash-Decoding (pytorch.org, 2023); FlashAttention-2, arXiv 2307.08691. Valid: kv_len 1 to 2^20, head_dim 64 to 512.
    Evidence: 238,000 public rows of five GPUs; `perfmodel evaluate operators --operator attention_decode`.
    """
    a = _calls(gpu, columns, c)
    unit_s, chain = _chain_s(gpu, a, c)
    dram, l2 = _traffic_s(gpu, a, c)
    tensor, exp, convert = _busy_s(gpu, a, c)
    prepare, launches, combine = _fixed_s(gpu, a, c)
    ramp = c["ramp"] * unit_s
    streams = (warpgroup_path(gpu) & a.k.flag("whole_tiles")) | (stack_flags("dense_cache", a.stack) > 0)
    power = np.where(streams, c["overlap_power_wgmma"], c["overlap_power"])
    busy = tensor + exp + convert
    turns = dram + a.k.flag("one_stage") * busy  # one stage of keys: loads and multiplies take turns
    latency = launches + prepare + ramp + overlap(power, turns, l2, busy, chain) + combine
    seconds = {
        "dram": dram, "l2": l2, "tensor": tensor, "exp": exp, "conversion": convert, "kv chain": chain, "combine": combine,
        "prepare": prepare, "launch": launches + ramp,
    }  # fmt: skip
    cuda_cores = (a.fp8 == 0) & (a.group < a.k.number("cuda_cores_below_group"))
    variant = np.where(a.k.flag("head_by_head"), 1.0, np.where(cuda_cores, 2.0, 0.0))
    capacity, _ = cache(gpu, c)
    return OperatorTerms(latency, seconds, _features(gpu, a, columns, seconds, latency, launches, a.held_bytes / capacity), variant=variant)


def _calls(gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float]) -> _Calls:
    """The calls with the kernels that their stacks run and how those share out the work."""
    stack = columns["stack"].astype(np.intp)
    kv_bytes = names.A_BYTES[columns["kv_dtype"].astype(np.intp)]
    fp8 = np.where(kv_bytes < 2, 1.0, 0.0)
    kernel = attention_kernel(gpu, stack, columns["kernel"].astype(np.intp), kv_bytes < 2)
    k, shares = decode_kernels(gpu, stack, kernel, columns, fp8)
    kv_len, window = columns["kv_len"], columns["window"]
    seen = np.where(window > 0, np.minimum(kv_len, window), kv_len)
    cut = plan(gpu, k, columns, seen, fp8, shares, c)
    edge = np.where((window > 0) & (kv_len > window), c["window_edge_tokens"], 0.0)
    units = columns["batch"] * columns["kv_heads"] * cut.passes * cut.splits
    waves = units / (float(gpu.sms) * cut.blocks_per_sm)
    share = np.where(waves <= 1.0, 1.0, c["tail_weight"] * np.ceil(waves) + (1.0 - c["tail_weight"]) * waves)
    active = np.minimum(units / cut.blocks_per_sm, float(gpu.sms))
    return _Calls(
        batch=columns["batch"],
        q_heads=columns["q_heads"],
        kv_heads=columns["kv_heads"],
        dim=columns["head_dim"],
        kv_bytes=kv_bytes,
        fp8=fp8,
        stack=stack,
        kernel=kernel,
        k=k,
        cut=cut,
        seen=seen,
        edge=edge,
        waves=waves,
        share=share,
        active=active,
        idle=float(gpu.sms) / np.maximum(active, 1.0),
    )


def _chain_s(gpu: GpuSpec, a: _Calls, c: Mapping[str, float]) -> tuple[Floats, Floats]:
    """(seconds of a unit's fixed part, seconds of the units that follow each other on an SM)."""
    tiles = np.ceil((a.seen + a.edge) / a.cut.splits / KV_BLOCK)
    narrow = np.where(a.fp8 > 0, c["tile_fp8_share"], 1.0)
    cycles = c["tile_cycles"] + c["tile_dim_cycles"] * a.dim / 128.0 * narrow
    tile_s = cycles / gpu.max_clock_hz + c["tile_latencies"] * gpu.dram_latency_s
    second = np.where(a.group > a.k.number("second_tile_over_group"), a.k.constant(c, "second_tile_cost"), 1.0)
    unit_cycles = a.k.constant(c, "unit_cycles") * second
    width = a.dim / 128.0 * np.where(a.own_steps, np.ceil(a.group / ROWS_OF_A_STEP), 1.0)
    by_dim = np.where(a.k.flag("head_by_head"), 0.0, a.k.constant(c, "unit_dim_share"))
    unit_s = unit_cycles * (1.0 - by_dim * (1.0 - width)) / gpu.max_clock_hz
    return unit_s, a.share * (unit_s + tiles * tile_s * a.k.constant(c, "chain"))


def _traffic_s(gpu: GpuSpec, a: _Calls, c: Mapping[str, float]) -> tuple[Floats, Floats]:
    """(DRAM seconds, L2 seconds)."""
    moved = a.held_bytes + a.small_bytes
    cold = miss_share(moved, *cache(gpu, c))
    latency_s, in_flight = 2.0 * gpu.dram_latency_s, c["bytes_in_flight"]
    dram = dram_seconds(moved * cold, gpu.dram_bytes_per_s, dram_efficiency(gpu, c), latency_s, a.active, in_flight)
    l2 = (a.held_bytes * a.cut.passes + a.small_bytes) / (gpu.l2_bytes_per_s * c["l2_rate_factor"]) * a.idle
    return dram, l2


def _busy_s(gpu: GpuSpec, a: _Calls, c: Mapping[str, float]) -> tuple[Floats, Floats, Floats]:
    """Seconds of (multiplies, exponentials, turning what was loaded into what is multiplied) on the SMs that have work."""
    sms, clock = float(gpu.sms), gpu.max_clock_hz
    elements = a.batch * a.kv_heads * a.cut.passes * a.cut.rows * (a.seen + a.edge) * a.idle
    mma = gpu.tensor_rate("bf16") * (c["mma_on_wgmma_share"] if warpgroup_path(gpu) else 1.0)
    own = np.where(a.fp8 > 0, 2.0, 1.0) * gpu.tensor_rate("bf16")  # whole warp-group tiles, fp8 as it is
    levels = np.where(a.dim > 128, c["two_level_share_wide"], c["two_level_share"])
    own = own * np.where((a.fp8 > 0) & a.k.flag("two_level_fp8"), levels, 1.0)
    tensor = 4.0 * elements * a.dim / (np.where(a.k.flag("whole_tiles"), own, mma) * a.k.constant(c, "tensor_share"))
    exp = elements / (gpu.sfu_per_clock_per_sm * sms * clock)
    alone = a.k.flag("head_by_head")
    turned = np.where(alone, 1.0, a.fp8) * a.held_bytes / a.kv_bytes * a.cut.passes * a.idle
    return tensor, exp, turned / (_convert_per_clock(gpu, a, c) * sms * clock)


def _convert_per_clock(gpu: GpuSpec, a: _Calls, c: Mapping[str, float]) -> Floats:
    """Elements a clock and SM that a kernel turns into what it multiplies: of fp8, or, where heads go one by one, any.

    Kernels that multiply in fp8 as it is transpose V, slower in wide heads; one that goes head by head multiplies on the CUDA cores, as
    fast in fp8 as in 16 bits on sm_90 (public rows: 13 elements a clock and SM).
    """
    rate = a.k.constant(c, "convert")
    if gpu.capability == (8, 9):
        rate = np.where(a.fp8 > 0, a.k.constant(c, "convert_fp8_sm_89", other="convert"), rate)
    found: Floats = np.where(a.k.flag("transposes_values") & (a.dim > 128), 0.5, 1.0) * rate
    return found


def _fixed_s(gpu: GpuSpec, a: _Calls, c: Mapping[str, float]) -> tuple[Floats, Floats, Floats]:
    """Seconds of (rotary and cache append by kernels of their own, launches and what a stack does a sequence, the combine pass)."""
    floor = launch_floor_s(gpu, c)
    calls = named_values(c, "launches", PATHS, paths(a.stack, a.kernel))
    fused = calls * a.k.constant(c, "launches_share") + (a.dim <= 64.0)  # at head_dim 64 public rows show one kernel more
    calls = np.where(a.own_steps, fused, calls + a.fp8 * stack_values(c, "fp8_launches", a.stack))
    bounded = a.k.flag("varlen", "bounded") & (a.batch <= MOST_SEQUENCES)
    calls = calls + c["varlen_launches"] * (bounded | (a.k.flag("varlen", "batches") & (a.batch > 1)))
    calls = calls + c["uneven_launches"] * indexed(a.k.flag("indexed_append"), a.dim)
    launches = calls * floor + stack_values(c, "sequence_ns", a.stack) * 1e-9 * a.batch
    rows_bytes = a.batch * a.dim * 2.0 * (a.q_heads + 2.0 * a.kv_heads)
    prepare = np.where(a.own_steps, 0.0, stack_values(c, "prepare", a.stack) * 2.0 * rows_bytes / gpu.l2_bytes_per_s)
    per_split = a.k.constant(c, "combine_cycles") / gpu.max_clock_hz + a.batch * a.q_heads * a.dim * 4.0 / gpu.l2_bytes_per_s
    merge = c["combine_launches"] * a.k.constant(c, "launches_share")  # by the last block of a sequence
    combine: Floats = a.cut.combined * (merge * floor + a.cut.splits * per_split)
    return prepare, launches, combine


def _features(
    gpu: GpuSpec,
    a: _Calls,
    columns: Mapping[str, Floats],
    seconds: Mapping[str, Floats],
    latency: Floats,
    launches: Floats,
    in_l2: Floats,
) -> dict[str, Floats]:
    """Dimensionless columns for the residual."""
    return {
        "dram": np.log(seconds["dram"] / latency),
        "l2": np.log(seconds["l2"] / latency),
        "tensor": np.log((seconds["tensor"] + seconds["exp"]) / latency),
        "convert": seconds["conversion"] / latency,
        "chain": np.log(seconds["kv chain"] / latency),
        "fixed": np.log(launches / latency),
        "combine": seconds["combine"] / latency,
        "prepare": seconds["prepare"] / latency,
        "waves": np.log(a.waves),
        "tail": np.ceil(a.waves) / a.waves,
        "splits": np.log2(a.cut.splits),
        "passes": np.log2(a.cut.passes),
        "pairs_per_sm": np.log(a.batch * a.kv_heads / float(gpu.sms)),
        "cache_in_l2": np.log(in_l2),
        "log2_seen": np.log2(a.seen),
        "log2_kv": np.log2(columns["kv_len"]),
        "log2_batch": np.log2(a.batch),
        "log2_kv_heads": np.log2(a.kv_heads),
        "group": a.group,
        "head_dim": a.dim,
        "windowed": (columns["window"] > 0) * np.ones_like(latency),
        "fp8_cache": a.fp8,
        "path": paths(a.stack, a.kernel).astype(np.float64),
        "stack": a.stack.astype(np.float64),
        "kernel": a.kernel.astype(np.float64),
    }


register(
    OperatorLaw(
        "attention_decode",
        "attention",
        LAW,
        terms,
        ("q_heads", "kv_heads", "head_dim", "window"),
        ("log2_kv", "log2_batch", "head_dim", "group"),
        "attention_decode",
        lambda columns: columns["decode"] > 0,
        rules="attention",
        records="attention_kernels",
    )
)
