"""Latent-attention decode over the compressed cache: by whole requests, by splits of them, or by splits and groups of heads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.analytic.roofline import cache, dram_seconds, miss_share, overlap
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.arch import dram_efficiency, warpgroup_path
from perfmodel.library.launch import launch_floor_s, stack_values
from perfmodel.library.law import OperatorLaw, register
from perfmodel.library.stacks import stack_flags
from perfmodel.library.terms import Floats, OperatorTerms
from perfmodel.ops import names
from perfmodel.ops.mla import LATENT, ROPE

LAW = "library_mla_decode"
WIDTH = float(LATENT + ROPE)  # elements of a cached key
ABSORBED = float(2 * LATENT + ROPE)  # multiply-adds a key and head with the up-projections absorbed: 576 + 512
SPLITS = 8.0  # of a request's keys at most: SGLang, triton_attention_num_kv_splits
HEAD_BLOCK = 16.0  # heads of one block of SGLang's and vLLM's Triton decode kernel (BLOCK_H)
TILE_KEYS, TRITON_KEYS = 64.0, 32.0  # keys of a step: FlashMLA and FlashAttention-3; Triton


def terms(gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float]) -> OperatorTerms:
    """Terms of n latent-attention decode calls over b requests of L keys and H heads.

        t = floor x launches + requests + overlap(tensor, keys, DRAM, L2) + cast + partials

    Three kernels. With warp groups (FlashMLA, FlashAttention-3): the keys of all requests are shared out over the SMs, the cache is read
    once. TensorRT-LLM on mma.sync: blocks take whole requests, so that L keys follow each other whatever the batch, and share SMs when
    there are many. Triton elsewhere: SPLITS parts and groups of 16 heads, each of which reads the cache anew (from DRAM once it exceeds
    L2), and partial sums of 32 bits that a second kernel adds.
    cast: SGLang converts an fp8 cache, the whole pool, before FlashAttention. Units: seconds. Valid: 1 to 128 heads, L 1 to 2^18.
    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1; SGLang flashattention_backend.py (cast) and decode_attention.py (blocks, splits).
    Evidence: 8,400 public rows of four GPUs; `perfmodel evaluate operators --operator mla_decode`.
    """
    code, kv_code, stack, kernel = (columns[name].astype(np.intp) for name in ("dtype", "kv_dtype", "stack", "kernel"))
    kv_bytes = names.A_BYTES[kv_code]
    batch, heads, keys = columns["batch"], columns["num_heads"], columns["kv_len"]
    sms, clock = float(gpu.sms), gpu.max_clock_hz
    grouped = warpgroup_path(gpu)
    whole = (stack_flags("mla_whole_requests", stack) > 0) & (not grouped)
    triton = (not grouped) & ~whole
    cast = (stack_flags("mla_casts_cache", stack) > 0) & grouped & (kv_bytes < 2)

    blocks = np.where(triton, np.ceil(heads / HEAD_BLOCK), np.ceil(heads / TILE_KEYS))
    step = np.where(triton, TRITON_KEYS, TILE_KEYS)
    units = batch * np.where(whole, 1.0, blocks)
    most = np.where(triton, SPLITS, np.maximum(np.floor(2.0 * sms / units), 1.0))
    splits = np.where(whole, 1.0, np.clip(np.ceil(keys / step), 1.0, most))
    waves = units * splits / sms
    filled = np.minimum(waves, 1.0)
    flops = 2.0 * batch * np.where(triton, blocks * HEAD_BLOCK, blocks * TILE_KEYS) * keys * ABSORBED
    reach = c["tensor_share_wgmma" if grouped else "tensor_share_mma"]
    tensor = flops / (gpu.tensor_rate("bf16") * reach * filled)
    per_key = c["key_cycles"] * np.where(kv_bytes < 2, c["fp8_key_share"], 1.0) / clock
    follow = np.where(whole, keys * per_key, np.ceil(keys / splits / step) * c["tile_cycles"] / clock)
    together = np.where(whole, batch * keys / sms * c["shared_load"] * per_key, np.maximum(waves, 1.0) * follow * c["hidden_share"])
    chain = overlap(c["sharing_power"], follow, together)

    read = np.where(triton, blocks, 1.0)
    stored = np.where(whole | cast, 2.0, kv_bytes)
    held = batch * keys * WIDTH * stored
    other = batch * heads * (WIDTH + LATENT) * 2.0
    capacity, sharpness = cache(gpu, c)
    cold = miss_share(held, capacity, sharpness)
    rate, in_flight = gpu.dram_bytes_per_s, c["bytes_in_flight"]
    dram = dram_seconds(
        held * np.where(cold > 0, read, 1.0) * cold + other,
        rate,
        dram_efficiency(gpu, c),
        2.0 * gpu.dram_latency_s,
        filled * sms,
        in_flight,
    )
    l2 = (held * read + other) / (gpu.l2_bytes_per_s * c["l2_rate_factor"] * filled)
    converted = np.where(cast, c["cast_pools"] * batch * keys * WIDTH * 3.0 / (rate * dram_efficiency(gpu, c)), 0.0)
    partial = batch * heads * SPLITS * (LATENT + 1.0) * 8.0
    partials = np.where(triton, partial / (rate * dram_efficiency(gpu, c)) * c["partial_share"], 0.0)
    requests = batch / sms * c["request_cycles"] / clock
    fixed = stack_values(c, "launches", stack) * launch_floor_s(gpu, c) + np.where(cast, c["cast_launches"] * launch_floor_s(gpu, c), 0.0)
    fixed = fixed + overlap(c["sharing_power"], requests, partials)
    latency = fixed + converted + overlap(c["overlap_power"], tensor, chain, dram, l2)
    one = np.ones_like(latency)
    features = {
        "tensor": np.log(tensor / latency),
        "chain": np.log(chain / latency),
        "follow": np.log(follow / latency),
        "dram": np.log(dram / latency),
        "l2": np.log(l2 / latency),
        "fixed": np.log(fixed / latency),
        "convert": converted / latency,
        "waves": np.log(waves),
        "cache_in_l2": np.log(held / capacity),
        "log2_kv": np.log2(keys),
        "log2_batch": np.log2(batch),
        "log2_heads": np.log2(heads),
        "whole": whole * one,
        "triton": triton * one,
        "fp8_cache": (kv_bytes < 2) * one,
        "warpgroup": one * grouped,
        "dtype": code.astype(np.float64),
        "stack": stack.astype(np.float64),
        "kernel": kernel.astype(np.float64),
    }
    seconds = {
        "tensor": tensor,
        "kv chain": chain,
        "dram": dram,
        "l2": l2,
        "cache conversion": converted,
        "launch and partial sums": fixed,
    }
    return OperatorTerms(latency, seconds, features)


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
    )
)
