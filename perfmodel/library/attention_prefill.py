"""Attention prefill: many query tokens over their own keys (FlashAttention and its relatives)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.analytic.power import power_seconds
from perfmodel.analytic.roofline import cache, dram_seconds, miss_share, overlap
from perfmodel.hw.spec import GpuSpec
from perfmodel.library import names
from perfmodel.library.arch import FULL_MMA, FULL_WGMMA, dram_efficiency, joule_per_flop, warpgroup_path
from perfmodel.library.attention_append import append_s, indexed
from perfmodel.library.attention_paths import PATH, PATHS, family
from perfmodel.library.attention_tiles import tiles
from perfmodel.library.launch import launch_floor_s, likely_attention_kernel, named_values, stack_values
from perfmodel.library.names import KERNELS, STACKS
from perfmodel.library.terms import Floats, OperatorTerms
from perfmodel.ops.attention import visited_pairs

LAW = "library_attention_prefill"
KV_BLOCK = 64.0  # keys of a step of the chain
_FLASHINFER, _TRITON, _TRTLLM, _CUDNN, _FA2, _FA3 = map(KERNELS.index, ("flashinfer", "triton", "trtllm", "cudnn", "fa2", "fa3"))
_UNITS = ("other", "fa", "flashinfer", "triton", "cudnn")
_UNIT = np.array([_UNITS.index(family(name)) if family(name) in _UNITS else 0 for name in KERNELS])
_SGLANG, _VLLM = STACKS.index("sglang"), STACKS.index("vllm")
_SHARES = KERNELS[:8]  # kernels with a tensor share of their own; later ones have the last one's
_WGMMA = {"trtllm": "cudnn", "triton": "triton_wgmma"}  # warp-specialised kernels that share a constant, or have one of their own
_WGMMA_SHARES = tuple(_WGMMA.get(name, name) for name in _SHARES)
FP8_HEADS = (64, 128, 192, 256)  # head dims that fp8 multiplies were measured at
_NATIVE = np.array([name in ("fa3", "fa4", "trtllm", "cudnn", "triton") for name in KERNELS])  # kernels with a warp-group path


def terms(gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float]) -> OperatorTerms:
    """Terms of n prefill calls.

        t = floor x launches + overlap(SM, DRAM, L2),   SM = max(power, overlap(tensor, exp), chain) nearly

    Visited pairs are exact, enlarged by (query rows + keys) / 2 of the kernel's tile a query on the causal edge, twice that in a window,
    and by the empty rows of the last query tile. With a window SGLang's FlashInfer call visits every block; its Triton kernel makes every
    block's mask and multiplies those with a key in view (extend_attention.py, SKIP_TILE; public rows of L40S, windowed over full: 1.9 and
    1.2 where the window holds all keys, 0.7 and 0.4 where it holds hardly any, at head_dim 64 and 192). Tensor flop = 4 d a pair;
    one exponential a pair at the special-function rate. Units = b h ceil(q / query rows of a tile); chain = KV tiles of the longest unit.
    Heads wider than 128 lose tensor efficiency (registers); heads of 64 do half the multiplies an exponential.
    Source: FlashAttention-2, arXiv 2307.08691; FlashAttention-3, arXiv 2407.08608 (exp throughput). Valid: head_dim 64 to 256.
    Evidence: 254,000 public rows of four GPUs; `perfmodel evaluate operators --operator attention_prefill`.
    """
    code, kv_code = columns["dtype"].astype(np.intp), columns["kv_dtype"].astype(np.intp)
    stack = columns["stack"].astype(np.intp)
    kv_bytes, q_bytes = names.A_BYTES[kv_code], names.A_BYTES[code]
    kernel = likely_attention_kernel(gpu, stack, columns["kernel"].astype(np.intp), kv_bytes < 2)
    grouped = warpgroup_path(gpu)
    # TensorRT-LLM on sm_90 and FlashAttention-3 multiply in the cache's type (flash_api.cpp: query and key must have the same dtype)
    fp8_math = (q_bytes < 2) | ((kv_bytes < 2) & (((kernel == _TRTLLM) & grouped) | (kernel == _FA3)))
    batch, q_heads, kv_heads, dim = columns["batch"], columns["q_heads"], columns["kv_heads"], columns["head_dim"]
    q_len, kv_len, window = columns["q_len"], columns["kv_len"], columns["window"]
    clock, sms = gpu.max_clock_hz, float(gpu.sms)

    masked = (stack == _SGLANG) & ((kernel == _FLASHINFER) | (kernel == _TRITON)) & (window > 0) & (window < kv_len)
    window = np.where(masked & (kernel == _FLASHINFER), 0.0, window)  # all blocks, then a mask
    screened = c["triton_mask_cost"] * 64.0 / dim * (masked & (kernel == _TRITON))  # a mask over the multiplies of its block
    exact = visited_pairs(q_len, kv_len, window, columns["causal"] > 0)
    q_tile, kv_tile, heads = tiles(gpu, stack, kernel, dim, q_heads / kv_heads, fp8_math)
    edge = (q_tile + kv_tile) / 2.0 * np.where((window > 0) & (window < kv_len), c["window_edges"], c["causal_edges"])
    rest = (np.ceil(q_len / q_tile) * q_tile - q_len) * np.minimum(kv_len, np.where(window > 0, window + edge, kv_len))
    swapped = (q_len == 1) & (kernel == _FA2)  # one query a head: FlashAttention-2 takes those of a KV head as its query rows
    alone = np.where(swapped, kv_heads / q_heads, 1.0)
    rest = rest * alone
    pairs = np.minimum(exact + np.minimum(q_len, kv_len) * edge, q_len * np.ceil(kv_len / kv_tile) * kv_tile) + c["empty_row_cost"] * rest
    pairs = pairs + screened * visited_pairs(q_len, kv_len, 0.0, columns["causal"] > 0)
    native = _NATIVE[kernel] & grouped & ~((kernel == _TRITON) & (dim > 256))  # Triton takes 32 query rows there, too few for wgmma
    pairs = pairs + (native & (kernel != _TRITON)) * c["pipeline_fill"] * np.ceil(q_len / q_tile) * q_tile * kv_tile
    elements = batch * q_heads * pairs
    units = batch * np.where(swapped, kv_heads, q_heads / heads) * np.ceil(q_len / q_tile)
    waves = units / sms
    filled = np.minimum(waves, 1.0)
    share = np.where(waves <= 1.0, 1.0 / filled, 1.0 + c["tail_weight"] * (np.ceil(waves) / waves - 1.0))
    rate = names.tensor_rates(gpu, np.where(q_bytes < 2, code, np.where(fp8_math, kv_code, 0))) * clock / gpu.boost_clock_hz
    flops = 4.0 * elements * dim
    shared = np.minimum(kernel, len(_SHARES) - 1)
    reached = named_values(c, "share", _SHARES, shared)
    if grouped:
        reached = np.where(native, named_values(c, "share", _WGMMA_SHARES, shared), reached * c["mma_on_wgmma_share"])
    cut = min(1.0, gpu.tensor_rate("bf16") / (gpu.boost_clock_hz * sms) / (FULL_WGMMA if grouped else FULL_MMA))
    reached = 1.0 - (1.0 - reached) * cut  # what the data paths cost stays, the multiplies they feed are fewer
    if grouped:
        kept = np.full_like(dim, c["fp8_share_wgmma"])
    else:
        kept = named_values(c, "fp8_share_mma", FP8_HEADS, np.searchsorted(FP8_HEADS, np.minimum(dim, FP8_HEADS[-1])))
    kept = np.where(kernel == _TRITON, c["fp8_share_triton"], kept)
    reached = reached * np.where(fp8_math, kept, 1.0)
    two_level = (kernel == _FA3) & fp8_math & (stack == _VLLM)
    reached = reached * np.where(two_level, np.where(dim > 128, c["two_level_share_wide"], c["two_level_share"]), 1.0)
    wide = (dim > 128) & ~(native & (kernel != _TRTLLM))  # the warp-group kernels keep the accumulator of wide heads in two groups
    tensor = share * flops / (rate * reached) * np.where(wide, c["wide_head_cost"], 1.0)
    triton = kernel == _TRITON
    mixed = (kv_bytes < 2) & ~fp8_math  # converts every key for the 32 query rows that it takes at such widths
    tensor = tensor * np.where(triton & (dim > 256), c["triton_wide_cost"] * np.where(mixed, c["triton_mixed_cost"], 1.0), 1.0)
    spilled = triton & (stack == _SGLANG) & (columns["window"] > 0) & (dim > 192) & (dim <= 256)  # less with keys of half the size
    tensor = tensor * np.where(spilled, c["triton_window_cost"] * np.where(kv_bytes < 2, c["triton_window_fp8_share"], 1.0), 1.0)
    exp = share * elements * c["sfu_per_pair"] / (gpu.sfu_per_clock_per_sm * sms * clock)
    longest = np.where(window > 0, np.minimum(kv_len, window + q_tile), kv_len) + screened * kv_len
    unit_cycles = named_values(c, "unit_cycles", _UNITS, _UNIT[kernel])
    bulk = (kernel == _TRTLLM) | (kernel == _CUDNN)  # loads its keys by TMA, where FlashAttention-3 copies pages word by word
    unit_cycles = np.where(native, np.where(bulk, c["unit_cycles_cudnn"], c["unit_cycles_wgmma"]), unit_cycles)
    chain = (np.ceil(longest / KV_BLOCK) * (c["tile_cycles"] + c["tile_dim_cycles"] * dim / 128.0) + unit_cycles * share * waves) / clock

    read = np.where(window > 0, np.minimum(kv_len, window + q_len), kv_len)  # keys; those before every query's window are not
    tokens = batch * (q_len * q_heads * dim * (q_bytes + 2.0) + 2.0 * read * kv_heads * dim * kv_bytes)
    capacity, sharpness = cache(gpu, c)
    cold = miss_share(tokens, capacity, sharpness)
    dram = dram_seconds(
        tokens * cold, gpu.dram_bytes_per_s, dram_efficiency(gpu, c), 2.0 * gpu.dram_latency_s, filled * sms, c["bytes_in_flight"]
    )
    l2 = (tokens + elements / (q_tile * heads) * 2.0 * dim * kv_bytes) / (gpu.l2_bytes_per_s * c["l2_rate_factor"] * filled)
    switched = flops * np.where(fp8_math, np.sqrt(0.5), 1.0)
    power = power_seconds(switched, joule_per_flop(gpu, c), tokens * cold, c["pj_per_byte"] * 1e-12, gpu.power_w, c["idle_share"])
    unit_power = np.where(native, c["unit_power_wgmma"], c["unit_power"])
    busy = overlap(c["power_power"], overlap(unit_power, overlap(c["exp_power"], tensor, exp), chain), power)
    fp8 = (kv_bytes < 2) * 1.0
    path = PATH[stack, kernel]
    calls = named_values(c, "launches", PATHS, path) + fp8 * (q_bytes > 1) * stack_values(c, "fp8_launches", stack)
    calls = calls + c["varlen_launches"] * ((kernel == _FA3) & (stack == _VLLM))
    calls = calls + c["uneven_launches"] * indexed(stack, kernel == _FA3, dim)
    fixed = calls * launch_floor_s(gpu, c) + stack_values(c, "sequence_ns", stack) * 1e-9 * batch
    prepare = append_s(gpu, stack, columns, cold, kv_bytes < 2, kernel == _FA3, c)
    latency = fixed + prepare + overlap(c["overlap_power"], busy, dram, l2)
    one = np.ones_like(latency)
    features = {
        "tensor": np.log(tensor / latency),
        "exp": np.log(exp / latency),
        "chain": np.log(chain / latency),
        "dram": np.log((dram + 1e-9) / latency),
        "l2": np.log(l2 / latency),
        "power": np.log(power / latency),
        "fixed": np.log(fixed / latency),
        "prepare": prepare / latency,
        "waves": np.log(waves),
        "tail": np.ceil(waves) / waves,
        "edge": np.log(pairs / exact),
        "acts_in_l2": np.log(tokens / capacity),
        "log2_q": np.log2(q_len),
        "cached": np.log(kv_len / q_len),
        "log2_batch": np.log2(batch),
        "log2_heads": np.log2(q_heads),
        "group": q_heads / kv_heads,
        "head_dim": dim,
        "windowed": np.where(window > 0, np.log2(np.maximum(kv_len / np.maximum(window, 1), 1 / 64)), -9.0),
        "masked": masked * one,
        "fp8_cache": fp8,
        "fp8_math": fp8_math * one,
        "path": path.astype(np.float64),
        "stack": stack.astype(np.float64),
        "kernel": kernel.astype(np.float64),
    }
    seconds = {"tensor": tensor, "exp": exp, "kv chain": chain, "dram": dram, "l2": l2, "power": power, "prepare": prepare, "launch": fixed}
    return OperatorTerms(latency, seconds, features, variant=fp8_math * one)
