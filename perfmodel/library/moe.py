"""Fused mixture-of-experts layer: routing, sorting, two grouped GEMMs and the activation; or one of its grouped GEMMs alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.power import power_seconds
from perfmodel.analytic.roofline import cache, dram_seconds, miss_share, overlap
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.arch import FULL_MMA, FULL_WGMMA, dram_efficiency, joule_per_flop, warpgroup_path
from perfmodel.library.launch import launch_floor_s
from perfmodel.library.law import OperatorLaw, register
from perfmodel.library.moe_kernels import MoeKernel, kernels
from perfmodel.library.moe_routing import Loads, loads
from perfmodel.library.moe_tiles import Tile, kernel_tiles, layer_tiles
from perfmodel.library.records import Codes, Flags, Kernels
from perfmodel.library.terms import Floats, OperatorTerms
from perfmodel.ops import names

LAW = "library_moe"
STAGES = 3.0
ALIGNED = 16.0  # elements of a stride that a compiler may assume to divide it (Triton's specialisation of integer arguments)
TWO_WARP_GROUPS = 128.0  # tile rows from which two warp groups multiply


@dataclass(frozen=True, slots=True)
class _Layers:
    """n layers, or grouped GEMMs alone: sizes on this GPU, the kernels that run, and how those cut the work.

    first: columns of the first GEMM (0: it does not run); matrix: elements of an expert; rows: of this GPU's experts; touched: experts
    with any; padded: rows of whole tiles; waves: tiles over SMs, of the first GEMM that runs.
    """

    stage: Floats
    hidden: Floats
    inter: Floats
    dtype: Codes
    k: Kernels[MoeKernel]
    first: Floats
    matrix: Floats
    rows: Floats
    touched: Floats
    tile: Tile
    padded: Floats
    waves: Floats

    @property
    def a_bytes(self) -> Floats:
        """Bytes of an element of the activations."""
        return names.A_BYTES[self.dtype]

    @property
    def b_bytes(self) -> Floats:
        """Bytes of an element of the weights."""
        return names.B_BYTES[self.dtype]

    @property
    def alone(self) -> Flags:
        """One grouped GEMM, not a layer."""
        return np.asarray(self.stage > 0)

    @property
    def weights_bytes(self) -> Floats:
        """Bytes of the weights of the touched experts."""
        return self.touched * self.matrix * self.b_bytes

    @property
    def acts_bytes(self) -> Floats:
        """Bytes of activations, those between the GEMMs among them."""
        second = np.where(self.stage == 1, 0.0, 2.0)
        return self.rows * (self.hidden * (self.a_bytes + second) + self.first * 2.0 + np.where(self.stage == 1, 0.0, self.inter * 2.0))


def terms(gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float]) -> OperatorTerms:
    """Terms of n fused MoE layers (`stage` 0), or of the first (1) or second (2) grouped GEMM alone.

        t = floor x launches + routing + single loads + overlap(SM, DRAM, L2)

    Rows of each touched expert are padded to whole tiles (library/moe_tiles.py); SM = tensor time of the padded tiles over waves, or what
    their K steps take that no other block hides. Gated experts have 2 x inter columns in the first GEMM.
    Source: vLLM fused_moe (moe_align_block_size), CUTLASS grouped GEMM. Valid: 1 to 2^20 tokens, 8 to 512 experts.
    Evidence: 416,000 public rows of four GPUs; `perfmodel evaluate operators --operator moe`.
    """
    routed = loads(columns)
    a = _layers(gpu, columns, routed)
    tensor, flops = _tensor_s(gpu, a, c)
    chain = _chain_s(gpu, a, c)
    singly = _singly_s(gpu, a, c)
    dram, l2 = _traffic_s(gpu, a, c)
    switched, moved = flops * np.sqrt(a.a_bytes / 2.0), a.weights_bytes + a.acts_bytes
    power = power_seconds(switched, joule_per_flop(gpu, c), moved, c["pj_per_byte"] * 1e-12, gpu.power_w, c["idle_share"])
    handled = np.where(a.k.flag("handles_routed_rows"), columns["tokens"] * columns["top_k"], a.rows)
    routing = _routing_s(gpu, a, handled, c)
    fixed = _launches(a, c) * launch_floor_s(gpu, c) + routing
    latency = fixed + singly + overlap(c["overlap_power"], overlap(c["power_power"], tensor, power), chain, dram, l2)
    seconds = {
        "tensor": tensor, "k latency": chain, "dram": dram, "l2": l2, "power": power, "single loads": singly, "launch and routing": fixed,
    }  # fmt: skip
    return OperatorTerms(latency, seconds, _features(gpu, a, columns, seconds, latency, handled, routing, c))


def _layers(gpu: GpuSpec, columns: Mapping[str, Floats], routed: Loads) -> _Layers:
    """The layers with the kernels that their stacks run, their tiles, and the rows that fill those up."""
    dtype, stack, kernel = (columns[name].astype(np.intp) for name in ("dtype", "stack", "kernel"))
    stage, hidden, inter = columns["stage"], columns["hidden"], columns["inter"] / columns["tp"]
    k = kernels(gpu, stack, kernel)
    rows, touched = routed.total, np.maximum(routed.touched, 1.0)
    by_layer = layer_tiles(gpu, k, columns, rows / touched)
    tile = kernel_tiles(gpu, columns["tokens"], columns["num_experts"], hidden).where(stage > 0, by_layer)
    padded = np.maximum(np.maximum(routed.tiles(tile.rows), 1.0) * tile.rows, rows)
    first = np.where(stage == 2, 0.0, inter * (1.0 + columns["gated"]))
    matrix = hidden * first + np.where(stage == 1, 0.0, hidden * inter)
    across = np.where(stage == 2, np.ceil(hidden / tile.columns), np.ceil(np.maximum(first, 1.0) / tile.columns))
    waves = padded / tile.rows * across / float(gpu.sms)
    return _Layers(stage, hidden, inter, dtype, k, first, matrix, rows, touched, tile, padded, waves)


def _tensor_s(gpu: GpuSpec, a: _Layers, c: Mapping[str, float]) -> tuple[Floats, Floats]:
    """(seconds, flops) of the multiplies of all SMs, those of padding rows included; the rate is what the shape of the tile reaches."""
    grouped = warpgroup_path(gpu)
    rate = names.tensor_rates(gpu, a.dtype) * gpu.max_clock_hz / gpu.boost_clock_hz
    block, width = a.tile.rows, a.tile.columns
    reuse = 2.0 * block * width / (block + width)  # multiplies an operand element, on average; block for square tiles
    cut = min(1.0, gpu.tensor_rate("bf16") / (gpu.boost_clock_hz * float(gpu.sms)) / (FULL_WGMMA if grouped else FULL_MMA))
    reach = a.k.constant(c, "tensor_share_warpgroup" if grouped else "tensor_share") * reuse / (reuse + c["half_rows"] * cut)
    if grouped:
        reach = np.where(block < TWO_WARP_GROUPS, reach * a.k.constant(c, "small_tile_share"), reach)
    reach = 1.0 - (1.0 - reach) * cut  # what the data paths cost stays, the multiplies they feed are fewer
    flops = 2.0 * a.padded * a.matrix
    waves = a.waves
    share = np.where(waves <= 1.0, 1.0 / np.minimum(waves, 1.0), 1.0 + c["tail_weight"] * (np.ceil(waves) / waves - 1.0))
    return share * flops / (rate * reach), flops


def _chain_s(gpu: GpuSpec, a: _Layers, c: Mapping[str, float]) -> Floats:
    """Seconds of K steps that follow each other in a block, round after round of the blocks that an SM holds, of both GEMMs."""
    tile = a.tile
    resident = np.floor(gpu.smem_per_sm_bytes / (STAGES * (tile.rows + tile.columns) * tile.depth * a.a_bytes))
    resident = np.clip(resident, 1.0, c["most_resident"])
    if warpgroup_path(gpu):  # loads by TMA: as many stages as shared memory holds
        resident = np.where(a.k.flag("shares_sms"), resident, 1.0)
    deep = np.where(a.stage == 2, a.inter, a.hidden)
    ends = np.where(a.alone, 0.0, c["tile_cycles"])
    after = a.padded / tile.rows * np.ceil(a.hidden / tile.columns) / float(gpu.sms)  # waves of the second GEMM
    first = (deep / tile.depth * c["iteration_cycles"] + ends) / gpu.max_clock_hz * np.ceil(a.waves / resident)
    second = (a.inter / tile.depth * c["iteration_cycles"] + ends) / gpu.max_clock_hz * np.ceil(after / resident)
    found: Floats = first + np.where(a.alone, 0.0, second)
    return found


def _singly_s(gpu: GpuSpec, a: _Layers, c: Mapping[str, float]) -> Floats:
    """Seconds of the second GEMM's loads where they go element by element, its tiles' padding along K included.

    Triton vectorises and prefetches loads whose stride is a multiple of 16: with another inter / tp it does not. Evidence: public rows of
    H100: 88 columns an expert take 290 us where 176 take 174.
    """
    tile = a.tile
    scalar = ~a.k.flag("singly_per_clock", "") & (a.stage != 1) & (np.mod(a.inter, ALIGNED) > 0)
    columns = np.ceil(a.hidden / tile.columns) * (tile.rows + tile.columns) * np.ceil(a.inter / tile.depth) * tile.depth
    asked = a.padded / tile.rows * columns
    return np.where(scalar, asked / (a.k.constant(c, "singly_per_clock") * gpu.max_clock_hz * float(gpu.sms)), 0.0)


def _traffic_s(gpu: GpuSpec, a: _Layers, c: Mapping[str, float]) -> tuple[Floats, Floats]:
    """(DRAM seconds, L2 seconds).

    DRAM: weights of the touched experts once, slower where less than a cache line of a row is fetched at a time, and activations between
    the stages; L2: both operands of every tile, but for padding rows where the kernel masks those loads (with CUTLASS's masked, too,
    errors on H100 left out rise from 19.1 to 20.5 %).
    """
    weights, acts, tile = a.weights_bytes, a.acts_bytes, a.tile
    cold = miss_share(weights + acts, *cache(gpu, c))
    active = np.minimum(a.waves * float(gpu.sms), float(gpu.sms))
    short = (tile.depth * a.b_bytes < 128.0) & ~names.WEIGHT_ONLY[a.dtype]  # weights widened on the way in are stored in the order of use
    moved = (weights / np.where(short, c["half_line_share"], 1.0) + acts) * cold
    latency_s = 2.0 * gpu.dram_latency_s
    dram = dram_seconds(moved, gpu.dram_bytes_per_s, dram_efficiency(gpu, c), latency_s, active, c["bytes_in_flight"])
    asked = np.where(a.k.flag("masks_padding") | a.alone, a.rows, a.padded)
    operands = a.matrix * (a.padded * a.b_bytes / tile.rows + asked * a.a_bytes / tile.columns)
    return dram, (operands + acts) / (gpu.l2_bytes_per_s * c["l2_rate_factor"])


def _routing_s(gpu: GpuSpec, a: _Layers, handled: Floats, c: Mapping[str, float]) -> Floats:
    """Seconds of sorting, activating and summing the `handled` rows around the GEMMs of a layer."""
    passed = np.where(a.alone, 0.0, c["routing_share"] * (handled * (a.hidden * 6.0 + (a.first + a.inter) * 2.0)))
    cold = miss_share(passed, *cache(gpu, c))
    found: Floats = passed * (cold / gpu.dram_bytes_per_s + (1.0 - cold) / gpu.l2_bytes_per_s)
    return found


def _launches(a: _Layers, c: Mapping[str, float]) -> Floats:
    """Launches of a layer, those that quantise both inputs among them; a grouped GEMM alone is one."""
    return np.where(a.alone, 1.0, a.k.constant(c, "launches") + np.where(names.QUANTISED[a.dtype], c["quantise_launches"], 0.0))


def _features(
    gpu: GpuSpec,
    a: _Layers,
    columns: Mapping[str, Floats],
    seconds: Mapping[str, Floats],
    latency: Floats,
    handled: Floats,
    routing: Floats,
    c: Mapping[str, float],
) -> dict[str, Floats]:
    """Dimensionless columns for the residual."""
    capacity, _ = cache(gpu, c)
    shares = {"tensor": "tensor", "chain": "k latency", "dram": "dram", "l2": "l2", "power": "power", "fixed": "launch and routing"}
    return {
        **{name: np.log(seconds[term] / latency) for name, term in shares.items()},
        "waves": np.log(a.waves),
        "rows_per_expert": np.log2(a.rows / a.touched),
        "touched": np.log2(a.touched),
        "handled": np.log(handled / a.rows),
        "routing": routing / latency,
        "scalar": seconds["single loads"] / latency,
        "touched_share": a.touched * columns["ep"] / columns["num_experts"],
        "padding": a.padded / a.rows,
        "weights_in_l2": np.log(a.weights_bytes / capacity),
        "log2_tokens": np.log2(columns["tokens"]),
        "log2_hidden": np.log2(a.hidden),
        "log2_inter": np.log2(a.inter),
        "log2_experts": np.log2(columns["num_experts"]),
        "top_k": columns["top_k"],
        "log2_ep": np.log2(columns["ep"]),
        "skew": columns["skew"],
        "gated": columns["gated"],
        "stage": a.stage,
        "warpgroup": np.ones_like(latency) * warpgroup_path(gpu),
        "dtype": a.dtype.astype(np.float64),
        "stack": columns["stack"].astype(np.float64),
        "kernel": columns["kernel"].astype(np.float64),
        "path": a.k.code.astype(np.float64),
    }


_SHAPE, _DOMAIN = ("num_experts", "top_k", "hidden", "inter", "tp", "ep"), ("log2_tokens", "log2_hidden", "log2_inter")


def _layer(columns: Mapping[str, Floats]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = columns["stage"] == 0
    return found


def _narrow_layer(columns: Mapping[str, Floats]) -> npt.NDArray[np.bool_]:
    return _layer(columns) & names.narrow(columns["dtype"])


def _wide_layer(columns: Mapping[str, Floats]) -> npt.NDArray[np.bool_]:
    return _layer(columns) & ~names.narrow(columns["dtype"])


_KERNELS = {"rules": "moe", "records": "moe_kernels"}
register(
    OperatorLaw("moe", "moe", LAW, terms, _SHAPE, _DOMAIN, "moe", _wide_layer, **_KERNELS),
    OperatorLaw("moe_quantised", "moe", LAW, terms, _SHAPE, _DOMAIN, "moe", _narrow_layer, **_KERNELS),
    OperatorLaw("moe_kernel", "moe", LAW, terms, _SHAPE[:4], _DOMAIN, "moe_kernel", lambda columns: ~_layer(columns)),
)
