"""Nothing is faster than the card: the bound by hand for each operator, rows and answers that beat it, and thousands of real questions."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.analytic.bound import CLOCK_MARGIN, beats, least_seconds, link_seconds, within
from perfmodel.calibrate.operator_rows import read_possible
from perfmodel.evaluate import physics
from perfmodel.hw import gpu
from perfmodel.library.least import faster_than_physics, least_s
from perfmodel.ops import OperatorTable
from perfmodel.ops.collective import least_share
from perfmodel.ops.work import Work

# a card whose arithmetic can be done by hand: 1e15 flop/s at boost, a tenth more at the highest clock, 1e12 B/s, 1e6 bytes of L2
CARD = dataclasses.replace(
    gpu("h100_sxm"), boost_clock_hz=1e9, max_clock_hz=1.1e9, dram_bytes_per_s=1e12, l2_bytes=10**6,
    tensor_flops={"bf16": 1e15, "fp16": 1e15, "fp8": 2e15, "int8": 2e15},
)  # fmt: skip


def least(kind: str, op: Any, stack: str | None = None) -> float:
    return float(least_s(CARD, OperatorTable.of(op, stack))[0])


def test_the_bound_is_the_larger_of_flops_at_the_highest_clock_and_bytes_beyond_l2() -> None:
    assert least_seconds(CARD, Work(1.1e12, 0.0, 0.0), 1e15) == pytest.approx(1e-3)  # 1.1e12 / (1e15 x 1.1)
    assert least_seconds(CARD, Work(0.0, 4e6, 1e6), 1e15) == pytest.approx(4e-6)  # 5e6 bytes, 1e6 of them in L2
    assert least_seconds(CARD, Work(1.1e12, 4e6, 1e6), 1e15) == pytest.approx(1e-3)
    assert least_seconds(CARD, Work(0.0, 9e5, 0.0), 1e15) == 0.0  # all in L2
    assert link_seconds(450e9, 450e9) == 1.0


def test_gemm_by_hand() -> None:
    # 2 x 1000^3 flops / 1.1e15; or 6e6 bytes less 1e6 of L2 over 1e12
    assert least("gemm", pm.Gemm(1000, 1000, 1000)) == pytest.approx(5e-6)
    assert least("gemm", pm.Gemm(10_000, 10_000, 10_000)) == pytest.approx(2e12 / 1.1e15)
    assert least("gemm", pm.Gemm(10_000, 10_000, 10_000, dtype="fp8")) == pytest.approx(2e12 / 2.2e15)
    assert least("gemm", pm.Gemm(1, 10_000, 10_000, dtype="int4_wo")) == pytest.approx((5e7 + 2e4 + 2e4 - 1e6) / 1e12)


def test_attention_by_hand() -> None:
    # causal: 1000 x 1001 / 2 pairs of 10 heads of 100, 4 flops an element
    op = pm.Attention("prefill", 10, 1000, 1000, 10, 10, 100)
    flops = 4 * 10 * 10 * 100 * 1000 * 1001 / 2
    moved = 10 * 1000 * 10 * 100 * (2 + 2) + 2 * 10 * 1000 * 10 * 100 * 2
    assert least("attention", op) == pytest.approx(max(flops / 1.1e15, (moved - 1e6) / 1e12))
    # decode with an 8-bit cache shared by 8 query heads: keys and values once, queries and outputs of 16 bits
    op = pm.Attention("decode", 64, 1, 8192, 64, 8, 128, kv_dtype="fp8")
    assert least("attention", op) == pytest.approx((2 * 64 * 8192 * 8 * 128 + 64 * 64 * 128 * 4 - 1e6) / 1e12)
    # a window spares what lies before it
    op = pm.Attention("decode", 64, 1, 8192, 64, 8, 128, window=1024)
    assert least("attention", op) == pytest.approx((2 * 64 * 1024 * 8 * 128 * 2 + 64 * 64 * 128 * 4 - 1e6) / 1e12)


def test_latent_attention_by_hand() -> None:
    # decode: 576 elements a cached token, 16 heads of 576 in and 512 out
    assert least("mla", pm.MLA("decode", 8, 1, 10_000, 16)) == pytest.approx((8 * 10_000 * 576 * 2 + 8 * 16 * (576 + 512) * 2 - 1e6) / 1e12)
    pairs = 4096 * 4097 / 2
    assert least("mla", pm.MLA("prefill", 8, 4096, 4096, 128)) == pytest.approx(2 * 8 * 128 * pairs * (192 + 128) / 1.1e15)


def test_experts_by_hand() -> None:
    # 4 tokens reach 8 of 16 experts when spread evenly; three matrices of 1000 x 2000; a token's activations in and out
    assert least("moe", pm.MoE(4, 1000, 2000, 16, 2)) == pytest.approx((8 * 3 * 1000 * 2000 * 2 + 4 * 1000 * 2 * 2 - 1e6) / 1e12)
    # skewed: no routing needs more than the two experts of a token
    skewed = pm.MoE(4, 1000, 2000, 16, 2, distribution="power_law_1.2")
    assert least("moe", skewed) == pytest.approx((2 * 3 * 1000 * 2000 * 2 + 4 * 1000 * 2 * 2 - 1e6) / 1e12)
    # many tokens: flops of the routed rows, shared out over ep GPUs
    assert least("moe", pm.MoE(100_000, 1000, 2000, 16, 2, ep=2)) == pytest.approx(2 * 100_000 * 2 / 2 * 3 * 1000 * 2000 / 1.1e15)


def test_memory_bound_operators_by_hand() -> None:
    assert least("memory", pm.MemoryBound("add", 10_000, 1000)) == pytest.approx((3 * 1e7 * 2 - 1e6) / 1e12)


def test_links_by_hand() -> None:
    assert least_share("all_reduce", 8, False) == pytest.approx(2 * 7 / 8) and least_share("all_reduce", 8, True) == pytest.approx(7 / 8)
    assert least_share(np.array(["all_gather", "all_to_all", "broadcast", "p2p"]), 4, False).tolist() == [0.75, 0.75, 1.0, 1.0]


@pytest.mark.parametrize(
    ("kind", "op"),
    [
        ("gemm", pm.Gemm(3, 5, 7, dtype="int8_wo", batch=2)),
        ("attention", pm.Attention("prefill", 2, 5, 9, 4, 2, 64, kv_dtype="fp8", window=3)),
        ("attention", pm.Attention("decode", 2, 1, 9, 4, 2, 64)),
        ("mla", pm.MLA("prefill", 2, 3, 5, 4)),
        ("mla", pm.MLA("decode", 2, 1, 5, 4, kv_dtype="fp8")),
        ("moe", pm.MoE(5, 64, 32, 8, 2, tp=2)),
        ("memory", pm.MemoryBound("silu_mul", 5, 7)),
    ],
)
def test_a_table_counts_the_work_that_its_operators_say(kind: str, op: Any) -> None:
    table, own = OperatorTable.of(op, None).work(), op.work()
    for name in ("flops", "read_bytes", "write_bytes"):
        assert float(np.broadcast_to(getattr(table, name), (1,))[0]) == pytest.approx(float(getattr(own, name)), rel=1e-9), name


@given(st.floats(1e-9, 1e9), st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 1e9))
@settings(max_examples=200, deadline=None)
def test_ends_keep_the_bound_and_hold_their_point(latency: float, low: float, high: float, bound: float) -> None:
    point, bottom, top = within(latency, low, high, bound)
    assert bound <= bottom <= point <= top and point in (latency, bound)


def test_a_row_beats_physics_only_by_more_than_the_margin_of_clocks() -> None:
    assert beats(1.0 - 1.1 * CLOCK_MARGIN, 1.0) and not beats(1.0 - 0.9 * CLOCK_MARGIN, 1.0)


@pytest.mark.parametrize("calibration", ["auto", None])
@pytest.mark.parametrize(
    ("op", "name", "stack"),
    [
        (pm.Attention("decode", 64, 1, 8192, 64, 8, 128), "a100_sxm", "trtllm"),  # answered 636 us, keys and values alone need 1,053
        (pm.Attention("prefill", 4, 8192, 8192, 64, 8, 128), "h20", "vllm"),
        (pm.Gemm(4096, 14336, 4096), "l20", None),
        (pm.Gemm(16384, 16384, 16384), "h20", None),
        (pm.MoE(1, 7168, 2048, 8, 8, distribution="power_law_1.2"), "h100_sxm", "vllm"),
    ],
)
def test_answers_that_were_faster_than_the_card(op: Any, name: str, stack: str | None, calibration: Any) -> None:
    spec, found = gpu(name), pm.predict(op, name, stack=stack, calibration=calibration)
    bound_us = float(least_s(spec, OperatorTable.of(op, stack))[0]) * 1e6
    assert bound_us * (1 - 1e-9) <= found.low_us <= found.latency_us <= found.high_us


def test_rows_that_beat_physics_do_not_teach_and_are_named() -> None:
    shape = {"phase": "decode", "batch": 64, "q_len": 1, "kv_len": 8192, "q_heads": 64, "kv_heads": 8, "head_dim": 128}
    frame = pd.DataFrame([{**shape, "latency_us": us, "gpu": "a100_sxm4_80gb", "stack": "trtllm"} for us in (636.0, 1400.0)], index=[7, 8])
    assert faster_than_physics(gpu("a100"), OperatorTable.read("attention", frame), frame["latency_us"].to_numpy()).tolist() == [
        True,
        False,
    ]
    with pytest.warns(UserWarning, match="1 of 2 attention_decode rows are faster than a100_sxm4_80gb can be and are left out: rows 7$"):
        rows = read_possible("attention_decode", frame)
    assert len(rows) == 1 and np.exp(rows.log_latency[0]) == pytest.approx(1400e-6)


def test_thousands_of_real_questions_get_answers_that_can_be() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # committed rows that beat physics are named once more
        total = physics.check(3000, seed=1)[-1]
    assert total["questions"] >= 3000
    assert (total["beyond_bound"], total["outside_own_interval"], total["not_finite"]) == (0, 0, 0)
