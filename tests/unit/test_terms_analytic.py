"""The laws of analytic/ by hand: rooflines, tiles and waves, attention blocks, routed rows, communication, occupancy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fictional import card, close

from perfmodel.analytic import attention, moe, network, roofline, tile
from perfmodel.analytic.occupancy import LIMITERS, blocks_per_sm
from perfmodel.analytic.power import power_seconds

# Rooflines


def test_overlap() -> None:
    assert roofline.overlap(1.0, 3.0, 4.0, 5.0) == close(12.0)
    assert roofline.overlap(2.0, 2.0, 3.0, 6.0) == close(7.0)


def test_misses_and_caches() -> None:
    # 1 / (1 + (usable / set)^sharpness)
    assert roofline.miss_share(3e6, 1e6, 1.0) == close(0.75) and roofline.miss_share(0.5e6, 1e6, 2.0) == close(0.2)
    assert roofline.miss_share(0.0, 3.0, 1.0) == close(0.25)  # at least a byte
    c = {"partition_share": 0.5, "partition_share_hopper": 0.7, "partition_sharpness": 4.0, "usable_cache": 0.9, "cache_sharpness": 8.0}
    for arch, wanted in {
        "sm_80": (0.5e8, 4.0),
        "sm_90": (0.7e8, 4.0),
        "sm_100": (0.7e8, 4.0),
        "sm_86": (0.9e8, 8.0),
        "sm_120": (0.9e8, 8.0),
    }.items():
        assert roofline.cache(card(arch), c) == close(wanted), arch
    del c["partition_share_hopper"]
    assert roofline.cache(card("sm_90"), c) == close((0.5e8, 4.0))


def test_dram() -> None:
    # 1e9 bytes at 0.5 x 1e12; 10 SMs x 1000 bytes in 1 us are 1e10 bytes/s
    assert roofline.dram_seconds(1e9, 1e12, 0.5, 1e-6, 1e9, 1000.0) == close(2e-3)
    assert roofline.dram_seconds(1e9, 1e12, 0.5, 1e-6, 10.0, 1000.0) == close(0.1)
    assert tile.dram_seconds(np.array(1e9), 1e12, 5e-6) == close(1.005e-3)


def test_power() -> None:
    # (1e12 x 2 pJ + 1e9 x 10 pJ) / (400 W x 0.75)
    assert power_seconds(np.array(1e12), 2e-12, np.array(1e9), 10e-12, 400.0, 0.25) == close(2.01 / 300)


# Tiles


def test_soft_maxima() -> None:
    assert tile.smooth_max4(3.0, 3.0) == close(3 * 2**0.25) and tile.smooth_max4(1.0, 2.0, 2.0) == close(33**0.25)
    assert tile.smooth_max2(3.0, 4.0) == close(5.0)


def test_waves_and_tensor_cycles() -> None:
    mean, busiest = tile.waves(np.array([50.0, 100.0, 101.0]), 100)
    assert mean == close([0.5, 1.0, 1.01]) and busiest.tolist() == [1, 1, 2]
    assert tile.tensor_cycles(np.array(6000.0), np.array(1000.0)) == close(6.0)


def test_shared_memory_of_warp_group_multiplies() -> None:
    # 128 rows are two instructions: 128 x 64 + 2 x 256 x 64 bytes; 65 rows too
    assert tile.warpgroup_operand_bytes(np.array(128.0), np.array(256.0), np.array(64.0)) == close((128 + 512) * 64)
    assert tile.warpgroup_operand_bytes(np.array(65.0), np.array(256.0), np.array(64.0)) == close((65 + 512) * 64)


def test_short_rows_and_hot_lines() -> None:
    found = tile.segment_efficiency(np.array([16.0, 32.0, 33.0, 64.0, 127.0, 128.0, 256.0]), 0.7, 0.5)
    assert found.tolist() == [0.5, 0.5, 0.7, 0.7, 0.7, 1.0, 1.0]
    assert tile.shared_line_efficiency(np.array(12.0), 4.0) == close(0.75)


def test_port() -> None:
    # 6400 bytes by a port of 64 bytes a cycle, or a hundredth of 5000
    assert tile.port_cycles(np.array(6400.0), np.array(10.0), 64.0, 5000.0) == close(100.0)
    assert tile.port_cycles(np.array(6400.0), np.array(100.0), 64.0, 5000.0) == close(128.0)


def test_exposed_latency() -> None:
    # three stages: two loads in flight
    assert tile.exposed_latency_cycles(np.array(1000.0), np.array(3.0), np.array(400.0), 30.0) == close(530.0)
    assert tile.exposed_latency_cycles(np.array(1000.0), np.array(3.0), np.array(600.0), 30.0) == close(630.0)
    assert tile.exposed_latency_cycles(np.array(1000.0), np.array(1.0), np.array(600.0), 30.0) == close(1030.0)


def core(busiest: float, mean: float, resident: float, throughput: float, alone: float, weight: float) -> tuple[float, float]:
    cycles, rounds = tile.core_cycles(*(np.array(v) for v in (busiest, mean, resident, throughput, alone)), weight)
    return float(cycles), float(rounds)


def test_rounds_of_resident_blocks() -> None:
    # five tiles, two resident: two full rounds of 2 x 30 and a rest of 30, each against 80 alone
    full, rest = (60.0**4 + 80**4) ** 0.25, (30.0**4 + 80**4) ** 0.25
    assert core(5, 5, 2, 30, 80, 1.0) == close((2 * full + rest, 3))
    assert core(4, 4, 2, 30, 80, 1.0) == close((2 * full, 2))
    # one tile where two would fit
    assert core(1, 0.5, 2, 30, 80, 0.3) == close((rest, 1))
    # the tail wave counts with 0.6 of its length: 0.6 + 0.4 x 1.5 / 2
    assert core(2, 1.5, 1, 30, 80, 0.6) == close((0.9 * 2 * rest, 2))


def reread(tiles_m: float, tiles_n: float, group_m: float, sms: float, l2: float) -> float:
    return float(tile.reread_bytes(*(np.array(v) for v in (tiles_m, tiles_n, 128.0, 256.0, 1000.0, group_m)), sms, l2))


def test_operands_read_again() -> None:
    # 16 x 10 tiles, waves of 4 x 5: eight waves of (4 x 128 + 5 x 256) x 1000 bytes, where once are (16 x 128 + 10 x 256) x 1000
    once, waves = (16 * 128 + 10 * 256) * 1000, 8 * (4 * 128 + 5 * 256) * 1000
    assert reread(16, 10, 4, 20, 0.0) == close(waves - once)
    assert reread(16, 10, 4, 20, once / 4) == close(0.75 * (waves - once))
    assert reread(16, 10, 4, 20, 2.0 * once) == 0 and reread(2, 2, 4, 20, 0.0) == 0
    # a band of more rows than SMs: one column at a time; a band of more rows than there are: all rows
    assert reread(64, 10, 32, 20, 0.0) == close((20 * (32 * 128 + 256) - (64 * 128 + 2560)) * 1000)
    assert reread(2, 100, 8, 20, 0.0) == close((10 * (256 + 2560) - (256 + 25600)) * 1000)


# Occupancy


def test_occupancy() -> None:
    # 48 warps, 65536 registers, 102400 bytes of shared memory of which each block's 1024 are reserved, 24 blocks
    on = card()
    found = blocks_per_sm(on, [128, 256, 1024, 32, 2048], [32, 128, 32, 32, 32], [1024, 1024, 1024, 0, 0])
    assert found.blocks_per_sm.tolist() == [12, 2, 1, 24, 0]
    assert [LIMITERS[i] for i in found.limiter] == ["warps", "registers", "warps", "blocks", "warps"]
    assert found.active_warps.tolist() == [48, 16, 32, 24, 0] and found.fraction.tolist() == close([1, 1 / 3, 2 / 3, 0.5, 0])
    shared = blocks_per_sm(on, 128, 32, [30_000, on.smem_per_block_bytes, on.smem_per_block_bytes + 1])
    assert shared.blocks_per_sm.tolist() == [3, 1, 0] and set(shared.limiter_names) == {"shared memory"}
    assert blocks_per_sm(on, 128, on.max_regs_per_thread + 1, 0).blocks_per_sm == 0
    assert blocks_per_sm(on, 33, 0, 0).active_warps == 48  # two warps each, 24 blocks


# Attention


def test_visited_blocks() -> None:
    def visits(q: int, kv: int, m: float, n: float, causal: bool) -> list[float]:
        return [float(v) for v in attention.visited_blocks(q, kv, np.array(m), np.array(n), causal)]

    # query blocks end at keys 4, 8 and visit 1, 2 blocks; the second has one before it
    assert visits(8, 8, 4, 4, True) == close([3, 2, 1])
    # 12 keys before: ends at 14, 16 visit 4 blocks each, three whole
    assert visits(4, 16, 2, 4, True) == close([8, 4, 6])
    # ends at 8, 16: 2 and 4 blocks; two before the second
    assert visits(16, 16, 8, 4, True) == close([6, 4, 2])
    # ends at 2, 4, 6, 8: 1, 1, 2, 2 blocks
    assert visits(8, 8, 2, 4, True)[:2] == close([6, 2])
    assert visits(10, 20, 4, 8, False) == close([9, 3, 6])


def test_softmax() -> None:
    issue, special = attention.softmax_cycles(np.array(100.0), np.array(6.0), np.array(8.0), 16.0)
    assert (float(issue), float(special)) == close((200.0, 96.0))


def test_makespan() -> None:
    def last(total: float, longest: float, slots: float, equal: bool, share: float, weight: float) -> float:
        return float(attention.makespan(np.array(total), np.array(longest), np.array(slots), equal, share, weight))

    # 12.5 visits a slot of programs of 10: 1.25 rounds, the second counted half: 10 x (2 + 1.25) / 2
    assert last(100, 10, 8, True, 0.3, 0.5) == close(16.25) and last(100, 10, 8, True, 0.3, 1.0) == close(20.0)
    assert last(100, 10, 8, False, 0.3, 0.5) == close(15.5)
    assert last(8, 10, 8, True, 0.3, 0.5) == close(10.0) and last(8, 10, 8, False, 0.3, 0.5) == close(10.0)
    assert last(80, 10, 8, True, 0.3, 1.0) == close(10.0)


def test_combining_splits() -> None:
    # 400 heads on 100 SMs with two programs each: two rounds of 6 splits x 50 cycles at 1 GHz
    assert attention.combine_seconds(400, 6, 50, 100, 1e-6, 1e9, 2e-6, 2.0) == close(3.6e-6)
    assert attention.combine_seconds(100, 6, 50, 100, 1e-6, 1e9, 2e-6, 2.0) == close(3.3e-6)


# Routed rows


def test_even_tiles() -> None:
    # 20 rows over 8 experts: four have 3, four 2; tiles of 2
    assert moe.even_tiles(10, 2, 8, 2) == close(12) and moe.even_tiles(12, 2, 8, 2) == close(16) and moe.even_tiles(1, 2, 8, 16) == close(2)


def test_padded_tiles_of_random_routing() -> None:
    # a token touches 2 of 4 experts; 1000 touch all: mean 500 rows, deviation sqrt(250)
    assert moe.padded_tiles(1, 2, 4, 16) == close(2)
    assert moe.padded_tiles(1000, 2, 4, 16) == pytest.approx(4 * (500 / 16 + 0.5), rel=1e-3)
    # one tile of 512 for certain, and the chance of more than 512 rows: z = 12.5 / 15.811, a normal's tail to 0.1 %
    z = 12.5 / math.sqrt(250)
    above = 1 / (1 + math.exp(1.5976 * z + 0.07056 * z**3))
    assert moe.padded_tiles(1000, 2, 4, 512) == close(4 * (1 + above)) and above == pytest.approx(0.2146, rel=2e-3)
    # whole tiles that all experts fill for certain: floor((500 - 4 x 15.811) / 128) = 3 and those at 384, 512, 640
    z = [(edge + 0.5 - 500) / math.sqrt(250) for edge in (384, 512)]
    beyond = [1 / (1 + math.exp(1.5976 * x + 0.07056 * x**3)) for x in z]
    assert moe.padded_tiles(1000, 2, 4, 128) == close(4 * (3 + sum(beyond)))


def test_rows_of_the_busiest_expert() -> None:
    # mean 25, sqrt(25 x 3/4 x 2 ln 8) more; at least one row, at most one a token
    assert moe.rows_of_busiest(100, 2, 8) == close(25 + math.sqrt(25 * 0.75 * 2 * math.log(8)))
    assert moe.rows_of_busiest(1, 2, 8) == 1 and moe.rows_of_busiest(2, 1, 2000) == 1 and moe.rows_of_busiest(3, 7, 8) == 3


def test_streams_of_weights() -> None:
    def share(stages: float, rows: float = 64, group: float = 4) -> float:
        return float(moe.stream_share(128.0, stages, rows, group, 64.0, 0.1, 0.2, 0.3))

    # pieces of 256 bytes lose 64; 4 x 16 rows at once 1 + 0.1 x 2; bands of four 1 + 0.2 x 2; two stages more than three 1 + 0.3 x 2
    assert share(3) == close(0.8 / (1.2 * 1.4)) and share(5) == close(0.8 / (1.2 * 1.4 * 1.6))
    assert share(2) == close(128 / 192 / (1.2 * 1.4)) and share(1) == share(2)
    assert share(3, rows=8, group=1) == close(0.8)


# Communication

ONE = np.ones(1)


def test_hops() -> None:
    inside, between = network.ring_hops(16 * ONE, 2 * ONE, 2 * ONE)
    assert (inside[0], between[0]) == (28, 2)
    assert network.warp_gain(4096 * ONE, 0.8, 4096.0)[0] == close(1.4) and network.warp_gain(3 * 4096 * ONE, 0.8, 4096.0)[0] == close(1.6)


def test_fill() -> None:
    # 2 x share x sqrt(start x w L / (w + L)): w = 30 us, L = 60 us: 20 us streamed
    assert network.fill(5e-6 * ONE, 30e-6 * ONE, 0.5, 60e-6)[0] == close(10e-6)
    # what fits into the first chunks has no pipeline: w becomes 30 x 30 / 45 = 20 us, 15 us streamed
    assert network.fill(5e-6 * ONE, 30e-6 * ONE, 0.5, 60e-6, 15e-6)[0] == close(math.sqrt(75e-12))


def test_ring_with_overlap_and_fill() -> None:
    # 14 hops of 1 us, 40 us on the wire; added, or in quadrature: steps then carry the gain
    arguments = (8e6 * ONE, 8 * ONE, ONE, 2 * ONE, 0.5 * ONE, 1e11 * ONE, 10e-6 * ONE, 1e-6 * ONE, 5e-6, 3e-6 * ONE)
    plain = network.ring(*arguments)
    assert (plain.steps_s[0], plain.bandwidth_s[0], plain.total_s[0]) == close((24e-6, 43e-6, 67e-6))
    joined = network.ring(*arguments, overlap=2.0)
    assert joined.steps_s[0] == close(10e-6 + math.sqrt(14**2 + 40**2) * 1e-6 - 40e-6) and joined.bandwidth_s[0] == close(43e-6)
    filled = network.ring(*arguments, fill_share=0.5, fill_longest_s=40e-6)
    assert filled.steps_s[0] == close(24e-6 + math.sqrt(24e-6 * 20e-6))


def test_tree() -> None:
    # two machines of eight: 14 hops inside, one level of tree up and down, every byte twice
    cost = network.tree(1e6 * ONE, 16 * ONE, 2 * ONE, 1e11 * ONE, 10e-6 * ONE, 1e-6 * ONE, 5e-6)
    assert (cost.steps_s[0], cost.bandwidth_s[0]) == close((10e-6 + 14e-6 + 10e-6, 20e-6))
    four = network.tree(1e6 * ONE, 32 * ONE, 4 * ONE, 1e11 * ONE, 10e-6 * ONE, 1e-6 * ONE, 5e-6)
    assert four.steps_s[0] == close(10e-6 + 14e-6 + 20e-6)


def test_nvls() -> None:
    cost = network.nvls(2e6 * ONE, 1e11 * ONE, 5e-6 * ONE, 0.5, 20e-6)
    assert (cost.steps_s[0], cost.bandwidth_s[0]) == close((5e-6 + math.sqrt(50e-12), 20e-6))


def test_direct() -> None:
    # eight GPUs: six peers more, 7/8 of 8 MB over the link
    cost = network.direct(8e6 * ONE, 8 * ONE, ONE, 1e11 * ONE, 1e10 * ONE, 10e-6 * ONE, 1e-6, 5e-6, 3e-6 * ONE)
    assert (cost.steps_s[0], cost.bandwidth_s[0]) == close((16e-6, 70e-6 + 3e-6))
    # two machines of eight: 8/16 of it over the network at 1e10, a hop of it
    cost = network.direct(8e6 * ONE, 16 * ONE, 2 * ONE, 1e11 * ONE, 1e10 * ONE, 10e-6 * ONE, 1e-6, 5e-6, 0 * ONE)
    assert (cost.steps_s[0], cost.bandwidth_s[0]) == close((10e-6 + 14e-6 + 5e-6, 400e-6))
    slow = network.direct(8e6 * ONE, 16 * ONE, 2 * ONE, 1e9 * ONE, 1e11 * ONE, 10e-6 * ONE, 1e-6, 5e-6, 0 * ONE)
    assert slow.bandwidth_s[0] == close(8e6 * 7 / 16 / 1e9)
    filled = network.direct(8e6 * ONE, 8 * ONE, ONE, 1e11 * ONE, 1e10 * ONE, 10e-6 * ONE, 1e-6, 5e-6, 0 * ONE, 0.5, 70e-6, 70e-6)
    assert filled.steps_s[0] == close(16e-6 + math.sqrt(16e-6 * 35e-6 * 70e-6 / 105e-6))


def test_shots() -> None:
    once = network.one_shot(1e6 * ONE, 8 * ONE, 1e11 * ONE, 5e-6, 1e-6)
    assert (once.steps_s[0], once.bandwidth_s[0]) == close((11e-6, 70e-6))
    twice = network.two_shot(1e6 * ONE, 8 * ONE, 1e11 * ONE, 5e-6, 1e-6)
    assert (twice.steps_s[0], twice.bandwidth_s[0]) == close((11e-6, 17.5e-6))
    assert network.one_shot(1e6 * ONE, 2 * ONE, 1e11 * ONE, 5e-6, 1e-6).steps_s[0] == close(5e-6)
