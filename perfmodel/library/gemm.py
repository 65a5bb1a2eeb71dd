"""GEMM as cuBLAS, CUTLASS and the serving stacks run it: the best of a small set of tiles, with and without split-K.

Rows are launch-free (CUDA graph), in a steady state that rotates through a few weight tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.power import power_seconds
from perfmodel.analytic.roofline import dram_seconds, miss_share, overlap
from perfmodel.hw.spec import GpuSpec
from perfmodel.library import names
from perfmodel.library.arch import FULL_MMA, FULL_WGMMA, cache, dram_efficiency, joule_per_flop, warpgroup_path
from perfmodel.library.launch import stack_values
from perfmodel.library.terms import OperatorTerms

LAW = "library_gemm"
SIZES = ("m", "n", "k")
_TILES = np.array(
    [
        (256, 128),
        (128, 256),
        (128, 128),
        (256, 64),
        (64, 256),
        (128, 64),
        (64, 128),
        (64, 64),
        (32, 128),
        (128, 32),
        (64, 32),
        (32, 64),
        (16, 64),
        (16, 128),
    ],
    dtype=np.float64,
)
_BM, _BN = _TILES.T[:, :, None]  # a tile a line, a GEMM a column
_FLOPS = 2.0 * _BM * _BN
_INTENSITY = _BM * _BN / (_BM + _BN)
K_STEP_BYTES = 128.0  # one cache line of K an iteration
CORE_ROWS = 1024  # rows at a time: the arrays of all tiles stay in cache
Floats = npt.NDArray[np.float64]
Columns = Mapping[str, npt.NDArray[np.float64]]


def _core(gpu: GpuSpec, c: Mapping[str, float], m: Floats, n: Floats, k: Floats, a_bytes: Floats, b_bytes: Floats, rate: Floats) -> Floats:
    """Clock cycles of the SMs for the best tile: lines total, tensor, operand feed, K latency, waves, splits, tile index.

    Per tile: tensor = waves x k x 2 BM BN / (rate per SM x efficiency), efficiency = i / (i + half) with i = BM BN / (BM + BN);
    feed = waves x k (BM a + BN b) / port; latency = iterations of 128 bytes of K x cycles an iteration. Waves blend ceil and fraction.
    Split-K s = as many as SMs are idle, at 512 bytes of K a part or more, plus the traffic and latency of the reduction.
    """
    grouped = warpgroup_path(gpu)
    clock, sms = gpu.max_clock_hz, float(gpu.sms)
    l2_rate = gpu.l2_bytes_per_s / clock
    per_clock = gpu.tensor_rate("bf16") / (gpu.boost_clock_hz * sms)
    half = c["half_wgmma"] * min(1.0, per_clock / FULL_WGMMA) if grouped else c["half_mma"] * min(1.0, per_clock / FULL_MMA)
    efficiency = _INTENSITY / (_INTENSITY + half)
    if grouped:
        efficiency = np.where(_BM < 64, efficiency * c["narrow_share"], efficiency)
    work = _FLOPS / efficiency
    step_cycles = c["iteration_wgmma" if grouped else "iteration_mma"]

    def parts(units: Floats, depth: Floats, cycles: Floats, operand: Floats, step: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """(tensor, feed, latency, waves, whole waves) of tiles that each compute `depth` of K in `units` blocks."""
        mean = units / sms
        busiest = np.ceil(mean)
        deep = np.where(mean <= 1.0, 1.0, c["tail_weight"] * busiest + (1.0 - c["tail_weight"]) * mean) * depth
        port = np.minimum(c["port_bytes_per_cycle"], c["l2_rate_factor"] * l2_rate / np.minimum(units, sms))
        return deep * cycles, deep * operand / port, np.broadcast_to(depth * step, mean.shape), mean, busiest

    def totals(tensor: Floats, feed: Floats, latency: Floats, busiest: Floats, extra: Floats | float = 0.0) -> Floats:
        """Cycles in all, infinite for tiles that cannot be the best: the overlap lies between its largest term and 3^(1/p) of it."""
        power, start = c["core_power"], busiest * c["tile_cycles"]
        if tensor.shape[1] == 1:
            return np.asarray(overlap(power, tensor, feed, latency) + start + extra)
        largest = np.maximum(np.maximum(tensor, feed), latency)
        aside = start + extra
        open_ = np.flatnonzero(largest * (1.0 - 1e-9) + aside <= (largest * 3.0 ** (1.0 / power) + aside).min(axis=0) * (1.0 + 1e-9))
        exact = overlap(power, *(term.ravel()[open_] for term in (tensor, feed, latency))) + start.ravel()[open_]
        total = np.full(largest.shape, np.inf)
        total.ravel()[open_] = exact + (extra.ravel()[open_] if isinstance(extra, np.ndarray) else extra)
        return total

    def best(m: Floats, n: Floats, k: Floats, a_bytes: Floats, b_bytes: Floats, rate: Floats) -> Floats:
        cycles = work / (rate / (gpu.boost_clock_hz * sms))
        operand = _BM * a_bytes + _BN * b_bytes
        step = step_cycles * a_bytes / K_STEP_BYTES
        tiles = np.ceil(m / _BM) * np.ceil(n / _BN)
        splits = np.maximum(1.0, np.minimum(np.floor(sms / tiles), np.clip(np.floor(k * a_bytes / 512.0), 1.0, c["max_splits"])))
        *found, busiest = parts(tiles, k, cycles, operand, step)
        total = totals(*found[:3], busiest)
        cut = splits > 1.0
        some = np.flatnonzero(cut.any(axis=0))
        used = np.ones_like(splits)
        if len(some):
            whole = len(some) == len(m)
            at: Any = (slice(None), slice(None) if whole else some)
            pick = [v if whole or v.shape[-1] == 1 else v[..., some] for v in (m, n, k, cycles, operand, step)]
            s, split, base = splits[at], cut[at], total[at]
            *other, busiest = parts(tiles[at] * s, pick[2] / s, *pick[3:])
            reduction = c["split_latencies"] * gpu.dram_latency_s * clock + pick[0] * pick[1] * 4.0 * (s + 1.0) / l2_rate
            shared = totals(*other[:3], busiest, reduction)
            better = split & (shared < base)
            total[at] = np.where(better, shared, base)
            found = [np.array(old) for old in found]
            for old, new in zip(found, other, strict=True):
                old[at] = np.where(better, new, old[at])
            used[at] = np.where(better, s, 1.0)
        index = total.argmin(axis=0)
        rows = np.arange(len(index))
        return np.stack([*(v[index, rows] for v in (total, *found, used)), index.astype(np.float64)])

    columns = (m, n, k, a_bytes, b_bytes, rate)
    if all((v == v[0]).all() for v in columns[3:]):
        columns = (m, n, k, a_bytes[:1], b_bytes[:1], rate[:1])
    if len(m) <= CORE_ROWS:
        return best(*columns)
    out = np.empty((7, len(m)))
    for start in range(0, len(m), CORE_ROWS):
        rows = slice(start, start + CORE_ROWS)
        out[:, rows] = best(*(v if len(v) == 1 else v[rows] for v in columns))
    return out


def terms(gpu: GpuSpec, columns: Columns, c: Mapping[str, float]) -> OperatorTerms:
    """Terms of n GEMMs C[m,n] = A[m,k] B[k,n], `batch` copies of each.

        t = floor + quantise + overlap(core, DRAM, L2),   core = max of tensor and power time, nearly

    floor: back-to-back launch inside a graph; DRAM: weights that do not stay in L2 between calls (a stack rotates through `copies`
    of them) and activations that do not fit; quantise: activation quantisation of fp8 and int8, one more kernel.
    Units: seconds, bytes, flop. Source: NVIDIA, Matrix Multiplication Background User's Guide (tiles, waves); stream-K,
    arXiv 2301.03598 (split-K); analytic/roofline.py and power.py. Valid: sizes of 1 to 2^31, sm_80 to sm_120.
    Evidence: 169,000 public bf16 rows of four GPUs; `perfmodel evaluate operators --operator gemm` prints the errors.
    """
    code = columns["dtype"].astype(np.intp)
    stack = columns["stack"].astype(np.intp)
    a_bytes, b_bytes, out_bytes = names.A_BYTES[code], names.B_BYTES[code], names.OUT_BYTES[code]
    rate = names.tensor_rates(gpu, code)
    batch = columns["batch"]
    m, n, k = columns["m"] * batch, columns["n"], columns["k"]
    core, tensor, feed, chain, waves, splits, tile = _core(gpu, c, m, n, k, a_bytes, b_bytes, rate)
    clock = gpu.max_clock_hz
    core, tensor, feed, chain = core / clock, tensor / clock, feed / clock, chain / clock
    weights, acts = n * k * b_bytes * batch, m * k * a_bytes + m * n * out_bytes
    copies = stack_values(c, "copies", stack)
    capacity, sharpness = cache(gpu, c)
    cold = miss_share(copies * weights + acts, capacity, sharpness)
    cold_acts = miss_share(weights + acts, capacity, sharpness)
    from_dram = weights * cold + acts * cold_acts
    active = np.minimum(waves, 1.0) * gpu.sms
    dram = dram_seconds(from_dram, gpu.dram_bytes_per_s, dram_efficiency(gpu, c), 2.0 * gpu.dram_latency_s, active, c["bytes_in_flight"])
    dram = dram + c["ramp_latencies"] * gpu.dram_latency_s * cold
    l2 = (weights + acts) / (gpu.l2_bytes_per_s * c["l2_rate_factor"])
    toggling = np.where(stack == 1, c["constant_data_power"], 1.0)  # vLLM rows: uninitialised or constant weights toggle fewer bits
    flops = 2.0 * m * n * k
    power = power_seconds(
        flops * toggling * np.sqrt(a_bytes / 2.0), joule_per_flop(gpu, c), from_dram, c["pj_per_byte"] * 1e-12, gpu.power_w, c["idle_share"]
    )
    floor = c["floor_us"] * 1e-6 + c["floor_latencies"] * gpu.dram_latency_s
    launches = stack_values(c, "quantise", stack)
    quantise = np.where(names.QUANTISED[code], launches * floor + m * k * 3.0 / gpu.dram_bytes_per_s, 0.0)
    quantise = quantise + np.where(names.WEIGHT_ONLY[code], c["weight_only_us"] * 1e-6, 0.0)
    busy = overlap(c["power_power"], core, power)
    latency = floor + quantise + overlap(c["overlap_power"], busy, dram, l2)

    wide, wider, small = (
        np.ceil(m / 128) * np.ceil(n / 128) / gpu.sms,
        np.ceil(m / 128) * np.ceil(n / 256) / gpu.sms,
        np.ceil(m / 64) * np.ceil(n / 64),
    )
    one = np.ones_like(latency)
    features = {
        "tensor": np.log(tensor / latency),
        "feed": np.log(feed / latency),
        "chain": np.log(chain / latency),
        "dram": np.log(dram / latency),
        "l2": np.log(l2 / latency),
        "power": np.log(power / latency),
        "floor": np.log(floor / latency),
        "quantise": quantise / latency,
        "waves": np.log(waves),
        "tail": np.ceil(waves) / waves,
        "tail_128": np.ceil(wide) / wide,
        "tail_256": np.ceil(wider) / wider,
        "tiles_64": np.log(small / gpu.sms),
        "splits": splits,
        "tile": tile,
        "weights_in_l2": np.log(copies * weights / capacity),
        "acts_in_l2": np.log(acts / capacity),
        "log2_m": np.log2(m),
        "log2_n": np.log2(n),
        "log2_k": np.log2(k),
        "pad_128": np.ceil(m / 128) * 128 / m,
        "m_mod_8": np.mod(m, 8),
        "warpgroup": one * warpgroup_path(gpu),
        "dtype": code.astype(np.float64),
        "stack": np.where(stack == 4, 1, stack).astype(np.float64),  # torch calls the same library as vLLM
    }
    seconds = {
        "tensor": tensor,
        "operand feed": feed,
        "k latency": chain,
        "dram": dram,
        "l2": l2,
        "power": power,
        "launch": floor * one,
        "quantise": quantise,
    }
    return OperatorTerms(latency, seconds, features, least_s=flops / (rate * gpu.max_clock_hz / gpu.boost_clock_hz))
