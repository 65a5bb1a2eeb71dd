"""Latent-attention decode by hand: which kernel reads the cache how often, and what its time follows."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.analytic.constants import constant_values
from perfmodel.hw import gpu
from perfmodel.library import mla_decode
from perfmodel.library.terms import OperatorTerms
from perfmodel.ops.names import DTYPES, STACKS


def decode(name: str, stack: str, *, batch: float = 1, heads: float = 8, keys: float = 8192, kv: str = "bf16") -> OperatorTerms:
    columns = {
        "batch": batch, "num_heads": heads, "kv_len": keys, "q_len": 1.0, "dtype": 0.0, "kv_dtype": float(DTYPES.index(kv)),
        "stack": float(STACKS.index(stack)), "kernel": 0.0,
    }  # fmt: skip
    return mla_decode.terms(gpu(name), {key: np.array([value]) for key, value in columns.items()}, constant_values(mla_decode.LAW, {}))


def seconds(name: str, stack: str, **sizes: float) -> float:
    return float(decode(name, stack, **sizes).latency_s[0])  # type: ignore[arg-type]


def test_whole_requests_take_their_keys_one_after_the_other() -> None:
    one, sixteen = (seconds("l40s", "trtllm", batch=batch, keys=32768) for batch in (1, 16))
    assert sixteen < 1.2 * one  # measured: 2549 and 2632 us
    assert seconds("l40s", "trtllm", keys=65536) == pytest.approx(2 * one, rel=0.05)
    assert seconds("l40s", "trtllm", keys=32768, heads=64) == pytest.approx(one, rel=0.05)


def test_split_requests_are_read_at_the_rate_of_memory() -> None:
    found = decode("h100_sxm", "trtllm", batch=512, keys=8192)
    moved = 512 * 8192 * 576 * 2
    assert found.seconds["dram"][0] == pytest.approx(moved / gpu("h100_sxm").dram_bytes_per_s, rel=0.25)
    assert found.bound()[0] == "dram"
    assert seconds("h100_sxm", "trtllm", keys=131072) < 0.1 * seconds("l40s", "trtllm", keys=131072)


def test_groups_of_heads_read_the_cache_anew() -> None:
    few, many = (decode("l40s", "sglang", batch=128, keys=8192, heads=heads).seconds["dram"][0] for heads in (16, 64))
    assert many == pytest.approx(4 * few, rel=0.1)


def test_a_cache_that_is_converted_first_costs_more_than_one_read_as_it_is() -> None:
    sizes = {"batch": 256.0, "keys": 8192.0}
    assert seconds("h100_sxm", "sglang", kv="fp8", **sizes) > 2 * seconds("h100_sxm", "sglang", **sizes)
    assert seconds("h100_sxm", "trtllm", kv="fp8", **sizes) < seconds("h100_sxm", "trtllm", **sizes)
