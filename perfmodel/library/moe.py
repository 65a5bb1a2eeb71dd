"""Fused mixture-of-experts layer: routing, sorting, two grouped GEMMs and the activation; or one of its grouped GEMMs alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.analytic.power import power_seconds
from perfmodel.analytic.roofline import dram_seconds, miss_share, overlap
from perfmodel.hw.spec import GpuSpec
from perfmodel.library import names
from perfmodel.library.arch import FULL_MMA, FULL_WGMMA, cache, dram_efficiency, joule_per_flop, warpgroup_path
from perfmodel.library.launch import launch_floor_s, stack_values
from perfmodel.library.names import KERNELS
from perfmodel.library.terms import Floats, OperatorTerms

LAW = "library_moe"
BLOCK_N = 128.0
_TRITON = KERNELS.index("triton")


def expert_rows(columns: Mapping[str, Floats], c: Mapping[str, float]) -> tuple[Floats, Floats, Floats]:
    """(routed rows of this GPU, experts they touch, rows of the busiest expert over the mean), expected values.

    Balanced routing deals rows out in turn: min(E, rows) experts. Skewed routing with exponent a touches E (1 - exp(-(rows / E)^g)),
    g = 1 - a / skew_touch, and loads its busiest expert and GPU more. Source: Zipf weights; public rows of power_law_1.01 and 1.2.
    """
    local = columns["num_experts"] / columns["ep"]
    skew = columns["skew"]
    rows = np.maximum(columns["tokens"] * columns["top_k"] / columns["ep"], 1.0) * (
        1.0 + np.where(columns["ep"] > 1, c["skew_load"], 0.0) * skew
    )
    spread = np.minimum(1.0, rows / local)
    touched = np.where(skew > 0, local * -np.expm1(-np.power(rows / local, 1.0 - np.minimum(skew / c["skew_touch"], 0.9))), local * spread)
    touched = np.clip(touched, 1.0, np.minimum(local, rows))
    return rows, touched, 1.0 + skew * c["skew_peak"]


def terms(gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float]) -> OperatorTerms:
    """Terms of n fused MoE layers (`stage` 0), or of the first (1) or second (2) grouped GEMM alone.

        t = floor x launches + overlap(SM, DRAM, L2)

    Rows of each touched expert are padded to a tile of block_m rows (16 to 128, the power of two over the mean); SM = tensor time of the
    padded tiles over waves of 128 columns; DRAM = weights of the touched experts once and activations between the stages; L2 = weights
    once per tile row. Gated experts have 2 x inter columns in the first GEMM; fp8 adds the quantisation of both inputs.
    Source: vLLM fused_moe (moe_align_block_size), CUTLASS grouped GEMM. Valid: 1 to 2^20 tokens, 8 to 512 experts.
    Evidence: 416,000 public rows of four GPUs; `python -m perfmodel.calibrate.evaluate_operators moe`.
    """
    code, stack, kernel = (columns[name].astype(np.intp) for name in ("dtype", "stack", "kernel"))
    a_bytes, b_bytes = names.A_BYTES[code], names.B_BYTES[code]
    rate = names.tensor_rates(gpu, code) * gpu.max_clock_hz / gpu.boost_clock_hz
    stage, hidden = columns["stage"], columns["hidden"]
    inter = columns["inter"] / columns["tp"]
    rows, touched, peak = expert_rows(columns, c)
    mean = rows / touched
    block = np.clip(np.exp2(np.ceil(np.log2(mean))), 16.0, 128.0)
    padded = np.maximum(touched * np.ceil(mean / block) * block, rows)
    first = np.where(stage == 2, 0.0, inter * (1.0 + columns["gated"]))  # columns of the first GEMM
    matrix = hidden * first + np.where(stage == 1, 0.0, hidden * inter)
    sms, clock = float(gpu.sms), gpu.max_clock_hz
    tiles = padded / block * np.where(stage == 2, np.ceil(hidden / BLOCK_N), np.ceil(np.maximum(first, 1.0) / BLOCK_N))
    waves = tiles / sms
    share = np.where(waves <= 1.0, 1.0 / np.minimum(waves, 1.0), 1.0 + c["tail_weight"] * (np.ceil(waves) / waves - 1.0))
    grouped = warpgroup_path(gpu)
    reach = c["tensor_share_wgmma"] if grouped else c["tensor_share_mma"]
    cut = min(1.0, gpu.tensor_rate("bf16") / (gpu.boost_clock_hz * sms) / (FULL_WGMMA if grouped else FULL_MMA))
    reach = np.where(grouped & (kernel == _TRITON), reach * c["triton_share"], reach) * block / (block + c["half_rows"] * cut)
    reach = 1.0 - (1.0 - reach) * cut  # what the data paths cost stays, the multiplies they feed are fewer
    flops = 2.0 * padded * matrix
    tensor = share * flops / (rate * reach)
    chain = np.where(stage == 2, inter, hidden) * a_bytes / 128.0 * c["iteration_cycles"] / clock * np.ceil(waves)
    weights = touched * matrix * b_bytes
    acts = rows * (hidden * (a_bytes + np.where(stage == 1, 0.0, 4.0)) + first * 2.0 + np.where(stage == 1, 0.0, inter * 2.0))
    capacity, sharpness = cache(gpu, c)
    cold = miss_share(weights + acts, capacity, sharpness)
    active = np.minimum(tiles, sms)
    dram = dram_seconds(
        (weights + acts) * cold, gpu.dram_bytes_per_s, dram_efficiency(gpu, c), 2.0 * gpu.dram_latency_s, active, c["bytes_in_flight"]
    )
    l2 = (padded / block * matrix * b_bytes * peak + acts) / (gpu.l2_bytes_per_s * c["l2_rate_factor"])
    power = power_seconds(
        flops * np.sqrt(a_bytes / 2.0), joule_per_flop(gpu, c), weights + acts, c["pj_per_byte"] * 1e-12, gpu.power_w, c["idle_share"]
    )
    floor = launch_floor_s(gpu, c)
    launches = np.where(stage > 0, 1.0, stack_values(c, "launches", stack) + np.where(names.QUANTISED[code], c["quantise_launches"], 0.0))
    routing = np.where(stage > 0, 0.0, rows * hidden * 6.0 * c["routing_share"] / gpu.dram_bytes_per_s)
    fixed = launches * floor + routing
    latency = fixed + overlap(c["overlap_power"], overlap(c["power_power"], tensor, power), chain, dram, l2)
    one = np.ones_like(latency)
    features = {
        "tensor": np.log(tensor / latency),
        "chain": np.log(chain / latency),
        "dram": np.log(dram / latency),
        "l2": np.log(l2 / latency),
        "power": np.log(power / latency),
        "fixed": np.log(fixed / latency),
        "waves": np.log(waves),
        "rows_per_expert": np.log2(mean),
        "touched": np.log2(touched),
        "touched_share": touched * columns["ep"] / columns["num_experts"],
        "padding": padded / rows,
        "weights_in_l2": np.log(weights / capacity),
        "log2_tokens": np.log2(columns["tokens"]),
        "log2_hidden": np.log2(hidden),
        "log2_inter": np.log2(inter),
        "log2_experts": np.log2(columns["num_experts"]),
        "top_k": columns["top_k"],
        "log2_ep": np.log2(columns["ep"]),
        "skew": columns["skew"],
        "gated": columns["gated"],
        "stage": stage,
        "warpgroup": one * grouped,
        "dtype": code.astype(np.float64),
        "stack": stack.astype(np.float64),
        "kernel": kernel.astype(np.float64),
    }
    seconds = {"tensor": tensor, "k latency": chain, "dram": dram, "l2": l2, "power": power, "launch and routing": fixed}
    return OperatorTerms(latency, seconds, features)
