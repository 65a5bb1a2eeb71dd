"""Attention decode: one query token a sequence over its KV cache, split over the SMs and combined (Flash-Decoding)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.analytic.roofline import dram_seconds, miss_share, overlap
from perfmodel.hw.spec import GpuSpec
from perfmodel.library import names
from perfmodel.library.arch import cache, dram_efficiency, warpgroup_path
from perfmodel.library.launch import launch_floor_s, likely_attention_kernel, stack_values
from perfmodel.library.terms import Floats, OperatorTerms

LAW = "library_attention_decode"
KV_BLOCK = 64.0  # tokens of a KV tile: FlashAttention-2 and -3 decode kernels use 64 to 128


def terms(gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float]) -> OperatorTerms:
    """Terms of n decode calls.

        t = floor x launches + overlap(DRAM, L2, tensor, exp, chain) + combine

    Keys seen L = min(kv_len, window). Bytes = 2 b h_kv L d each. Work units = b h_kv ceil(G / 64) x splits, with splits as many as
    idle SM slots allow at KV_BLOCK tokens or more; chain = fixed cycles of a unit + its KV tiles x cycles a tile.
    G query heads share a KV head and are padded to 16 rows of the multiply. KV smaller than L2 stays there between calls.
    Source: Flash-Decoding (pytorch.org, 2023); FlashAttention-2, arXiv 2307.08691. Valid: kv_len 1 to 2^20, head_dim 64 to 256.
    Evidence: 237,000 public rows of four GPUs; `python -m perfmodel.calibrate.evaluate_operators attention_decode`.
    """
    code, kv_code = columns["dtype"].astype(np.intp), columns["kv_dtype"].astype(np.intp)
    stack = columns["stack"].astype(np.intp)
    kv_bytes = names.A_BYTES[kv_code]
    kernel = likely_attention_kernel(gpu, stack, columns["kernel"].astype(np.intp), kv_bytes < 2)
    batch, kv_heads, dim, window = columns["batch"], columns["kv_heads"], columns["head_dim"], columns["window"]
    group = columns["q_heads"] / kv_heads
    seen = np.where(window > 0, np.minimum(columns["kv_len"], window), columns["kv_len"])
    clock, sms = gpu.max_clock_hz, float(gpu.sms)
    rate = gpu.tensor_rate("bf16")

    pairs = batch * kv_heads * np.ceil(group / 64.0)
    slots = sms * c["blocks_per_sm"]
    splits = np.clip(np.floor(slots / pairs), 1.0, np.clip(np.floor(seen / KV_BLOCK), 1.0, c["max_splits"]))
    units = pairs * splits
    waves = units / slots
    share = np.where(waves <= 1.0, 1.0, c["tail_weight"] * np.ceil(waves) + (1.0 - c["tail_weight"]) * waves)
    tiles = np.ceil(seen / splits / KV_BLOCK)
    chain = share * (c["unit_cycles"] + tiles * (c["tile_cycles"] + c["tile_dim_cycles"] * dim / 128.0)) / clock

    held = 2.0 * batch * kv_heads * np.ceil(seen / KV_BLOCK) * KV_BLOCK * dim * kv_bytes  # whole tiles are loaded
    small = 2.0 * batch * columns["q_heads"] * dim * 2.0
    capacity, sharpness = cache(gpu, c)
    cold = miss_share(held, capacity, sharpness)
    active = np.minimum(units / c["blocks_per_sm"], sms)
    dram = dram_seconds(
        held * cold + small, gpu.dram_bytes_per_s, dram_efficiency(gpu, c), 2.0 * gpu.dram_latency_s, active, c["bytes_in_flight"]
    )
    l2 = (held + small) / (gpu.l2_bytes_per_s * c["l2_rate_factor"]) * sms / np.maximum(active, 1.0)
    rows = np.ceil(group / 16.0) * 16.0
    elements = batch * kv_heads * rows * seen * sms / np.maximum(active, 1.0)
    tensor = 4.0 * elements * dim / (rate * c["tensor_share_wgmma" if warpgroup_path(gpu) else "tensor_share_mma"])
    exp = elements / (gpu.sfu_per_clock_per_sm * sms * clock)
    combine = np.where(
        splits > 1, c["combine_latencies"] * gpu.dram_latency_s + batch * columns["q_heads"] * dim * 4.0 * splits / gpu.l2_bytes_per_s, 0.0
    )
    fixed = stack_values(c, "launches", stack) * launch_floor_s(gpu, c) + c["sequence_ns"] * 1e-9 * batch
    latency = fixed + overlap(c["overlap_power"], dram, l2, tensor + exp, chain) + combine
    one = np.ones_like(latency)
    features = {
        "dram": np.log(dram / latency),
        "l2": np.log(l2 / latency),
        "tensor": np.log(tensor / latency),
        "exp": np.log(exp / latency),
        "chain": np.log(chain / latency),
        "fixed": np.log(fixed / latency),
        "combine": combine / latency,
        "waves": np.log(waves),
        "tail": np.ceil(waves) / waves,
        "splits": np.log2(splits),
        "pairs_per_sm": np.log(batch * kv_heads / sms),
        "cache_in_l2": np.log(held / capacity),
        "log2_seen": np.log2(seen),
        "log2_kv": np.log2(columns["kv_len"]),
        "log2_batch": np.log2(batch),
        "log2_kv_heads": np.log2(kv_heads),
        "group": group,
        "head_dim": dim,
        "windowed": (window > 0) * one,
        "fp8_cache": (kv_bytes < 2) * one,
        "warpgroup": one * warpgroup_path(gpu),
        "dtype": code.astype(np.float64),
        "stack": stack.astype(np.float64),
        "kernel": kernel.astype(np.float64),
    }
    seconds = {"dram": dram, "l2": l2, "tensor": tensor, "exp": exp, "kv chain": chain, "combine": combine, "launch": fixed}
    return OperatorTerms(latency, seconds, features)
