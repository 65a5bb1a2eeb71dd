"""Judging rankings of kernels nobody modelled: the bookkeeping on made-up rows, and shipped compilations."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

import perfmodel as pm
from perfmodel.cli import main
from perfmodel.evaluate.any_kernel import SWEEPS, evaluate_kernels, pack_path
from perfmodel.measure.kernel_pack import read_pack, write_pack

pytest.importorskip("triton")
H200 = pm.gpu("h200_sxm")


def decode_rows(noise=0.02) -> pd.DataFrame:
    """Rows whose truth is that the first config of each shape is by far the best."""
    rows = []
    for batch, seq in ((1, 16384), (32, 4096)):
        for i, (bn, warps) in enumerate(((128, 4), (64, 4), (16, 8))):
            rows.append(
                {
                    "batch": batch, "heads": 32, "kv_heads": 8, "seq": seq, "head_dim": 128, "BN": bn, "NS": 4, "num_warps": warps,
                    "num_stages": 3, "latency_us": 100.0 * (1 + i), "std_us": noise * 100, "correct": True,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def test_scores_by_whole_shapes():
    summary, shapes = evaluate_kernels("attention_decode", decode_rows(), H200, only_shipped=True)
    row = summary.iloc[0]
    assert (row["shapes"], row["rows"], row["of_rows"]) == (2, 6, 6) and row["given@1"] == 1.0 and row["@3"] == 1.0
    assert row["@1"] == pytest.approx(np.exp(np.log(shapes["@1"]).mean())) and set(shapes["@1"]) <= {1.0, 2.0, 3.0}
    assert 1.0 < row["random@1"] < 3.0 and 0 <= row["coverage"] <= 1


def test_rows_that_timed_the_host_are_left_out():
    frame = decode_rows()
    frame.loc[frame["batch"] == 1, "std_us"] = 60.0
    frame.loc[3, "std_us"] = 60.0
    summary, shapes = evaluate_kernels("attention_decode", frame, H200, only_shipped=True)
    assert shapes["batch"].tolist() == [32] and summary.iloc[0]["rows"] == 2
    for everything in ({"steady": math.inf}, {"frame": frame.drop(columns="std_us")}):
        asked = {"frame": frame, **everything}
        assert evaluate_kernels("attention_decode", gpu=H200, only_shipped=True, **asked)[0].iloc[0]["rows"] == 6


def test_bad_questions_are_one_line():
    with pytest.raises(pm.InputError, match="unknown sweep"):
        evaluate_kernels("conv", decode_rows(), H200)
    with pytest.raises(pm.InputError, match="lacks column seq"):
        evaluate_kernels("attention_decode", decode_rows().drop(columns="seq"), H200)
    with pytest.raises(pm.NoAnswerError, match="no config of the attention_decode sweep is compiled for sm_89"):
        evaluate_kernels("attention_decode", decode_rows(), pm.gpu("l20"), only_shipped=True)


def test_the_command(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    decode_rows().to_csv(path, index=False)
    ask = ["evaluate", "anykernel", "--gpu", "h200", "--data", str(path), "--sweep", "attention_decode", "--only-shipped"]
    assert main.run([*ask, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["shapes"] == 2
    assert main.run([*ask, "--per-shape", "--csv"]) == 0
    assert capsys.readouterr().out.count("\n") == 3


def test_a_pack_survives_the_round_trip(tmp_path):
    whole = read_pack(pack_path(H200))
    few = {key: whole[key] for key in list(whole)[:5]}
    write_pack(tmp_path / "few.parquet", few)
    assert read_pack(tmp_path / "few.parquet") == few and len(whole) > 600
    (tmp_path / "bad.parquet").write_bytes(b"no")
    with pytest.raises(pm.InputError, match="not a pack"):
        read_pack(tmp_path / "bad.parquet")
    assert set(SWEEPS) == {"gemm_bf16", "gemm_fp8", "attention_prefill", "attention_decode"}
