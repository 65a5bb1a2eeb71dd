"""Every term of the library GEMM law by hand, on a GPU and with constants of round numbers and one tile of 128 x 128."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fictional import US, ask, card, close, neutral

from perfmodel.library import gemm

SIZE = {"m": 1280, "n": 1280, "k": 1000, "dtype": "bf16", "stack": "torch"}  # 100 tiles: one on each SM
WEIGHTS, ACTS = 2.56e6, 5.8368e6  # 1280 x 1000 x 2; 1280 x 1000 x 2 + 1280 x 1280 x 2 bytes
FLOPS = 3.2768e9


@pytest.fixture(autouse=True)
def one_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    side = np.array([[128.0]])
    for name, value in {
        "_TILES": np.array([(128, 128)]),
        "_BM": side,
        "_BN": side,
        "_FLOPS": 2 * side * side,
        "_INTENSITY": side / 2,
    }.items():
        monkeypatch.setattr(gemm, name, value)
    gemm._work.cache_clear()
    yield
    gemm._work.cache_clear()


def constants(**values: float) -> dict[str, float]:
    base = {
        "half_mma": 0.0, "half_wgmma": 0.0, "iteration_mma": 0.0, "iteration_wgmma": 0.0, "tile_cycles": 0.0, "ramp_latencies": 0.0,
        "pj_mma": 0.0, "pj_wgmma": 0.0, "pj_per_byte": 0.0, "idle_share": 0.0, "floor_us": 0.0, "floor_latencies": 0.0,
        "bytes_in_flight": 1e9,
        "port_bytes_per_cycle": 1e9,
    }  # fmt: skip
    return neutral("library_gemm", **{**base, **values})


def asked(arch: str = "sm_89", changes: dict[str, float] | None = None, **row: Any) -> Any:
    return ask(gemm.terms, card(arch), constants(**(changes or {})), "gemm", **{**SIZE, **row})


def test_tensor() -> None:
    # 1000 x 2 x 128 x 128 flop at 1000 a clock (of the quoted 1 GHz): 32768 cycles, run at 2 GHz
    assert asked().seconds["tensor"] == close(16.384 * US)
    assert asked(k=2000).seconds["tensor"] == close(32.768 * US)


def test_tensor_of_fp8_runs_at_twice_the_rate() -> None:
    assert asked(dtype="fp8").seconds["tensor"] == close(8.192 * US)


def test_efficiency_of_a_tile() -> None:
    # intensity 128 x 128 / 256 = 64: with half = 64 half of the rate, with half = 192 a quarter
    assert asked(changes={"half_mma": 64.0}).seconds["tensor"] == close(2 * 16.384 * US)
    assert asked(changes={"half_mma": 192.0}).seconds["tensor"] == close(4 * 16.384 * US)
    assert asked("sm_90", {"half_wgmma": 192.0}).seconds["tensor"] == close(4 * 4.096 * US)


def test_a_cut_part_feeds_fewer_multiplies() -> None:
    # a quarter of the full rate: a quarter of `half`; and flop take four times as long
    weak = card()
    weak = type(weak)(**{**{n: getattr(weak, n) for n in weak.__slots__}, "tensor_flops": {"bf16": 0.25e14}})
    found = ask(gemm.terms, weak, constants(half_mma=64.0), "gemm", **SIZE)
    assert found.seconds["tensor"] == close(4 * 1.25 * 16.384 * US)


def test_wave_quantisation() -> None:
    # 10 x 11 tiles on 100 SMs: two waves; with tail weight 1/4: 1/4 x 2 + 3/4 x 1.1 = 1.325
    for weight, waves in ((1.0, 2.0), (0.25, 1.325), (0.0, 1.1)):
        assert asked(changes={"tail_weight": weight}, n=1408).seconds["tensor"] == close(waves * 16.384 * US)
    assert asked(n=1408).features["waves"] == close(np.log(1.1))
    assert asked(n=1408).features["tail"] == close(2 / 1.1)


def test_less_than_a_wave_takes_a_whole_one() -> None:
    assert asked(changes={"tail_weight": 0.0, "max_splits": 1.0}, n=640).seconds["tensor"] == close(16.384 * US)


def test_padding_to_whole_tiles() -> None:
    assert asked(m=1153, n=1153).seconds["tensor"] == close(16.384 * US)


def test_operand_feed() -> None:
    # 1000 x (128 x 2 + 128 x 2) bytes through a port of 32 bytes a clock: 16000 cycles at 2 GHz
    assert asked(changes={"port_bytes_per_cycle": 32.0}).seconds["operand feed"] == close(8.0 * US)
    assert asked(changes={"port_bytes_per_cycle": 32.0}, dtype="int4_wo").seconds["operand feed"] == close(5.0 * US)  # 128 x 2 + 128 / 2
    # all SMs share L2: 1e13 B/s / 2 GHz = 5000 bytes a clock, 50 for each of 100
    assert asked().seconds["operand feed"] == close(5.12 * US)
    assert asked(changes={"l2_rate_factor_mma": 2.0}).seconds["operand feed"] == close(2.56 * US)
    assert asked("sm_90", {"l2_rate_factor": 4.0}).seconds["operand feed"] == close(1.28 * US)
    assert asked(changes={"max_splits": 1.0}, m=640, n=640).seconds["operand feed"] == close(1.28 * US)  # 25 SMs: 200 each


def test_k_latency() -> None:
    # 2000 bytes of K: 15.625 steps of 128 bytes, 64 cycles each, at 2 GHz
    assert asked(changes={"iteration_mma": 64.0}).seconds["k latency"] == close(0.5 * US)
    assert asked("sm_90", {"iteration_wgmma": 128.0}).seconds["k latency"] == close(1.0 * US)
    assert asked(changes={"iteration_mma": 64.0}, dtype="fp8").seconds["k latency"] == close(0.25 * US)


def test_tiles_have_a_start() -> None:
    # two waves of 1000 cycles at 2 GHz
    one, two = (asked(changes={"tile_cycles": cycles}, n=1408).latency_s for cycles in (0.0, 1000.0))
    assert two - one == close(1.0 * US)


def test_split_k() -> None:
    # one tile, k = 4000: four parts; tensor 4000 / 4 x 32768 / 1000 cycles at 2 GHz
    found = asked(changes={"max_splits": 4.0, "split_latencies": 2.0}, m=128, n=128, k=4000)
    assert found.features["splits"] == 4
    assert found.seconds["tensor"] == close(16.384 * US)
    # the reduction: 2 round trips of 1 us and (4 + 1) x 128 x 128 x 4 bytes from L2 at 1e13 B/s
    core = found.seconds["tensor"] + found.seconds["operand feed"] + 2.0 * US + 5 * 65536 / 1e13
    others = sum(found.seconds[name] for name in ("power", "dram", "l2", "quantise", "launch"))
    assert found.latency_s == close(core + others)


def test_a_part_has_512_bytes_of_k_and_there_are_no_more_parts_than_idle_sms() -> None:
    fast = {"max_splits": 100.0, "split_latencies": 0.0}
    assert asked(changes=fast, m=128, n=128, k=4000).features["splits"] == 15  # 8000 bytes / 512
    assert asked(changes=fast, m=128, n=128 * 30, k=4000).features["splits"] == 3  # 100 SMs / 30 tiles
    assert asked(changes={**fast, "split_latencies": 1e6}, m=128, n=128, k=4000).features["splits"] == 1  # not worth it


def test_dram_streams_cold_weights_and_activations() -> None:
    # sm_89: usable share of a 1e8-byte cache, sharpness 1: miss = set / (set + usable)
    c = {"usable_cache": 0.1, "cache_sharpness": 1.0, "copies_torch": 4.0}
    usable = 1e7
    cold = (4 * WEIGHTS + ACTS) / (4 * WEIGHTS + ACTS + usable)
    cold_acts = (WEIGHTS + ACTS) / (WEIGHTS + ACTS + usable)
    found = asked(changes=c)
    assert found.seconds["dram"] == close((WEIGHTS * cold + ACTS * cold_acts) / 1e12)
    assert asked(changes={**c, "dram_efficiency": 0.5}).seconds["dram"] == close(2 * found.seconds["dram"])
    assert asked(changes={**c, "ramp_latencies": 3.0}).seconds["dram"] == close(found.seconds["dram"] + 3 * US * cold)
    assert found.features["weights_in_l2"] == close(np.log(4 * WEIGHTS / usable))
    assert found.features["acts_in_l2"] == close(np.log(ACTS / usable))


@pytest.mark.parametrize("stack", ["any", "vllm", "sglang", "trtllm", "torch"])
def test_weight_copies_are_those_of_the_stack(stack: str) -> None:
    c = {"usable_cache": 0.1, f"copies_{stack}": 7.0}
    cold, cold_acts = ((x + ACTS) / (x + ACTS + 1e7) for x in (7 * WEIGHTS, WEIGHTS))
    assert asked(changes=c, stack=stack).seconds["dram"] == close((WEIGHTS * cold + ACTS * cold_acts) / 1e12)


def test_partitions_of_l2() -> None:
    for arch, share in (("sm_80", 0.2), ("sm_90", 0.2), ("sm_100", 0.2), ("sm_120", 0.4)):
        c = {"partition_share": 0.2, "usable_cache": 0.4, "partition_sharpness": 1.0, "cache_sharpness": 1.0}
        cold = (WEIGHTS + ACTS) / (WEIGHTS + ACTS + share * 1e8)
        assert asked(arch, c).seconds["dram"] == close((WEIGHTS + ACTS) * cold / 1e12)
    c = {"partition_share": 0.1, "partition_sharpness": 2.0, "cache_sharpness": 1.0}
    assert asked("sm_90", c).seconds["dram"] == close((WEIGHTS + ACTS) / (1 + (1e7 / (WEIGHTS + ACTS)) ** 2) / 1e12)


def test_dram_needs_bytes_in_flight() -> None:
    # 100 SMs x 2000 bytes / (2 x 1 us) = 1e11 B/s, a tenth of the sustained rate; half of the SMs: half of it
    cold = (WEIGHTS + ACTS) ** 2 / (WEIGHTS + ACTS + 1e8)
    assert asked(changes={"bytes_in_flight": 2000.0}).seconds["dram"] == close(cold / 1e11)
    weights, acts = 1.28e6, 2.56e6 + 1.6384e6  # n = 640: 50 tiles
    cold = (weights + acts) ** 2 / (weights + acts + 1e8)
    assert asked(changes={"bytes_in_flight": 2000.0, "max_splits": 1.0}, n=640).seconds["dram"] == close(cold / 0.5e11)


def test_l2() -> None:
    assert asked().seconds["l2"] == close((WEIGHTS + ACTS) / 1e13)
    assert asked(changes={"l2_rate_factor_mma": 0.5}).seconds["l2"] == close((WEIGHTS + ACTS) / 0.5e13)
    assert asked("sm_90", {"l2_rate_factor": 2.0}).seconds["l2"] == close((WEIGHTS + ACTS) / 2e13)


def test_power() -> None:
    # 3.2768 Gflop x 10 pJ = 32.768 mJ at 1000 W; a fifth of it idle: 800 W
    assert asked(changes={"pj_mma": 10.0}).seconds["power"] == close(32.768 * US)
    assert asked(changes={"pj_mma": 10.0, "idle_share": 0.2}).seconds["power"] == close(40.96 * US)
    assert asked("sm_80", {"pj_mma": 10.0, "pj_7nm": 2.0}).seconds["power"] == close(65.536 * US)
    assert asked("sm_90", {"pj_wgmma": 10.0}).seconds["power"] == close(32.768 * US)
    assert asked("sm_100", {"pj_wgmma": 10.0, "pj_tcgen": 0.5}).seconds["power"] == close(16.384 * US)
    assert asked(changes={"pj_mma": 10.0, "constant_data_power": 0.5}, stack="vllm").seconds["power"] == close(16.384 * US)
    assert asked(changes={"pj_mma": 10.0, "constant_data_power": 0.5}, stack="sglang").seconds["power"] == close(32.768 * US)
    assert asked(changes={"pj_mma": 10.0}, dtype="fp8").seconds["power"] == close(32.768 * US * 0.5**0.5)


def test_power_of_dram() -> None:
    moved = (WEIGHTS + ACTS) ** 2 / (WEIGHTS + ACTS + 1e8)
    assert asked(changes={"pj_per_byte": 50.0}).seconds["power"] == close(moved * 50e-12 / 1000)


def test_launch() -> None:
    assert asked(changes={"floor_us": 3.0}).seconds["launch"] == close(3 * US)
    assert asked(changes={"floor_us": 3.0, "floor_latencies": 2.0}).seconds["launch"] == close(5 * US)  # two round trips of 1 us


def test_quantise() -> None:
    # fp8: so many launches of 3 us, and three bytes an element of A at 1e12 B/s; bf16 none; weight-only a fixed time
    c = {"floor_us": 3.0, "quantise_torch": 2.0, "quantise_block_torch": 5.0, "weight_only_us": 7.0}
    assert asked(changes=c).seconds["quantise"] == 0
    assert asked(changes=c, dtype="fp8").seconds["quantise"] == close(6 * US + 3.84 * US)
    assert asked(changes=c, dtype="int8").seconds["quantise"] == close(6 * US + 3.84 * US)
    assert asked(changes=c, dtype="fp8_block").seconds["quantise"] == close(15 * US + 3.84 * US)
    assert asked(changes=c, dtype="int4_wo").seconds["quantise"] == close(7 * US)


def test_block_scales_slow_mma_sync_and_no_warp_groups() -> None:
    assert asked(changes={"block_share_mma": 0.5}, dtype="fp8_block").seconds["tensor"] == close(16.384 * US)
    assert asked("sm_90", {"block_share_mma": 0.5}, dtype="fp8_block").seconds["tensor"] == close(2.048 * US)


def test_a_batch_is_more_rows_and_more_weights() -> None:
    found = asked(m=128, batch=10)
    assert found.seconds["tensor"] == close(16.384 * US)
    acts, weights = ACTS, 10 * WEIGHTS
    assert found.seconds["l2"] == close((weights + acts) / 1e13)
    assert found.seconds["dram"] == close((weights + acts) ** 2 / (weights + acts + 1e8) / 1e12)


def test_the_datasheet_bounds_it() -> None:
    assert asked(changes={"peak_share": 0.5}).least_s == close(FLOPS / 0.5e14)


def test_latency_is_floor_and_quantisation_and_the_overlap_of_the_rest() -> None:
    c = {"floor_us": 3.0, "pj_mma": 10.0, "iteration_mma": 64.0, "port_bytes_per_cycle": 64.0, "tile_cycles": 100.0}
    found = asked(changes=c, dtype="fp8")
    assert found.latency_s == close(sum(found.seconds.values()) + 0.05 * US)  # powers of 1 add; one tile's start: 100 cycles at 2 GHz
    assert found.seconds["launch"] == close(3 * US)
    s = found.seconds
    other = asked(changes={**c, "core_power": 2.0, "power_power": 3.0, "overlap_power": 4.0, "tile_cycles": 0.0}, dtype="fp8")
    core = (s["tensor"] ** 2 + s["operand feed"] ** 2 + s["k latency"] ** 2) ** 0.5
    busy = (core**3 + s["power"] ** 3) ** (1 / 3)
    assert other.latency_s == close(s["launch"] + s["quantise"] + (busy**4 + s["dram"] ** 4 + s["l2"] ** 4) ** 0.25)


def test_features() -> None:
    c = {"floor_us": 3.0, "pj_mma": 10.0, "iteration_mma": 64.0}
    found = asked(changes=c, m=1300, n=1290, k=1000, dtype="fp8", stack="torch")
    names = {
        "tensor": "tensor",
        "feed": "operand feed",
        "chain": "k latency",
        "dram": "dram",
        "l2": "l2",
        "power": "power",
        "floor": "launch",
    }
    for feature, term in names.items():
        assert found.features[feature] == close(np.log(found.seconds[term] / found.latency_s)), feature
    assert found.features["quantise"] == close(found.seconds["quantise"] / found.latency_s)
    wanted = {
        "waves": np.log(1.21), "tail": 2 / 1.21, "tail_128": 2 / 1.21, "tail_256": 1 / 0.66, "tiles_64": np.log(21 * 21 / 100),
        "tile": 0, "log2_m": np.log2(1300), "log2_n": np.log2(1290), "log2_k": np.log2(1000), "pad_128": 1408 / 1300, "m_mod_8": 4,
        "warpgroup": 0, "dtype": 2, "stack": 1,
    }  # fmt: skip
    assert {name: found.features[name] for name in wanted} == close(wanted)
    assert asked("sm_90").features["warpgroup"] == 1 and asked(stack="sglang").features["stack"] == 2
