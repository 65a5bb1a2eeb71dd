"""What laws count beside the kernel itself: cache appends of the stacks, masks of whole blocks, and loads that cannot be vectorised."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest

from perfmodel.analytic.constants import constant_values
from perfmodel.hw import gpu
from perfmodel.library import attention_decode, attention_prefill, moe
from perfmodel.library.attention_append import append_s
from perfmodel.library.attention_kernels import ALWAYS, prefill_kernels
from perfmodel.ops import OperatorTable
from perfmodel.ops.names import KERNELS, STACKS

PREFILL, MOE = constant_values(attention_prefill.LAW), constant_values(moe.LAW)


def append(stack: str, kernel: str, *, narrow: bool = False, constants: Mapping[str, float] = PREFILL, **shape: float) -> float:
    """Microseconds of 8192 tokens on an H100, all from DRAM."""
    known = {"batch": 1.0, "q_len": 8192.0, "q_heads": 32.0, "kv_heads": 4.0, "head_dim": 128.0, **shape}
    columns = {name: np.array([value]) for name, value in known.items()}
    codes = np.array([STACKS.index(stack)])
    k = prefill_kernels(codes, np.array([KERNELS.index(kernel)]))
    flags = np.array([narrow]), k.flag("multiplies_cache_type", ALWAYS), k.flag("indexed_append")
    return 1e6 * float(append_s(gpu("h100_sxm"), codes, columns, np.ones(1), *flags, constants)[0])


def test_vllm_appends_with_a_block_a_token() -> None:
    """512 threads a block leave 4 of 2048 resident on each of 132 SMs: 8192 tokens are 15.5 rounds of a block's cycles."""
    free = {**PREFILL, "prepare_vllm": 0.0}
    block_us = PREFILL["token_block_cycles"] / gpu("h100_sxm").max_clock_hz * 1e6
    assert append("vllm", "fa3", constants=free) == pytest.approx(8192 / (4 * 132) * block_us)
    assert append("vllm", "fa3", constants=free, kv_heads=32) == pytest.approx(append("vllm", "fa3", constants=free))
    assert append("vllm", "fa3", constants=free, kv_heads=1) == pytest.approx(append("vllm", "fa3", constants=free) / 4)
    assert append("vllm", "fa3", constants=free, narrow=True) > append("vllm", "fa3", constants=free)
    assert append("sglang", "fa3", constants={**PREFILL, "prepare_sglang": 0.0}) == 0.0


def test_queries_are_read_only_where_a_stack_turns_or_casts_them() -> None:
    few, many = ({"q_heads": heads} for heads in (8.0, 64.0))
    assert append("vllm", "fa3", **few) == append("vllm", "fa3", **many)
    assert append("trtllm", "trtllm", **few) < append("trtllm", "trtllm", **many)
    assert append("sglang", "fa3", narrow=True, **few) < append("sglang", "fa3", narrow=True, **many)
    assert append("sglang", "flashinfer", narrow=True, **few) == append("sglang", "flashinfer", narrow=True, **many)


def test_sglang_stores_keys_and_values_of_uneven_width_with_torch() -> None:
    even, uneven = (append("sglang", "fa3", head_dim=dim) / dim for dim in (128.0, 192.0))
    assert uneven == pytest.approx(PREFILL["uneven_append_cost"] * even)
    assert append("sglang", "triton", head_dim=192.0) == pytest.approx(1.5 * append("sglang", "triton", head_dim=128.0))


def prefill_us(stack: str, kernel: str, kv_dtype: str = "bf16", name: str = "l40s", **shape: float) -> float:
    known = {"batch": 16, "q_len": 8192, "kv_len": 8192, "q_heads": 8, "kv_heads": 1, "head_dim": 64, "window": 0, **shape}
    frame = pd.DataFrame([{**known, "phase": "prefill", "stack": stack, "kernel": kernel, "dtype": "bf16", "kv_dtype": kv_dtype}])
    return 1e6 * float(attention_prefill.terms(gpu(name), OperatorTable.read("attention", frame), PREFILL).latency_s[0])


@pytest.mark.parametrize(("head_dim", "low", "high"), [(64, 0.6, 1.1), (192, 0.25, 0.5)])
def test_sglangs_triton_kernel_masks_every_block_of_a_window(head_dim: int, low: float, high: float) -> None:
    """Public rows of L40S, window 128 over none at 8192 tokens: 0.62 to 0.80 at head_dim 64, 0.40 to 0.43 at 192."""
    full, windowed = (prefill_us("sglang", "triton", head_dim=head_dim, window=window) for window in (0, 128))
    assert low < windowed / full < high
    short = [prefill_us("sglang", "triton", head_dim=head_dim, window=window, q_len=256, kv_len=256, batch=256) for window in (0, 128)]
    assert short[1] > short[0]  # nearly all keys in view: the mask comes on top


def test_triton_converts_fp8_keys_for_few_rows_in_wide_heads() -> None:
    """Public rows of H100 at head_dim 512: 1.6 to 1.7 times as long as with 16-bit keys."""
    wide = [prefill_us("sglang", "triton", kv, "h100_sxm", head_dim=512, q_heads=16, kv_heads=2) for kv in ("bf16", "fp8")]
    assert wide[1] / wide[0] == pytest.approx(PREFILL["triton_mixed_cost"], rel=0.1)


def xqa_us(name: str, **shape: float) -> float:
    known = {"batch": 1024, "q_len": 1, "kv_len": 16, "kv_heads": 4, "head_dim": 128, "window": 0, **shape}
    row = {**known, "phase": "decode", "stack": "trtllm", "kernel": "trtllm", "dtype": "bf16", "kv_dtype": "fp8"}
    columns = OperatorTable.read("attention", pd.DataFrame([row]))
    assert int(columns["kernel"][0]) == KERNELS.index("trtllm")
    return 1e6 * float(attention_decode.terms(gpu(name), columns, constant_values(attention_decode.LAW)).latency_s[0])


def test_units_of_xqa_on_hopper_grow_with_query_heads_and_width() -> None:
    """Public rows with few keys: 1.76 us a unit at 8 query heads of 128, 2.75 at 16, 5.6 at 32, 3.1 at 8 of 256."""
    at = {(group, dim): xqa_us("h100_sxm", q_heads=4 * group, head_dim=dim) for group, dim in ((8, 128), (16, 128), (32, 128), (8, 256))}
    assert at[8, 128] < at[16, 128] < at[32, 128]
    assert at[8, 256] > 1.3 * at[8, 128] and at[32, 128] > 2.0 * at[8, 128]


def moe_terms(stack: str, inter: int, tokens: int = 64) -> tuple[float, float]:
    """(us, us of single loads) of the layer whose rows the law cites, one shard of its experts' columns, on an H100."""
    sizes = {"hidden": 2816, "inter": inter, "num_experts": 128, "top_k": 8, "tokens": tokens}
    found = moe.terms(gpu("h100_sxm"), OperatorTable.read("moe", pd.DataFrame([{**sizes, "stack": stack, "dtype": "bf16"}])), MOE)
    return 1e6 * float(found.latency_s[0]), 1e6 * float(found.seconds["single loads"][0])


def test_triton_loads_singly_where_16_does_not_divide_a_shard() -> None:
    """vLLM, 64 tokens: 128 experts of one tile of 32 rows x 64 columns, 44 tiles wide, one step of 128 along K."""
    us, single = moe_terms("vllm", 88)
    clock = gpu("h100_sxm").max_clock_hz
    assert single == pytest.approx(1e6 * 128 * 44 * (32 + 64) * 128 / (MOE["scalar_per_clock_vllm"] * clock * 132))
    assert moe_terms("vllm", 176)[1] == 0.0 and us > moe_terms("vllm", 176)[0]
    assert 0.0 < moe_terms("sglang", 88)[1] < single
    assert moe_terms("trtllm", 88)[1] == 0.0
