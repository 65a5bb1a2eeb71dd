"""Attention decode: one query token a sequence over its KV cache, split over the SMs and combined (Flash-Decoding)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.roofline import cache, dram_seconds, miss_share, overlap
from perfmodel.hw.spec import GpuSpec
from perfmodel.library import names
from perfmodel.library.arch import dram_efficiency, warpgroup_path
from perfmodel.library.attention_append import indexed
from perfmodel.library.attention_paths import PATH, PATHS
from perfmodel.library.attention_splits import FA3_MOST_SEQUENCES, plan, xqa_hopper
from perfmodel.library.launch import launch_floor_s, likely_attention_kernel, named_values, stack_values
from perfmodel.library.names import KERNELS, STACKS
from perfmodel.library.terms import Floats, OperatorTerms

LAW = "library_attention_decode"
XQA_TILE = 16.0  # query heads of a tile of XQA elsewhere
XQA_ROWS = 8.0  # query heads of a step of XQA on sm_90, which turns, scales and stores them itself
KV_BLOCK = 64.0  # tokens of a KV tile, for whole tiles loaded and the chain
FLASHINFER_GROUP = 4.0  # query heads of a KV head from which SGLang asks FlashInfer for tensor cores (should_use_tensor_core; fp8: always)
_FA2, _FA3, _FA4, _FLASHINFER, _TRITON, _TRTLLM = map(KERNELS.index, ("fa2", "fa3", "fa4", "flashinfer", "triton", "trtllm"))
_VLLM, _SGLANG, _TORCH = map(STACKS.index, ("vllm", "sglang", "torch"))
_UNITS = ("other", "fa2", "fa3", "flashinfer", "triton", "cudnn")
_UNIT = np.array([_UNITS.index(name) if name in _UNITS else _UNITS.index("fa3") if name == "fa4" else 0 for name in KERNELS])


def terms(gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float]) -> OperatorTerms:
    """Terms of n decode calls.

        t = floor x launches + overlap(DRAM, L2, multiplies, exp, chain) + combine

    Keys seen L = min(kv_len, window). Bytes = 2 b h_kv L d each, read once from DRAM unless they fit in L2 and once a pass from L2
    (`plan`). Work units = b h_kv x passes x splits; chain = fixed cycles of a unit, in part by head_dim, + its KV tiles x (cycles +
    latencies) a tile. XQA on sm_90 turns and stores queries 8 heads at a time; at head_dim 64 public rows show one kernel more.
    Launches: those of the stack and kernel, one more for an fp8 cache that is not read as it is, one more for variable-length batches of
    FlashAttention (metadata); queries and new keys read and written once more by a kernel of their own (rotary, cache append); one more
    for the combine pass of split keys, which then adds up one split after the other.
    Source: Flash-Decoding (pytorch.org, 2023); FlashAttention-2, arXiv 2307.08691. Valid: kv_len 1 to 2^20, head_dim 64 to 512.
    Evidence: 238,000 public rows of five GPUs; `perfmodel evaluate operators --operator attention_decode`.
    """
    kv_code = columns["kv_dtype"].astype(np.intp)
    stack = columns["stack"].astype(np.intp)
    kv_bytes = names.A_BYTES[kv_code]
    fp8 = np.where(kv_bytes < 2, 1.0, 0.0)
    kernel = likely_attention_kernel(gpu, stack, columns["kernel"].astype(np.intp), kv_bytes < 2)
    path = PATH[stack, kernel]
    batch, kv_heads, q_heads, dim, window = (columns[k] for k in ("batch", "kv_heads", "q_heads", "head_dim", "window"))
    group = q_heads / kv_heads
    seen = np.where(window > 0, np.minimum(columns["kv_len"], window), columns["kv_len"])
    clock, sms = gpu.max_clock_hz, float(gpu.sms)
    cut = plan(gpu, stack, kernel, columns, seen, fp8, c)
    fused = xqa_hopper(gpu, kernel, fp8, group)
    splits, passes = cut.splits, cut.passes
    edge = np.where((window > 0) & (columns["kv_len"] > window), c["window_edge_tokens"], 0.0)  # blocks that a window cuts

    units = batch * kv_heads * passes * splits
    waves = units / (sms * cut.blocks_per_sm)
    share = np.where(waves <= 1.0, 1.0, c["tail_weight"] * np.ceil(waves) + (1.0 - c["tail_weight"]) * waves)
    tiles = np.ceil((seen + edge) / splits / KV_BLOCK)
    narrow = np.where(fp8 > 0, c["tile_fp8_share"], 1.0)
    tile_s = (c["tile_cycles"] + c["tile_dim_cycles"] * dim / 128.0 * narrow) / clock + c["tile_latencies"] * gpu.dram_latency_s
    unit_cycles = named_values(c, "unit_cycles", _UNITS, _UNIT[kernel])
    unit_cycles = np.where(fused, c["unit_cycles_xqa_hopper"], np.where(cut.xqa, c["unit_cycles_xqa"], unit_cycles))
    unit_cycles = np.where(cut.xqa & ~fused & (group > XQA_TILE), unit_cycles * c["xqa_second_tile"], unit_cycles)
    alone = (kernel == _TRTLLM) & ~cut.xqa  # one query head a block, multiplied on the CUDA cores
    width = dim / 128.0 * np.where(fused, np.ceil(group / XQA_ROWS), 1.0)
    by_dim = np.where(fused, c["unit_dim_share_xqa_hopper"], np.where(alone, 0.0, c["unit_dim_share"]))
    unit_s = unit_cycles * (1.0 - by_dim * (1.0 - width)) / clock
    chain = share * (unit_s + tiles * tile_s * np.where(kernel == _TRITON, c["triton_chain"], 1.0))

    held = 2.0 * batch * kv_heads * (seen + edge) * dim * kv_bytes
    small = 2.0 * batch * q_heads * dim * 2.0
    capacity, sharpness = cache(gpu, c)
    cold = miss_share(held + small, capacity, sharpness)
    active = np.minimum(units / cut.blocks_per_sm, sms)
    dram = dram_seconds(
        (held + small) * cold, gpu.dram_bytes_per_s, dram_efficiency(gpu, c), 2.0 * gpu.dram_latency_s, active, c["bytes_in_flight"]
    )
    idle = sms / np.maximum(active, 1.0)
    l2 = (held * passes + small) / (gpu.l2_bytes_per_s * c["l2_rate_factor"]) * idle
    elements = batch * kv_heads * passes * cut.rows * (seen + edge) * idle
    flash3 = (kernel == _FA3) | (kernel == _FA4)
    mma = gpu.tensor_rate("bf16") * (c["mma_on_wgmma_share"] if warpgroup_path(gpu) else 1.0)
    own = np.where(fp8 > 0, 2.0, 1.0) * gpu.tensor_rate("bf16") * c["tensor_share_fa3"]  # whole wgmma tiles, fp8 multiplied as it is
    own = own * np.where((fp8 > 0) & (stack == _VLLM), np.where(dim > 128, c["two_level_share_wide"], c["two_level_share"]), 1.0)
    rate = mma * np.where(kernel == _FA2, c["tensor_share_fa2"], c["tensor_share_mma"])
    tensor = 4.0 * elements * dim / np.where(flash3 | fused, own, rate)
    exp = elements / (gpu.sfu_per_clock_per_sm * sms * clock)
    a_clock = _convert(gpu, np.where(fused, _FA3, kernel), dim, alone, fp8, c)
    convert = np.where(alone, 1.0, fp8) * held / kv_bytes * passes * idle / (a_clock * sms * clock)
    floor = launch_floor_s(gpu, c)
    calls = named_values(c, "launches", PATHS, path)
    calls = np.where(fused, calls * c["xqa_hopper_launches"] + (dim <= 64.0), calls + fp8 * stack_values(c, "fp8_launches", stack))
    varlen = (stack == _VLLM) & (((kernel == _FA3) & (batch <= FA3_MOST_SEQUENCES)) | ((kernel == _FA2) & (batch > 1)))
    calls = calls + c["varlen_launches"] * varlen
    calls = calls + c["uneven_launches"] * indexed(stack, kernel == _FA3, dim)
    fixed = calls * floor + stack_values(c, "sequence_ns", stack) * 1e-9 * batch
    rows_bytes = batch * dim * 2.0 * (q_heads + 2.0 * kv_heads)
    prepare = np.where(fused, 0.0, stack_values(c, "prepare", stack) * 2.0 * rows_bytes / gpu.l2_bytes_per_s)
    cycles = np.where(kernel == _FA2, c["combine_split_cycles_fa2"], c["combine_split_cycles"])
    per_split = cycles / clock + batch * q_heads * dim * 4.0 / gpu.l2_bytes_per_s
    merge = c["combine_launches"] * np.where(fused, c["xqa_hopper_launches"], 1.0)  # by the last block of a sequence
    combine = cut.combined * (merge * floor + splits * per_split)
    ramp = c["ramp"] * unit_s
    dense = stack == _TORCH
    streams = (warpgroup_path(gpu) & (flash3 | fused)) | dense
    power = np.where(streams, c["overlap_power_wgmma"], c["overlap_power"])
    busy = tensor + exp + convert
    turns = dram + cut.serial * busy
    latency = fixed + prepare + ramp + overlap(power, turns, l2, busy, chain) + combine
    one = np.ones_like(latency)
    features = {
        "dram": np.log(dram / latency),
        "l2": np.log(l2 / latency),
        "tensor": np.log((tensor + exp) / latency),
        "convert": convert / latency,
        "chain": np.log(chain / latency),
        "fixed": np.log(fixed / latency),
        "combine": combine / latency,
        "prepare": prepare / latency,
        "waves": np.log(waves),
        "tail": np.ceil(waves) / waves,
        "splits": np.log2(splits),
        "passes": np.log2(passes),
        "pairs_per_sm": np.log(batch * kv_heads / sms),
        "cache_in_l2": np.log(held / capacity),
        "log2_seen": np.log2(seen),
        "log2_kv": np.log2(columns["kv_len"]),
        "log2_batch": np.log2(batch),
        "log2_kv_heads": np.log2(kv_heads),
        "group": group,
        "head_dim": dim,
        "windowed": (window > 0) * one,
        "fp8_cache": fp8,
        "path": path.astype(np.float64),
        "stack": stack.astype(np.float64),
        "kernel": kernel.astype(np.float64),
    }
    seconds = {
        "dram": dram, "l2": l2, "tensor": tensor, "exp": exp, "conversion": convert, "kv chain": chain, "combine": combine,
        "prepare": prepare, "launch": fixed + ramp,
    }  # fmt: skip
    cuda_cores = (stack == _SGLANG) & (kernel == _FLASHINFER) & (fp8 == 0) & (group < FLASHINFER_GROUP)
    variant = np.where(alone, 1.0, np.where(cuda_cores, 2.0, 0.0))
    return OperatorTerms(latency, seconds, features, variant=variant)


def _convert(
    gpu: GpuSpec, kernel: npt.NDArray[np.intp], dim: Floats, alone: npt.NDArray[np.bool_], fp8: Floats, c: Mapping[str, float]
) -> Floats:
    """Elements a clock and SM that a kernel turns into what it multiplies: of fp8, or, where heads are `alone`, any.

    FlashAttention-3 and XQA on sm_90 multiply in fp8 but transpose V, slower in wide heads; TensorRT-LLM's one-head kernel (MMHA)
    multiplies on the CUDA cores, as fast in fp8 as in 16 bits on sm_90 (public rows: 13 elements a clock and SM).
    """
    table = np.full(len(KERNELS), c["convert_per_clock"])
    table[_TRITON] = c["convert_per_clock_triton"]
    table[_FA3] = c["convert_per_clock_fa3"]
    mmha = np.where((fp8 > 0) & (gpu.capability == (8, 9)), c["convert_per_clock_mmha_sm_89"], c["convert_per_clock_mmha"])
    rate = np.where(alone, mmha, table[kernel])
    return np.asarray(np.where((kernel == _FA3) & (dim > 128), 0.5, 1.0) * rate, dtype=np.float64)
