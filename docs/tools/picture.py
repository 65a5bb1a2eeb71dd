"""Draws docs/assets/prediction.svg: one GEMM by number of tokens, the terms of its law, the prediction and what was measured.

python docs/tools/picture.py
"""

from __future__ import annotations

import io
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from evaluations import ROOT

from perfmodel._resources import shipped
from perfmodel.ops import Gemm
from perfmodel.predict import predict
from perfmodel.predict.prediction import Prediction

PATH = ROOT / "docs" / "assets" / "prediction.svg"
GPU, NAME, STACK, N, K = "h100_sxm", "H100", "vllm", 5120, 5120
TERMS = {"dram": ("#0072b2", "DRAM"), "tensor": ("#d55e00", "tensor cores"), "l2": ("#009e73", "L2 cache"), "launch": ("#888888", "launch")}


def measured() -> pd.DataFrame:
    """Measured rows of the GEMM, by m."""
    rows = pd.read_parquet(shipped("data") / "operators" / "gemm.parquet")
    text = {name: rows[name].astype(str) for name in ("gpu", "stack", "dtype")}
    chosen = (text["gpu"] == GPU) & (text["stack"] == STACK) & (text["dtype"] == "bf16") & (rows["n"] == N) & (rows["k"] == K)
    return rows[chosen].sort_values("m")


def predicted(sizes: Any) -> list[Prediction]:
    """Predictions of a model that never saw this GPU."""
    return [predict(Gemm(int(m), N, K), GPU, stack=STACK, calibration=None) for m in sizes]


def draw(rows: pd.DataFrame) -> mpl.figure.Figure:
    """The picture."""
    sizes = np.unique(np.geomspace(1, rows["m"].max(), 120).astype(int))
    found = predicted(sizes)
    figure, ax = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    for name, (colour, words) in TERMS.items():
        ax.plot(sizes, [p.terms[name] for p in found], "--", color=colour, lw=1.2, label=f"{words} alone")
    low, high = [p.low_us for p in found], [p.high_us for p in found]
    ax.fill_between(sizes, low, high, color="#444444", alpha=0.2, lw=0, label="80 % interval")
    ax.plot(sizes, [p.latency_us for p in found], color="black", lw=1.6, label="prediction")
    ax.plot(rows["m"], rows["latency_us"], "o", color="#cc79a7", ms=3.6, label="measured, never seen by the model")
    ax.set(xscale="log", yscale="log", xlabel="m, rows of activations (tokens)", ylabel="latency, us")
    ax.set_ylim(bottom=0.5)
    ax.set_title(f"bf16 GEMM m x {N} x {K} as vLLM runs it on an {NAME} that was left out of the fit", fontsize=9)
    ax.grid(which="major", color="#dddddd", lw=0.6)
    ax.legend(fontsize=8, frameon=False, ncols=2, loc="upper left")
    return figure


def main() -> None:
    """Write the picture: the same bytes for the same figures."""
    mpl.rcParams["svg.hashsalt"] = "perfmodel"
    text = io.StringIO()
    draw(measured()).savefig(text, format="svg", metadata={"Date": None})
    PATH.write_text("\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
