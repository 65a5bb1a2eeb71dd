"""Every term of the fused-MoE law by hand, on a GPU and with constants of round numbers.

On TensorRT-LLM's path: 1200 tokens, 2 of 12 experts: 200 rows each, tiles of 128 rows and 128 columns, 24 tiles of rows, 3072 padded.
Gate and up have 2 x 640 columns: 10 tiles of columns, 240 tiles; down 1280 columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from fictional import US, ask, card, close, neutral

from perfmodel.library import moe
from perfmodel.library.registry import parts
from perfmodel.ops import OperatorTable

SIZE = {
    "tokens": 1200, "hidden": 1280, "inter": 640, "num_experts": 12, "top_k": 2, "dtype": "bf16", "stack": "trtllm",
    "distribution": "balanced",
}  # fmt: skip
MATRIX = 1280 * 1280 + 1280 * 640  # elements of an expert: gate and up, and down
FLOPS = 2 * 3072 * MATRIX
WEIGHTS = 12 * MATRIX * 2.0
ACTS = 2400 * (1280 * (2 + 2) + 1280 * 2 + 640 * 2.0)


def asked(arch: str = "sm_89", changes: dict[str, float] | None = None, **row: Any) -> Any:
    base = {
        "floor_us": 0.0, "floor_latencies": 0.0, "floor_cycles": 0.0, "bytes_in_flight": 1e9, "half_rows": 0.0, "iteration_cycles": 0.0,
        "tile_cycles": 0.0, "pj_mma": 0.0, "pj_wgmma": 0.0, "pj_per_byte": 0.0, "idle_share": 0.0, "routing_share": 0.0,
        "tail_weight": 0.0,
    }  # fmt: skip
    return ask(moe.terms, card(arch), neutral("library_moe", **{**base, **(changes or {})}), "moe", **{**SIZE, **row})


def test_tensor() -> None:
    # flop of the padded rows at 1e14 x 2 GHz / 1 GHz
    assert asked().seconds["tensor"] == close(FLOPS / 2e14)
    assert asked(changes={"tensor_share_mma": 0.5}).seconds["tensor"] == close(FLOPS / 1e14)
    assert asked("sm_90", {"tensor_share_wgmma": 0.5}).seconds["tensor"] == close(FLOPS / 4e14)
    assert asked(dtype="fp8").seconds["tensor"] == close(FLOPS / 4e14)


def test_a_tile_reuses_its_operands() -> None:
    # 128 x 128: 128 multiplies an element; with half = 128 half of the rate
    assert asked(changes={"half_rows": 128.0}).seconds["tensor"] == close(2 * FLOPS / 2e14)


def test_a_cut_part_keeps_its_data_paths() -> None:
    # a quarter of the full rate: half = 128 / 4, reach 0.5 x 0.8 = 0.4, of the loss a quarter: 1 - 0.6 / 4 = 0.85
    c = neutral("library_moe", half_rows=128.0, tensor_share_mma=0.5, tail_weight=0.0)
    weak = card()
    weak = type(weak)(**{**{n: getattr(weak, n) for n in weak.__slots__}, "tensor_flops": {"bf16": 0.25e14}})
    found = ask(moe.terms, weak, c, "moe", **SIZE)
    assert found.seconds["tensor"] == close(FLOPS / (0.5e14 * (1 - (1 - 0.5 * 0.8) / 4)))


def test_waves() -> None:
    # 240 tiles on 100 SMs: the third wave counts by its weight
    for weight, share in ((1.0, 3 / 2.4), (0.5, 1 + 0.5 * (3 / 2.4 - 1)), (0.0, 1.0)):
        assert asked(changes={"tail_weight": weight}).seconds["tensor"] == close(share * FLOPS / 2e14)
    # 60 tokens, 6 experts of 20 rows: tiles of 32, 6 x 10 on 60 of 100 SMs
    assert asked(tokens=60, num_experts=6).seconds["tensor"] == close(2 * 6 * 32 * MATRIX / 2e14 / 0.6)


def test_triton_shares() -> None:
    # newer vLLM over 512 tokens: 128 x 128; SGLang: 64 x 64, 4 tiles of rows an expert
    assert asked(changes={"share_vllm_triton": 0.5}, stack="vllm").seconds["tensor"] == close(FLOPS / 1e14)
    assert asked(changes={"share_sglang_triton": 0.25}, stack="sglang").seconds["tensor"] == close(FLOPS / 0.5e14)
    assert asked("sm_90", {"triton_share": 0.5}, stack="sglang").seconds["tensor"] == close(FLOPS / 4e14)  # under 128 rows
    assert asked("sm_90", {"triton_share": 0.5}, stack="vllm").seconds["tensor"] == close(FLOPS / 8e14)
    assert asked(changes={"triton_share": 0.5}, stack="sglang").seconds["tensor"] == close(FLOPS / 2e14)


def test_k_latency() -> None:
    # gate and up: 1280 / 64 steps x 100 cycles + 50, 240 tiles in 3 rounds; down: 640 / 64 steps, also 240 tiles. At 2 GHz
    c = {"iteration_cycles": 100.0, "tile_cycles": 50.0}
    assert asked(changes=c).seconds["k latency"] == close((3 * (20 * 100 + 50) + 3 * (10 * 100 + 50)) / 2e9)
    # three stages of (128 + 128) x 64 x 2 bytes are 98304: of 100 KiB of shared memory one block, of 196608 + a little two
    two = card(smem_per_sm_bytes=200_000)
    base = neutral("library_moe", **c, most_resident=8.0)
    assert ask(moe.terms, two, base, "moe", **SIZE).seconds["k latency"] == close((2 * (20 * 100 + 50) + 2 * (10 * 100 + 50)) / 2e9)
    few = {**base, "most_resident": 1.0}
    assert ask(moe.terms, two, few, "moe", **SIZE).seconds["k latency"] == close((3 * (20 * 100 + 50) + 3 * (10 * 100 + 50)) / 2e9)


def test_dram() -> None:
    cold = (WEIGHTS + ACTS) / (WEIGHTS + ACTS + 1e7)
    c = {"usable_cache": 0.1}
    assert asked(changes=c).seconds["dram"] == close((WEIGHTS + ACTS) * cold / 1e12)
    assert asked(changes={**c, "dram_efficiency": 0.5}).seconds["dram"] == close((WEIGHTS + ACTS) * cold / 0.5e12)
    assert asked(changes={**c, "bytes_in_flight": 2000.0}).seconds["dram"] == close((WEIGHTS + ACTS) * cold / 1e11)
    # SGLang up to as many tokens as experts: 64 deep, and 64 columns of one byte are half a line
    assert asked("sm_90", c).seconds["dram"] == close((WEIGHTS + ACTS) / (WEIGHTS + ACTS + 1e8) * (WEIGHTS + ACTS) / 1e12)


def test_weights_fetched_by_less_than_a_line() -> None:
    # SGLang's tiles over as many tokens as experts are 32 deep: 64 bytes of bf16
    c = {"usable_cache": 0.1, "half_line_share": 0.5}
    cold = (WEIGHTS + ACTS) / (WEIGHTS + ACTS + 1e7)
    assert asked(changes=c, stack="sglang").seconds["dram"] == close((2 * WEIGHTS + ACTS) * cold / 1e12)
    assert asked(changes=c).seconds["dram"] == close((WEIGHTS + ACTS) * cold / 1e12)  # 64 deep: a whole line
    half = WEIGHTS / 4 + ACTS  # int4: widened on the way in, stored in the order of use
    assert asked(changes=c, stack="sglang", dtype="int4_wo").seconds["dram"] == close(half * half / (half + 1e7) / 1e12)


def test_l2() -> None:
    # weights once a tile of rows (3072 / 128 x 2 bytes), activations once a tile of columns (3072 x 2 bytes / 128), and what comes and goes
    asked_ = MATRIX * (3072 * 2 / 128 + 3072 * 2 / 128)
    assert asked().seconds["l2"] == close((asked_ + ACTS) / 1e13)
    assert asked(changes={"l2_rate_factor": 0.5}).seconds["l2"] == close((asked_ + ACTS) / 0.5e13)
    # Triton masks the loads of padding rows: 2400 instead of 3072
    masked = MATRIX * (3072 * 2 / 128 + 2400 * 2 / 128)
    assert asked(stack="vllm").seconds["l2"] == close((masked + ACTS) / 1e13)


def test_power() -> None:
    assert asked(changes={"pj_mma": 10.0}).seconds["power"] == close(FLOPS * 1e-11 / 1000)
    assert asked(changes={"pj_mma": 10.0, "idle_share": 0.2}).seconds["power"] == close(FLOPS * 1e-11 / 800)
    assert asked(changes={"pj_mma": 10.0}, dtype="fp8").seconds["power"] == close(FLOPS * 1e-11 / 1000 * 0.5**0.5)
    assert asked(changes={"pj_per_byte": 50.0}).seconds["power"] == close((WEIGHTS + ACTS) * 50e-12 / 1000)


def test_launches() -> None:
    c = {"floor_us": 1.0, "floor_latencies": 2.0, "floor_cycles": 4000.0, "launches_trtllm": 4.0, "quantise_launches": 2.0}
    assert asked(changes=c).seconds["launch and routing"] == close(20 * US)
    assert asked(changes=c, dtype="fp8").seconds["launch and routing"] == close(30 * US)
    assert asked(changes=c, weight="w13").seconds["launch and routing"] == close(5 * US)


def test_routing() -> None:
    # 2400 rows x (6 x 1280 + 2 x (1280 + 640)) bytes, half of them; cold = set / (set + 1e7), the others at L2's rate
    passed = 0.5 * 2400 * (1280 * 6 + 1920 * 2)
    cold = passed / (passed + 1e7)
    found = asked(changes={"routing_share": 0.5, "usable_cache": 0.1})
    assert found.seconds["launch and routing"] == close(passed * (cold / 1e12 + (1 - cold) / 1e13))
    assert asked(changes={"routing_share": 0.5}, weight="w2").seconds["launch and routing"] == 0


def test_single_loads() -> None:
    # inter / tp = 640 / 16 = 40 is no multiple of 16: the second GEMM loads element by element, padded to 64 of K
    # 24 tiles of rows x 10 of columns x (128 + 128) x 64 elements, 4 a clock and SM at 2 GHz
    c = {"scalar_per_clock_vllm": 4.0, "scalar_per_clock_sglang": 8.0}
    assert asked(changes=c, stack="vllm", tp=16).seconds["single loads"] == close(24 * 10 * 256 * 64 / (4 * 100 * 2e9))
    # SGLang: 64 x 64 x 32: 48 tiles of rows x 20 of columns x (64 + 64) x 64, 8 a clock
    assert asked(changes=c, stack="sglang", tp=16).seconds["single loads"] == close(48 * 20 * 128 * 64 / (8 * 100 * 2e9))
    assert asked(changes=c, stack="vllm", tp=8).seconds["single loads"] == 0  # 80
    assert asked(changes=c, tp=16).seconds["single loads"] == 0  # CUTLASS


def test_one_grouped_gemm_alone() -> None:
    # w13: 1280 columns from 1280; w2: 1280 from 640. 100 KiB of shared memory and less: tiles of 128 rows up to 2048 tokens
    on = card(smem_per_sm_bytes=100 * 1024)
    c = neutral("library_moe", floor_us=0.0, floor_latencies=0.0, floor_cycles=0.0, half_rows=0.0, tail_weight=0.0)
    for weight, columns, k in (("w13", 1280, 1280), ("w2", 1280, 640)):
        found = ask(moe.terms, on, c, "moe", **SIZE, weight=weight)
        assert found.seconds["tensor"] == close(2 * 12 * 256 * columns * k / 2e14), weight


def test_tensor_and_expert_parallelism() -> None:
    # tp 2: 320 columns of inner width; ep 2: six experts of 200 rows each
    assert asked(tp=2).seconds["tensor"] == close(FLOPS / 2 / 2e14)
    assert asked(ep=2).seconds["tensor"] == close(FLOPS / 2 / 2e14)
    assert asked(ep=2).features["rows_per_expert"] == close(np.log2(200))


def test_experts_without_a_gate() -> None:
    plain = 2 * 3072 * (1280 * 640 + 1280 * 640)
    assert asked(kernel_source="nongated").seconds["tensor"] == close(plain / 2e14)


def test_latency() -> None:
    c = {"floor_us": 3.0, "iteration_cycles": 100.0, "pj_mma": 10.0, "routing_share": 0.5, "scalar_per_clock_vllm": 4.0}
    found = asked(changes=c, stack="vllm", tp=16)
    s = found.seconds
    assert found.latency_s == close(sum(s.values()))
    other = asked(changes={**c, "overlap_power": 2.0, "power_power": 3.0}, stack="vllm", tp=16)
    busy = (s["tensor"] ** 3 + s["power"] ** 3) ** (1 / 3)
    rest = (busy**2 + s["k latency"] ** 2 + s["dram"] ** 2 + s["l2"] ** 2) ** 0.5
    assert other.latency_s == close(s["launch and routing"] + s["single loads"] + rest)


def test_features() -> None:
    c = {"floor_us": 3.0, "iteration_cycles": 100.0, "pj_mma": 10.0, "routing_share": 0.5}
    found = asked(changes=c, stack="vllm", tp=16)
    names = {"tensor": "tensor", "chain": "k latency", "dram": "dram", "l2": "l2", "power": "power", "fixed": "launch and routing"}
    for feature, term in names.items():
        assert found.features[feature] == close(np.log(found.seconds[term] / found.latency_s)), feature
    wanted = {
        "waves": np.log(24 * 1 / 100), "rows_per_expert": np.log2(200), "touched": np.log2(12), "handled": 0, "touched_share": 1,
        "scalar": found.seconds["single loads"] / found.latency_s, "padding": 3072 / 2400, "log2_tokens": np.log2(1200),
        "routing": (found.seconds["launch and routing"] - 3 * US) / found.latency_s,
        "log2_hidden": np.log2(1280), "log2_inter": np.log2(40), "log2_experts": np.log2(12), "top_k": 2, "log2_ep": 0, "skew": 0,
        "gated": 1,
        "stage": 0, "warpgroup": 0, "dtype": 0, "stack": 1, "kernel": 0, "path": 1,
        "weights_in_l2": np.log(12 * (1280 * 80 + 1280 * 40) * 2 / 1e8),
    }  # fmt: skip
    for name, value in wanted.items():
        assert found.features[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_triton_handles_every_routed_row() -> None:
    # ep 2: a GPU multiplies 1200 rows, its Triton path allots, activates and sums all 2400
    assert asked(stack="vllm", ep=2).features["handled"] == close(np.log(2))
    assert asked(ep=2).features["handled"] == close(0)
    assert asked(ep=2).features["touched_share"] == close(1) and asked(ep=2).features["log2_ep"] == close(1)


def test_releases_whose_rows_are_of_another_kind() -> None:
    # Nemotron's sizes have no gate from vLLM 0.24 and SGLang 0.5.14 on
    nemotron = {"hidden": 2688, "inter": 1856, "stack": "vllm"}
    for stack, old, new in (("vllm", "0.23.9", "0.24"), ("sglang", "0.5.13", "0.5.14")):
        found = [asked(**{**nemotron, "stack": stack}, framework_version=v).features["gated"] for v in (old, new, "", "main")]
        assert found == [1, 0, 0, 0], stack
    assert asked(hidden=8192, inter=5120).features["gated"] == 0 and asked(hidden=8192, inter=5121).features["gated"] == 1
    # old SGLang rows with expert parallelism bring all of a token's rows to a GPU: 2400 instead of 1200
    ep = [asked(stack="sglang", ep=2, framework_version=v).features["rows_per_expert"] for v in ("0.5.13", "0.5.14")]
    assert ep[0] - ep[1] == close(1.0)


def test_which_model_answers() -> None:
    def parts_of(**row: Any) -> str:
        return parts(OperatorTable.read("moe", pd.DataFrame([{**SIZE, **row}])))[0][0]

    assert [parts_of(), parts_of(dtype="fp8"), parts_of(weight="w2"), parts_of(dtype="fp8", weight="w13")] == [
        "moe", "moe_quantised", "moe_kernel", "moe_kernel",
    ]  # fmt: skip
