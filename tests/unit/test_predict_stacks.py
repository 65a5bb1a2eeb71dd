"""A question that names no stack: an answer between the stacks', an interval that holds each of them, no jumps from one to another."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import perfmodel as pm
from perfmodel.predict.any_stack import INSIDE, MARGIN, between

QUESTIONS = [
    pm.Attention("decode", 4, 1, 32768, 64, 1, 128), pm.Attention("decode", 64, 1, 1024, 32, 8, 128),
    pm.Attention("prefill", 2, 2048, 2048, 32, 8, 128), pm.MLA("decode", 8, 1, 8192, 16),
]  # fmt: skip


def test_equal_stacks_answer_as_one() -> None:
    latency, low, high = between(np.full((3, 1), 50.0), np.full((3, 1), 0.2))
    assert latency[0] == pytest.approx(50.0)
    assert high[0] / 50.0 == pytest.approx(np.exp(0.2 * MARGIN), rel=2e-3)
    assert low[0] * high[0] == pytest.approx(2500.0, rel=2e-3)


def test_stacks_far_apart_share_the_interval() -> None:
    latency, low, high = between(np.array([[10.0], [100.0]]), np.full((2, 1), 0.1))
    assert latency[0] == pytest.approx(np.sqrt(1000.0))
    assert low[0] < 10.0 and high[0] > 100.0
    outside = 1.0 - INSIDE  # half of it beyond each end, so the same share of either stack
    scale = 0.1 * MARGIN / np.log((1.0 + INSIDE) / (1.0 - INSIDE))
    assert 1.0 / (1.0 + np.exp(np.log(10.0 / low[0]) / scale)) == pytest.approx(outside, abs=0.01)


@pytest.mark.parametrize("gpu", ["a100_sxm4_80gb", "h100_sxm", "l40s", "b200_sxm"])
@pytest.mark.parametrize("calibration", ["auto", None])
def test_the_interval_holds_every_stacks_answer(gpu: str, calibration: str | None) -> None:
    for op in QUESTIONS:
        found = pm.predict(op, gpu, calibration=calibration)
        measured = {"mla": ("trtllm",) if gpu.startswith("a100") else ("sglang", "trtllm")}  # on its tensor path
        for stack in measured.get(op.operator, ("vllm", "sglang", "trtllm")):
            own = pm.predict(op, gpu, stack=stack, calibration=calibration).latency_us
            assert found.low_us <= own <= found.high_us, (op, stack)
        assert found.low_us <= found.latency_us <= found.high_us


def test_no_jump_to_the_slowest_stack() -> None:
    """TensorRT-LLM runs 64 heads of one KV head one by one, twenty times as long as the others: the answer stays with them."""
    latency = [
        pm.predict(pm.Attention("decode", 4, 1, kv, 64, 1, 128), "h100_sxm").latency_us for kv in (8192, 16384, 32768, 65536, 131072)
    ]
    ratios = np.array(latency[1:]) / np.array(latency[:-1])
    assert (ratios >= 1.0).all() and (ratios <= 2.6).all(), ratios


def test_a_table_answers_as_questions_do() -> None:
    sizes = {"batch": 4, "q_heads": 64, "kv_heads": 1, "head_dim": 128, "phase": "decode"}
    frame = pd.DataFrame([{**sizes, "kv_len": 32768, "stack": None}, {**sizes, "kv_len": 32768, "stack": "vllm"}])
    table = pm.predict_table("attention", frame, "h100_sxm")
    for row, stack in enumerate((None, "vllm")):
        one = pm.predict(QUESTIONS[0], "h100_sxm", stack=stack)
        assert table.latency_us[row] == pytest.approx(one.latency_us) and table.high_us[row] == pytest.approx(one.high_us)


@pytest.mark.parametrize("name", ["h100_sxm", "l40s"])
def test_a_question_without_a_stack_is_told_what_its_row_in_a_table_is(name: str) -> None:
    lengths = [2**i for i in range(4, 15)]
    frame = pd.DataFrame({"phase": "decode", "batch": 1, "kv_len": lengths, "q_heads": 32, "kv_heads": 8, "head_dim": 128})
    table = pm.predict_table("attention", frame, name, calibration=None)
    for i, length in enumerate(lengths):
        one = pm.predict(pm.Attention("decode", 1, 1, length, 32, 8, 128), name, calibration=None)
        assert one.bound == table.bound[i]
        assert (one.low_us, one.high_us) == pytest.approx((table.low_us[i], table.high_us[i]), rel=2e-5)
