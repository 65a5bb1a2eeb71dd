"""The GEMM family by hand: laws of a tile, terms, the space, the rules and their reasons, config lists in any spelling, the shortlist."""

from __future__ import annotations

import dataclasses
import io
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfmodel as pm
from perfmodel.analytic import tile as law
from perfmodel.errors import InputError
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels import gemm, kernel_family
from perfmodel.kernels.configs import Configs, parse_configs
from perfmodel.kernels.facts import facts_for
from perfmodel.kernels.terms import constant_values, physics
from perfmodel.measure.kernels.gemm import illegal

H200 = pm.gpu("h200_sxm")
TILE = {"block_m": 128, "block_n": 128, "block_k": 64, "num_warps": 8, "num_stages": 3}
SMALL = {"block_m": 64, "block_n": 64, "block_k": 64, "num_warps": 4, "num_stages": 3}


def parse(configs: Any) -> Configs:
    return parse_configs(configs, required=gemm.REQUIRED, default_variant=gemm.PLAIN, variants=gemm.VARIANTS)


def arrays(*values: float) -> tuple[Any, ...]:
    return tuple(np.array([v], dtype=float) for v in values)


# laws of analytic/tile.py


def test_soft_maxima() -> None:
    assert law.smooth_max2(3.0, 4.0) == 5.0
    assert law.smooth_max4(1.0, 1.0) == pytest.approx(2**0.25)
    assert law.smooth_max4(np.array([7.0]), 0.0, 0.0)[0] == pytest.approx(7.0)


def test_waves() -> None:
    mean, busiest = law.waves(np.array([132.0, 133.0, 264.0, 1.0]), 132)
    assert mean == pytest.approx([1.0, 133 / 132, 2.0, 1 / 132])
    assert busiest.tolist() == [1, 2, 2, 1]


def test_tensor_cycles_of_a_tile() -> None:
    assert law.tensor_cycles(*arrays(2 * 128 * 128 * 64, 4096))[0] == 512


def test_operand_bytes_of_warp_group_multiplies() -> None:
    # 128 rows are two 64-row instructions: A once, B twice, 128 bytes deep
    assert law.warpgroup_operand_bytes(*arrays(128, 256, 128))[0] == (128 + 2 * 256) * 128


def test_short_rows_waste_requests() -> None:
    assert law.segment_efficiency(np.array([256.0, 128.0, 64.0, 33.0, 32.0, 16.0]), 0.9, 0.5).tolist() == [1, 1, 0.9, 0.9, 0.5, 0.5]


def test_a_few_lines_cannot_be_read_at_the_whole_rate() -> None:
    assert law.shared_line_efficiency(np.array([4.0, 12.0]), 4.0).tolist() == [0.5, 0.75]


def test_port_cycles_are_the_ports_or_the_slices() -> None:
    # 16 KiB: alone at 64 bytes a cycle; with 100 SMs that share 3200 bytes a cycle at 32
    assert law.port_cycles(np.array([16384.0, 16384.0]), np.array([1.0, 100.0]), 64.0, 3200.0).tolist() == [256.0, 512.0]


@pytest.mark.parametrize(
    ("load", "stages", "chain", "sync", "cycles"),
    [(1200, 4, 100, 40, 440), (1200, 4, 500, 40, 540), (1200, 2, 100, 40, 1240), (1200, 1, 100, 40, 1240)],
)
def test_exposed_latency(load: float, stages: float, chain: float, sync: float, cycles: float) -> None:
    assert law.exposed_latency_cycles(*arrays(load, stages, chain), sync)[0] == cycles


@pytest.mark.parametrize(
    ("busiest", "mean", "blocks", "throughput", "alone", "cycles", "rounds"),
    [
        (1, 0.5, 1, 100, 0, 100, 1),
        (3, 3, 2, 100, 0, 300, 2),  # a full round of two and one of one
        (3, 3, 2, 1e-3, 1000, 2000, 2),  # latency bound: two rounds of one latency each
        (4, 4, 4, 1e-3, 1000, 1000, 1),  # four blocks hide each other
        (2, 1.5, 1, 100, 0, 200 * (0.9 + 0.1 * 0.75), 2),  # half of the SMs have one tile only
    ],
)
def test_cycles_of_the_busiest_sm(
    busiest: float, mean: float, blocks: float, throughput: float, alone: float, cycles: float, rounds: float
) -> None:
    found, count = law.core_cycles(*arrays(busiest, mean, blocks, throughput, alone), 0.9)
    assert (found[0], count[0]) == (pytest.approx(cycles), rounds)


def test_operands_read_again() -> None:
    # 8 x 8 tiles of 128, 8 KiB deep, 16 SMs in bands of 8 rows: four waves of 8 rows and 2 columns, each reads (1024 + 256) rows
    once, waves = (1024 + 1024) * 8192.0, 4 * (1024 + 256) * 8192.0
    shape = arrays(8, 8, 128, 128, 8192, 8)
    assert law.reread_bytes(*shape, 16, 0.0)[0] == waves - once
    assert law.reread_bytes(*shape, 16, once / 2)[0] == pytest.approx((waves - once) / 2)
    assert law.reread_bytes(*shape, 16, once)[0] == 0  # everything stays in L2
    assert law.reread_bytes(*arrays(8, 8, 128, 128, 8192, 1), 16, 0.0)[0] == 8 * (128 + 8 * 128) * 8192 - once  # no bands
    assert law.reread_bytes(*shape, 64, 0.0)[0] == 0  # one wave


def test_dram_seconds() -> None:
    assert law.dram_seconds(np.array([4.8e9]), 4.8e12, 1e-6)[0] == pytest.approx(1e-3 + 1e-6)


# terms of kernels/gemm.py


def terms_of(gpu: GpuSpec, config: dict[str, Any], m: int, n: int, k: int, dtype: str = "bf16", **constants: float) -> Any:
    configs = parse([config])
    facts = facts_for("gemm", gpu, dtype, configs)
    return gemm.terms(gpu, dtype, configs, facts, constant_values("gemm", constants), m=m, n=n, k=k)


def test_terms_of_one_config_by_hand() -> None:
    found = terms_of(H200, TILE, 4096, 4096, 4096)
    assert found.waves[0] == 32 * 32 / 132
    assert found.blocks_per_sm[0] == 2 and found.limiter[0] == "registers"  # 102 registers x 256 threads; 96 KiB of 227
    once = 2 * 4096 * 4096 * 2.0
    again = (32 * (128 + 4096) * 8192 - once) * (1 - H200.l2_bytes / once)  # group_m 1: a wave is one row and 32 columns
    moved = once + again + 4096 * 4096 * 2
    assert found.seconds["DRAM"][0] == pytest.approx(moved / (0.9 * H200.dram_bytes_per_s) + 1e-6, rel=1e-9)
    assert found.seconds["launch"][0] == 4e-6
    assert found.latency_s[0] > 4e-6 + found.seconds["DRAM"][0]
    assert found.features["tail"][0] == pytest.approx(1024 / 132 / 8)
    assert found.features["resident"][0] == 2 and found.features["fill_m"][0] == 1


def test_compute_term_is_the_padded_work_at_the_clock() -> None:
    found = terms_of(H200, TILE, 4096, 4096, 4096)
    tensor = 2 * 128 * 128 * 64 / 4096  # cycles a step: 4096 flop a cycle and SM
    rows = 128 * (128 + 4) / 128  # A's 128 lines, read by all at once
    demand = (rows + 128) * 128 / (H200.l2_bytes_per_s / H200.max_clock_hz / 132)  # bytes a step at an SM's part of the L2 rate
    assert (found.seconds["compute"] / found.seconds["L2"])[0] == pytest.approx(tensor / demand, rel=1e-4)
    least = 2 * 4096**3 / (H200.tensor_flops["bf16"] * H200.max_clock_hz / H200.boost_clock_hz)
    assert least < found.seconds["compute"][0] < found.latency_s[0]


def test_split_k_pays_for_its_partial_tiles_and_wins_where_sms_idle() -> None:
    base = {"block_m": 16, "block_n": 64, "block_k": 128, "num_warps": 4, "num_stages": 4}
    one, four = (terms_of(H200, {**base, "split_k": s}, 16, 1024, 16384) for s in (1, 4))
    partial = 2 * 4 * 16 * 16 * 64 * 4.0  # written and read, fp32
    assert four.seconds["DRAM"][0] - one.seconds["DRAM"][0] == pytest.approx(partial / (0.9 * H200.dram_bytes_per_s), rel=1e-6)
    assert four.latency_s[0] < one.latency_s[0]
    assert four.waves[0] == 4 * one.waves[0]


def test_serialised_multiplies_cost() -> None:
    def cost(bm: int, bn: int, cycles: float) -> float:
        found = terms_of(H200, {**TILE, "block_m": bm, "block_n": bn}, 4096, 4096, 4096, serial_multiply_cycles=cycles)
        return float(found.latency_s[0])

    assert cost(128, 256, 64.0) > 1.01 * cost(128, 256, 1e-3)  # two warp groups of 256 columns: the compiler fences every multiply
    assert cost(256, 128, 64.0) == cost(256, 128, 1e-3)


def test_fragments_hide_under_no_load_and_barriers_grow_with_the_warps() -> None:
    """One tile of 32 x 64 by mma.sync over 64 steps, which waits for its loads: every step pays the fragments and the barrier."""
    narrow = {**TILE, "block_m": 32, "block_n": 64, "block_k": 128, "num_warps": 4, "num_stages": 3}
    step_s = 1.0 / (H200.max_clock_hz * constant_values("gemm", {})["clock_share"])

    def latency(config: dict[str, Any], **constants: float) -> float:
        return float(terms_of(H200, config, 32, 64, 8192, **constants).latency_s[0])

    fragments = latency(narrow, fragment_latency_cycles=200.0) - latency(narrow, fragment_latency_cycles=100.0)
    assert fragments == pytest.approx(64 * 100.0 * step_s, rel=0.1)  # beside 4 spilled bytes a thread
    four, eight = (latency(c, sync_cycles=80.0) - latency(c, sync_cycles=40.0) for c in (narrow, {**narrow, "num_warps": 8}))
    assert four == pytest.approx(0.4 * fragments, rel=0.02)
    assert 1.6 * four < eight <= 2 * four


def test_sizes_may_be_columns_beside_the_configs() -> None:
    configs = parse([TILE, SMALL])
    facts = facts_for("gemm", H200, "bf16", configs)
    constants = constant_values("gemm")
    both = gemm.terms(H200, "bf16", configs, facts, constants, m=np.array([64, 4096]), n=4096, k=np.array([512, 4096]))
    one = [terms_of(H200, TILE, 64, 4096, 512).latency_s[0], terms_of(H200, SMALL, 4096, 4096, 4096).latency_s[0]]
    assert both.latency_s == pytest.approx(one, rel=1e-12)


def test_terms_are_finite_and_named_for_every_config_of_the_space() -> None:
    for name in pm.gpus():
        spec = pm.gpu(name)
        for m, n, k in ((1, 1, 1), (17, 999, 1001), (8192, 8192, 8192)):
            space = gemm.space(spec, "bf16", m=m, n=n, k=k)
            facts = facts_for("gemm", spec, "bf16", space)
            found = gemm.terms(spec, "bf16", space, facts, constant_values("gemm"), m=m, n=n, k=k)
            assert np.isfinite(found.latency_s).all() and (found.latency_s > 0).all()
            assert all(np.isfinite(v).all() and np.broadcast_to(v, len(space)).shape == (len(space),) for v in found.features.values())
            assert set(found.bound()) <= set(found.seconds)


def test_constants_have_a_source_and_lie_in_their_range() -> None:
    for name, constant in physics("gemm").items():
        assert constant.low <= constant.value <= constant.high and constant.source, name
    with pytest.raises(InputError, match="unknown constant 'warp_drive'"):
        constant_values("gemm", {"warp_drive": 1.0})


# the space and its rules


@pytest.mark.parametrize("name", pm.gpus())
@pytest.mark.parametrize("sizes", [(1, 4096, 4096), (16, 1280, 8192), (512, 4096, 4096), (8192, 8192, 8192), (17, 999, 1001)])
def test_space_asks_only_what_is_worth_asking(name: str, sizes: tuple[int, int, int]) -> None:
    spec, (m, n, k) = pm.gpu(name), sizes
    space = gemm.space(spec, "bf16", m=m, n=n, k=k)
    rows = [tuple(r.values()) for r in space.rows()]
    assert len(set(rows)) == len(rows) > 20
    tiles = -(-m // space["block_m"]) * -(-n // space["block_n"])
    split = space["split_k"]
    assert (space["block_m"] <= max(16, 2 * m - 1)).all() and (space["block_n"] <= max(32, 2 * n - 1)).all()
    assert (tiles[split > 1] * split[split > 1] <= 2 * spec.sms).all() and (k >= 4 * split * space["block_k"])[split > 1].all()
    assert not (space.of("persistent") & (split > 1)).any()
    assert space.of("tma", "tma_swap", "persistent").any() == (spec.capability >= (9, 0))
    one_row = -(-m // space["block_m"]) == 1
    assert (space["group_m"][one_row] == 8).all()


def test_the_spaces_facts_are_compiled_ones_on_every_architecture() -> None:
    for name in pm.gpus():
        spec = pm.gpu(name)
        for dtype in ("bf16", "fp8"):
            if dtype in spec.tensor_flops and (spec.arch, dtype) != ("sm_120", "fp8"):
                assert facts_for("gemm", spec, dtype, gemm.space(spec, dtype, m=300, n=4096, k=4096)).exact.all(), (name, dtype)


def hard(spec: GpuSpec, sizes: dict[str, int], dtype: str, configs: Configs) -> Any:
    facts = facts_for("gemm", spec, dtype, configs)
    masks = [r.mask for r in gemm.rules(spec, **sizes, dtype=dtype, configs=configs, facts=facts) if r.hard]
    return np.any([np.broadcast_to(m, len(configs)) for m in masks], axis=0)


@pytest.mark.parametrize("name", ["a100_sxm", "l20", "h200_sxm"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 33, 7), (16, 1280, 8192), (17, 100, 100), (64, 4100, 200), (300, 4096, 4096)])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_rules_allow_exactly_what_the_kernels_can_run(name: str, sizes: tuple[int, int, int], dtype: str) -> None:
    spec, problem = pm.gpu(name), dict(zip("mnk", sizes, strict=True))
    if dtype not in spec.tensor_flops:
        pytest.skip(f"{name} has no {dtype}")
    odd = [{**SMALL, **c} for c in ({"block_m": 48}, {"block_n": 8}, {"block_k": 8}, {"split_k": 99}, {"num_warps": 6})]
    boxes = [
        {**SMALL, "variant": v, **c}
        for v in ("tma", "tma_swap", "persistent")
        for c in ({}, {"block_m": 512}, {"block_n": 32}, {"split_k": 2})
    ]
    pieces = [gemm.space(spec, **problem, dtype=dtype), parse(odd), parse([{**SMALL, "variant": "pointer"}, *boxes])]
    for configs in pieces:
        pruned = hard(spec, problem, dtype, configs)
        fits = facts_for("gemm", spec, dtype, configs).shared_bytes <= spec.smem_per_block_bytes
        for row, gone, fit in zip(configs.rows(), pruned, fits, strict=True):
            config = {**row, "variant": row["variant"].replace("plain", "pointer")}
            reason = illegal({**problem, "dtype": dtype}, config, spec.capability[0] * 10 + spec.capability[1])
            assert gone == (reason is not None or not fit), (config, reason)


REASONS = [
    ("l20", {"block_m": 48}, "powers of two"),
    ("l20", {"block_n": 8}, "tile under 16 x 16 x 32 bytes"),
    ("l20", {"num_warps": 64}, "more than 1024 threads"),
    ("l20", {"block_m": 256, "block_n": 256, "block_k": 128}, "shared memory than the 101376 bytes a block of l20"),
    ("l20", {"variant": "tma"}, "needs sm_90"),
    ("h200_sxm", {"variant": "tma", "block_n": 512}, "box"),
    ("h200_sxm", {"variant": "tma_swap", "block_n": 32}, "transposed"),
    ("h200_sxm", {"variant": "persistent", "split_k": 2}, "does not split k"),
    ("h200_sxm", {"split_k": 1000}, "more splits than tiles along k"),
]


@pytest.mark.parametrize(("name", "change", "reason"), REASONS)
def test_hard_reasons(name: str, change: dict[str, Any], reason: str) -> None:
    ranking = pm.rank(pm.Gemm(512, 4096, 4096), name, configs=[SMALL, {**SMALL, **change}], calibration=None)
    assert len(ranking) == 1 and len(ranking.pruned) == 1
    assert reason in ranking.pruned[0][1]
    with pytest.raises(InputError, match=reason):
        pm.predict(pm.Gemm(512, 4096, 4096), name, config={**SMALL, **change})


def test_a_block_with_more_registers_than_an_sm_cannot_launch() -> None:
    given = [{**SMALL, "regs": 128, "num_warps": 16}, {**SMALL, "regs": 129, "num_warps": 16}]
    ranking = pm.rank(pm.Gemm(512, 4096, 4096), "h200_sxm", configs=given)
    assert ranking.top(2) == given[:1] and "more registers than an SM has" in ranking.pruned[0][1]
    assert ranking.frame["blocks_per_sm"].tolist() == [1]


def test_alignment_reasons() -> None:
    given = [{**SMALL, "variant": v} for v in ("pointer", "tma", "persistent")]
    odd_k = pm.rank(pm.Gemm(512, 4096, 4100), "h200_sxm", configs=given)
    assert [c["variant"] for c, why in odd_k.pruned if "cannot load them" in why] == ["tma", "persistent"]
    odd_n = pm.rank(pm.Gemm(512, 4100, 4096), "h200_sxm", configs=given)
    assert [c["variant"] for c, why in odd_n.pruned if "cannot store them" in why] == ["persistent"]


@pytest.mark.parametrize(
    ("sizes", "change", "reason"),
    [
        ((512, 4096, 4096), {"block_m": 256, "block_n": 256}, "accumulators alone"),
        ((512, 4096, 4096), {"regs": 255, "spills": 40}, "spills more than 64 bytes"),
        ((16, 4096, 4096), {"block_m": 128}, "below the matrix"),
        ((512, 32, 4096), {"block_n": 128}, "right of the matrix"),
    ],
)
def test_soft_reasons_give_way_when_nothing_else_is_left(sizes: tuple[int, int, int], change: dict[str, int], reason: str) -> None:
    op, bad = pm.Gemm(*sizes), {**SMALL, **change}
    good = {**SMALL, "block_m": 16 if sizes[0] == 16 else 64, "block_n": 32 if sizes[1] == 32 else 64}
    if "regs" in change:
        good |= {"regs": 100, "spills": 0}
    both = pm.rank(op, "h200_sxm", configs=[good, bad])
    assert len(both) == 1 and reason in both.pruned[0][1]
    alone = pm.rank(op, "h200_sxm", configs=[bad])
    assert len(alone) == 1 and alone.pruned == []


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (1, 1, 1 << 20), (1 << 20, 1, 1), (3, 7, 11), (15, 31, 63), (129, 257, 513), (1, 1 << 20, 16)]
)
def test_never_prunes_to_nothing(sizes: tuple[int, int, int]) -> None:
    for name in pm.gpus():
        assert len(pm.rank(pm.Gemm(*sizes), name, calibration=None)) > 0, name


def test_unknown_family_and_dtype() -> None:
    with pytest.raises(InputError, match="unknown kernel 'gem'"):
        kernel_family("gem")
    with pytest.raises(InputError, match="int4_wo"):
        gemm.rate_of("int4_wo")


# config lists


@pytest.mark.parametrize(
    "row",
    [
        {"block_m": 64, "block_n": 128, "block_k": 32, "group_m": 8, "split_k": 2, "num_warps": 8, "num_stages": 4},
        {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 32, "GROUP_M": 8, "SPLIT_K": 2, "num_warps": 8, "num_stages": 4},
        {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8, "SPLIT_K": 2, "NUM_WARPS": 8, "NUM_STAGES": 4},
        {"bm": 64, "bn": 128, "bk": 32, "gm": 8, "sk": 2, "warps": 8, "stages": 4},
        {"kwargs": {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 32, "GROUP_M": 8, "SPLIT_K": 2}, "num_warps": 8, "num_stages": 4},
        {"BLOCK_M": "64", "BLOCK_N": "128", "BLOCK_K": "32", "GROUP_M": "8", "SPLIT_K": "2", "num_warps": "8", "num_stages": "4"},
        {
            "BLOCK_M": 64.0,
            "BLOCK_N": np.int32(128),
            "BLOCK_K": 32,
            "GROUP_M": 8,
            "SPLIT_K": 2,
            "num_warps": 8,
            "num_stages": 4,
            "EVEN_K": True,
        },
    ],
)
def test_spellings(row: dict[str, Any]) -> None:
    for given in ([row], (row,), row, iter([row])):
        configs = parse(given)
        assert {k: int(configs[k][0]) for k in configs.columns} == {
            "block_m": 64,
            "block_n": 128,
            "block_k": 32,
            "group_m": 8,
            "split_k": 2,
            "num_warps": 8,
            "num_stages": 4,
        }
        assert configs.variant.tolist() == ["plain"] and ("kwargs" in row or configs.given == (row,))


def test_frames_from_csv_files() -> None:
    text = "BLOCK_M,BLOCK_N,BLOCK_K,num_warps,num_stages,variant,remark\n64,128,32,8,4,tma,good\n16,64,64,,3,,\n"
    for frame in (pd.read_csv(io.StringIO(text)), pd.read_csv(io.StringIO(text), dtype=str)):
        configs = parse(frame)
        assert configs["num_warps"].tolist() == [8, 4] and configs["block_n"].tolist() == [128, 64]
        assert configs.variant.tolist() == ["tma", "plain"] and configs["group_m"].tolist() == [1, 1]


def test_triton_configs() -> None:
    triton = pytest.importorskip("triton")
    given = [triton.Config({"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 32}, num_warps=8, num_stages=4)]
    configs = parse(given)
    assert (configs["num_warps"][0], configs["num_stages"][0], configs["split_k"][0]) == (8, 4, 1)


def test_missing_optional_fields_take_tritons_defaults() -> None:
    configs = parse([{"block_m": 64, "block_n": 64, "block_k": 64}, {**SMALL, "num_warps": None, "group_m": math.nan, "split_k": 0}])
    for name, value in {"num_warps": 4, "num_stages": 3, "group_m": 1, "split_k": 1}.items():
        assert configs[name].tolist() == [value, value]


def test_other_fields_of_a_kernel_and_equal_repetitions_are_fine() -> None:
    own = {"GROUP_N": 2, "BLOCK_H": 16, "SPLIT_N": 3, "NUM_SMS": 132, "EVEN_K": True, "NUM_WARPS": 4, "num_warps": 4}
    assert parse([{**SMALL, **own}])["num_warps"].tolist() == [4]


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        (None, "list of configs or a DataFrame, not NoneType"),
        (pd.DataFrame(), "empty"),
        ([{}], "config 0 has no block_m"),
        ([SMALL, {**SMALL, "block_k": None}], "config 1 has no block_k .spellings: block_k, block_size_k, bk, tile_k, blockk"),
        ([{**SMALL, "block_m": [64]}], r"config 0: block_m must be a whole number of 1 or more, got \[64\]"),
        ([{**SMALL, "block_m": [64]}, {**SMALL, "block_m": [64]}], "config 0: block_m must be a whole number"),
        ([SMALL, {**SMALL, "block_m": [64, 32]}], "config 1: block_m must be a whole number"),
        ([{**SMALL, "block_m": 10**400}], "config 0: block_m must be a whole number"),
        ([{**SMALL, "num_warps": 0}], "config 0: num_warps must be a whole number of 1 or more, got 0"),
        ([{**SMALL, "num_stages": 0}], "config 0: num_stages must be"),
        ([SMALL, {**SMALL, "num_wraps": 8}], "config 1 has an unknown field 'num_wraps': did you mean num_warps?"),
        ([{**SMALL, "NUM_STAGE": 8}], "unknown field 'NUM_STAGE': did you mean num_stages?"),
        ([SMALL, {**SMALL, "BM": 128}], "config 1 gives block_m more than once with different values: as block_m, BM"),
        (pd.DataFrame([[64, 64, 64, 32]], columns=["BM", "BN", "BK", "BM"]), "config table has column 'BM' more than once"),
        (pd.DataFrame([[64, 64, 64, 32]], columns=["BM", "BN", "BK", "block_m"]), "the config table gives block_m more than once"),
        ([{**SMALL, "variant": ["plain"]}], "config 0 has variant"),
        ([{**SMALL, "variant": 5}], "config 0 has variant '5'"),
        ([{**SMALL, "block_m": "wide"}], "config 0: block_m must be a whole number of 1 or more, got 'wide'"),
        ([{**SMALL, "block_m": 2.5}], "got 2.5"),
        ([{**SMALL, "block_m": 1e12}], "block_m"),
        ([{**SMALL, "regs": -1}], "regs must be a whole number of 0 or more"),
        ([{**SMALL, "variant": "simt"}], "config 0 has variant 'simt'; known: pointer"),
        ([SMALL, "64x64"], "config 1 is str"),
        (pd.DataFrame([SMALL]).drop(columns="block_n"), "has no block_n"),
        (pd.DataFrame([SMALL, {**SMALL, "block_n": np.nan}]), "config 1: block_n"),
    ],
)
def test_bad_lists_in_one_line(configs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse(configs)
    assert "\n" not in str(caught.value)


def test_take_and_rows() -> None:
    configs = parse([{**SMALL, "variant": "tma"}, TILE, SMALL])
    picked = configs.take(np.array([True, False, True]))
    assert picked.rows() == configs.take(np.array([0, 2])).rows() and len(picked) == 2
    assert picked.rows()[0] == {"variant": "tma", "group_m": 1, "split_k": 1, **SMALL}
    assert picked.given == ({**SMALL, "variant": "tma"}, SMALL)
    assert configs.of("tma", "persistent").tolist() == [True, False, False]


# the shortlist


def ranking_with(latencies: list[float], kinds: list[int]) -> Any:
    """A ranking whose predicted latencies are given; kind numbers the output tile."""
    rows = [{**SMALL, "block_n": 32 << kind, "num_stages": 2 + i % 4, "group_m": 1 + i} for i, kind in enumerate(kinds)]
    ranking = pm.rank(pm.Gemm(512, 4096, 4096), "h200_sxm", configs=rows)
    assert len(ranking) == len(rows)
    values = np.array(latencies, dtype=float)
    predictions = dataclasses.replace(ranking.predictions, latency_us=values)
    return dataclasses.replace(ranking, predictions=predictions, order=np.argsort(values, kind="stable"))


def test_shortlist_holds_near_twins_back() -> None:
    ranking = ranking_with([100, 101, 102, 104], [0, 0, 0, 1])
    assert ranking.shortlist(1) == [0]
    assert ranking.shortlist(4) == [0, 3, 1, 2]  # 104 before 101 x 1.05
    assert ranking_with([100, 101, 102, 108], [0, 0, 0, 1]).shortlist(3) == [0, 1, 3]  # 102 x 1.10 after 108


def test_shortlist_of_a_real_space() -> None:
    ranking = pm.rank(pm.Gemm(512, 4096, 4096), "h200_sxm")
    few = ranking.shortlist(8)
    assert few[0] == ranking.order[0] and len(set(few)) == 8
    kinds = [(int(ranking.configs.code[i]), int(ranking.configs["block_m"][i]), int(ranking.configs["block_n"][i])) for i in few]
    plain = [
        (int(ranking.configs.code[i]), int(ranking.configs["block_m"][i]), int(ranking.configs["block_n"][i])) for i in ranking.order[:8]
    ]
    assert len(set(kinds)) >= len(set(plain)) and len(set(kinds)) > 2
    assert sorted(ranking.shortlist(10**6)) == sorted(ranking.order.tolist())
    for bad in (0, -1, 1.5):
        with pytest.raises(InputError):
            ranking.shortlist(bad)
