"""Every term of the memory-bound law by hand, on a GPU and with constants of round numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fictional import US, ask, card, close, neutral

from perfmodel.library import memory

SIZE = {"kind": "copy", "tokens": 2048, "hidden": 4096, "dtype": "bf16", "stack": "torch"}  # 2^23 elements: 2048 blocks, all SMs at work
MOVED = 2 * 2**23 * 2  # read once and written once


def constants(**values: float) -> dict[str, float]:
    base = {"floor_us": 0.0, "floor_latencies": 0.0, "floor_cycles": 0.0, "row_latencies": 0.0, "row_cycles": 0.0, "alone_us": 0.0}
    return neutral("library_memory", **{**base, "alone_cold": 0.0, "bytes_in_flight": 1e9, "alone_bytes_per_cycle": 1e9, **values})


def asked(arch: str = "sm_89", changes: dict[str, float] | None = None, **row: Any) -> Any:
    return ask(memory.terms, card(arch), constants(**(changes or {})), "memory", **{**SIZE, **row})


def test_dram_of_what_does_not_stay_in_l2() -> None:
    # usable 1e8 x 0.1, sharpness 1: cold = moved / (moved + usable)
    c = {"usable_cache": 0.1}
    cold = MOVED / (MOVED + 1e7)
    assert asked(changes=c).seconds["dram"] == close(MOVED * cold / 1e12)
    assert asked(changes={**c, "dram_efficiency": 0.5}).seconds["dram"] == close(MOVED * cold / 0.5e12)
    assert asked(changes={**c, "bytes_in_flight": 2000.0}).seconds["dram"] == close(MOVED * cold / 1e11)  # 100 x 2000 bytes in 2 us
    assert asked("sm_80", {"partition_share": 0.1}).seconds["dram"] == close(MOVED * cold / 1e12)


@pytest.mark.parametrize(
    ("kind", "read", "written"), [("rmsnorm", 1, 1), ("add_rmsnorm", 2, 2), ("silu_mul", 2, 1), ("add", 2, 1), ("sampling", 2, 0.1)]
)
def test_bytes_of_a_kind(kind: str, read: float, written: float) -> None:
    moved = (read + written) * 2**23 * 2
    assert asked(kind=kind).seconds["l2"] == close(moved / 1e13)
    assert asked(kind=kind).seconds["dram"] == close(moved * moved / (moved + 1e8) / 1e12)


def test_l2_is_slower_with_few_sms() -> None:
    assert asked(changes={"l2_rate_factor": 0.5}).seconds["l2"] == close(MOVED / 0.5e13)
    # 10 tokens of 4096: 10 blocks on 100 SMs
    assert asked(tokens=10).seconds["l2"] == close(10 * 4096 * 4 / 1e13 * 10)
    assert asked(tokens=10, hidden=4097).features["blocks"] == close(np.log(11 / 100))  # 4096 elements a block, begun blocks count
    assert asked(kind="softmax", tokens=20, hidden=9000).seconds["l2"] == close(20 * 9000 * 4 / 1e13 * 5)  # a row a block


def test_arithmetic() -> None:
    # 2^23 elements x (6 + 0.1) operations at half of 1e13 flop/s; on 20 SMs five times as long
    assert asked(kind="silu_mul").seconds["arithmetic"] == close(2**23 * 6.1 / 0.5e13)
    assert asked(kind="softmax", tokens=20, hidden=9000).seconds["arithmetic"] == close(20 * 9000 * 6.1 / 0.5e13 * 5)


def test_row_latency() -> None:
    # three round trips of 1 us and 4096 elements of half a cycle at 2 GHz; only where a row is one block's
    c = {"row_latencies": 3.0, "row_cycles": 0.5}
    assert asked(changes=c, kind="rmsnorm").seconds["row latency"] == close(3 * US + 1.024 * US)
    assert asked(changes=c, kind="silu_mul").seconds["row latency"] == 0


@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm", "add_rmsnorm", "softmax", "sampling"])
def test_kinds_that_walk_a_row(kind: str) -> None:
    assert asked(changes={"row_latencies": 1.0}, kind=kind).seconds["row latency"] == close(1 * US)


def test_launch() -> None:
    # 3 us, two round trips of 1 us, 4000 cycles at 2 GHz; another 5 us in a served model or timed alone
    c = {"floor_us": 3.0, "floor_latencies": 2.0, "floor_cycles": 4000.0, "alone_us": 5.0}
    assert asked(changes=c).seconds["launch"] == close(7 * US)
    assert asked(changes=c, stack="vllm").seconds["launch"] == close(12 * US)
    assert asked(changes=c, source="vidur").seconds["launch"] == close(12 * US)


def test_a_served_model_finds_its_data_cold() -> None:
    # cold at least 0.9, where repetition would leave 0.25 (2^25 bytes beside 1e8)
    assert asked(changes={"alone_cold": 0.9}, stack="vllm").seconds["dram"] == close(MOVED * 0.9 / 1e12)
    assert asked(changes={"alone_cold": 0.1}, stack="vllm").seconds["dram"] == close(MOVED * MOVED / (MOVED + 1e8) / 1e12)
    assert asked(changes={"alone_cold": 0.9}).seconds["dram"] == close(MOVED * MOVED / (MOVED + 1e8) / 1e12)


@pytest.mark.parametrize("kind", ["embedding", "rope", "add", "rmsnorm"])
def test_a_module_moves_more_than_its_operator(kind: str) -> None:
    once = asked(kind=kind, stack="vllm").seconds["l2"]
    assert asked(changes={f"alone_{kind}": 3.0}, kind=kind, stack="vllm").seconds["l2"] == close(3 * once)
    assert asked(changes={f"alone_{kind}": 3.0}, kind=kind).seconds["l2"] == close(once)


def test_narrow_loads() -> None:
    # a served silu_mul: 3 x 2^24 bytes over 100 SMs x 7 bytes a cycle x 2 GHz; torch's own loads are wide, and so is an addition's
    moved = 3 * 2**24
    c = {"alone_bytes_per_cycle": 7.0}
    assert asked(changes={"alone_bytes_per_cycle": 2.0}, kind="silu_mul", stack="vllm").seconds["dram"] == close(moved / (100 * 2 * 2e9))
    for kind in ("add", "sampling", "copy"):
        assert asked(changes=c, kind=kind, stack="vllm").seconds["dram"] == asked(kind=kind, stack="vllm").seconds["dram"]
    assert asked(changes=c, kind="silu_mul").seconds["dram"] == asked(kind="silu_mul").seconds["dram"]


def test_latency_is_floor_and_rows_and_the_overlap_of_the_rest() -> None:
    c = {"floor_us": 3.0, "row_latencies": 2.0}
    s = asked(changes=c, kind="rmsnorm").seconds
    assert asked(changes=c, kind="rmsnorm").latency_s == close(sum(s.values()))
    power = asked(changes={**c, "overlap_power": 2.0}, kind="rmsnorm")
    assert power.latency_s == close(5 * US + (s["dram"] ** 2 + s["l2"] ** 2 + s["arithmetic"] ** 2) ** 0.5)


def test_features() -> None:
    found = asked(changes={"floor_us": 3.0, "row_latencies": 2.0}, kind="rmsnorm", tokens=50, stack="vllm")
    for name in ("dram", "l2", "arithmetic"):
        assert found.features[name] == close(np.log(found.seconds[name] / found.latency_s))
    wanted = {
        "fixed": 5 * US / found.latency_s, "rows": 2 * US / found.latency_s, "in_l2": np.log(50 * 4096 * 4 / 1e8), "blocks": np.log(0.5),
        "log2_tokens": np.log2(50), "log2_hidden": 12, "kind": 0, "element_bytes": 2, "alone": 1, "stack": 1,
    }  # fmt: skip
    assert {name: found.features[name] for name in wanted} == close(wanted)
