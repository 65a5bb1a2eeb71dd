"""Every term of the decode law by hand, on a GPU and with constants of round numbers.

10 requests of 6400 keys, 10 KV heads of 128, 4 query heads each: 100 units, one on each SM. A unit pads its 4 rows to 16.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from fictional import US, ask, card, close, neutral

from perfmodel.library import attention_decode, attention_tiles
from perfmodel.library.stacks.trtllm import xqa

HELD = 2 * 10 * 10 * 6400 * 128 * 2.0
SMALL = 2 * 10 * 40 * 128 * 2.0
ELEMENTS = 10 * 10 * 16 * 6400
SIZE = {"phase": "decode", "batch": 10, "kv_len": 6400, "q_heads": 40, "kv_heads": 10, "head_dim": 128}


def asked(arch: str = "sm_89", changes: dict[str, float] | None = None, **row: Any) -> Any:
    law = "library_attention_decode"
    quiet = [name for name in neutral(law) if name.startswith(("floor", "unit_", "sequence_ns", "prepare", "combine_split"))]
    base = {
        **dict.fromkeys([*quiet, "tile_cycles", "tile_dim_cycles", "tile_latencies", "ramp", "window_edge_tokens", "varlen_launches"], 0.0),
        "bytes_in_flight": 1e9, "split_tokens": 128.0, "max_splits": 128.0, "max_splits_vllm_triton": 16.0, "max_splits_sglang_triton": 4.0,
    }  # fmt: skip
    return ask(attention_decode.terms, card(arch), neutral(law, **{**base, **(changes or {})}), "attention", **{**SIZE, **row})


def test_dram_reads_keys_and_values_once() -> None:
    # 2 x 10 requests x 10 heads x 6400 keys x 128 x 2 bytes, queries and output beside; cold = set / (set + usable)
    c = {"usable_cache": 0.1}
    cold = (HELD + SMALL) / (HELD + SMALL + 1e7)
    assert asked(changes=c).seconds["dram"] == close((HELD + SMALL) * cold / 1e12)
    assert asked(changes={**c, "dram_efficiency": 0.5}).seconds["dram"] == close((HELD + SMALL) * cold / 0.5e12)
    assert asked(changes={**c, "bytes_in_flight": 2000.0}).seconds["dram"] == close((HELD + SMALL) * cold / 1e11)
    assert asked("sm_90", {"partition_share": 0.5, "partition_share_hopper": 0.1}).seconds["dram"] == close((HELD + SMALL) * cold / 1e12)
    half = HELD / 2 + SMALL
    assert asked(changes=c, kv_dtype="fp8").seconds["dram"] == close(half * half / (half + 1e7) / 1e12)
    # five requests of one KV head that are not split keep five SMs busy
    few = 2 * 5 * 6400 * 128 * 2 + 2 * 5 * 4 * 128 * 2.0
    found = asked(changes={**c, "bytes_in_flight": 2000.0, "max_splits": 1.0}, batch=5, kv_heads=1, q_heads=4).seconds
    assert found["dram"] == close(few * few / (few + 1e7) / 0.5e10)
    assert found["l2"] == close(few / 1e13 * 20)


def test_a_window_bounds_the_keys() -> None:
    # 640 keys, and 64 more in blocks that the window cuts
    for edge, keys in ((0.0, 640), (64.0, 704)):
        moved = 2 * 10 * 10 * keys * 128 * 2 + SMALL
        found = asked(changes={"window_edge_tokens": edge, "usable_cache": 0.1, "tile_cycles": 100.0}, window=640)
        assert found.seconds["dram"] == close(moved * moved / (moved + 1e7) / 1e12)
        assert found.seconds["kv chain"] == close(-(-keys // 64) * 100 / 2e9)
        assert found.features["log2_seen"] == close(np.log2(640)) and found.features["log2_kv"] == close(np.log2(6400))
    assert asked(changes={"window_edge_tokens": 64.0}, window=6400).seconds["l2"] == close((HELD + SMALL) / 1e13)


def test_l2_reads_them_once_a_pass() -> None:
    assert asked().seconds["l2"] == close((HELD + SMALL) / 1e13)
    assert asked(changes={"l2_rate_factor": 0.5}).seconds["l2"] == close((HELD + SMALL) / 0.5e13)
    # 130 query heads on a KV head: three passes of 64 rows at most
    wide = asked(q_heads=1300)
    assert wide.seconds["l2"] == close((3 * HELD + 2 * 10 * 1300 * 128 * 2.0) / 1e13)
    assert wide.features["passes"] == close(np.log2(3))


def test_multiplies_of_padded_rows() -> None:
    # 4 d flop a pair of a row, padding among them, and a key
    assert asked().seconds["tensor"] == close(4.0 * ELEMENTS * 128 / 1e14)
    assert asked(changes={"tensor_share_mma": 0.5}).seconds["tensor"] == close(4.0 * ELEMENTS * 128 / 0.5e14)
    assert asked(q_heads=200).seconds["tensor"] == close(2 * 4.0 * ELEMENTS * 128 / 1e14)  # 20 rows: two tiles of 16
    assert asked("sm_90", {"mma_on_wgmma_share": 0.5}).seconds["tensor"] == close(4.0 * ELEMENTS * 128 / 2e14)
    # FlashAttention-2 pads to 64 rows; FlashAttention-3 too, by warp groups, and multiplies fp8 as it is
    assert asked(changes={"tensor_share_fa2": 0.5}, kernel="fa2").seconds["tensor"] == close(4 * 4.0 * ELEMENTS * 128 / 0.5e14)
    fa3 = asked("sm_90", {"tensor_share_fa3": 0.5}, kernel="fa3").seconds["tensor"]
    assert fa3 == close(4 * 4.0 * ELEMENTS * 128 / 2e14)
    assert asked("sm_90", {"tensor_share_fa3": 0.5}, kernel="fa3", kv_dtype="fp8").seconds["tensor"] == close(fa3 / 2)


def test_exponentials() -> None:
    assert asked().seconds["exp"] == close(ELEMENTS / (10 * 100 * 2e9))


def test_conversion_of_an_fp8_cache() -> None:
    # its elements at 32 a clock and SM
    elements = HELD / 2
    assert asked(changes={"convert_per_clock": 32.0}).seconds["conversion"] == 0
    assert asked(changes={"convert_per_clock": 32.0}, kv_dtype="fp8").seconds["conversion"] == close(elements / (32 * 100 * 2e9))
    assert asked(changes={"convert_per_clock_triton": 8.0}, kv_dtype="fp8", kernel="triton").seconds["conversion"] == close(
        elements / 1.6e12
    )
    assert asked("sm_90", {"convert_per_clock_fa3": 64.0}, kv_dtype="fp8", kernel="fa3").seconds["conversion"] == close(elements / 1.28e13)
    wide = asked("sm_90", {"convert_per_clock_fa3": 64.0}, kv_dtype="fp8", kernel="fa3", head_dim=256)
    assert wide.seconds["conversion"] == close(2 * elements / 0.64e13)


def test_trtllm_runs_large_groups_one_head_at_a_time() -> None:
    # 40 query heads on a KV head: MMHA converts what it multiplies on CUDA cores, every pass
    for arch, name in (("sm_89", "convert_per_clock_mmha"), ("sm_80", "convert_per_clock_mmha")):
        found = asked(arch, {name: 16.0}, stack="trtllm", q_heads=400)
        assert found.seconds["conversion"] == close(40 * HELD / 2 / (16 * 100 * 2e9)), arch
    fp8 = asked(changes={"convert_per_clock_mmha_sm_89": 8.0}, stack="trtllm", q_heads=400, kv_dtype="fp8")
    assert fp8.seconds["conversion"] == close(40 * HELD / 2 / (8 * 100 * 2e9))


def test_chain_of_key_tiles() -> None:
    # 100 tiles of 64 keys: 100 + 200 cycles at 2 GHz and half a round trip of 1 us; before them 5000 cycles a unit
    c = {"tile_cycles": 100.0, "tile_dim_cycles": 200.0, "tile_latencies": 0.5, "unit_cycles_other": 5000.0}
    assert asked(changes=c).seconds["kv chain"] == close(5000 / 2e9 + 100 * (300 / 2e9 + 0.5 * US))
    assert asked(changes=c, head_dim=256).seconds["kv chain"] == close(5000 / 2e9 + 100 * (500 / 2e9 + 0.5 * US))
    assert asked(changes=c, kv_len=6401).seconds["kv chain"] == close(5000 / 2e9 + 101 * (300 / 2e9 + 0.5 * US))
    fp8 = asked(changes={**c, "tile_fp8_share": 0.5}, kv_dtype="fp8")
    assert fp8.seconds["kv chain"] == close(5000 / 2e9 + 100 * (200 / 2e9 + 0.5 * US))
    triton = asked(changes={**c, "unit_cycles_triton": 1000.0, "triton_chain": 1.5}, kernel="triton")
    assert triton.seconds["kv chain"] == close(1000 / 2e9 + 1.5 * 100 * (300 / 2e9 + 0.5 * US))
    # a share of a unit's cycles goes by head_dim: half of it at 64
    assert asked(changes={"unit_cycles_other": 5000.0, "unit_dim_share": 0.4}, head_dim=64).seconds["kv chain"] == close(5000 * 0.8 / 2e9)


def test_waves_of_the_chain() -> None:
    # 15 requests: 150 units; the tail counts by its weight; two blocks an SM: 0.75 waves
    for weight, share in ((1.0, 2.0), (0.5, 1.75), (0.0, 1.5)):
        c = {"unit_cycles_other": 5000.0, "tail_weight": weight}
        assert asked(changes=c, batch=15).seconds["kv chain"] == close(share * 5000 / 2e9)
        assert asked(changes={**c, "blocks_per_sm": 2.0, "max_splits": 1.0}, batch=15).seconds["kv chain"] == close(5000 / 2e9)


def test_splits_and_their_combination() -> None:
    # one request: 10 units, 100 SMs: 10 splits of 640 keys; the combine pass adds 10 shares of 40 x 128 numbers of 4 bytes
    c = {"tile_cycles": 100.0, "combine_split_cycles": 400.0, "combine_launches": 2.0, "floor_us": 1.0}
    found = asked(changes=c, batch=1)
    assert found.features["splits"] == close(np.log2(10))
    assert found.seconds["kv chain"] == close(10 * 100 / 2e9)
    assert found.seconds["combine"] == close(2 * US + 10 * (400 / 2e9 + 40 * 128 * 4 / 1e13))
    assert asked(changes=c).seconds["combine"] == 0
    # never a share of less than 128 keys, and no more shares than are allowed
    assert asked(changes=c, batch=1, kv_len=300).features["splits"] == close(np.log2(3))
    assert asked(changes={**c, "max_splits": 4.0}, batch=1).features["splits"] == 2
    assert asked(changes=c, batch=1, kernel="triton", stack="sglang").features["splits"] == 2
    fa2 = asked(changes={**c, "combine_split_cycles_fa2": 800.0}, batch=1, kernel="fa2")
    shares = 2 ** fa2.features["splits"]
    assert fa2.seconds["combine"] == close(2 * US + shares * (800 / 2e9 + 40 * 128 * 4 / 1e13))


def test_flash_attention_2_fills_waves() -> None:
    # two blocks an SM: 200 places; 10 units take 20 shares each, one of 128 keys at least; 60 units: 3 shares, 180 of 200 are 90 %
    assert asked(batch=1, kernel="fa2").features["splits"] == close(np.log2(20))
    assert asked(batch=6, kernel="fa2").features["splits"] == close(np.log2(3))
    # 70 units: 2 shares fill 140 of 200 (70 %), 5 fill 350 of 400 (87 %)
    assert asked(batch=7, kernel="fa2").features["splits"] == close(np.log2(5))
    assert asked(batch=16, kernel="fa2").features["splits"] == 0  # from 0.8 of the places on


def test_prepare() -> None:
    # queries and new keys and values, read and written once more from L2: 2 x 10 x 128 x 2 x (40 + 2 x 10) bytes
    assert asked(changes={"prepare_any": 0.5}).seconds["prepare"] == close(0.5 * 2 * 10 * 128 * 2 * 60 / 1e13)


def test_launches_and_ramp() -> None:
    # four of 1 us + 2 x 1 us + 4000 cycles at 2 GHz, 300 ns a sequence; an fp8 cache half a launch; half a unit to begin with
    c = {
        "floor_us": 1.0,
        "floor_latencies": 2.0,
        "floor_cycles": 4000.0,
        "launches_any": 4.0,
        "sequence_ns_any": 300.0,
        "fp8_launches_any": 0.5,
    }
    assert asked(changes=c).seconds["launch"] == close(20 * US + 3 * US)
    assert asked(changes=c, kv_dtype="fp8").seconds["launch"] == close(22.5 * US + 3 * US)
    assert asked(changes={"ramp": 0.5, "unit_cycles_other": 5000.0}).seconds["launch"] == close(asked().seconds["launch"] + 2500 / 2e9)
    v = {"floor_us": 1.0, "launches_vllm_fa": 4.0, "varlen_launches": 2.0}
    assert asked(changes=v, stack="vllm", kernel="fa2").seconds["launch"] == close(6 * US)
    assert asked(changes=v, stack="vllm", kernel="fa2", batch=1).seconds["launch"] == close(4 * US)
    assert asked("sm_90", v, stack="vllm", kernel="fa3", batch=992).seconds["launch"] == close(6 * US)
    assert asked("sm_90", v, stack="vllm", kernel="fa3", batch=993).seconds["launch"] == close(4 * US)


def test_latency() -> None:
    c = {"floor_us": 1.0, "tile_cycles": 100.0, "prepare_any": 0.5, "combine_split_cycles": 400.0, "convert_per_clock": 32.0}
    found = asked(changes=c, batch=1, kv_dtype="fp8")
    s = found.seconds
    assert found.latency_s == close(sum(s.values()))
    other = asked(changes={**c, "overlap_power": 2.0}, batch=1, kv_dtype="fp8").latency_s
    busy = s["tensor"] + s["exp"] + s["conversion"]
    assert other == close(s["launch"] + s["prepare"] + s["combine"] + (s["dram"] ** 2 + s["l2"] ** 2 + busy**2 + s["kv chain"] ** 2) ** 0.5)
    # warp-specialised kernels overlap by a power of their own
    own = asked("sm_90", {**c, "overlap_power_wgmma": 2.0}, kernel="fa3")
    s = own.seconds
    busy = s["tensor"] + s["exp"] + s["conversion"]
    assert own.latency_s == close(
        s["launch"] + s["prepare"] + s["combine"] + (s["dram"] ** 2 + s["l2"] ** 2 + busy**2 + s["kv chain"] ** 2) ** 0.5
    )


def test_features() -> None:
    c = {"floor_us": 1.0, "tile_cycles": 100.0, "prepare_any": 0.5, "convert_per_clock": 32.0, "combine_split_cycles": 400.0}
    found = asked(changes=c, batch=3, kv_dtype="fp8", window=3200)
    s, t = found.seconds, found.latency_s
    wanted = {
        "dram": np.log(s["dram"] / t), "l2": np.log(s["l2"] / t), "tensor": np.log((s["tensor"] + s["exp"]) / t),
        "convert": s["conversion"] / t,
        "chain": np.log(s["kv chain"] / t), "combine": s["combine"] / t, "prepare": s["prepare"] / t, "fixed": np.log(s["launch"] / t),
        "waves": np.log(0.9), "tail": 1 / 0.9, "splits": np.log2(3), "passes": 0, "pairs_per_sm": np.log(0.3), "log2_batch": np.log2(3),
        "cache_in_l2": np.log(2 * 3 * 10 * 3200 * 128 / 1e8), "log2_seen": np.log2(3200), "log2_kv": np.log2(6400),
        "log2_kv_heads": np.log2(10), "group": 4, "head_dim": 128, "windowed": 1, "fp8_cache": 1, "path": 0, "stack": 0, "kernel": 0,
    }  # fmt: skip
    for name, value in wanted.items():
        assert found.features[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_trtllm_packs_groups_on_sm_89() -> None:
    # XQA: units of its own cycles, and a second tile of heads from 17 on; 400 heads on 10 KV heads are MMHA
    c = {"unit_cycles_xqa": 3000.0, "xqa_second_tile": 2.0}
    assert asked(changes=c, stack="trtllm", kv_dtype="fp8").seconds["kv chain"] == close(3000 / 2e9)
    assert asked(changes=c, stack="trtllm", kv_dtype="fp8", q_heads=160).seconds["kv chain"] == close(3000 / 2e9)
    assert asked(changes=c, stack="trtllm", kv_dtype="fp8", q_heads=170).seconds["kv chain"] == close(6000 / 2e9)


def test_trtllms_hopper_kernel() -> None:
    # fp8 cache on sm_90: it turns 8 query heads at a time, 0.8 of its cycles by that and by head_dim, and runs fewer kernels
    # 100 units in 8 shares each: eight waves
    c = {
        "unit_cycles_xqa_hopper": 2000.0,
        "unit_dim_share_xqa_hopper": 0.8,
        "floor_us": 1.0,
        "launches_trtllm": 4.0,
        "xqa_hopper_launches": 0.5,
    }
    one = {"stack": "trtllm", "kv_dtype": "fp8", "batch": 10}
    assert asked("sm_90", c, **one).seconds["kv chain"] == close(8 * 2000 / 2e9)
    assert asked("sm_90", c, **one, q_heads=160).seconds["kv chain"] == close(8 * 2000 * (0.2 + 0.8 * 2) / 2e9)
    assert (
        asked("sm_90", c, **one).seconds["launch"] == close(2 * US)
        and asked("sm_90", {**c, "prepare_trtllm": 9.0}, **one).seconds["prepare"] == 0
    )
    assert asked("sm_90", c, **one, head_dim=64).seconds["launch"] == close(3 * US)
    assert asked("sm_90", {**c, "fp8_launches_trtllm": 0.5}, **one, q_heads=10).seconds["launch"] == close(4.5 * US)  # no group: not packed


def test_the_shares_of_xqa() -> None:
    # 64 blocks of 128 keys, at most sqrt(8 x 64) = 23 shares, rounded; 100 units: at most 8 an SM
    on, zero = card(), np.zeros(1)

    def shares(batch: float, kv_len: float, group: float = 4.0, fp8: float = 0.0) -> tuple[bool, float]:
        columns = {"batch": batch, "kv_heads": 10.0, "q_heads": 10.0 * group, "kv_len": kv_len}
        packed, found = xqa(on, {n: zero + v for n, v in columns.items()}, zero + fp8)
        return bool(packed[0]), float(found[0])

    assert (
        shares(1, 8192) == (True, 23) and shares(1, 512) == (True, 4) and shares(10, 8192) == (True, 8) and shares(100, 8192) == (True, 1)
    )
    # without an fp8 cache only where 4 x units x blocks reach the SMs; groups of 2 to 32
    assert shares(1, 256) == (False, 2) and shares(1, 384)[0] and shares(1, 256, fp8=1.0)[0]
    assert not shares(10, 8192, 1.0)[0] and shares(10, 8192, 32.0)[0] and not shares(10, 8192, 33.0)[0]
    assert shares(3000, 8192)[1] == 1


def test_tiles_that_fit_an_sm() -> None:
    # 2 x 256 x (128 + 128) bytes a block of 128 rows, 98304 of 64: wide where a block may have as much and two narrow ones do not fit
    def narrow(block: int, sm: int) -> bool:
        return attention_tiles.narrow_tiles(dataclasses.replace(card(), smem_per_block_bytes=block, smem_per_sm_bytes=sm))

    assert narrow(131071, 150_000) and not narrow(131072, 196_607) and narrow(131072, 196_608)
