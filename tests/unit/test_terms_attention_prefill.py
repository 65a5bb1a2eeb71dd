"""Every term of the prefill law by hand, on a GPU and with constants of round numbers.

1280 queries over as many keys, 10 heads of 128, a kernel of which only the tile of 128 queries and 64 keys is known: 10 x 10 units, one on
each SM. Causal pairs 1280 x 1281 / 2; the edge of a tile adds (128 + 64) / 2 pairs a query.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fictional import US, ask, card, close, neutral

from perfmodel.library import attention_prefill

EXACT = 819840
PAIRS = EXACT + 1280 * 96
FLOPS = 4.0 * 10 * PAIRS * 128
TOKENS = 1280 * 10 * 128 * (2 + 2) + 2 * 1280 * 10 * 128 * 2.0
SIZE = {"phase": "prefill", "batch": 1, "q_len": 1280, "kv_len": 1280, "q_heads": 10, "kv_heads": 10, "head_dim": 128}


def asked(arch: str = "sm_89", changes: dict[str, float] | None = None, **row: Any) -> Any:
    quiet = [name for name in neutral("library_attention_prefill") if name.startswith(("floor", "unit_cycles", "sequence_ns", "prepare"))]
    base = {
        **dict.fromkeys([*quiet, "tile_cycles", "tile_dim_cycles", "pj_mma", "pj_wgmma", "pj_per_byte", "idle_share", "pipeline_fill"],
        0.0),
        "bytes_in_flight": 1e9, "token_block_cycles": 0.0,
    }  # fmt: skip
    return ask(
        attention_prefill.terms,
        card(arch),
        neutral("library_attention_prefill", **{**base, **(changes or {})}),
        "attention",
        **{**SIZE, **row},
    )


def test_tensor() -> None:
    # 4 d flop a pair at 1e14 x 2 GHz / 1 GHz
    assert asked().seconds["tensor"] == close(FLOPS / 2e14)
    assert asked(changes={"share_other": 0.5}).seconds["tensor"] == close(FLOPS / 1e14)
    assert asked(batch=2).seconds["tensor"] == close(2 * FLOPS / 2e14)
    assert asked(dtype="fp16").seconds["tensor"] == close(FLOPS / 2e14)


def test_pairs_of_tiles_on_the_diagonal() -> None:
    assert asked(changes={"causal_edges": 0.0}).seconds["tensor"] == close(4 * 10 * EXACT * 128 / 2e14)
    assert asked(changes={"causal_edges": 2.0}).seconds["tensor"] == close(4 * 10 * (EXACT + 2 * 1280 * 96) * 128 / 2e14)
    assert asked().features["edge"] == close(np.log(PAIRS / EXACT))
    # 128 queries over 128 keys: never more than whole tiles, 128 x 128; ten units
    assert asked(q_len=128, kv_len=128).seconds["tensor"] == close(4 * 10 * 128 * 128 * 128 / 2e14 * 10)


def test_pairs_of_a_context_and_of_a_window() -> None:
    # 1280 queries after 640 keys: 1280 x 640 more
    assert asked(kv_len=1920).seconds["tensor"] == close(4 * 10 * (PAIRS + 1280 * 640) * 128 / 2e14)
    # the first 64 queries see 1 to 64 keys, the others 64; twice the edge of a window of 64
    windowed = 64 * 65 / 2 + 1216 * 64 + 1280 * 96 * 2
    assert asked(changes={"window_edges": 2.0}, window=64).seconds["tensor"] == close(4 * 10 * windowed * 128 / 2e14)
    assert asked(changes={"window_edges": 2.0}, window=5000).seconds["tensor"] == close(FLOPS / 2e14)
    assert asked(causal=0).seconds["tensor"] == close(4 * 10 * 1280 * 1280 * 128 / 2e14)


def test_empty_rows_of_the_last_tile() -> None:
    # 1216 queries: half a tile of rows is empty, over all 1216 keys; they cost a quarter
    pairs = 1216 * 1217 / 2 + 1216 * 96 + 0.25 * 64 * 1216
    assert asked(changes={"empty_row_cost": 0.25}, q_len=1216, kv_len=1216).seconds["tensor"] == close(4 * 10 * pairs * 128 / 2e14)
    pairs = 64 * 65 / 2 + 1152 * 64 + 1216 * 96 + 0.25 * 64 * (64 + 96)  # in a window of 64: as many keys and an edge
    assert asked(changes={"empty_row_cost": 0.25}, q_len=1216, kv_len=1216, window=64).seconds["tensor"] == close(
        4 * 10 * pairs * 128 / 2e14
    )


def test_waves() -> None:
    # 15 heads: 150 units; the second wave counts by its weight. 5 heads: half of the SMs
    for weight, share in ((1.0, 2 / 1.5), (0.5, 1 + 0.5 * (2 / 1.5 - 1)), (0.0, 1.0)):
        found = asked(changes={"tail_weight": weight}, q_heads=15, kv_heads=15).seconds
        assert found["tensor"] == close(share * 1.5 * FLOPS / 2e14)
        assert found["exp"] == close(share * 15 * PAIRS / (10 * 100 * 2e9))
    assert asked(q_heads=5, kv_heads=5).seconds["tensor"] == close(FLOPS / 2e14)


def test_exponentials() -> None:
    assert asked().seconds["exp"] == close(10 * PAIRS / (10 * 100 * 2e9))
    assert asked(changes={"sfu_per_pair": 3.0}).seconds["exp"] == close(3 * 10 * PAIRS / 2e12)


def test_chain_of_key_tiles() -> None:
    # 20 tiles of 64 keys: 100 cycles and 200 at head_dim 128 each; a unit 5000, 1.5 of them an SM with a tail of 4 / 3. At 2 GHz
    c = {"tile_cycles": 100.0, "tile_dim_cycles": 200.0, "unit_cycles_other": 5000.0}
    assert asked(changes=c).seconds["kv chain"] == close((20 * 300 + 5000) / 2e9)
    assert asked(changes=c, head_dim=64).seconds["kv chain"] == close((20 * 200 + 5000) / 2e9)
    assert asked(changes=c, q_heads=15, kv_heads=15).seconds["kv chain"] == close((20 * 300 + 2 * 5000) / 2e9)
    assert asked(changes=c, kv_len=1281).seconds["kv chain"] == close((21 * 300 + 5000) / 2e9)
    assert asked(changes=c, window=64).seconds["kv chain"] == close((3 * 300 + 5000) / 2e9)  # 64 + 128 keys


def test_dram() -> None:
    c = {"usable_cache": 0.1}
    cold = TOKENS / (TOKENS + 1e7)
    assert asked(changes=c).seconds["dram"] == close(TOKENS * cold / 1e12)
    assert asked(changes={**c, "dram_efficiency": 0.5}).seconds["dram"] == close(TOKENS * cold / 0.5e12)
    assert asked(changes={**c, "bytes_in_flight": 2000.0}).seconds["dram"] == close(TOKENS * cold / 1e11)
    assert asked("sm_90", {"partition_share": 0.5, "partition_share_hopper": 0.1}).seconds["dram"] == close(TOKENS * cold / 1e12)
    assert asked("sm_80", {"partition_share": 0.1, "partition_share_hopper": 0.5}).seconds["dram"] == close(TOKENS * cold / 1e12)
    # keys before every query's window stay where they are: 64 + 1280 of 6400
    moved = 1280 * 10 * 128 * 4 + 2 * 1344 * 10 * 128 * 2.0
    assert asked(changes=c, kv_len=6400, window=64).seconds["dram"] == close(moved * moved / (moved + 1e7) / 1e12)
    moved = 1280 * 10 * 128 * 4 + 2 * 1280 * 10 * 128 * 1.0  # an fp8 cache
    assert asked(changes=c, kv_dtype="fp8").seconds["dram"] == close(moved * moved / (moved + 1e7) / 1e12)


def test_l2() -> None:
    # every tile of 128 queries reads its keys and values again: 2 x 128 x 2 bytes a key
    again = 10 * PAIRS / 128 * 512
    assert asked().seconds["l2"] == close((TOKENS + again) / 1e13)
    assert asked(changes={"l2_rate_factor": 0.5}).seconds["l2"] == close((TOKENS + again) / 0.5e13)
    assert asked(q_heads=5, kv_heads=5).seconds["l2"] == close((TOKENS + again) / 2 / 1e13 * 2)


def test_power() -> None:
    assert asked(changes={"pj_mma": 10.0}).seconds["power"] == close(FLOPS * 1e-11 / 1000)
    assert asked(changes={"pj_mma": 10.0, "idle_share": 0.2}).seconds["power"] == close(FLOPS * 1e-11 / 800)
    assert asked(changes={"pj_per_byte": 50.0}).seconds["power"] == close(TOKENS * TOKENS / (TOKENS + 1e8) * 50e-12 / 1000)


def test_prepare() -> None:
    # queries, keys and values once more, twice the bytes each way: 4 bytes an element; cold share from DRAM, the rest from L2
    cold = TOKENS / (TOKENS + 1e8)
    byte = 0.5 * 4 * (cold / 1e12 + (1 - cold) / 1e13)
    assert asked(changes={"prepare_any": 0.5}).seconds["prepare"] == close(1280 * (10 * 128 + 2 * 10 * 128) * byte)
    # vLLM: keys and values alone, and a block of 512 threads a token (4000 cycles; 32 x max_warps threads an SM)
    threads = 32.0 * card().max_warps_per_sm
    found = asked(changes={"prepare_vllm": 0.0, "token_block_cycles": 4000.0}, stack="vllm")
    assert found.seconds["prepare"] == close(1280 * 512 * 4000 / 2e9 / (100 * threads))
    fp8 = asked(changes={"token_block_cycles": 4000.0, "token_block_fp8_cost": 2.0}, stack="vllm", kv_dtype="fp8", kernel="fa2")
    assert fp8.seconds["prepare"] == close(2 * 1280 * 512 * 4000 / 2e9 / (100 * threads))
    narrow = asked(changes={"token_block_cycles": 4000.0}, stack="vllm", kv_heads=2, head_dim=64)
    assert narrow.seconds["prepare"] == close(1280 * 128 * 4000 / 2e9 / (100 * threads))


def test_launches() -> None:
    # four of 1 us + 2 x 1 us + 4000 cycles at 2 GHz, and 300 ns a sequence
    c = {"floor_us": 1.0, "floor_latencies": 2.0, "floor_cycles": 4000.0, "launches_any": 4.0, "sequence_ns_any": 300.0}
    assert asked(changes=c).seconds["launch"] == close(20 * US + 0.3 * US)
    assert asked(changes=c, batch=10).seconds["launch"] == close(20 * US + 3 * US)
    assert asked(changes={**c, "fp8_launches_any": 0.5}, kv_dtype="fp8").seconds["launch"] == close(22.5 * US + 0.3 * US)
    vllm = {"floor_us": 1.0, "launches_vllm_fa": 4.0, "varlen_launches": 2.0}
    assert asked("sm_90", vllm, stack="vllm").seconds["launch"] == close(6 * US)  # FlashAttention-3
    assert asked(changes=vllm, stack="vllm").seconds["launch"] == close(4 * US)


def test_fp8_multiplies() -> None:
    # keys and queries of 8 bits: twice the rate, a share of it by head_dim, and sqrt(1/2) of the energy
    c = {"fp8_share_mma_128": 0.5, "pj_mma": 10.0}
    found = asked(changes=c, dtype="fp8", kv_dtype="fp8").seconds
    assert found["tensor"] == close(FLOPS / (4e14 * 0.5))
    assert found["power"] == close(FLOPS * 1e-11 / 1000 * 0.5**0.5)
    for dim in (64, 192, 256):
        assert asked(changes={f"fp8_share_mma_{dim}": 0.25}, dtype="fp8", kv_dtype="fp8", head_dim=dim).seconds["tensor"] == close(
            asked(dtype="fp8", kv_dtype="fp8", head_dim=dim).seconds["tensor"] * 4
        )
    assert asked(changes=c, kv_dtype="fp8").seconds["tensor"] == close(FLOPS / 2e14)  # an fp8 cache alone is multiplied in 16 bits


def test_wide_heads() -> None:
    assert asked(changes={"wide_head_cost": 2.0}, head_dim=192).seconds["tensor"] == close(2 * 1.5 * FLOPS / 2e14)
    assert asked(changes={"wide_head_cost": 2.0}).seconds["tensor"] == close(FLOPS / 2e14)


def test_warp_groups() -> None:
    # no path of its own there: mma.sync's share of 4e14 x 2
    c = {"mma_on_wgmma_share": 0.5, "unit_cycles_other": 5000.0, "unit_cycles_cudnn": 7000.0, "unit_cycles_wgmma": 9000.0}
    other = asked("sm_90", c).seconds
    assert other["tensor"] == close(FLOPS / (8e14 * 0.5)) and other["kv chain"] == close(5000 / 2e9)
    # cuDNN: 128 x 64 tiles too, a share of its own, and a fill of the pipeline: half a tile a tile of queries
    filled = 4.0 * 10 * (PAIRS + 0.5 * 10 * 128 * 64) * 128
    found = asked("sm_90", {**c, "share_cudnn": 0.25, "pipeline_fill": 0.5}, kernel="cudnn").seconds
    assert found["tensor"] == close(filled / (8e14 * 0.25)) and found["kv chain"] == close(7000 / 2e9)
    # FlashAttention-3: 128 x 128 tiles; wide heads cost nothing there
    pairs = EXACT + 1280 * 128
    fa3 = asked("sm_90", {**c, "share_fa3": 0.5, "wide_head_cost": 3.0}, kernel="fa3").seconds
    assert fa3["tensor"] == close(4 * 10 * pairs * 128 / 4e14) and fa3["kv chain"] == close(9000 / 2e9)


def test_a_cut_part_keeps_its_data_paths() -> None:
    # a quarter of the full rate: what half of it loses is a quarter too: 1 - 0.5 / 4
    weak = card()
    weak = type(weak)(**{**{n: getattr(weak, n) for n in weak.__slots__}, "tensor_flops": {"bf16": 0.25e14}})
    found = ask(attention_prefill.terms, weak, neutral("library_attention_prefill", share_other=0.5), "attention", **SIZE)
    assert found.seconds["tensor"] == close(FLOPS / (0.5e14 * 0.875))


def test_one_query_of_flash_attention_2_takes_the_heads_as_rows() -> None:
    # 2 KV heads of 10: two units; the 127 empty rows of a tile count a fifth. Pairs 1 x 640, an edge of 96
    on = card()
    c = neutral("library_attention_prefill", empty_row_cost=1.0)
    found = ask(attention_prefill.terms, on, c, "attention", **{**SIZE, "q_len": 1, "kv_len": 640, "kv_heads": 2, "stack": "torch"})
    pairs = 640 + 127 * 640 * 0.2
    assert found.seconds["tensor"] == close(4 * 10 * pairs * 128 / 2e14 * 50)


def test_latency() -> None:
    c = {"floor_us": 3.0, "tile_cycles": 100.0, "pj_mma": 10.0, "prepare_any": 0.5}
    s = asked(changes=c).seconds
    assert asked(changes=c).latency_s == close(sum(s.values()))
    powers = {"exp_power": 2.0, "unit_power": 3.0, "power_power": 4.0, "overlap_power": 5.0}
    unit = ((s["tensor"] ** 2 + s["exp"] ** 2) ** 1.5 + s["kv chain"] ** 3) ** (1 / 3)
    busy = (unit**4 + s["power"] ** 4) ** 0.25
    rest = (busy**5 + s["dram"] ** 5 + s["l2"] ** 5) ** 0.2
    assert asked(changes={**c, **powers}).latency_s == close(s["launch"] + s["prepare"] + rest)


def test_features() -> None:
    c = {"floor_us": 3.0, "tile_cycles": 100.0, "pj_mma": 10.0, "prepare_any": 0.5}
    found = asked(changes=c, q_heads=15, kv_heads=5, kv_len=2560, batch=2, window=1280, kv_dtype="fp8")
    names = {"tensor": "tensor", "exp": "exp", "chain": "kv chain", "l2": "l2", "power": "power", "fixed": "launch"}
    for feature, term in names.items():
        assert found.features[feature] == close(np.log(found.seconds[term] / found.latency_s)), feature
    moved = 2 * (1280 * 15 * 128 * 4 + 2 * 2560 * 5 * 128 * 1.0)
    wanted = {
        "dram": np.log((found.seconds["dram"] + 1e-9) / found.latency_s), "prepare": found.seconds["prepare"] / found.latency_s,
        "waves": np.log(3), "tail": 1, "acts_in_l2": np.log(moved / 1e8), "log2_q": np.log2(1280), "cached": np.log(2), "log2_batch": 1,
        "log2_heads": np.log2(15), "group": 3, "head_dim": 128, "windowed": 1, "masked": 0, "fp8_cache": 1, "fp8_math": 0, "path": 0,
        "stack": 0, "kernel": 0,
    }  # fmt: skip
    for name, value in wanted.items():
        assert found.features[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
    assert asked().features["windowed"] == -9
