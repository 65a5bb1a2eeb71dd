"""Tables in, tables out: other spellings, one clear line for bad input, chunks and GPUs put back in order."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from perfmodel.errors import InputError
from perfmodel.hw import gpu
from perfmodel.ops import OperatorTable
from perfmodel.ops.attention import Attention
from perfmodel.ops.gemm import Gemm
from perfmodel.ops.moe import MoE
from perfmodel.predict.libraries import CHUNK
from perfmodel.predict.route import predict_frame, predict_one

GEMM = pd.DataFrame({"m": [1, 64, 4096], "n": [4096, 4096, 8192], "k": [4096, 1024, 8192], "framework": ["vllm", "sglang", "trtllm"]})


def test_spellings_of_public_tables_are_read() -> None:
    frame = pd.DataFrame(
        {
            "compute_dtype": ["bfloat16"], "kv_cache_dtype": ["fp8"], "batch": [4], "q_len": [1], "kv_len": [1000], "q_heads": [32],
            "kv_heads": [8],
            "head_dim": [128], "window_tokens": [0], "framework": ["vllm"], "kernel": ["vllm_flash_attn_fa3"], "unheard_of": ["x"],
        }
    )  # fmt: skip
    columns = OperatorTable.read("attention", frame)
    assert (columns["decode"][0], columns["kv_dtype"][0], columns["stack"][0], columns["kernel"][0]) == (1.0, 2.0, 1.0, 2.0)
    moe = pd.DataFrame(
        {
            "tokens": [8],
            "hidden_size": [2048],
            "inter_size": [768],
            "num_experts": [128],
            "topk": [8],
            "moe_tp_size": [2],
            "moe_ep_size": [4],
        }
    )
    assert (
        OperatorTable.read("moe", moe)["tp"][0],
        OperatorTable.read("moe", moe)["ep"][0],
        OperatorTable.read("moe", moe)["gated"][0],
    ) == (2.0, 4.0, 1.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"m": [1, 0, 3]}, "m must be a whole number of 1 or more: row 1 has 0.0"),
        ({"k": [1.0, 2.5, 3.0]}, "k must be a whole number of 1 or more: row 1 has 2.5"),
        ({"n": [np.nan, 2, 3]}, "n must be a whole number of 1 or more: row 0 has nan"),
        ({"dtype": ["bf16", "bf17", "bf16"]}, "unknown dtype 'bf17'"),
        ({"framework": ["vllm", "vlm", "vllm"]}, "unknown stack 'vlm'"),
    ],
)
def test_bad_rows_are_named(change: dict[str, list[object]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        predict_frame("gemm", GEMM.assign(**change), "h100_sxm")


def test_missing_column_is_named() -> None:
    with pytest.raises(InputError, match="lacks column k"):
        predict_frame("gemm", GEMM.drop(columns="k"), "h100_sxm")


def test_a_dtype_without_tensor_cores_says_so() -> None:
    with pytest.raises(InputError, match="has no fp8 tensor cores"):
        predict_frame("gemm", GEMM.assign(dtype="fp8"), "a100_sxm4_80gb")


def test_rows_of_several_gpus_and_chunks_keep_their_order() -> None:
    many = pd.concat([GEMM] * (CHUNK // 2), ignore_index=True)
    many["gpu"] = np.where(np.arange(len(many)) % 5 == 0, "l40s", "h100_sxm")
    many.index = many.index[::-1]
    answer = predict_frame("gemm", many, calibration=None)
    assert list(answer.index) == list(many.index)
    for name in ("l40s", "h100_sxm"):
        here = (many["gpu"] == name).to_numpy()
        alone = predict_frame("gemm", many[here].iloc[:6], name, calibration=None)
        np.testing.assert_allclose(answer[here]["latency_us"].iloc[:6], alone["latency_us"], rtol=1e-6)
    assert (answer["low_us"] < answer["latency_us"]).all()
    assert (answer["high_us"] > answer["latency_us"]).all()


@pytest.mark.parametrize("op", [Gemm(64, 4096, 4096), Attention("decode", 8, 1, 2048, 32, 8, 128), MoE(64, 2048, 768, 128, 8)])
def test_one_answer_equals_its_row_of_a_table(op: Gemm | Attention | MoE) -> None:
    spec = gpu("h200_sxm")
    one = predict_one(op, spec, stack="vllm", calibration=None)
    fields = {name: [getattr(op, name)] for name in op.__dataclass_fields__}
    row = predict_frame(
        op.operator if hasattr(op, "operator") else op.kind, pd.DataFrame({**fields, "stack": ["vllm"]}), spec, calibration=None
    ).iloc[0]
    assert one.latency_us == pytest.approx(row["latency_us"], rel=1e-5)
    assert one.tier == "spec"


def test_no_stack_gives_a_wider_interval_where_stacks_disagree() -> None:
    op = Attention("prefill", 4, 4096, 4096, 32, 8, 128)
    spec = gpu("l40s")
    named, unnamed = (predict_one(op, spec, stack=stack, calibration="auto") for stack in ("vllm", None))
    assert unnamed.high_us / unnamed.low_us > named.high_us / named.low_us


def test_no_correction_beats_the_highest_clock() -> None:
    spec = gpu("h20")
    least_us = 2.0 * 16384**3 / (spec.tensor_rate("bf16") * spec.max_clock_hz / spec.boost_clock_hz) * 1e6
    found = predict_one(Gemm(16384, 16384, 16384), spec)
    assert least_us <= found.low_us <= found.latency_us
