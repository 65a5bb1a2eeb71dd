"""Gate: a kernel that nobody modelled, ranked from its machine code alone, on committed rows of an H200.

tests/accuracy/anykernel.json holds the reviewed figures, which only tighten (tightening.py). `python tests/accuracy/test_anykernel_gate.py`
writes them anew; a worse one is refused, or taken with `--accept-worse "reason"`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tightening import rewrite, stored

import perfmodel as pm
from perfmodel._resources import shipped
from perfmodel.evaluate.any_kernel import evaluate_kernels

triton = pytest.importorskip("triton")
FIGURES = Path(__file__).with_name("anykernel.json")
BETTER: Any = {
    "@1": "lower", "@8": "lower", "@1 max": "lower", "error median": "lower", "coverage": "nominal", "shapes": "higher", "rows": "higher",
}  # fmt: skip
LOOSEST = 1.05
SHAPES = [(1, 2048, 2048), (64, 8192, 1024), (512, 10240, 8192), (4096, 6144, 4096)]


def measure() -> dict[str, float]:
    frame = pd.read_parquet(shipped("data") / "gemm" / "plain_h200_sxm.parquet")
    wanted = [row in SHAPES for row in zip(frame["m"], frame["n"], frame["k"], strict=True)]
    frame = frame[(frame["dtype"] == "bf16").to_numpy() & wanted]
    summary, _ = evaluate_kernels("gemm_bf16", frame, pm.gpu("h200_sxm"), only_shipped=True)
    row = summary.iloc[0]
    return {name: round(float(row[name]), 4) for name in BETTER}


@pytest.mark.slow
def test_plain_gemm_from_machine_code_alone():
    if not str(triton.__version__).startswith("3.6."):
        pytest.skip("the shipped compilations are of Triton 3.6")
    row, wanted = measure(), stored(FIGURES)["gemm_bf16"]
    assert row["shapes"] == len(SHAPES) and row["rows"] >= 50 * len(SHAPES)
    assert row["@1"] <= 1.12 and row["@8"] <= 1.02 and row["@1 max"] < 1.35
    assert row["error median"] < 0.25 and row["coverage"] > 0.8
    assert row["rows"] >= wanted["rows"]
    for name in ("@1", "@8", "@1 max"):
        assert row[name] - 1.0 <= LOOSEST * (wanted[name] - 1.0) + 0.001, name
    assert row["error median"] <= LOOSEST * wanted["error median"]
    assert row["coverage"] >= wanted["coverage"] / LOOSEST


if __name__ == "__main__":
    sys.exit(rewrite(FIGURES, {"gemm_bf16": measure()}, BETTER))
