"""Hand-computed values of the operator-level laws and of what they count."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.analytic.power import power_seconds
from perfmodel.analytic.roofline import dram_seconds, miss_share, overlap
from perfmodel.ops.attention import Attention, visited_pairs
from perfmodel.ops.memory import MemoryBound
from perfmodel.ops.mla import MLA
from perfmodel.ops.moe import MoE, skew, touched_experts


def brute_pairs(q: int, kv: int, window: int, causal: bool) -> int:
    total = 0
    for i in range(1, q + 1):
        seen = kv - q + i if causal else kv
        total += min(seen, window) if window else seen
    return total


@pytest.mark.parametrize("q", [1, 2, 7, 16])
@pytest.mark.parametrize("extra", [0, 1, 5, 40])
@pytest.mark.parametrize("window", [0, 1, 3, 8, 100])
@pytest.mark.parametrize("causal", [True, False])
def test_visited_pairs_are_exact(q: int, extra: int, window: int, causal: bool) -> None:
    kv = q + extra
    if not causal:
        window = 0
    assert visited_pairs(q, kv, window, causal) == brute_pairs(q, kv, window, causal)


def test_attention_work_of_one_token() -> None:
    work = Attention("decode", 2, 1, 1000, 8, 2, 128).work()
    assert work.flops == 4 * 2 * 8 * 128 * 1000
    assert work.read_bytes == 2 * 8 * 128 * 2 + 2 * 2 * 1000 * 2 * 128 * 2


def test_mla_decode_counts_the_latent_cache_once() -> None:
    work = MLA("decode", 4, 1, 1000, 16).work()
    assert work.flops == 2 * 4 * 16 * 1000 * 1088
    assert work.read_bytes == 4 * 1000 * 576 * 2 + 4 * 16 * 576 * 2


def test_touched_experts_limits() -> None:
    assert touched_experts(1, 8, 128) == pytest.approx(8)
    assert touched_experts(10**6, 8, 128) == pytest.approx(128)
    assert touched_experts(2, 1, 4) == pytest.approx(4 * (1 - 0.75**2))


def test_moe_work_shares_out_experts_and_width() -> None:
    whole, half = MoE(64, 1024, 2048, 8, 2).work(), MoE(64, 1024, 2048, 8, 2, tp=2).work()
    assert half.flops == whole.flops / 2
    assert MoE(64, 1024, 2048, 8, 2, ep=4).work().flops == whole.flops / 4


def test_skew_names() -> None:
    assert skew("balanced") == 0.0
    assert skew("power_law_1.2") == pytest.approx(1.2)


def test_memory_work_counts_both_inputs_of_an_add() -> None:
    work = MemoryBound("add", 10, 100, "bf16").work()
    assert (work.read_bytes, work.write_bytes) == (4000.0, 2000.0)


def test_overlap_is_between_maximum_and_sum() -> None:
    assert overlap(1.0, 3.0, 4.0) == pytest.approx(7.0)
    assert overlap(2.0, 3.0, 4.0) == pytest.approx(5.0)
    assert overlap(60.0, 3.0, 4.0) == pytest.approx(4.0, rel=1e-6)


def test_miss_share_is_half_at_the_usable_cache() -> None:
    assert miss_share(1e6, 1e6, 8.0) == pytest.approx(0.5)
    assert miss_share(1e5, 1e6, 8.0) < 1e-6
    assert miss_share(1e8, 1e6, 8.0) > 1 - 1e-6


def test_dram_is_limited_by_bytes_in_flight() -> None:
    assert dram_seconds(1e9, 1e12, 0.9, 1e-6, 100.0, 64e3) == pytest.approx(1e9 / 0.9e12)
    assert dram_seconds(1e9, 1e12, 0.9, 1e-6, 1.0, 64e3) == pytest.approx(1e9 / 64e9)


def test_power_of_an_a100_matmul() -> None:
    seconds = power_seconds(np.array(2 * 8192.0**3), 1.21e-12, np.array(0.0), 0.0, 400.0, 0.2)
    assert 2 * 8192.0**3 / seconds / 1e12 == pytest.approx(264.5, abs=0.1)
