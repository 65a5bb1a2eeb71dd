"""GEMM as cuBLAS, CUTLASS and the serving stacks run it: the best of a small set of tiles, with and without split-K.

Rows are launch-free (CUDA graph), in a steady state that rotates through a few weight tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.power import power_seconds
from perfmodel.analytic.roofline import cache, dram_seconds, miss_share, overlap
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.arch import FULL_MMA, FULL_WGMMA, dram_efficiency, joule_per_flop, warpgroup_path
from perfmodel.library.launch import stack_values
from perfmodel.library.law import OperatorLaw, register
from perfmodel.library.records import Codes
from perfmodel.library.stacks import gemm_codes, stack_flags
from perfmodel.library.terms import OperatorTerms
from perfmodel.ops import names
from perfmodel.ops.gemm import gemm_bytes, gemm_flops

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


@dataclass(frozen=True, slots=True)
class _Calls:
    """n products as they run: m counts the rows of the whole batch; weights, acts: bytes; copies: sets of weights that take turns."""

    m: Floats
    n: Floats
    k: Floats
    dtype: Codes
    stack: Codes
    flops: Floats
    weights: Floats
    acts: Floats
    copies: Floats

    @property
    def a_bytes(self) -> Floats:
        """Bytes of an element of the activations."""
        return names.A_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class _Core:
    """The best tile of each product: seconds of the SMs in all, of multiplies, of operands and of K steps alone; how it cuts the work."""

    total: Floats
    tensor: Floats
    feed: Floats
    chain: Floats
    waves: Floats
    splits: Floats
    tile: Floats


def terms(gpu: GpuSpec, columns: Columns, c: Mapping[str, float]) -> OperatorTerms:
    """Terms of n GEMMs C[m,n] = A[m,k] B[k,n], `batch` copies of each.

        t = floor + quantise + overlap(core, DRAM, L2),   core = max of tensor and power time, nearly

    No answer beats peak_share of the datasheet's tensor rate.
    Units: seconds, bytes, flop. Source: NVIDIA, Matrix Multiplication Background User's Guide (tiles, waves); stream-K,
    arXiv 2301.03598 (split-K); analytic/roofline.py and power.py. Valid: sizes of 1 to 2^31, sm_80 to sm_120.
    Evidence: 169,000 public bf16 rows of four GPUs; `perfmodel evaluate operators --operator gemm` prints the errors.
    """
    a = _calls(columns, c)
    rate = names.tensor_rates(gpu, a.dtype)
    core = _tiles(gpu, a, rate, c)
    dram, from_dram = _dram_s(gpu, a, core.waves, c)
    l2 = (a.weights + a.acts) / _l2_bytes_per_s(gpu, c)
    power = _power_s(gpu, a, from_dram, c)
    floor = c["floor_us"] * 1e-6 + c["floor_latencies"] * gpu.dram_latency_s
    quantise = _quantise_s(gpu, a, floor, c)
    latency = floor + quantise + overlap(c["overlap_power"], overlap(c["power_power"], core.total, power), dram, l2)
    seconds = {
        "tensor": core.tensor, "operand feed": core.feed, "k latency": core.chain, "dram": dram, "l2": l2, "power": power,
        "launch": floor * np.ones_like(latency), "quantise": quantise,
    }  # fmt: skip
    features = _features(gpu, a, core, seconds, latency, cache(gpu, c)[0])
    return OperatorTerms(latency, seconds, features, least_s=a.flops / (c["peak_share"] * rate))


def _calls(columns: Columns, c: Mapping[str, float]) -> _Calls:
    """The products, with the bytes of their operands."""
    code, stack = columns["dtype"].astype(np.intp), columns["stack"].astype(np.intp)
    m, n, k, batch = columns["m"], columns["n"], columns["k"], columns["batch"]
    read, weights, written = gemm_bytes(m, n, k, names.A_BYTES[code], names.B_BYTES[code], names.OUT_BYTES[code], batch)
    return _Calls(m * batch, n, k, code, stack, gemm_flops(m, n, k, batch), weights, read + written, stack_values(c, "copies", stack))


def _tiles(gpu: GpuSpec, a: _Calls, rate: Floats, c: Mapping[str, float]) -> _Core:
    """The best tile of each product (`_core`). Block scales slow the inner loop of mma.sync down."""
    if not warpgroup_path(gpu):
        rate = np.where(names.BLOCK_SCALED[a.dtype], rate * c["block_share_mma"], rate)
    cycles, clock = _core(gpu, c, a.m, a.n, a.k, a.a_bytes, names.B_BYTES[a.dtype], rate), gpu.max_clock_hz
    return _Core(*(part / clock for part in cycles[:4]), *cycles[4:])


def _dram_s(gpu: GpuSpec, a: _Calls, waves: Floats, c: Mapping[str, float]) -> tuple[Floats, Floats]:
    """(seconds, bytes) of DRAM: weights that do not stay in L2 between calls, of which `copies` take turns, activations that do not fit."""
    capacity, sharpness = cache(gpu, c)
    cold = miss_share(a.copies * a.weights + a.acts, capacity, sharpness)
    moved = a.weights * cold + a.acts * miss_share(a.weights + a.acts, capacity, sharpness)
    active, latency_s = np.minimum(waves, 1.0) * gpu.sms, 2.0 * gpu.dram_latency_s
    dram = dram_seconds(moved, gpu.dram_bytes_per_s, dram_efficiency(gpu, c), latency_s, active, c["bytes_in_flight"])
    return dram + c["ramp_latencies"] * gpu.dram_latency_s * cold, moved


def _power_s(gpu: GpuSpec, a: _Calls, from_dram: Floats, c: Mapping[str, float]) -> Floats:
    """Seconds that the board's power limit asks for: constant weights toggle fewer bits, narrow operands too."""
    toggling = np.where(stack_flags("constant_weights", a.stack) > 0, c["constant_data_power"], 1.0)
    switched = a.flops * toggling * np.sqrt(a.a_bytes / 2.0)
    found: Floats = power_seconds(switched, joule_per_flop(gpu, c), from_dram, c["pj_per_byte"] * 1e-12, gpu.power_w, c["idle_share"])
    return found


def _quantise_s(gpu: GpuSpec, a: _Calls, floor: float, c: Mapping[str, float]) -> Floats:
    """Seconds of quantising activations: scales of blocks are found in one pass, a scale of the whole tensor in several launches."""
    blocks = names.BLOCK_SCALED[a.dtype]
    launches = np.where(blocks, stack_values(c, "quantise_block", a.stack), stack_values(c, "quantise", a.stack))
    quantise = np.where(names.QUANTISED[a.dtype], launches * floor + a.m * a.k * 3.0 / gpu.dram_bytes_per_s, 0.0)
    return quantise + np.where(names.WEIGHT_ONLY[a.dtype], c["weight_only_us"] * 1e-6, 0.0)


def _features(gpu: GpuSpec, a: _Calls, core: _Core, seconds: Mapping[str, Floats], latency: Floats, usable_l2: float) -> dict[str, Floats]:
    """Dimensionless columns for the residual."""
    m, n = a.m, a.n
    high = np.ceil(m / 128)
    wide, wider = high * np.ceil(n / 128) / gpu.sms, high * np.ceil(n / 256) / gpu.sms
    small = np.ceil(m / 64) * np.ceil(n / 64)
    shares = {
        "tensor": "tensor", "feed": "operand feed", "chain": "k latency", "dram": "dram", "l2": "l2", "power": "power", "floor": "launch",
    }  # fmt: skip
    return {
        **{name: np.log(seconds[term] / latency) for name, term in shares.items()},
        "quantise": seconds["quantise"] / latency,
        "waves": np.log(core.waves),
        "tail": np.ceil(core.waves) / core.waves,
        "tail_128": np.ceil(wide) / wide,
        "tail_256": np.ceil(wider) / wider,
        "tiles_64": np.log(small / gpu.sms),
        "splits": core.splits,
        "tile": core.tile,
        "weights_in_l2": np.log(a.copies * a.weights / usable_l2),
        "acts_in_l2": np.log(a.acts / usable_l2),
        "log2_m": np.log2(m),
        "log2_n": np.log2(n),
        "log2_k": np.log2(a.k),
        "pad_128": high * 128 / m,
        "m_mod_8": np.mod(m, 8),
        "warpgroup": np.ones_like(latency) * warpgroup_path(gpu),
        "dtype": a.dtype.astype(np.float64),
        "stack": gemm_codes(a.stack).astype(np.float64),
    }


_DOMAIN = ("log2_m", "log2_n", "log2_k")
register(
    OperatorLaw("gemm", "gemm", LAW, terms, ("n", "k"), _DOMAIN, "gemm", lambda columns: ~names.narrow(columns["dtype"])),
    OperatorLaw("gemm_quantised", "gemm", LAW, terms, ("n", "k"), _DOMAIN, "gemm", lambda columns: names.narrow(columns["dtype"])),
)
