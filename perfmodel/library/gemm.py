"""GEMM as cuBLAS, CUTLASS and the serving stacks run it: the best of a small set of tiles, with and without split-K.

Rows are launch-free (CUDA graph), in a steady state that rotates through a few weight tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.power import power_seconds
from perfmodel.analytic.roofline import cache, dram_seconds, miss_share, overlap
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.arch import FULL_MMA, FULL_WGMMA, dram_efficiency, joule_per_flop, warpgroup_path
from perfmodel.library.launch import stack_values
from perfmodel.library.law import OperatorLaw, register
from perfmodel.library.stacks import gemm_codes, stack_flags
from perfmodel.library.terms import OperatorTerms
from perfmodel.ops import names

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
_ONE = np.float64(1.0)  # numpy takes its own numbers beside an array quicker than Python's
_INTENSITY = _BM * _BN / (_BM + _BN)
K_STEP_BYTES = 128.0  # one cache line of K an iteration
CORE_ROWS = 1024  # rows at a time: the arrays of all tiles stay in cache
Floats = npt.NDArray[np.float64]
Columns = Mapping[str, npt.NDArray[np.float64]]


def _core(gpu: GpuSpec, c: Mapping[str, float], m: Any, n: Any, k: Any, a_bytes: Any, b_bytes: Any, rate: Any) -> Sequence[Any]:
    """Clock cycles of the SMs for the best tile: total, tensor, operand feed, K latency, waves, splits, tile index, each for all rows.

    Per tile: tensor = waves x k x 2 BM BN / (rate per SM x efficiency), efficiency = i / (i + half) with i = BM BN / (BM + BN);
    feed = waves x k (BM a + BN b) / port; latency = iterations of 128 bytes of K x cycles an iteration. Waves blend ceil and fraction.
    Split-K s = as many as SMs are idle, at 512 bytes of K a part or more, plus the traffic and latency of the reduction.
    """
    grouped = warpgroup_path(gpu)
    clock, sms, port = gpu.max_clock_hz, np.float64(gpu.sms), np.float64(c["port_bytes_per_cycle"])
    l2_rate = gpu.l2_bytes_per_s / clock
    per_clock = gpu.tensor_rate("bf16") / (gpu.boost_clock_hz * sms)
    half = c["half_wgmma"] * min(1.0, per_clock / FULL_WGMMA) if grouped else c["half_mma"] * min(1.0, per_clock / FULL_MMA)
    work = _work(half, c["narrow_share"] if grouped else 1.0)
    step_cycles = c["iteration_wgmma" if grouped else "iteration_mma"]
    l2_port = _l2_bytes_per_s(gpu, c) / clock
    power, tail = c["core_power"], c["tail_weight"]

    def best(m: Any, n: Any, k: Any, a_bytes: Any, b_bytes: Any, rate: Any) -> Sequence[Any]:
        """The answer for rows that either all have a tile worth splitting or all have none."""
        tiles, splits = cut(m, n, k, a_bytes)
        shared = splits.max() > 1.0
        used = np.ones((2 if shared else 1, *splits.shape))
        if shared:
            used[1] = splits
        units, depth = tiles * used, k / used
        mean = units / sms
        busiest = np.ceil(mean)
        deep = (tail * busiest + (1.0 - tail) * np.maximum(mean, _ONE)) * depth
        tensor = deep * (work / (rate / (gpu.boost_clock_hz * sms)))
        feed = deep * _operands(a_bytes, b_bytes) / np.minimum(port, l2_port / np.minimum(units, sms))
        latency = depth * (step_cycles * a_bytes / K_STEP_BYTES)
        start, extra = busiest * c["tile_cycles"], np.zeros(used.shape)
        if shared:
            reduction = c["split_latencies"] * gpu.dram_latency_s * clock + m * n * 4.0 * (splits + 1.0) / l2_rate
            extra[1] = np.where(splits > 1.0, reduction, np.inf)
        parts = [part.reshape(-1, len(m)) for part in (tensor, feed, latency, mean, used, start, extra)]
        total = _totals(power, *parts[:3], *parts[5:])
        index, rows = total.argmin(axis=0), np.arange(len(m))
        return [*(v[index, rows] for v in (total, *parts[:5])), index % len(_TILES)]

    def cut(m: Any, n: Any, k: Any, a_bytes: Any) -> tuple[Floats, Floats]:
        """(tiles of C, parts of K that each is best split into)."""
        tiles = np.ceil(m / _BM) * np.ceil(n / _BN)
        return tiles, np.maximum(_ONE, np.minimum(np.floor(sms / tiles), np.clip(np.floor(k * a_bytes / 512.0), 1.0, c["max_splits"])))

    columns = [m, n, k, a_bytes, b_bytes, rate]
    if len(m) and all((v == v[0]).all() for v in columns[3:]):
        columns[3:] = [v[0] for v in columns[3:]]
    out = np.empty((7, len(m)))
    for begin in range(0, len(m), CORE_ROWS):
        rows = np.arange(begin, min(begin + CORE_ROWS, len(m)))
        some = (cut(*(v[rows] if isinstance(v, np.ndarray) else v for v in columns[:4]))[1] > 1.0).any(axis=0)
        for group in (rows[some], rows[~some]):
            if len(group):
                out[:, group] = best(*(v[group] if isinstance(v, np.ndarray) else v for v in columns))
    return list(out)


def _operands(a_bytes: Any, b_bytes: Any) -> Floats:
    """Bytes of operands that a tile reads for each element of K."""
    found: Floats = _BM * a_bytes + _BN * b_bytes
    return found


@functools.lru_cache(maxsize=256)
def _work(half: float, narrow_share: float) -> Floats:
    """Flops of a tile for each element of K, over the efficiency of its shape (`_core`); tiles under 64 rows reach narrow_share of it."""
    efficiency = _INTENSITY / (_INTENSITY + half)
    found: Floats = _FLOPS / np.where(_BM < 64, efficiency * narrow_share, efficiency)
    return found


def _totals(power: float, tensor: Floats, feed: Floats, latency: Floats, start: Floats, extra: Floats) -> Floats:
    """Cycles in all of each tile, infinite where it cannot be the best: the overlap lies between its largest term and 3^(1/p) of it."""
    largest, aside = np.maximum(np.maximum(tensor, feed), latency), start + extra
    fair = np.flatnonzero(largest * (1.0 - 1e-9) + aside <= (largest * (3.0 ** (1.0 / power) * (1.0 + 1e-9)) + aside).min(axis=0))
    total = np.full(largest.size, np.inf)
    total[fair] = overlap(power, *(part.ravel()[fair] for part in (tensor, feed, latency))) + start.ravel()[fair] + extra.ravel()[fair]
    return total.reshape(largest.shape)


def _l2_bytes_per_s(gpu: GpuSpec, c: Mapping[str, float]) -> float:
    """What SMs get of operands from L2 a second: where clusters multicast, one read feeds several of them."""
    return gpu.l2_bytes_per_s * c["l2_rate_factor" if warpgroup_path(gpu) else "l2_rate_factor_mma"]


def terms(gpu: GpuSpec, columns: Columns, c: Mapping[str, float]) -> OperatorTerms:
    """Terms of n GEMMs C[m,n] = A[m,k] B[k,n], `batch` copies of each.

        t = floor + quantise + overlap(core, DRAM, L2),   core = max of tensor and power time, nearly

    floor: back-to-back launch inside a graph; DRAM: weights that do not stay in L2 between calls (a stack rotates through `copies`
    of them) and activations that do not fit; quantise: activation quantisation of fp8 and int8, one or more kernels: scales of blocks
    are found in one pass, a scale of the whole tensor in several. Block scales slow the inner loop of mma.sync down.
    No answer beats peak_share of the datasheet's tensor rate.
    Units: seconds, bytes, flop. Source: NVIDIA, Matrix Multiplication Background User's Guide (tiles, waves); stream-K,
    arXiv 2301.03598 (split-K); analytic/roofline.py and power.py. Valid: sizes of 1 to 2^31, sm_80 to sm_120.
    Evidence: 169,000 public bf16 rows of four GPUs; `perfmodel evaluate operators --operator gemm` prints the errors.
    """
    code = columns["dtype"].astype(np.intp)
    stack = columns["stack"].astype(np.intp)
    a_bytes, b_bytes, out_bytes = names.A_BYTES[code], names.B_BYTES[code], names.OUT_BYTES[code]
    rate, blocks = names.tensor_rates(gpu, code), names.BLOCK_SCALED[code]
    loop_rate = rate if warpgroup_path(gpu) else np.where(blocks, rate * c["block_share_mma"], rate)
    batch = columns["batch"]
    m, n, k = columns["m"] * batch, columns["n"], columns["k"]
    core, tensor, feed, chain, waves, splits, tile = _core(gpu, c, m, n, k, a_bytes, b_bytes, loop_rate)
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
    l2 = (weights + acts) / _l2_bytes_per_s(gpu, c)
    toggling = np.where(stack_flags("constant_weights", stack) > 0, c["constant_data_power"], 1.0)
    flops = 2.0 * m * n * k
    power = power_seconds(
        flops * toggling * np.sqrt(a_bytes / 2.0), joule_per_flop(gpu, c), from_dram, c["pj_per_byte"] * 1e-12, gpu.power_w, c["idle_share"]
    )
    floor = c["floor_us"] * 1e-6 + c["floor_latencies"] * gpu.dram_latency_s
    launches = np.where(blocks, stack_values(c, "quantise_block", stack), stack_values(c, "quantise", stack))
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
        "stack": gemm_codes(stack).astype(np.float64),
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
    return OperatorTerms(latency, seconds, features, least_s=flops / (c["peak_share"] * rate))


_DOMAIN = ("log2_m", "log2_n", "log2_k")
register(
    OperatorLaw("gemm", "gemm", LAW, terms, ("n", "k"), _DOMAIN, "gemm", lambda columns: ~names.narrow(columns["dtype"])),
    OperatorLaw("gemm_quantised", "gemm", LAW, terms, ("n", "k"), _DOMAIN, "gemm", lambda columns: names.narrow(columns["dtype"])),
)
