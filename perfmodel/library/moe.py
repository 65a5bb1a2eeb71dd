"""Fused mixture-of-experts layer: routing, sorting, two grouped GEMMs and the activation; or one of its grouped GEMMs alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.power import power_seconds
from perfmodel.analytic.roofline import cache, dram_seconds, miss_share, overlap
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.arch import FULL_MMA, FULL_WGMMA, dram_efficiency, joule_per_flop, warpgroup_path
from perfmodel.library.launch import launch_floor_s, named_values
from perfmodel.library.law import OperatorLaw, register
from perfmodel.library.moe_routing import loads
from perfmodel.library.moe_tiles import PATH, PATHS, SGLANG_TRITON, VLLM_TRITON, kernel_tiles, layer_tiles
from perfmodel.library.terms import Floats, OperatorTerms
from perfmodel.ops import names

LAW = "library_moe"
STAGES = 3.0
ALIGNED = 16.0  # elements of a stride that Triton's compiler may assume to divide it (its specialisation of integer arguments)
TWO_WARP_GROUPS = 128.0  # tile rows from which a Triton kernel keeps two warp groups multiplying on sm_90


def terms(gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float]) -> OperatorTerms:
    """Terms of n fused MoE layers (`stage` 0), or of the first (1) or second (2) grouped GEMM alone.

        t = floor x launches + single loads + overlap(SM, DRAM, L2)

    Rows of each touched expert are padded to whole tiles (library/moe_tiles.py); SM = tensor time of the padded tiles over waves, or what
    their K steps take that no other block hides; DRAM = weights of the touched experts once, slower where less than a cache line is
    fetched at a time, and activations between the stages; L2 = both operands of every tile, but for padding rows of Triton kernels, whose
    loads are masked (CUTLASS's too: then errors on H100 left out rise from 19.1 to 20.5 %). Gated experts have 2 x inter columns in the
    first GEMM; fp8 adds the quantisation of both inputs. Triton vectorises and prefetches loads whose stride is a multiple of
    16: with another inter / tp the second GEMM loads element by element, its tiles' padding along K included (public vLLM rows of H100: 88
    columns an expert take 290 us where 176 take 174).
    Source: vLLM fused_moe (moe_align_block_size), CUTLASS grouped GEMM. Valid: 1 to 2^20 tokens, 8 to 512 experts.
    Evidence: 416,000 public rows of four GPUs; `perfmodel evaluate operators --operator moe`.
    """
    code, stack, kernel = (columns[name].astype(np.intp) for name in ("dtype", "stack", "kernel"))
    a_bytes, b_bytes = names.A_BYTES[code], names.B_BYTES[code]
    rate = names.tensor_rates(gpu, code) * gpu.max_clock_hz / gpu.boost_clock_hz
    stage, hidden = columns["stage"], columns["hidden"]
    inter = columns["inter"] / columns["tp"]
    path = PATH[stack, kernel]
    routed = loads(columns)
    rows, touched = routed.total, np.maximum(routed.touched, 1.0)
    mean = rows / touched
    tile = kernel_tiles(gpu, columns["tokens"], columns["num_experts"], hidden).where(stage > 0, layer_tiles(gpu, columns, path, mean))
    block, width = tile.rows, tile.columns
    padded = np.maximum(np.maximum(routed.tiles(block), 1.0) * block, rows)
    first = np.where(stage == 2, 0.0, inter * (1.0 + columns["gated"]))  # columns of the first GEMM
    matrix = hidden * first + np.where(stage == 1, 0.0, hidden * inter)
    sms, clock = float(gpu.sms), gpu.max_clock_hz
    tiles = padded / block * np.where(stage == 2, np.ceil(hidden / width), np.ceil(np.maximum(first, 1.0) / width))
    waves = tiles / sms
    share = np.where(waves <= 1.0, 1.0 / np.minimum(waves, 1.0), 1.0 + c["tail_weight"] * (np.ceil(waves) / waves - 1.0))
    grouped = warpgroup_path(gpu)
    reuse = 2.0 * block * width / (block + width)  # multiplies an operand element, on average; block for square tiles
    cut = min(1.0, gpu.tensor_rate("bf16") / (gpu.boost_clock_hz * sms) / (FULL_WGMMA if grouped else FULL_MMA))
    triton = (path == VLLM_TRITON) | (path == SGLANG_TRITON)  # its share is of the tensor rate itself, on either tensor path
    cutlass = c["tensor_share_wgmma" if grouped else "tensor_share_mma"]
    reach = np.select([path == VLLM_TRITON, path == SGLANG_TRITON], [c["share_vllm_triton"], c["share_sglang_triton"]], cutlass)
    reach = reach * reuse / (reuse + c["half_rows"] * cut)
    reach = np.where(grouped & triton & (block < TWO_WARP_GROUPS), reach * c["triton_share"], reach)
    reach = 1.0 - (1.0 - reach) * cut  # what the data paths cost stays, the multiplies they feed are fewer
    flops = 2.0 * padded * matrix
    tensor = share * flops / (rate * reach)
    resident = np.clip(np.floor(gpu.smem_per_sm_bytes / (STAGES * (block + width) * tile.depth * a_bytes)), 1.0, c["most_resident"])
    resident = np.where(grouped & ~triton, 1.0, resident)  # CUTLASS with TMA: as many stages as shared memory holds
    deep = np.where(stage == 2, inter, hidden)
    ends = np.where(stage > 0, 0.0, c["tile_cycles"])
    chain = (deep / tile.depth * c["iteration_cycles"] + ends) / clock * np.ceil(waves / resident)
    after = padded / block * np.ceil(hidden / width) / sms  # waves of the second GEMM
    second = (inter / tile.depth * c["iteration_cycles"] + ends) / clock * np.ceil(after / resident)
    chain = chain + np.where(stage > 0, 0.0, second)
    scalar = triton & (stage != 1) & (np.mod(inter, ALIGNED) > 0)
    asked_singly = padded / block * np.ceil(hidden / width) * (block + width) * np.ceil(inter / tile.depth) * tile.depth
    rate_singly = np.where(path == SGLANG_TRITON, c["scalar_per_clock_sglang"], c["scalar_per_clock_vllm"]) * clock * sms
    singly = np.where(scalar, asked_singly / rate_singly, 0.0)
    weights = touched * matrix * b_bytes
    acts = rows * (hidden * (a_bytes + np.where(stage == 1, 0.0, 2.0)) + first * 2.0 + np.where(stage == 1, 0.0, inter * 2.0))
    capacity, sharpness = cache(gpu, c)
    cold = miss_share(weights + acts, capacity, sharpness)
    active = np.minimum(tiles, sms)
    short = (tile.depth * b_bytes < 128.0) & ~names.WEIGHT_ONLY[code]  # weights widened on the way in are stored in the order of their use
    piece = np.where(short, c["half_line_share"], 1.0)  # weight rows fetched by less than a cache line at a time
    dram = dram_seconds(
        (weights / piece + acts) * cold,
        gpu.dram_bytes_per_s,
        dram_efficiency(gpu, c),
        2.0 * gpu.dram_latency_s,
        active,
        c["bytes_in_flight"],
    )
    asked = np.where(triton | (stage > 0), rows, padded)
    l2 = (matrix * (padded * b_bytes / block + asked * a_bytes / width) + acts) / (gpu.l2_bytes_per_s * c["l2_rate_factor"])
    power = power_seconds(
        flops * np.sqrt(a_bytes / 2.0), joule_per_flop(gpu, c), weights + acts, c["pj_per_byte"] * 1e-12, gpu.power_w, c["idle_share"]
    )
    floor = launch_floor_s(gpu, c)
    launches = np.where(
        stage > 0,
        1.0,
        named_values(c, "launches", PATHS, path) + np.where(names.QUANTISED[code], c["quantise_launches"], 0.0),
    )
    handled = np.where(triton, columns["tokens"] * columns["top_k"], rows)  # Triton paths allot, activate and sum every routed row
    passed = handled * (hidden * 6.0 + (first + inter) * 2.0)
    aside = np.where(stage > 0, 0.0, c["routing_share"] * passed)
    aside_cold = miss_share(aside, capacity, sharpness)
    routing = aside * (aside_cold / gpu.dram_bytes_per_s + (1.0 - aside_cold) / gpu.l2_bytes_per_s)
    fixed = launches * floor + routing
    latency = fixed + singly + overlap(c["overlap_power"], overlap(c["power_power"], tensor, power), chain, dram, l2)
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
        "handled": np.log(handled / rows),
        "routing": routing / latency,
        "scalar": singly / latency,
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
        "path": path.astype(np.float64),
    }
    seconds = {
        "tensor": tensor, "k latency": chain, "dram": dram, "l2": l2, "power": power, "single loads": singly, "launch and routing": fixed,
    }  # fmt: skip
    return OperatorTerms(latency, seconds, features)


_SHAPE, _DOMAIN = ("num_experts", "top_k", "hidden", "inter", "tp", "ep"), ("log2_tokens", "log2_hidden", "log2_inter")


def _layer(columns: Mapping[str, Floats]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = columns["stage"] == 0
    return found


register(
    OperatorLaw("moe", "moe", LAW, terms, _SHAPE, _DOMAIN, "moe", lambda columns: _layer(columns) & ~names.narrow(columns["dtype"])),
    OperatorLaw(
        "moe_quantised", "moe", LAW, terms, _SHAPE, _DOMAIN, "moe", lambda columns: _layer(columns) & names.narrow(columns["dtype"])
    ),
    OperatorLaw("moe_kernel", "moe", LAW, terms, _SHAPE[:4], _DOMAIN, "moe_kernel", lambda columns: ~_layer(columns)),
)
