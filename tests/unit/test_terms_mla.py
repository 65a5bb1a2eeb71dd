"""Every term of latent attention, prefill and decode, by hand, on a GPU and with constants of round numbers.

A head has 128 dimensions without and 64 with rotary part, its value 128; the cached latent 512 + 64. Multiply-adds a pair and head: 320
expanded, 1088 absorbed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fictional import US, ask, card, close, neutral

from perfmodel.library import mla, mla_decode

QUIET = {"floor_us": 0.0, "floor_latencies": 0.0, "floor_cycles": 0.0, "bytes_in_flight": 1e9}


def prefill(arch: str = "sm_89", changes: dict[str, float] | None = None, **row: Any) -> Any:
    c = neutral("library_mla", **{**QUIET, **(changes or {})})
    size = {"phase": "prefill", "batch": 1, "q_len": 1280, "kv_len": 1280, "num_heads": 10, "stack": "vllm"}  # 10 x 10 units: a wave
    return ask(mla.terms, card(arch), c, "mla", **{**size, **row})


def decode(arch: str = "sm_89", changes: dict[str, float] | None = None, **row: Any) -> Any:
    c = neutral("library_mla_decode", **{**QUIET, "key_cycles": 0.0, "request_cycles": 0.0, "tile_cycles": 0.0, **(changes or {})})
    size = {"phase": "decode", "batch": 100, "kv_len": 6400, "num_heads": 16, "stack": "trtllm"}
    return ask(mla_decode.terms, card(arch), c, "mla", **{**size, **row})


# Prefill: pairs of 1280 queries over 1280 keys, 1280 x 1281 / 2, and half a block of 64 a query for the masked part: 1280 x 32
PAIRS = 819840 + 40960
FLOPS = 2 * 10 * PAIRS * 320


def test_prefill_tensor() -> None:
    assert prefill().seconds["tensor"] == close(FLOPS / 1e14)
    assert prefill(changes={"tensor_share_mma": 0.5}).seconds["tensor"] == close(FLOPS / 0.5e14)
    assert prefill("sm_90", {"tensor_share_wgmma": 0.5}).seconds["tensor"] == close(FLOPS / 2e14)


def test_prefill_of_a_context() -> None:
    # 64 queries that stand after 640: 64 x 640 + 64 x 65 / 2 pairs, and half a block each; one block of queries a head: a tenth of a wave
    pairs = 64 * 640 + 2080 + 64 * 32
    assert prefill(q_len=64, kv_len=704).seconds["tensor"] == close(2 * 10 * pairs * 320 / 1e14 * 10)
    # 60 queries count as a block of 64
    assert prefill(q_len=60, kv_len=700).seconds["tensor"] == close(2 * 10 * pairs * 320 / 1e14 * 10)


def test_absorbed_prefill() -> None:
    assert prefill(stack="sglang").seconds["tensor"] == close(2 * 10 * 819840 * 1088 / 1e14)
    assert prefill(changes={"triton_share": 0.5}, stack="sglang").seconds["tensor"] == close(2 * 10 * 819840 * 1088 / 0.5e14)
    assert prefill("sm_90", {"triton_share": 0.5}, stack="sglang").seconds["tensor"] == close(2 * 10 * 819840 * 1088 / 4e14)


def test_prefill_waves() -> None:
    # 150 units on 100 SMs: the last wave counts by its weight: 1 + w (2 / 1.5 - 1)
    for weight, share in ((1.0, 4 / 3), (0.5, 7 / 6)):
        assert prefill(changes={"tail_weight": weight}, num_heads=15).seconds["tensor"] == close(share * 1.5 * FLOPS / 1e14)


def test_prefill_exponentials() -> None:
    # one a pair, 10 a clock and SM at 2 GHz
    assert prefill().seconds["exp"] == close(10 * PAIRS / (10 * 100 * 2e9))
    assert prefill(num_heads=15).seconds["exp"] == close(4 / 3 * 15 * PAIRS / 2e12)


def test_prefill_chain() -> None:
    # 1281 keys are 21 tiles of 64, 500 cycles each at 2 GHz
    assert prefill(changes={"tile_cycles": 500.0}, kv_len=1281).seconds["kv chain"] == close(21 * 500 / 2e9)


HELD = 1280 * 10 * 320 * 2.0  # keys and values of 320 elements a head
OTHER = 1280 * 10 * 320 * 2.0  # queries and output


def test_prefill_dram() -> None:
    c = {"usable_cache": 0.1}
    cold = (HELD + OTHER) / (HELD + OTHER + 1e7)
    assert prefill(changes=c).seconds["dram"] == close((HELD + OTHER) * cold / 1e12)
    assert prefill(changes={**c, "dram_efficiency": 0.5}).seconds["dram"] == close((HELD + OTHER) * cold / 0.5e12)
    assert prefill(changes={**c, "bytes_in_flight": 2000.0}).seconds["dram"] == close((HELD + OTHER) * cold / 1e11)
    fp8 = HELD / 2 + OTHER
    assert prefill(changes=c, kv_dtype="fp8").seconds["dram"] == close(fp8 * fp8 / (fp8 + 1e7) / 1e12)
    half = HELD + OTHER / 2  # 640 queries over the same keys: 50 units
    assert prefill(changes={**c, "bytes_in_flight": 2000.0}, q_len=640).seconds["dram"] == close(half * half / (half + 1e7) / 0.5e11)


def test_prefill_l2() -> None:
    # every block of 128 queries reads its keys again
    again = 10 * PAIRS / 128 * 320 * 2.0
    assert prefill().seconds["l2"] == close((HELD + OTHER + again) / 1e13)
    assert prefill(changes={"l2_rate_factor": 0.5}).seconds["l2"] == close((HELD + OTHER + again) / 0.5e13)
    absorbed = 10 * 819840 / 128 * 576 * 2.0
    assert prefill(stack="sglang").seconds["l2"] == close((HELD + OTHER + absorbed) / 1e13)
    pairs = 640 * 640 + 640 * 641 / 2 + 640 * 32
    assert prefill(q_len=640).seconds["l2"] == close((HELD + OTHER / 2 + 10 * pairs / 128 * 640) / 1e13 * 2)  # 50 of 100 SMs


def test_prefill_launches() -> None:
    # four launches of 1 us + 2 x 1 us + 4000 cycles at 2 GHz, and two more for an fp8 cache
    c = {"floor_us": 1.0, "floor_latencies": 2.0, "floor_cycles": 4000.0, "launches_vllm": 4.0, "fp8_launches": 2.0}
    assert prefill(changes=c).seconds["launch"] == close(20 * US)
    assert prefill(changes=c, kv_dtype="fp8").seconds["launch"] == close(30 * US)


def test_prefill_latency() -> None:
    c = {"floor_us": 1.0, "tile_cycles": 500.0}
    s = prefill(changes=c).seconds
    assert prefill(changes=c).latency_s == close(sum(s.values()))
    other = prefill(changes={**c, "overlap_power": 2.0}).latency_s
    assert other == close(s["launch"] + ((s["tensor"] + s["exp"]) ** 2 + s["dram"] ** 2 + s["l2"] ** 2 + s["kv chain"] ** 2) ** 0.5)


def test_prefill_features() -> None:
    found = prefill(changes={"floor_us": 1.0, "tile_cycles": 500.0}, num_heads=15, kv_dtype="fp8", kv_len=2560)
    names = {"tensor": "tensor", "exp": "exp", "chain": "kv chain", "dram": "dram", "l2": "l2", "fixed": "launch"}
    for feature, term in names.items():
        assert found.features[feature] == close(np.log(found.seconds[term] / found.latency_s)), feature
    wanted = {
        "waves": np.log(1.5), "tail": 2 / 1.5, "cache_in_l2": np.log(2560 * 15 * 320 / 1e8), "log2_q": np.log2(1280),
        "log2_kv": np.log2(2560),
        "log2_batch": 0, "log2_heads": np.log2(15), "fp8_cache": 1, "warpgroup": 0, "dtype": 0, "stack": 1, "kernel": 0,
    }  # fmt: skip
    assert {name: found.features[name] for name in wanted} == close(wanted)


# Decode on sm_89 by TensorRT-LLM: blocks take whole requests. 100 requests of 16 heads: one block each


def test_decode_tensor() -> None:
    # 16 heads padded to a block of 64: 2 x 100 x 64 x 6400 x 1088 flop
    assert decode().seconds["tensor"] == close(2 * 100 * 64 * 6400 * 1088 / 1e14)
    assert decode(changes={"tensor_share_mma": 0.5}).seconds["tensor"] == close(2 * 100 * 64 * 6400 * 1088 / 0.5e14)
    assert decode(batch=50).seconds["tensor"] == close(2 * 100 * 64 * 6400 * 1088 / 1e14)  # half the flop on half of the SMs
    # warp groups: 100 blocks x 2 splits fill the GPU
    assert decode("sm_90", {"tensor_share_wgmma": 0.5}).seconds["tensor"] == close(2 * 100 * 64 * 6400 * 1088 / 2e14)
    # Triton: groups of 16 heads
    assert decode(stack="vllm").seconds["tensor"] == close(2 * 100 * 16 * 6400 * 1088 / 1e14)
    assert decode(stack="vllm", num_heads=17).seconds["tensor"] == close(2 * 100 * 32 * 6400 * 1088 / 1e14)


def test_decode_keys_of_whole_requests_follow_each_other() -> None:
    # 6400 keys x 500 cycles at 2 GHz; SMs shared: 100 x 6400 / 100 keys x 0.25 each; together by power 1: their sum
    c = {"key_cycles": 500.0, "shared_load": 0.25}
    one = 6400 * 500 / 2e9
    assert decode(changes=c).seconds["kv chain"] == close(one + 0.25 * one)
    assert decode(changes=c, batch=200).seconds["kv chain"] == close(one + 0.5 * one)
    assert decode(changes={**c, "fp8_key_share": 0.5}, kv_dtype="fp8").seconds["kv chain"] == close(0.5 * 1.25 * one)
    assert decode(changes={**c, "sharing_power": 2.0}).seconds["kv chain"] == close(one * (1 + 0.25**2) ** 0.5)


def test_decode_steps_of_split_requests() -> None:
    # warp groups: 2 x 100 SMs / 100 units = 2 splits of 3200 keys, 50 steps of 64; two waves, each hidden but for a tenth
    c = {"tile_cycles": 400.0, "hidden_share": 0.1}
    step = 50 * 400 / 2e9
    assert decode("sm_90", c).seconds["kv chain"] == close(step + 2 * step * 0.1)
    assert decode("sm_90", c, batch=10).seconds["kv chain"] == close(5 * 400 / 2e9 * (1 + 2 * 0.1))  # 20 splits of 320 keys, two waves
    # Triton: 8 splits of 800 keys, 25 steps of 32; 8 waves
    assert decode(changes=c, stack="vllm").seconds["kv chain"] == close(25 * 400 / 2e9 * (1 + 8 * 0.1))
    assert decode(changes=c, stack="vllm", batch=1, kv_len=33).seconds["kv chain"] == close(1 * 400 / 2e9 * 1.1)  # two begun steps, split
    assert decode("sm_90", c, batch=300).seconds["kv chain"] == close(100 * 400 / 2e9 * (1 + 3 * 0.1))  # not split


HELD_D = 100 * 6400 * 576 * 2.0
OTHER_D = 100 * 16 * (576 + 512) * 2.0


def test_decode_dram() -> None:
    cold = HELD_D / (HELD_D + 1e7)
    c = {"usable_cache": 0.1}
    assert decode(changes=c).seconds["dram"] == close((HELD_D * cold + OTHER_D) / 1e12)
    assert decode(changes={**c, "dram_efficiency": 0.5}).seconds["dram"] == close((HELD_D * cold + OTHER_D) / 0.5e12)
    assert decode(changes={**c, "bytes_in_flight": 2000.0}).seconds["dram"] == close((HELD_D * cold + OTHER_D) / 1e11)
    # Triton reads the cache once a group of 16 heads
    other = 100 * 32 * 1088 * 2.0
    assert decode(changes=c, stack="vllm", num_heads=32).seconds["dram"] == close((2 * HELD_D * cold + other) / 1e12)
    # an fp8 cache is read as it is by Triton, as 16 bits by whole requests
    half = HELD_D / 2
    assert decode(changes=c, stack="vllm", kv_dtype="fp8").seconds["dram"] == close((half * half / (half + 1e7) + OTHER_D) / 1e12)
    assert decode(changes=c, kv_dtype="fp8").seconds["dram"] == close((HELD_D * cold + OTHER_D) / 1e12)


def test_decode_l2() -> None:
    assert decode().seconds["l2"] == close((HELD_D + OTHER_D) / 1e13)
    assert decode(changes={"l2_rate_factor": 0.5}).seconds["l2"] == close((HELD_D + OTHER_D) / 0.5e13)
    assert decode(stack="vllm", num_heads=32).seconds["l2"] == close((2 * HELD_D + 100 * 32 * 1088 * 2.0) / 1e13)
    assert decode(batch=50).seconds["l2"] == close((HELD_D + OTHER_D) / 1e13)  # half of it by half of the SMs


def test_decode_launch_and_requests() -> None:
    c = {"floor_us": 3.0, "launches_trtllm": 2.0, "request_cycles": 8000.0}
    # two launches of 3 us; 100 requests on 100 SMs: 8000 cycles at 2 GHz
    assert decode(changes=c).seconds["launch and partial sums"] == close(6 * US + 4 * US)
    assert decode(changes=c, batch=300).seconds["launch and partial sums"] == close(6 * US + 12 * US)


def test_decode_partials() -> None:
    # Triton: 100 x 16 heads x 8 parts x 513 numbers x 8 bytes (written and read in 32 bits) at 1e12 B/s, half of it hidden
    partial = 100 * 16 * 8 * 513 * 8 / 1e12
    found = decode(changes={"partial_share": 0.5}, stack="vllm")
    assert found.seconds["launch and partial sums"] == close(0.5 * partial)
    assert decode(changes={"partial_share": 0.5, "dram_efficiency": 0.5}, stack="vllm").seconds["launch and partial sums"] == close(partial)
    both = decode(changes={"request_cycles": 8000.0, "sharing_power": 2.0}, stack="vllm").seconds["launch and partial sums"]
    assert both == close(((4 * US) ** 2 + partial**2) ** 0.5)
    assert decode().seconds["launch and partial sums"] == 0 and decode("sm_90", stack="vllm").seconds["launch and partial sums"] == 0


def test_decode_cast() -> None:
    # SGLang on sm_90 converts an fp8 cache: two pools of 100 x 6400 x 576 elements, a byte read and two written each; one launch more
    c = {"cast_pools": 2.0, "cast_launches": 3.0, "floor_us": 1.0, "launches_sglang": 4.0}
    found = decode("sm_90", c, stack="sglang", kv_dtype="fp8")
    s = found.seconds
    assert s["launch and partial sums"] == close(7 * US)
    assert s["cache conversion"] == close(2 * 100 * 6400 * 576 * 3 / 1e12)
    assert found.latency_s == close(sum(s.values()))
    cold = HELD_D / (HELD_D + 1e8)
    assert s["dram"] == close((HELD_D * cold + OTHER_D) / 1e12)  # it then attends over 16 bits
    for stack, dtype, arch in (("sglang", "bf16", "sm_90"), ("vllm", "fp8", "sm_90"), ("sglang", "fp8", "sm_89")):
        assert decode(arch, c, stack=stack, kv_dtype=dtype).seconds["cache conversion"] == 0


def test_decode_latency() -> None:
    c = {"floor_us": 3.0, "key_cycles": 500.0, "request_cycles": 8000.0}
    s = decode(changes=c).seconds
    assert decode(changes=c).latency_s == close(sum(s.values()))
    other = decode(changes={**c, "overlap_power": 2.0}).latency_s
    assert other == close(s["launch and partial sums"] + sum(s[name] ** 2 for name in ("tensor", "kv chain", "dram", "l2")) ** 0.5)


@pytest.mark.parametrize(("arch", "stack"), [("sm_89", "trtllm"), ("sm_89", "vllm"), ("sm_90", "sglang")])
def test_decode_features(arch: str, stack: str) -> None:
    c = {"floor_us": 3.0, "key_cycles": 500.0, "tile_cycles": 400.0, "hidden_share": 0.1, "shared_load": 0.25, "cast_pools": 2.0}
    found = decode(arch, c, stack=stack, kv_dtype="fp8", batch=150, num_heads=20)
    names = {"tensor": "tensor", "chain": "kv chain", "dram": "dram", "l2": "l2", "fixed": "launch and partial sums"}
    for feature, term in names.items():
        assert found.features[feature] == close(np.log(found.seconds[term] / found.latency_s)), feature
    whole, triton = stack == "trtllm", stack == "vllm"
    # 150 requests: whole; x 2 groups of 16 heads x 8 splits of 800 keys; one split of 6400 keys
    follow = 6400 * 500 / 2e9 if whole else 25 * 400 / 2e9 if triton else 100 * 400 / 2e9
    held = 150 * 6400 * 576 * (1.0 if triton else 2.0)
    wanted = {
        "follow": np.log(follow / found.latency_s), "waves": np.log(24.0 if triton else 1.5), "cache_in_l2": np.log(held / 1e8),
        "log2_kv": np.log2(6400), "log2_batch": np.log2(150), "log2_heads": np.log2(20), "whole": float(whole), "triton": float(triton),
        "fp8_cache": 1,
        "warpgroup": float(arch == "sm_90"), "dtype": 0, "stack": ("vllm", "sglang", "trtllm").index(stack) + 1, "kernel": 0,
        "convert": 2 * 150 * 6400 * 576 * 3 / 1e12 / found.latency_s if stack == "sglang" else 0,
    }  # fmt: skip
    assert {name: found.features[name] for name in wanted} == close(wanted)
