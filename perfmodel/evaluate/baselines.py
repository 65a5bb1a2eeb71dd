"""Other ways to order GEMM configs, for comparison: each returns a score per config, lower is tried first.

None sees a measurement. The laws are written from their published descriptions, which the docstrings name.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import NoAnswerError
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels.configs import Configs

Floats = npt.NDArray[np.float64]
Score = Callable[[GpuSpec, Mapping[str, int], str, Configs], Floats]
_NVMMH_GPUS = {
    "a100_sxm4_80gb": "A100_SXM_80GB", "a100_pcie_80gb": "A100_PCIE_80GB", "h100_sxm": "H100_SXM", "h100_pcie": "H100_PCIE",
    "h200_sxm": "H200_SXM", "h20": "H20_SXM", "l20": "L20", "l40": "L40", "l40s": "L40S", "l4": "L4", "a10": "A10_PCIE",
    "a40": "A40_PCIE", "rtx_4090": "RTX_4090", "rtx_6000_ada": "RTX_6000_ADA", "b200_sxm": "B200", "rtx_pro_6000": "RTX_PRO_6000",
}  # fmt: skip


def _sides(configs: Configs) -> tuple[Floats, ...]:
    names = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "split_k")
    return tuple(configs[name].astype(np.float64) for name in names)


def roofline(gpu: GpuSpec, sizes: Mapping[str, int], dtype: str, configs: Configs) -> Floats:
    """Bare roofline of the padded problem: max(padded flops / tensor peak, tile loads and output / DRAM bandwidth)."""
    m, n, k = sizes.values()
    bm, bn, bk, _, _, _ = _sides(configs)
    size = parse_dtype(dtype).a_bytes
    tm, tn, tk = np.ceil(m / bm), np.ceil(n / bn), np.ceil(k / bk)
    flops = 2 * tm * bm * tn * bn * tk * bk
    moved = tm * tn * (bm + bn) * tk * bk * size + 2.0 * m * n
    bound: Floats = np.maximum(flops / gpu.tensor_rate(parse_dtype(dtype).rate), moved / gpu.dram_bytes_per_s)
    return bound


def additive_roofline(gpu: GpuSpec, sizes: Mapping[str, int], dtype: str, configs: Configs) -> Floats:
    """waves x max(tensor, L2 time of a tile) + DRAM bytes / (bandwidth x bytes-in-flight efficiency); over 254 accumulators last."""
    m, n, k = sizes.values()
    bm, bn, bk, warps, stages, split = _sides(configs)
    size = parse_dtype(dtype).a_bytes
    tiles = np.ceil(m / bm) * np.ceil(n / bn) * split
    steps = np.ceil(np.ceil(k / bk) / split)
    tensor = 2 * bm * bn * bk * steps / (gpu.tensor_rate(parse_dtype(dtype).rate) / gpu.sms)
    l2 = (bm + bn) * bk * steps * size / (gpu.l2_bytes_per_s / gpu.sms)
    moved = (m * k + n * k) * size + 2.0 * m * n
    in_flight = np.minimum(tiles, gpu.sms) * np.maximum(stages - 1, 1) * (bm + bn) * bk * size
    efficiency = 1 - np.exp(-in_flight / (2 * gpu.dram_latency_s * gpu.dram_bytes_per_s))
    time = np.ceil(tiles / gpu.sms) * np.maximum(tensor, l2) + moved / (gpu.dram_bytes_per_s * efficiency)
    return np.where(bm * bn / (32 * warps) >= 255, 1e9, time)


def helion_formula(gpu: GpuSpec, sizes: Mapping[str, int], dtype: str, configs: Configs) -> Floats:
    """A hand formula of Helion's kind: the largest tile of at most 32,768 fp32 accumulators that still fills a wave, then its neighbours.

    Neighbours are ordered by distance in log2 of each side, stages and warps counting half.
    """
    m, n, _ = sizes.values()
    bm, bn, bk, warps, stages, _ = _sides(configs)
    size = parse_dtype(dtype).a_bytes
    tiles = np.ceil(m / bm) * np.ceil(n / bn)
    allowed = (bm * bn <= 32768) & (bm <= max(16, 1 << (m - 1).bit_length()))
    fill = np.minimum(tiles / gpu.sms, 1.0)
    wanted = np.where(allowed, fill * 1e6 + bm * bn + np.minimum(bm, bn), -1.0)
    best = int(np.argmax(wanted))
    depth = 64.0 * 2 / size if bm[best] * bn[best] > 64 * 64 else 128.0 * 2 / size
    target_warps = 8.0 if bm[best] * bn[best] >= 128 * 128 else 4.0
    buffers = gpu.smem_per_block_bytes // ((bm[best] + bn[best]) * depth * size)
    target_stages = float(np.clip(buffers, 2, 5))
    distance: Floats = (
        np.abs(np.log2(bm / bm[best]))
        + np.abs(np.log2(bn / bn[best]))
        + np.abs(np.log2(bk / depth))
        + 0.5 * np.abs(np.log2(warps / target_warps))
        + 0.5 * np.abs(stages - target_stages)
    )
    return distance


def triton_perf_model(gpu: GpuSpec, sizes: Mapping[str, int], dtype: str, configs: Configs) -> Floats:
    """The analytical matmul model that Triton 2 shipped, with its rule for stages (pre-Hopper: loads of 300 cycles behind mma.sync).

    time = max(compute, load) + store; loads split 20 : 80 between DRAM and an L2 four times as fast; both scaled by the share of SMs busy.
    Source: Triton 2.1, python/triton/ops/matmul_perf_model.py (behaviour re-derived, MIT-licensed project).
    """
    m, n, k = sizes.values()
    bm, bn, bk, warps, stages, split = _sides(configs)
    size = parse_dtype(dtype).a_bytes
    cta_m, cta_n = np.ceil(m / bm), np.ceil(n / bn)
    blocks = cta_m * cta_n * split
    subcores = 4.0 * gpu.sms
    rate = np.minimum(subcores, blocks * np.minimum(warps, 4)) / subcores * gpu.tensor_rate(parse_dtype(dtype).rate)
    compute = 2.0 * m * n * k / rate
    dram = gpu.dram_bytes_per_s * (np.minimum(1, blocks / 32) * 0.95 + np.clip((blocks - 32) / (gpu.sms - 32), 0, 1) * 0.05)
    from_dram = size * k * (m * (1 + 0.2 * (cta_n - 1)) + n * (1 + 0.2 * (cta_m - 1)))
    from_l2 = size * k * 0.8 * (m * (cta_n - 1) + n * (cta_m - 1))
    load = from_dram / dram + from_l2 / (4 * dram)
    store = m * n * 2.0 * split / (0.6 * dram)
    multiply_cycles = bm * bn * bk / (16 * 8 * 16) / np.minimum(4, warps) * 8
    wanted_stages = np.ceil(300 / multiply_cycles)
    misfit = np.where(stages >= wanted_stages, stages - wanted_stages, wanted_stages - stages + 100)
    time: Floats = np.maximum(compute, load) + store + misfit * 1e-9
    return time


def check_external(gpu: GpuSpec) -> None:
    """Raise NoAnswerError where nvidia-matmul-heuristics is not installed or does not know the GPU; costs nothing, so ask it first."""
    if gpu.name not in _NVMMH_GPUS:
        raise NoAnswerError(f"nvidia-matmul-heuristics does not know {gpu.name}: it knows {', '.join(_NVMMH_GPUS)}; leave --external out")
    if importlib.util.find_spec("nvMatmulHeuristics") is None:
        raise NoAnswerError("nvidia-matmul-heuristics is not installed: pip install 'perfmodel[heuristics]', or leave --external out")


def nv_matmul_heuristics(gpu: GpuSpec, sizes: Mapping[str, int], dtype: str, configs: Configs) -> Floats:
    """nvidia-matmul-heuristics (CUTLASS3 target), each of its answers mapped to the nearest config.

    It runs in a subprocess, since it may crash at exit.

    Raises NoAnswerError where the package is not installed, does not know the GPU or has no answer.
    """
    check_external(gpu)
    m, n, k = sizes.values()
    script = _NVMMH_SCRIPT.format(gpu=_NVMMH_GPUS[gpu.name], m=m, n=n, k=k, precision={"fp8": "OSH"}.get(dtype, "HSH"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if not lines:
        raise NoAnswerError(f"nvidia-matmul-heuristics gave no answer for {m}x{n}x{k} in {dtype} on {gpu.name}: leave --external out")
    bm, bn, bk, _, stages, _ = _sides(configs)
    score = np.full(len(configs), 1e6)
    for position, (tile_m, tile_n, tile_k, depth) in enumerate(json.loads(lines[-1])):
        far = (
            np.abs(np.log2(bm / tile_m))
            + np.abs(np.log2(bn / tile_n))
            + np.abs(np.log2(bk / tile_k))
            + 0.2 * np.abs(stages - min(depth, 5))
        )
        nearest = int(np.argmin(far))
        score[nearest] = min(score[nearest], position)
        score = np.where(score >= 1e6, np.minimum(score, 1e6 + far), score)
    return score


_NVMMH_SCRIPT = """
import json
from nvMatmulHeuristics import *
h = NvMatmulHeuristicsInterfaceEx(NvMatmulHeuristicsTarget.CUTLASS3, gpu=NvMatmulHeuristicsNvidiaGpu.{gpu})
p = h.makeNvMatmulHeuristicsProblem({m}, {n}, {k}, NvMatmulHeuristicsMatmulLayout.TN_ROW_MAJOR)
c = [r["kernel"] for r in h.get(p, 16, precision="{precision}")]
print(json.dumps([[x.cta_tile_m, x.cta_tile_n, x.cta_tile_k, x.stages] for x in c]), flush=True)
"""

BASELINES: Mapping[str, Score] = {
    "bare roofline": roofline,
    "Triton 2 perf model": triton_perf_model,
    "Helion-style formula": helion_formula,
    "additive roofline": additive_roofline,
}
EXTERNAL: Mapping[str, Score] = {"nvidia-matmul-heuristics": nv_matmul_heuristics}
