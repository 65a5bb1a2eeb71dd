"""Ranking: order, pruning with reasons, somebody else's configs, and bad questions."""

from __future__ import annotations

import math
import types
from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfmodel as pm
from perfmodel.errors import InputError, NoAnswerError

GPUS = ("a100_sxm", "h100_sxm", "h200_sxm", "l20", "b200_sxm", "rtx_pro_6000")
OP = pm.Gemm(512, 4096, 4096)
GOOD = {"block_m": 64, "block_n": 128, "block_k": 64, "num_warps": 4, "num_stages": 3}


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("sizes", [(4096, 14336, 4096), (1, 1, 1), (1, 4096, 14336), (17, 999, 1001), (3, 5, 1 << 20), (1 << 20, 16, 16)])
def test_ranks_any_shape_on_any_gpu(gpu: str, sizes: tuple[int, int, int]) -> None:
    ranking = pm.rank(pm.Gemm(*sizes), gpu, calibration=None)
    frame = ranking.frame
    assert len(frame) == len(ranking) > 0
    assert frame["latency_us"].is_monotonic_increasing and np.isfinite(frame["latency_us"]).all() and (frame["latency_us"] > 0).all()
    assert ((frame["low_us"] <= frame["latency_us"]) & (frame["latency_us"] <= frame["high_us"])).all()
    assert (frame["blocks_per_sm"] >= 1).all() and (frame["waves"] > 0).all()
    assert frame["limiter"].ne("").all() and frame["bound"].ne("").all()
    assert not frame.duplicated([c for c in frame.columns[:8]]).any()


def test_pruned_and_ranked_are_the_whole_space_and_reasons_are_true() -> None:
    ranking = pm.rank(OP, "l20", calibration=None)
    reasons = {reason for _, reason in ranking.pruned}
    assert reasons and all(reasons)
    limit = pm.gpu("l20").smem_per_block_bytes
    for config, reason in ranking.pruned:
        if "shared memory" in reason:
            bytes_of_ring = (config["num_stages"] - 1) * (config["block_m"] + config["block_n"]) * config["block_k"] * 2
            output_tile = config["block_m"] * config["block_n"] * 2
            assert max(bytes_of_ring, output_tile) > 0.9 * limit
    tiles = {tuple(sorted(c.items())) for c, _ in ranking.pruned} & {tuple(sorted(c.items())) for c in ranking.top(len(ranking))}
    assert not tiles


def test_top_k_cuts_the_frame_but_not_the_ranking() -> None:
    whole, few = pm.rank(OP, "h100_sxm"), pm.rank(OP, "h100_sxm", top_k=5)
    assert len(few.frame) == 5 and len(few) == len(whole)
    pd.testing.assert_frame_equal(few.frame, whole.frame.head(5))
    assert few.top(2) == whole.top(2) and len(few.top(10**6)) == len(few)


def test_deterministic() -> None:
    pd.testing.assert_frame_equal(pm.rank(OP, "h200_sxm").frame, pm.rank(OP, "NVIDIA H200").frame)


@pytest.mark.parametrize(
    "configs",
    [
        [GOOD, {**GOOD, "block_m": 128}],
        pd.DataFrame([GOOD, {**GOOD, "block_m": 128}]),
        [{"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "num_warps": 4, "num_stages": 3} for m in (64, 128)],
        [
            types.SimpleNamespace(kwargs={"BM": m, "BN": 128, "BK": 64, "UNRELATED": True}, num_warps=4, num_stages=3)  # a triton.Config
            for m in (64, 128)
        ],
    ],
)
def test_somebody_elses_configs_in_any_spelling(configs: Any) -> None:
    frame = pm.rank(OP, "h100_sxm", configs=configs).frame
    assert sorted(frame["block_m"]) == [64, 128] and set(frame["variant"]) == {"plain"}
    expected = pm.rank(OP, "h100_sxm", configs=[GOOD, {**GOOD, "block_m": 128}]).frame
    assert list(frame["latency_us"]) == list(expected["latency_us"])


def test_real_triton_configs_come_back_as_given() -> None:
    triton = pytest.importorskip("triton")
    given = [triton.Config({"BLOCK_M": m, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8}, num_warps=4, num_stages=3) for m in (64, 128)]
    top = pm.rank(OP, "h100_sxm", configs=given).top(2)
    assert {c["BLOCK_M"] for c in top} == {64, 128} and top[0]["GROUP_M"] == 8


def test_positions_point_into_the_callers_list() -> None:
    impossible = {**GOOD, "block_m": 256, "block_n": 256, "block_k": 256, "num_stages": 5}
    given = [impossible, {**GOOD, "block_m": 16}, GOOD]
    ranking = pm.rank(OP, "h100_sxm", configs=given)
    assert len(ranking) == 2 and len(ranking.pruned) == 1 and "shared memory" in ranking.pruned[0][1]
    for row, own in zip(ranking.frame.to_dict("records"), ranking.top(2), strict=True):
        assert own in given and row["block_m"] == own["block_m"]


def test_never_empty_while_one_config_is_legal() -> None:
    wasteful = {**GOOD, "block_m": 256, "block_n": 64, "num_warps": 8}  # dominated at m = 1, yet it runs
    assert len(pm.rank(pm.Gemm(1, 4096, 4096), "h100_sxm", configs=[wasteful])) == 1
    with pytest.raises(NoAnswerError, match=r"no config can run on l20: .*shared memory"):
        pm.rank(OP, "l20", configs=[{**GOOD, "block_m": 256, "block_n": 256, "block_k": 128, "num_stages": 4}])


@pytest.mark.parametrize("top_k", [0, -1, 1.5, math.nan, "many", True])
def test_bad_top_k(top_k: Any) -> None:
    with pytest.raises(InputError, match="top_k"):
        pm.rank(OP, "h100_sxm", top_k=top_k)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([], "empty"),
        ("abc", "list of configs"),
        (3, "list of configs"),
        ([3], "config 0 is int"),
        ([GOOD, {"block_m": 64}], "config 1 has no block_n"),
        ([{**GOOD, "block_m": 0}], "block_m"),
        ([{**GOOD, "num_warps": 1.5}], "num_warps"),
        ([{**GOOD, "block_k": math.nan}], "block_k"),
        ([{**GOOD, "block_k": math.inf}], "block_k"),
        ([{**GOOD, "num_stages": -2}], "num_stages"),
        ([{**GOOD, "variant": "magic"}], "variant 'magic'"),
    ],
)
def test_bad_configs(configs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        pm.rank(OP, "h100_sxm", configs=configs)


def test_bad_questions() -> None:
    with pytest.raises(InputError, match="unknown GPU"):
        pm.rank(OP, "h1000")
    with pytest.raises(InputError, match="unknown kernel"):
        pm.rank(OP, "h100_sxm", kernel="conv")
    with pytest.raises(InputError, match="batch"):
        pm.rank(pm.Gemm(1, 1, 1, batch=2), "h100_sxm")
    with pytest.raises(InputError, match="fp8"):
        pm.rank(pm.Gemm(16, 4096, 4096, "fp8"), "a100_sxm")
    with pytest.raises(InputError, match="no calibration at"):
        pm.rank(OP, "h100_sxm", calibration="/nowhere")


def test_slower_memory_never_ranks_faster() -> None:
    import dataclasses

    spec = pm.gpu("h100_sxm")
    slow = dataclasses.replace(spec, dram_bytes_per_s=spec.dram_bytes_per_s / 2)
    op = pm.Gemm(8, 8192, 8192)
    fast, late = (pm.rank(op, gpu, configs=[GOOD], calibration=None).frame["latency_us"][0] for gpu in (spec, slow))
    assert late > fast * 1.2
