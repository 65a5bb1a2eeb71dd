"""Multi-head latent attention: decode over the compressed cache, prefill with expanded or absorbed heads."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel import elementwise as np
from perfmodel.analytic.roofline import dram_seconds, miss_share, overlap
from perfmodel.hw.spec import GpuSpec
from perfmodel.library import names
from perfmodel.library.arch import cache, dram_efficiency, warpgroup_path
from perfmodel.library.launch import launch_floor_s, stack_values
from perfmodel.library.terms import Floats, OperatorTerms
from perfmodel.ops.attention import visited_pairs
from perfmodel.ops.mla import LATENT, NOPE, ROPE

LAW = "library_mla"
ABSORBED = float(2 * LATENT + ROPE)  # multiply-adds a pair and head with the up-projections absorbed: 576 + 512
EXPANDED = float(2 * NOPE + ROPE)  # the same with heads expanded: 192 + 128
_SGLANG = names.STACKS.index("sglang")


def decode_terms(gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float]) -> OperatorTerms:
    """Decode: every head reads the same latent cache, so flops a byte grow with the heads (arXiv 2405.04434, section 2.1)."""
    return _terms(gpu, columns, c, decode=True)


def prefill_terms(gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float]) -> OperatorTerms:
    """Prefill: heads of 192 and 128 (SGLang's public rows run the absorbed form, 576 and 512)."""
    return _terms(gpu, columns, c, decode=False)


def _terms(gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float], *, decode: bool) -> OperatorTerms:
    """Terms of n latent-attention calls.

        t = floor x launches + overlap(tensor + exp, DRAM, chain)

    Decode bytes = b L 576 x element; tensor flop = 2 H 1088 a key, rows padded to 64; chain = KV tiles of the longest split.
    Prefill flop = 2 H 320 (or 1088) a visited pair. Units: seconds. Valid: 1 to 128 heads, kv_len 1 to 2^18.
    Evidence: 17,800 public rows of four GPUs; `perfmodel evaluate operators --operator mla_decode`.
    """
    code, kv_code, stack, kernel = (columns[name].astype(np.intp) for name in ("dtype", "kv_dtype", "stack", "kernel"))
    kv_bytes = names.A_BYTES[kv_code]
    batch, heads, q_len, kv_len = columns["batch"], columns["num_heads"], columns["q_len"], columns["kv_len"]
    sms, clock = float(gpu.sms), gpu.max_clock_hz
    grouped = warpgroup_path(gpu)
    pairs = visited_pairs(q_len, kv_len)
    padded = np.ceil(heads / 64.0) * 64.0 if decode else heads
    width = ABSORBED if decode else np.where(stack == _SGLANG, ABSORBED, EXPANDED)
    flops = 2.0 * batch * padded * pairs * width
    units = batch * np.ceil(heads / 64.0) if decode else batch * heads * np.ceil(q_len / 128.0)
    splits = np.clip(np.floor(sms / units), 1.0, np.maximum(np.floor(kv_len / 64.0), 1.0)) if decode else np.ones_like(units)
    waves = units * splits / sms
    filled = np.minimum(waves, 1.0)
    share = np.where(waves <= 1.0, 1.0 / filled, 1.0 + c["tail_weight"] * (np.ceil(waves) / waves - 1.0))
    reach = c["tensor_share_wgmma" if grouped else "tensor_share_mma"]
    tensor = share * flops / (gpu.tensor_rate("bf16") * reach)
    exp = share * batch * padded * pairs / (gpu.sfu_per_clock_per_sm * sms * clock)
    chain = np.ceil(waves if decode else 1.0) * np.ceil(kv_len / splits / 64.0) * c["tile_cycles"] / clock
    held = batch * kv_len * (LATENT + ROPE) * kv_bytes if decode else batch * kv_len * heads * (NOPE * 2 + ROPE) * kv_bytes
    other = batch * q_len * heads * (NOPE * 2 + ROPE) * 2.0 * (2.0 if decode else 1.0)
    capacity, sharpness = cache(gpu, c)
    cold = miss_share(held + other, capacity, sharpness)
    dram = dram_seconds(
        (held + other) * cold, gpu.dram_bytes_per_s, dram_efficiency(gpu, c), 2.0 * gpu.dram_latency_s, filled * sms, c["bytes_in_flight"]
    )
    l2 = (held + other + batch * pairs / 64.0 * (LATENT + ROPE) * kv_bytes * (0.0 if decode else 1.0)) / (
        gpu.l2_bytes_per_s * c["l2_rate_factor"] * filled
    )
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
        "splits": np.log2(splits),
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
