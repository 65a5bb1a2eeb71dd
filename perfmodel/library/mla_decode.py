"""Latent-attention decode over the compressed cache: by whole requests, by splits of them, or by splits and groups of heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.analytic.roofline import cache, dram_seconds, miss_share, overlap
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.arch import dram_efficiency, warpgroup_path
from perfmodel.library.launch import launch_floor_s, stack_values
from perfmodel.library.law import OperatorLaw, register
from perfmodel.library.mla_kernels import MlaDecodeKernel, decode_kernels
from perfmodel.library.records import Codes, Flags, Kernels
from perfmodel.library.terms import Floats, OperatorTerms
from perfmodel.ops import names
from perfmodel.ops.mla import LATENT, ROPE

LAW = "library_mla_decode"
WIDTH = float(LATENT + ROPE)  # elements of a cached key
ABSORBED = float(2 * LATENT + ROPE)  # multiply-adds a key and head with the up-projections absorbed: 576 + 512


@dataclass(frozen=True, slots=True)
class _Calls:
    """n calls: sizes, the kernels that run, and how those cut the work.

    blocks: of heads; splits: of a request's keys; waves: blocks over SMs; cast: rows whose cache is converted before.
    """

    batch: Floats
    heads: Floats
    keys: Floats
    kv_bytes: Floats
    k: Kernels[MlaDecodeKernel]
    blocks: Floats
    splits: Floats
    waves: Floats
    cast: Flags

    @property
    def filled(self) -> Floats:
        """Share of the SMs that have a block."""
        return np.minimum(self.waves, 1.0)

    @property
    def held_bytes(self) -> Floats:
        """Bytes of the cache as the kernel reads it."""
        stored = np.where(self.k.flag("whole_requests") | self.cast, 2.0, self.kv_bytes)
        return self.batch * self.keys * WIDTH * stored


def terms(gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float]) -> OperatorTerms:
    """Terms of n latent-attention decode calls over b requests of L keys and H heads.

        t = floor x launches + requests + overlap(tensor, keys, DRAM, L2) + cast + partials

    The keys of all requests are shared out over the SMs and the cache is read once; or blocks take whole requests, so that L keys follow
    each other whatever the batch, and share SMs when there are many; or the keys are cut into a fixed number of parts and the heads into
    groups, each of which reads the cache anew (from DRAM once it exceeds L2), with partial sums of 32 bits that a second kernel adds:
    attributes of the kernel (library/mla_kernels.py). cast: the conversion of an 8-bit cache, the whole pool.
    Units: seconds. Valid: 1 to 128 heads, L 1 to 2^18. Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
    Evidence: 8,400 public rows of four GPUs; `perfmodel evaluate operators --operator mla_decode`.
    """
    stack = columns["stack"].astype(np.intp)
    a = _calls(gpu, columns, stack)
    flops = 2.0 * a.batch * (a.blocks * a.k.number("head_rows")) * a.keys * ABSORBED
    reach = c["tensor_share_wgmma" if warpgroup_path(gpu) else "tensor_share_mma"]
    tensor = flops / (gpu.tensor_rate("bf16") * reach * a.filled)
    follow, chain = _chain_s(gpu, a, c)
    dram, l2 = _traffic_s(gpu, a, c)
    converted, partials = _extra_s(gpu, a, c)
    floor = launch_floor_s(gpu, c)
    fixed = stack_values(c, "launches", stack) * floor + np.where(a.cast, c["cast_launches"] * floor, 0.0)
    requests = a.batch / float(gpu.sms) * c["request_cycles"] / gpu.max_clock_hz
    fixed = fixed + overlap(c["sharing_power"], requests, partials)
    latency = fixed + converted + overlap(c["overlap_power"], tensor, chain, dram, l2)
    seconds = {
        "tensor": tensor, "kv chain": chain, "dram": dram, "l2": l2, "cache conversion": converted, "launch and partial sums": fixed,
    }  # fmt: skip
    capacity, _ = cache(gpu, c)
    return OperatorTerms(latency, seconds, _features(gpu, a, columns, seconds, latency, follow, a.held_bytes / capacity))


def _calls(gpu: GpuSpec, columns: Mapping[str, Floats], stack: Codes) -> _Calls:
    """The calls with the kernels that their stacks run and how those share out the work."""
    batch, heads, keys = columns["batch"], columns["num_heads"], columns["kv_len"]
    kv_bytes = names.A_BYTES[columns["kv_dtype"].astype(np.intp)]
    k = decode_kernels(gpu, stack, kv_bytes < 2)
    whole, most = k.flag("whole_requests"), k.number("most_splits")
    blocks = np.ceil(heads / k.number("head_rows"))
    units = batch * np.where(whole, 1.0, blocks)
    most = np.where(most > 0, most, np.maximum(np.floor(2.0 * float(gpu.sms) / units), 1.0))
    splits = np.where(whole, 1.0, np.clip(np.ceil(keys / k.number("step_keys")), 1.0, most))
    cast = k.flag("casts_cache") & (kv_bytes < 2)
    return _Calls(batch, heads, keys, kv_bytes, k, blocks, splits, units * splits / float(gpu.sms), cast)


def _chain_s(gpu: GpuSpec, a: _Calls, c: Mapping[str, float]) -> tuple[Floats, Floats]:
    """Seconds of (keys that follow each other in a block, those with the blocks that share its SM)."""
    clock, whole = gpu.max_clock_hz, a.k.flag("whole_requests")
    per_key = c["key_cycles"] * np.where(a.kv_bytes < 2, c["fp8_key_share"], 1.0) / clock
    steps = np.ceil(a.keys / a.splits / a.k.number("step_keys")) * c["tile_cycles"] / clock
    follow = np.where(whole, a.keys * per_key, steps)
    shared = a.batch * a.keys / float(gpu.sms) * c["shared_load"] * per_key
    together = np.where(whole, shared, np.maximum(a.waves, 1.0) * follow * c["hidden_share"])
    return follow, overlap(c["sharing_power"], follow, together)


def _traffic_s(gpu: GpuSpec, a: _Calls, c: Mapping[str, float]) -> tuple[Floats, Floats]:
    """(DRAM seconds, L2 seconds) of the cache, queries and outputs."""
    held, other = a.held_bytes, a.batch * a.heads * (WIDTH + LATENT) * 2.0
    read = np.where(a.k.flag("reads_by_block"), a.blocks, 1.0)
    cold = miss_share(held, *cache(gpu, c))
    moved = held * np.where(cold > 0, read, 1.0) * cold + other
    latency_s, active = 2.0 * gpu.dram_latency_s, a.filled * float(gpu.sms)
    dram = dram_seconds(moved, gpu.dram_bytes_per_s, dram_efficiency(gpu, c), latency_s, active, c["bytes_in_flight"])
    return dram, (held * read + other) / (gpu.l2_bytes_per_s * c["l2_rate_factor"] * a.filled)


def _extra_s(gpu: GpuSpec, a: _Calls, c: Mapping[str, float]) -> tuple[Floats, Floats]:
    """Seconds of (the conversion of the cache: 8 bits read, 16 written; partial sums written and read)."""
    rate = gpu.dram_bytes_per_s * dram_efficiency(gpu, c)
    converted = np.where(a.cast, c["cast_pools"] * a.batch * a.keys * WIDTH * 3.0 / rate, 0.0)
    partial = a.batch * a.heads * a.k.number("most_splits") * (LATENT + 1.0) * 8.0
    return converted, np.where(a.k.flag("partial_sums"), partial / rate * c["partial_share"], 0.0)


def _features(
    gpu: GpuSpec,
    a: _Calls,
    columns: Mapping[str, Floats],
    seconds: Mapping[str, Floats],
    latency: Floats,
    follow: Floats,
    in_l2: Floats,
) -> dict[str, Floats]:
    """Dimensionless columns for the residual, by the names that fitted trees know."""
    one = np.ones_like(latency)
    return {
        "tensor": np.log(seconds["tensor"] / latency),
        "chain": np.log(seconds["kv chain"] / latency),
        "follow": np.log(follow / latency),
        "dram": np.log(seconds["dram"] / latency),
        "l2": np.log(seconds["l2"] / latency),
        "fixed": np.log(seconds["launch and partial sums"] / latency),
        "convert": seconds["cache conversion"] / latency,
        "waves": np.log(a.waves),
        "cache_in_l2": np.log(in_l2),
        "log2_kv": np.log2(a.keys),
        "log2_batch": np.log2(a.batch),
        "log2_heads": np.log2(a.heads),
        "whole": a.k.flag("whole_requests") * one,
        "triton": a.k.flag("partial_sums") * one,
        "fp8_cache": (a.kv_bytes < 2) * one,
        "warpgroup": one * warpgroup_path(gpu),
        "dtype": columns["dtype"].astype(np.float64),
        "stack": columns["stack"].astype(np.float64),
        "kernel": columns["kernel"].astype(np.float64),
    }


register(
    OperatorLaw(
        "mla_decode",
        "mla",
        LAW,
        terms,
        ("num_heads", "kv_len"),
        ("log2_kv", "log2_batch", "log2_heads"),
        "mla_decode",
        lambda columns: columns["decode"] > 0,
        rules="mla_decode",
        records="mla_kernels",
    )
)
