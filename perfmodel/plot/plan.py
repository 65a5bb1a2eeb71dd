"""Plots of plans: throughput against speed, latency against load, memory of a GPU, rooflines. Each takes and returns an Axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.dtypes import dtype as find_dtype
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.spec import GpuSpec
from perfmodel.plan.memory import MemoryLedger
from perfmodel.plan.result import Plan, front
from perfmodel.plan.spread import factors
from perfmodel.units import GIB, TERA

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    "weights": "#4c72b0",
    "activation peak": "#dd8452",
    "graphs, NCCL, context, driver": "#8c8c8c",
    "KV cache": "#55a868",
    "left free": "#e8e8e8",
}


def pareto(plan: Plan, ax: Axes | None = None) -> Axes:
    """Output tokens a second and GPU over output tokens a second and user: the best of each GPU and mode, and the choice."""
    ax = _axes(ax)
    frame = plan.frame
    ax.scatter(frame["tok_s_per_user"], frame["tok_s_per_gpu"], s=4, alpha=0.15, color="grey", label="_all")
    for (gpu, mode), part in frame.groupby(["gpu", "mode"]):
        best = front(part)
        ax.plot(best["tok_s_per_user"], best["tok_s_per_gpu"], marker="o", ms=3, label=f"{gpu} {mode}")
    chosen = plan.nearest
    name = "chosen" if plan.best else "nearest"
    ax.plot(chosen["tok_s_per_user"], chosen["tok_s_per_gpu"], marker="*", ms=14, ls="none", color="black", label=name)
    if plan.goal.tpot_ms:
        ax.axvline(1e3 / plan.goal.tpot_ms, ls="--", lw=1, color="tab:red", label=f"TPOT {plan.goal.tpot_ms:g} ms")
    ax.set(xlabel="output tokens/s and user", ylabel="output tokens/s and GPU", yscale="log", title=plan.model.name)
    ax.legend(fontsize=7)
    return ax


def latency_against_load(plan: Plan, gpus: Sequence[str] | None = None, each: int = 2, ax: Axes | None = None) -> Axes:
    """TPOT (ms, with its 80 % band) over requests a second and GPU, for the `each` preferred engines of each GPU (of `gpus` only)."""
    ax = _axes(ax)
    wanted = {find_gpu(name).name for name in gpus} if gpus else None
    shown: list[tuple[str, str]] = []
    for row in plan.best_each:
        engine, curve = plan.engine_of(row)
        key = (engine.gpu.name, f"{engine.parallel} {row['quantization']}")
        if key in shown or (wanted and key[0] not in wanted) or sum(k[0] == key[0] for k in shown) == each:
            continue
        shown.append(key)
        load, tpot = curve.rate_s / engine.parallel.gpus, curve.tpot_s * 1e3
        (line,) = ax.plot(load, tpot, marker=".", ms=4, label=" ".join(key))
        down, up = (np.array(side) for side in zip(*map(_tpot_factors, curve.low, curve.high), strict=True))
        ax.fill_between(load, tpot / down, tpot * up, alpha=0.15, color=line.get_color())
    if plan.goal.tpot_ms:
        ax.axhline(plan.goal.tpot_ms, ls="--", lw=1, color="tab:red")
    ax.set(xlabel="requests/s and GPU", ylabel="TPOT, ms", xscale="log", yscale="log", title=plan.model.name)
    _plain_numbers(ax)
    ax.legend(fontsize=8)
    return ax


def memory(ledgers: Sequence[MemoryLedger], ax: Axes | None = None) -> Axes:
    """Where the memory of one GPU goes (GiB), a bar a ledger: weights, activations, the rest, KV cache, free."""
    ax = _axes(ax)
    names = [f"{ledger.gpu.name}\n{ledger.parallel}" for ledger in ledgers]
    left = np.zeros(len(ledgers))
    parts = [_grouped(ledger) for ledger in ledgers]
    for part, colour in _COLOURS.items():
        sizes = np.array([max(p[part], 0.0) for p in parts])
        ax.barh(names, sizes, left=left, label=part, color=colour)
        left += sizes
    ax.set(xlabel="GiB of one GPU", title=ledgers[0].model.name)
    ax.invert_yaxis()
    ax.legend(fontsize=8, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.22), columnspacing=1.0, handlelength=1.2)
    return ax


def roofline(gpus: Sequence[str | GpuSpec], dtype: str = "bf16", batches: Sequence[int] = (1, 16, 64, 256), ax: Axes | None = None) -> Axes:
    """Attainable TFLOP/s over flops a byte of DRAM, datasheet rates; dashed: a projection in a decode step of so many sequences.

    A weight matrix read once for b rows of activations does 2 b flops a weight: 2 b / (bytes of a weight) flops a byte.
    """
    ax = _axes(ax)
    kind = find_dtype(dtype)
    intensity = np.logspace(-0.5, 3.5, 200)
    for name in gpus:
        spec = find_gpu(name)
        if kind.rate not in spec.tensor_flops:
            continue
        ax.plot(intensity, np.minimum(spec.tensor_rate(kind.rate), intensity * spec.dram_bytes_per_s) / TERA, label=spec.name)
    for b in batches:
        at = 2.0 * b / kind.b_bytes
        ax.axvline(at, ls="--", lw=0.7, color="grey")
        ax.annotate(
            f"{b} sequences", (at, 0.98), (3, 0), xycoords=("data", "axes fraction"), textcoords="offset points", va="top", rotation=90,
            fontsize=8, color="grey",
        )  # fmt: skip
    ax.set(xlabel="flops a byte of DRAM", ylabel="TFLOP/s", xscale="log", yscale="log", title=f"{kind.name}, datasheet")
    ax.legend(fontsize=8)
    return ax


def _tpot_factors(low: float, high: float) -> tuple[float, float]:
    return factors("tpot_ms", low, high)


def _grouped(ledger: MemoryLedger) -> dict[str, float]:
    groups = dict.fromkeys(_COLOURS, 0.0)
    for name, value in ledger.entries.items():
        key = "weights" if name.startswith("weights") else name if name in groups else "graphs, NCCL, context, driver"
        groups[key] += value / GIB
    return groups


def _plain_numbers(ax: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    made: Axes = plt.subplots(figsize=(7, 4.5))[1]
    return made
