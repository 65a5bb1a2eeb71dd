"""Latent-attention prefill, with expanded or absorbed heads."""

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
from perfmodel.ops.attention import visited_pairs
from perfmodel.ops.mla import LATENT, NOPE, ROPE

LAW = "library_mla"
ABSORBED = float(2 * LATENT + ROPE)  # multiply-adds a pair and head with the up-projections absorbed: 576 + 512
EXPANDED = float(2 * NOPE + ROPE)  # the same with heads expanded: 192 + 128
QUERY_ROWS, BLOCK = 128.0, 64.0  # rows of a query tile; rows and keys of what is masked as a whole


def terms(gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float]) -> OperatorTerms:
    """Terms of n latent-attention prefills: heads of 192 and 128 (SGLang's public rows run the absorbed form, 576 and 512).

        t = floor x launches + overlap(tensor + exp, DRAM, L2, chain)

    Flop = 2 H 320 (or 1088) a visited pair; chain = KV tiles of the longest query block. Units: seconds. Valid: 1 to 128 heads, kv_len 1
    to 2^18. Source: DeepSeek-V2, arXiv 2405.04434, section 2.1. Evidence: 4,900 public rows of four GPUs; `perfmodel evaluate operators
    --operator mla_prefill`.
    """
    code, kv_code, stack, kernel = (columns[name].astype(np.intp) for name in ("dtype", "kv_dtype", "stack", "kernel"))
    kv_bytes = names.A_BYTES[kv_code]
    batch, heads, q_len, kv_len = columns["batch"], columns["num_heads"], columns["q_len"], columns["kv_len"]
    sms, clock = float(gpu.sms), gpu.max_clock_hz
    grouped = warpgroup_path(gpu)
    absorbed = stack_flags("mla_absorbed", stack) > 0
    padded = np.ceil(q_len / BLOCK) * BLOCK  # of whole blocks: half a block more along the diagonal; absorbed heads fill a block together
    whole = visited_pairs(padded, kv_len + padded - q_len) + padded * BLOCK / 2.0
    pairs = np.where(absorbed, visited_pairs(q_len, kv_len), whole)
    width = np.where(absorbed, ABSORBED, EXPANDED)
    flops = 2.0 * batch * heads * pairs * width
    waves = batch * heads * np.ceil(q_len / QUERY_ROWS) / sms
    filled = np.minimum(waves, 1.0)
    share = np.where(waves <= 1.0, 1.0 / filled, 1.0 + c["tail_weight"] * (np.ceil(waves) / waves - 1.0))
    reach = c["tensor_share_wgmma" if grouped else "tensor_share_mma"] * np.where(absorbed & (not grouped), c["triton_share"], 1.0)
    tensor = share * flops / (gpu.tensor_rate("bf16") * reach)
    exp = share * batch * heads * pairs / (gpu.sfu_per_clock_per_sm * sms * clock)
    chain = np.ceil(kv_len / 64.0) * c["tile_cycles"] / clock
    held = batch * kv_len * heads * (NOPE * 2 + ROPE) * kv_bytes
    other = batch * q_len * heads * (NOPE * 2 + ROPE) * 2.0
    capacity, sharpness = cache(gpu, c)
    cold = miss_share(held + other, capacity, sharpness)
    dram = dram_seconds(
        (held + other) * cold, gpu.dram_bytes_per_s, dram_efficiency(gpu, c), 2.0 * gpu.dram_latency_s, filled * sms, c["bytes_in_flight"]
    )
    again = batch * heads * pairs / QUERY_ROWS * np.where(absorbed, LATENT + ROPE, NOPE * 2 + ROPE) * kv_bytes  # keys, by every query block
    l2 = (held + other + again) / (gpu.l2_bytes_per_s * c["l2_rate_factor"] * filled)
    fixed = (stack_values(c, "launches", stack) + np.where(kv_bytes < 2, c["fp8_launches"], 0.0)) * launch_floor_s(gpu, c)
    latency = fixed + overlap(c["overlap_power"], tensor + exp, dram, l2, chain)
    one = np.ones_like(latency)
    features = {
        "tensor": np.log(tensor / latency),
        "exp": np.log(exp / latency),
        "chain": np.log(chain / latency),
        "dram": np.log(dram / latency),
        "l2": np.log(l2 / latency),
        "fixed": np.log(fixed / latency),
        "waves": np.log(waves),
        "tail": np.ceil(waves) / waves,
        "cache_in_l2": np.log(held / capacity),
        "log2_q": np.log2(q_len),
        "log2_kv": np.log2(kv_len),
        "log2_batch": np.log2(batch),
        "log2_heads": np.log2(heads),
        "fp8_cache": (kv_bytes < 2) * one,
        "warpgroup": one * grouped,
        "dtype": code.astype(np.float64),
        "stack": stack.astype(np.float64),
        "kernel": kernel.astype(np.float64),
    }
    seconds = {"tensor": tensor, "exp": exp, "kv chain": chain, "dram": dram, "l2": l2, "launch": fixed}
    return OperatorTerms(latency, seconds, features)


register(
    OperatorLaw(
        "mla_prefill",
        "mla",
        LAW,
        terms,
        ("num_heads", "q_len"),
        ("log2_q", "log2_batch", "log2_heads"),
        "mla_prefill",
        lambda columns: columns["decode"] == 0,
    )
)
