"""Gate: a kernel that nobody modelled, ranked from its machine code alone, on committed rows of an H200."""

from __future__ import annotations

import pandas as pd
import pytest

import perfmodel as pm
from perfmodel._resources import shipped
from perfmodel.tune.kernel_evaluate import evaluate_kernels

triton = pytest.importorskip("triton")
SHAPES = [(1, 2048, 2048), (64, 8192, 1024), (512, 10240, 8192), (4096, 6144, 4096)]


@pytest.mark.slow
def test_plain_gemm_from_machine_code_alone():
    if not str(triton.__version__).startswith("3.6."):
        pytest.skip("the shipped compilations are of Triton 3.6")
    frame = pd.read_parquet(shipped("data") / "gemm" / "plain_h200_sxm.parquet")
    wanted = [row in SHAPES for row in zip(frame["m"], frame["n"], frame["k"], strict=True)]
    frame = frame[(frame["dtype"] == "bf16").to_numpy() & wanted]
    summary, _ = evaluate_kernels("gemm_bf16", frame, pm.gpu("h200_sxm"), only_shipped=True)
    row = summary.iloc[0]
    assert row["shapes"] == len(SHAPES) and row["rows"] >= 50 * len(SHAPES)
    assert row["@1"] <= 1.12 and row["@8"] <= 1.02 and row["@1 max"] < 1.35
    assert row["error median"] < 0.25 and row["coverage"] > 0.8
