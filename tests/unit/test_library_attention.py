"""Rules of attention kernels that the laws count by, against values worked out by hand from the kernels' public code."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.analytic.constants import constant_values
from perfmodel.hw import gpu
from perfmodel.library import attention_decode, attention_prefill
from perfmodel.library.attention_kernels import decode_kernels
from perfmodel.library.attention_splits import full_waves, plan
from perfmodel.library.attention_tiles import narrow_tiles
from perfmodel.library.stacks.trtllm import xqa
from perfmodel.ops.names import DTYPES, KERNELS, STACKS

Shape = dict[str, float]


def columns(stack: str, kernel: str, kv_dtype: str = "bf16", **shape: float) -> dict[str, np.ndarray]:
    known: Shape = {"batch": 1, "q_len": 1, "kv_len": 1024, "q_heads": 32, "kv_heads": 4, "head_dim": 128, "window": 0, "causal": 1}
    codes = {"stack": STACKS.index(stack), "kernel": KERNELS.index(kernel), "dtype": 0, "kv_dtype": DTYPES.index(kv_dtype)}
    return {name: np.array([float(value)]) for name, value in {**known, **shape, **codes}.items()}


def splits(name: str, stack: str, kernel: str, kv_dtype: str = "bf16", **shape: float) -> tuple[float, float, float]:
    """(passes, padded query rows, shares of the keys)."""
    given = columns(stack, kernel, kv_dtype, **shape)
    codes = given["stack"].astype(np.intp), given["kernel"].astype(np.intp)
    fp8 = np.array([float(kv_dtype == "fp8")])
    kernels, shares = decode_kernels(gpu(name), *codes, given, fp8)
    found = plan(gpu(name), kernels, given, given["kv_len"], fp8, shares, constant_values(attention_decode.LAW))
    return float(found.passes[0]), float(found.rows[0]), float(found.splits[0])


def decode_us(name: str, stack: str, kernel: str, kv_dtype: str = "bf16", **shape: float) -> float:
    found = attention_decode.terms(gpu(name), columns(stack, kernel, kv_dtype, **shape), constant_values(attention_decode.LAW))
    return 1e6 * float(found.latency_s[0])


def prefill(name: str, stack: str, kernel: str, kv_dtype: str = "bf16", **shape: float) -> dict[str, float]:
    given = columns(stack, kernel, kv_dtype, **shape)
    given["q_len"] = given["kv_len"]
    found = attention_prefill.terms(gpu(name), given, constant_values(attention_prefill.LAW))
    return {"us": 1e6 * float(found.latency_s[0]), "fp8_math": float(found.features["fp8_math"][0])}


@pytest.mark.parametrize(
    ("batch", "kv_heads", "kv_len", "taken", "shares"),
    [
        (16, 2, 128, False, 1),  # 4 x 16 x 2 x 1 = 128 < 132 SMs
        (16, 2, 256, True, 2),  # 4 x 16 x 2 x 2 = 256
        (1, 2, 2048, False, 11),  # 4 x 2 x 16 = 128; sqrt(8 x 16) = 11.3
        (1, 2, 4096, True, 16),  # 4 x 2 x 32 = 256; sqrt(8 x 32) = 16
        (64, 4, 4096, True, 4),  # 256 units, 16 shares = 31 blocks an SM: floor(16 x 8 / 31.03)
        (6000, 1, 65536, True, 1),
    ],
)
def test_tensorrt_llm_takes_xqa_and_cuts_the_keys_as_its_code_does(
    batch: int, kv_heads: int, kv_len: int, taken: bool, shares: float
) -> None:
    given = columns("trtllm", "trtllm", batch=batch, kv_heads=kv_heads, kv_len=kv_len)
    found, cut = xqa(gpu("h100_sxm"), given, np.zeros(1))
    assert bool(found[0]) is taken and float(cut[0]) == shares
    assert bool(xqa(gpu("h100_sxm"), given, np.ones(1))[0][0])  # nothing else reads an fp8 cache


@pytest.mark.parametrize(("q_heads", "taken"), [(4, False), (8, True), (128, True), (256, False)])
def test_xqa_packs_groups_of_2_to_32(q_heads: int, taken: bool) -> None:
    found, _ = xqa(gpu("h100_sxm"), columns("trtllm", "trtllm", batch=64, q_heads=q_heads), np.zeros(1))
    assert bool(found[0]) is taken
    assert splits("h100_sxm", "trtllm", "trtllm", batch=64, q_heads=q_heads)[0] == (1 if taken else q_heads / 4)


def test_flash_attention_2_fills_whole_waves() -> None:
    slots = 264.0
    assert full_waves(np.array([4.0, 128.0, 210.0, 212.0]), slots).tolist() == [66, 2, 3, 1]
    # 100: one wave fills 200 / 264 = 0.76, two fill 500 / 528 = 0.95; from 0.8 x 264 = 211 heads on the keys stay whole


def test_flash_attention_3_splits_from_five_blocks_on_and_evenly() -> None:
    assert splits("h100_sxm", "sglang", "fa3", kv_len=512) == (1, 64, 1)
    assert splits("h100_sxm", "sglang", "fa3", kv_len=1024) == (1, 64, 8)  # 8 blocks, ceil(1.1 x 8 x 4 / 132) = 1 each
    assert splits("h100_sxm", "sglang", "fa3", batch=16, kv_len=1024) == (1, 64, 2)  # ceil(1.1 x 8 x 64 / 132) = 5 of 8 blocks each
    assert splits("h100_sxm", "sglang", "fa3", head_dim=256, kv_len=256)[1] == 128


def test_vllm_splits_from_two_blocks_on_and_not_in_batches_over_992() -> None:
    assert splits("h100_sxm", "vllm", "fa3", kv_len=128)[2] == 1
    assert splits("h100_sxm", "vllm", "fa3", kv_len=256)[2] == 2
    assert splits("h100_sxm", "vllm", "fa3", batch=993, kv_heads=1, q_heads=8, kv_len=131072)[2] == 1


def test_sglang_runs_flash_attention_3_on_sm_80() -> None:
    assert splits("a100_sxm4_80gb", "sglang", "fa2", kv_len=448) == (1, 128, 1)  # 4 blocks of 112
    assert splits("a100_sxm4_80gb", "sglang", "fa2", kv_len=449) == (1, 128, 5)
    alone, packed = (prefill("a100_sxm4_80gb", "sglang", "fa2", batch=64, kv_len=16, q_heads=32, kv_heads=h)["us"] for h in (32, 4))
    assert packed < 0.6 * alone  # 8 query heads share a tile


@pytest.mark.parametrize(("name", "narrow"), [("a100_sxm4_80gb", False), ("h100_sxm", True), ("l40s", True)])
def test_flash_attention_2_takes_64_query_rows_in_wide_heads(name: str, narrow: bool) -> None:
    """128 KiB a block fit one SM of A100 once; 2 x 96 KiB fit one of H100; a block of L40S may have 99 KiB."""
    assert narrow_tiles(gpu(name)) is narrow
    assert splits(name, "torch", "fa2", batch=256, head_dim=256)[1] == (64 if narrow else 128)
    assert splits(name, "torch", "fa2", batch=256, head_dim=128)[1] == 128


def test_a_window_does_not_spare_tensorrt_llm_the_blocks_of_the_whole_cache() -> None:
    short, long = (decode_us("rtx_pro_6000", "trtllm", "trtllm", batch=64, kv_heads=1, window=128, kv_len=n) for n in (256, 16384))
    assert long > 1.2 * short
    xqa_us = [decode_us("h100_sxm", "trtllm", "trtllm", "fp8", batch=8, kv_heads=1, window=128, kv_len=n) for n in (1024, 65536)]
    assert xqa_us[1] < 1.1 * xqa_us[0]  # but its warp-group kernel ends shares before the window at once
    fa = [decode_us("h100_sxm", "vllm", "fa3", batch=64, kv_heads=1, window=128, kv_len=n) for n in (256, 16384)]
    assert fa[1] < 1.2 * fa[0]


def test_xqa_of_sm_90_appends_keys_itself() -> None:
    assert decode_us("h100_sxm", "trtllm", "trtllm", "fp8", kv_len=64) < decode_us("h100_sxm", "trtllm", "trtllm", kv_len=64)
    assert decode_us("l40s", "trtllm", "trtllm", "fp8", kv_len=64) > decode_us("l40s", "trtllm", "trtllm", kv_len=64)


def test_flash_attention_3_multiplies_an_fp8_cache_in_fp8() -> None:
    plain, narrow = (prefill("h100_sxm", "sglang", "fa3", kv, kv_len=8192, batch=4) for kv in ("bf16", "fp8"))
    assert plain["fp8_math"] == 0 and narrow["fp8_math"] == 1 and narrow["us"] < plain["us"]
    assert prefill("l40s", "vllm", "flashinfer", "fp8", kv_len=8192)["fp8_math"] == 0
    wide = [prefill("h100_sxm", "vllm", "fa3", kv, kv_len=8192, batch=4, head_dim=256)["us"] for kv in ("bf16", "fp8")]
    assert wide[1] > wide[0]  # vLLM's two accumulators spill


def test_many_short_sequences_pay_each_query_tile() -> None:
    few = prefill("h200_sxm", "torch", "cudnn", batch=256, kv_len=32)["us"]
    one = prefill("h200_sxm", "torch", "cudnn", batch=1, kv_len=32)["us"]
    assert few > 10 * one  # 256 x 32 tiles on 132 SMs: 62 rounds of some microseconds


def test_flash_attention_3_meets_its_published_rate() -> None:
    """arXiv 2407.08608, figure 5: 648 TFLOP/s at head_dim 128, 16 heads, 16k tokens, no mask, H100."""
    found = prefill("h100_sxm", "torch", "fa3", kv_len=16384, q_heads=16, kv_heads=16, causal=0)["us"]
    assert 4.0 * 16 * 128 * 16384.0**2 / found / 1e6 == pytest.approx(648.0, rel=0.12)
