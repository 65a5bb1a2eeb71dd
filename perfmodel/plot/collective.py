"""Plots of collectives: latency and bus bandwidth over message size, model beside measured. Each takes and returns an Axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from perfmodel.dtypes import dtype as find_dtype
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.calibration import resolve
from perfmodel.learn.collective_fit import Z80
from perfmodel.library.collective import CollectiveTerms, model
from perfmodel.ops.collective import bus_factor, collective_kind
from perfmodel.predict.collectives import priced
from perfmodel.units import GB, US_PER_S

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]
_COLUMNS = ("dtype", "nodes", "topology", "version")


def curve(
    gpu: str | GpuSpec, kind: str, n_gpus: int, stack: str = "nccl", constants: Mapping[str, float] | None = None, **columns: Any
) -> tuple[Floats, CollectiveTerms]:
    """(message sizes in bytes, model's answer) from 256 B to 1 GiB, eight points an octave; `columns` are further ones (dtype ...).

    `constants` None: those of the calibration that predict takes.
    """
    sizes = np.round(2 ** np.linspace(8, 30, 177))
    spec = find_gpu(gpu)
    rows = {"kind": collective_kind(kind), "message_bytes": sizes, "n_gpus": float(n_gpus), "stack": stack, **columns}
    found = priced(spec, rows, resolve(spec, "collective", "auto")) if constants is None else model(spec, rows, constants)
    return sizes, found


class Asked(TypedDict, total=False):
    """What both plots may be told: whose calls (default nccl), the model's constants, measured rows, the line's label, further columns."""

    stack: str
    constants: Mapping[str, float] | None
    measured: pd.DataFrame | None
    label: str | None
    dtype: str
    nodes: int
    topology: str
    version: str


def latency(gpu: str | GpuSpec, kind: str, n_gpus: int, *, ax: Axes | None = None, **asked: Unpack[Asked]) -> Axes:
    """Latency (microseconds) over message size with its 80 % band; algorithm and protocol named where they change; `measured` as points."""
    ax, sizes, terms, colour = _draw(ax, gpu, kind, n_gpus, asked, lambda _, micro: micro)
    micro = terms.latency_s * US_PER_S
    width = np.exp(Z80 * terms.log_sigma)
    ax.fill_between(sizes, micro / width, micro * width, alpha=0.15, color=colour)
    for i, name in _changes(terms):
        if i > 0:
            ax.axvline(sizes[i], lw=0.5, ls=":", color=colour)
        ax.annotate(name, (sizes[i], micro[i]), (2, 8), textcoords="offset points", fontsize=8, rotation=60, color=colour)
    ax.set(yscale="log", ylabel="latency (us)")
    return ax


def bus_bandwidth(gpu: str | GpuSpec, kind: str, n_gpus: int, *, ax: Axes | None = None, **asked: Unpack[Asked]) -> Axes:
    """Bus bandwidth (GB/s, as nccl-tests counts it) over message size; `measured` as points."""
    factor = float(bus_factor(collective_kind(kind), n_gpus))
    ax, *_ = _draw(ax, gpu, kind, n_gpus, asked, lambda size, micro: factor * size / micro * US_PER_S / GB)
    ax.set(ylabel="bus bandwidth (GB/s)")
    return ax


def _draw(
    ax: Axes | None, gpu: str | GpuSpec, kind: str, n_gpus: int, asked: Asked, shown: Callable[[Any, Any], Any]
) -> tuple[Axes, Floats, CollectiveTerms, Any]:
    """The model's line and the measured points; `shown` makes the y axis' value of (bytes, microseconds)."""
    ax = _axes(ax)
    spec, stack, measured = find_gpu(gpu), asked.get("stack", "nccl"), asked.get("measured")
    columns = {name: value for name, value in asked.items() if name in _COLUMNS}
    sizes, terms = curve(spec, kind, n_gpus, stack, asked.get("constants"), **columns)
    label = asked.get("label") or f"{spec.name}, {n_gpus} GPUs, {stack}"
    (line,) = ax.plot(sizes, shown(sizes, terms.latency_s * US_PER_S), label=label)
    colour = line.get_color()
    if measured is not None:
        points = _matching(measured, kind, n_gpus, stack, columns)
        values = shown(points["message_bytes"], points["latency_us"])
        ax.plot(points["message_bytes"], values, "o", ms=4, mfc="none", color=colour, label="measured")
    ax.set(xscale="log", xlabel="message (bytes)", title=kind)
    ax.legend(fontsize=8)
    return ax, sizes, terms, colour


def _changes(terms: CollectiveTerms) -> list[tuple[int, str]]:
    names = [f"{a} {p}" for a, p in zip(terms.algorithm, terms.protocol, strict=True)]
    return [(i, name) for i, name in enumerate(names) if i == 0 or name != names[i - 1]]


def _matching(measured: pd.DataFrame, kind: str, n_gpus: int, stack: str, columns: Mapping[str, Any]) -> pd.DataFrame:
    """Rows of that question; element types count as equal where the model does (one byte or more)."""
    found = measured[(measured["kind"].map(collective_kind) == collective_kind(kind)) & (measured["n_gpus"] == n_gpus)]
    if "stack" in found.columns:
        found = found[found["stack"] == stack]
    if "dtype" in found.columns:
        narrow = find_dtype(columns.get("dtype", "bf16")).a_bytes < 2
        found = found[found["dtype"].map(lambda d: find_dtype(d).a_bytes < 2) == narrow]
    if "version" in columns and "version" in found.columns:
        found = found[found["version"] == columns["version"]]
    return found


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    made: Axes = plt.subplots()[1]
    return made
