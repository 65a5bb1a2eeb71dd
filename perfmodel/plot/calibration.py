"""Plots of a calibration's summary (perfmodel.calibrate.report): each takes `ax=` and returns it; `figures` makes the report's PNGs."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PATHS = (("l2_read", "L2"), ("dram_read", "DRAM read"))


def roofline(summary: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """Products over flops a byte, under the measured ceilings; hwdb's figures dashed."""
    ax = _axes(ax)
    ceilings = {c["name"]: c["value"] for c in summary["ceilings"]}
    printed = summary["datasheet"]
    points = summary["points"].get("gemm")
    if points:
        ax.plot(
            points["flop_per_byte"], np.array(points["flop_per_s"]) * 1e-12, ".", ms=4, alpha=0.5, color="C0", label="products, measured"
        )
    x = np.logspace(0, 4.2, 200)
    top = ceilings.get("tensor_bf16")
    for (name, label), color in zip(_PATHS, ("C2", "C3"), strict=True):
        if name in ceilings and top:
            ax.plot(x, np.minimum(x * ceilings[name], top) * 1e-12, color=color, label=f"{label}, {ceilings[name] * 1e-12:.2f} TB/s")
    if top:
        ax.axhline(top * 1e-12, color="k", lw=0.8, label=f"bf16, {top * 1e-12:.0f} TFLOP/s")
    if sustained := ceilings.get("tensor_bf16_sustained"):
        ax.axhline(sustained * 1e-12, color="k", lw=0.8, ls=":", label=f"bf16 sustained, {sustained * 1e-12:.0f} TFLOP/s")
    if printed.get("bf16_flops"):
        ax.plot(x, np.minimum(x * printed["dram_bytes_per_s"], printed["bf16_flops"]) * 1e-12, "--", color="0.5", lw=1, label="hwdb")
    ax.set(xscale="log", yscale="log", xlabel="flop a compulsory byte", ylabel="TFLOP/s", title="Roofline, bf16 products")
    ax.set_ylim(bottom=0.05)
    ax.legend(fontsize=8)
    return ax


def predicted(summary: Mapping[str, Any], what: str, ax: Axes | None = None) -> Axes:
    """Predicted over measured, before and after, of one part."""
    ax = _axes(ax)
    points = summary["points"][what]
    measured = np.array(points["measured_us"])
    for name, color, label in (("before_us", "C1", "before"), ("after_us", "C0", "after")):
        ratio = np.array(points[name]) / measured
        ax.plot(measured, ratio, ".", ms=4, alpha=0.5, color=color, label=f"{label}: {100 * np.mean(np.abs(ratio - 1)):.1f} %")
    ax.axhline(1.0, color="k", lw=0.8)
    ax.set(xscale="log", yscale="log", xlabel="measured (us)", ylabel="predicted / measured", title=what)
    ax.set_ylim(0.3, 3.0)
    ax.set_yticks([0.5, 0.8, 1.0, 1.25, 2.0], ["0.5", "0.8", "1", "1.25", "2"])
    ax.minorticks_off()
    ax.legend(fontsize=8)
    return ax


def regimes(summary: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """Mean error before and after by part and regime."""
    ax = _axes(ax)
    bars = [(f"{p['what'].replace('attention_', '')}\n{r['regime']}", r) for p in summary["parts"] for r in p.get("regimes", ())]
    at = np.arange(len(bars))
    for name, shift, color in (("before", -0.2, "C1"), ("after", 0.2, "C0")):
        ax.bar(at + shift, [100 * r[name] for _, r in bars], 0.38, color=color, label=name)
    ax.set_xticks(at, [label for label, _ in bars], rotation=60, ha="right", fontsize=8)
    ax.set(ylabel="mean error (%)", title="Error on shapes held out, by regime")
    ax.legend(fontsize=8)
    return ax


def trace(summary: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """SM clock and board power over the run."""
    ax = _axes(ax)
    values = np.array([[np.nan if v is None else v for v in row] for row in summary["trace"]])
    ax.plot(values[:, 0], values[:, 1], color="C0", lw=1)
    ax.set(xlabel="seconds from the start", title="Clock and power during the run")
    ax.set_ylabel("SM clock (MHz)", color="C0")
    ax.set_ylim(bottom=0)
    other = ax.twinx()
    other.plot(values[:, 0], values[:, 2], color="C3", lw=1)
    other.axhline(summary["datasheet"]["power_w"], color="C3", lw=0.8, ls=":")
    other.set_ylabel("board power (W)", color="C3")
    other.set_ylim(bottom=0)
    return ax


def ran(summary: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """Seconds that each kind of point took."""
    ax = _axes(ax)
    rows = summary["ran"]
    ax.barh([r["what"] for r in rows], [r["seconds"] for r in rows], color="C0")
    for i, row in enumerate(rows):
        ax.annotate(f" {row['points']} points", (row["seconds"], i), va="center", fontsize=8)
    ax.invert_yaxis()
    ax.set(xlabel="seconds", title="What was run")
    ax.margins(x=0.2)
    return ax


def figures(summary: Mapping[str, Any], dpi: int = 90) -> dict[str, bytes]:
    """The report's plots as PNG, by title; those whose numbers a run does not have are left out."""
    import matplotlib.pyplot as plt

    made: dict[str, bytes] = {}

    def add(title: str, draw: Any, size: tuple[float, float]) -> None:
        figure, ax = plt.subplots(figsize=size)
        draw(ax)
        figure.tight_layout()
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=dpi)
        plt.close(figure)
        made[title] = buffer.getvalue()

    if summary["ceilings"] and "gemm" in summary["points"]:
        add("Roofline with measured ceilings", lambda ax: roofline(summary, ax), (8, 5))
    for part in summary["parts"]:
        if part["what"] in summary["points"]:
            seen = " (after: rows the fit saw)" if part["coverage"] is None else ""
            add(f"Predicted against measured: {part['what']}{seen}", lambda ax, what=part["what"]: predicted(summary, what, ax), (8, 4))
    if any(p.get("regimes") for p in summary["parts"]):
        add("Error by regime", lambda ax: regimes(summary, ax), (9, 5))
    if summary["trace"]:
        add("Clock and power during the run", lambda ax: trace(summary, ax), (9, 4))
    if summary["ran"]:
        add("What was run, in seconds", lambda ax: ran(summary, ax), (8, 3))
    return made


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    made: Axes = plt.subplots()[1]
    return made
