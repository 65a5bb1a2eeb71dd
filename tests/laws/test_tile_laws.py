"""Laws that the GEMM's closed form obeys for any GPU, shape and config, whatever the constants.

Each example asks the whole space of a problem at once. Growth in m and n has one reservation, stated where it is tested: the share of
loads that miss L2 falls as more tiles share operands, so a config that only waits for memory may get faster with more rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.analytic.occupancy import blocks_per_sm
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels import gemm
from perfmodel.kernels.configs import Configs
from perfmodel.kernels.facts import Facts, facts_for
from perfmodel.kernels.terms import constant_values, physics

SPEC = constant_values("gemm")
NO_CACHE_GAIN = {**SPEC, "miss_weight": 1e12}  # every load waits for DRAM, however many tiles share it
TOLERANCE = 1e-9


@st.composite
def problems(draw: st.DrawFn) -> tuple[GpuSpec, str, dict[str, int]]:
    spec = pm.gpu(draw(st.sampled_from(pm.gpus())))
    dtype = draw(st.sampled_from([d for d in ("bf16", "fp16", "fp8", "int8") if d in spec.tensor_flops]))
    side = st.one_of(st.integers(1, 20_000), st.sampled_from([2**i for i in range(15)]))
    return spec, dtype, {"m": draw(side), "n": draw(side), "k": 16 * draw(st.integers(1, 1500))}


@st.composite
def constants(draw: st.DrawFn) -> dict[str, float]:
    """Any constants that a fit may come to."""
    return {name: draw(st.floats(c.low, c.high)) for name, c in physics("gemm").items()}


def legal(spec: GpuSpec, dtype: str, sizes: Mapping[str, int]) -> tuple[Configs, Facts]:
    space = gemm.space(spec, **sizes, dtype=dtype)
    facts = facts_for("gemm", spec, dtype, space)
    keep = np.ones(len(space), dtype=bool)
    for rule in gemm.rules(spec, **sizes, dtype=dtype, configs=space, facts=facts):
        if rule.hard:
            keep &= ~rule.mask
    return space.take(keep), facts.take(np.flatnonzero(keep))


def seconds(spec: GpuSpec, dtype: str, sizes: Mapping[str, int], chosen: tuple[Configs, Facts], values: Mapping[str, float] = SPEC) -> Any:
    configs, facts = chosen
    return gemm.terms(spec, **sizes, dtype=dtype, configs=configs, facts=facts, constants=values).latency_s


@settings(max_examples=40, deadline=None)
@given(problems(), constants())
def test_never_faster_than_any_roofline(problem: Any, values: dict[str, float]) -> None:
    spec, dtype, sizes = problem
    work = pm.Gemm(**sizes, dtype=dtype).work()
    values["clock_share"] = min(values["clock_share"], 1.0)  # the peak below is at the highest clock that hwdb knows
    latency = seconds(spec, dtype, sizes, legal(spec, dtype, sizes), values)
    peak = spec.tensor_rate(dtype) * spec.max_clock_hz / spec.boost_clock_hz
    assert (latency > work.bytes / spec.dram_bytes_per_s).all()
    assert (latency > work.flops / peak).all()
    assert (latency > values["launch_s"]).all()


@settings(max_examples=40, deadline=None)
@given(problems(), constants(), st.sampled_from([2, 3, 8]))
def test_a_longer_k_never_takes_less(problem: Any, values: dict[str, float], factor: int) -> None:
    spec, dtype, sizes = problem
    chosen = legal(spec, dtype, sizes)
    assert (seconds(spec, dtype, {**sizes, "k": sizes["k"] * factor}, chosen, values) >= seconds(spec, dtype, sizes, chosen, values)).all()


@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from("mn"), st.sampled_from([2, 3, 8]))
def test_more_rows_or_columns_never_take_less(problem: Any, axis: str, factor: int) -> None:
    """For tiles no longer than the side that grows.

    The tail wave counts with tail_weight of its length, so a second wave that hides under the first one's latency may save
    (1 - weight) / 2.
    """
    spec, dtype, sizes = problem
    configs, facts = legal(spec, dtype, sizes)
    inside = np.flatnonzero(configs[f"block_{axis}"] <= sizes[axis])
    chosen = configs.take(inside), facts.take(inside)
    more = {**sizes, axis: sizes[axis] * factor}
    ratio = seconds(spec, dtype, more, chosen, NO_CACHE_GAIN) / seconds(spec, dtype, sizes, chosen, NO_CACHE_GAIN)
    assert (ratio >= 1.0 - (1.0 - SPEC["tail_weight"]) / 2.0 - TOLERANCE).all()
    # with tiles that share their operands in L2 the wait for DRAM shrinks: never below what all loads from L2 would take
    near = dataclasses.replace(spec, dram_latency_s=spec.l2_latency_s)
    floor = seconds(near, dtype, sizes, chosen, {**SPEC, "dram_latency_factor": SPEC["l2_latency_factor"]})
    assert (seconds(spec, dtype, more, chosen) >= 0.95 * floor).all()


@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from("mn"))
def test_the_best_config_of_a_larger_problem_is_hardly_ever_faster(problem: Any, axis: str) -> None:
    spec, dtype, sizes = problem
    more = {**sizes, axis: sizes[axis] * 2}
    chosen = legal(spec, dtype, more)
    assert seconds(spec, dtype, more, chosen).min() >= 0.9 * seconds(spec, dtype, sizes, chosen).min()


RATES = ("dram_bytes_per_s", "l2_bytes_per_s", "boost_clock_hz", "max_clock_hz")


@settings(max_examples=40, deadline=None)
@given(problems(), constants(), st.floats(1.0, 4.0))
def test_not_worse_with_more_bandwidth_or_a_higher_tensor_rate(problem: Any, values: dict[str, float], factor: float) -> None:
    spec, dtype, sizes = problem
    chosen = legal(spec, dtype, sizes)
    before = seconds(spec, dtype, sizes, chosen, values)
    better = [
        dataclasses.replace(spec, dram_bytes_per_s=spec.dram_bytes_per_s * factor),
        dataclasses.replace(spec, l2_bytes_per_s=spec.l2_bytes_per_s * factor),
        dataclasses.replace(spec, l2_bytes=int(spec.l2_bytes * factor)),
        dataclasses.replace(spec, dram_latency_s=spec.dram_latency_s / factor),
        dataclasses.replace(spec, l2_latency_s=spec.l2_latency_s / factor),
        dataclasses.replace(spec, tensor_flops={name: rate * factor for name, rate in spec.tensor_flops.items()}),
    ]
    for gpu in better:
        assert (seconds(gpu, dtype, sizes, chosen, values) <= before * (1 + TOLERANCE)).all()


@settings(max_examples=40, deadline=None)
@given(problems(), constants(), st.floats(0.25, 4.0))
def test_a_machine_faster_in_everything_is_faster_by_as_much(problem: Any, values: dict[str, float], factor: float) -> None:
    spec, dtype, sizes = problem
    chosen = legal(spec, dtype, sizes)
    faster = dataclasses.replace(
        spec,
        **{name: getattr(spec, name) * factor for name in RATES},
        dram_latency_s=spec.dram_latency_s / factor,
        l2_latency_s=spec.l2_latency_s / factor,
        tensor_flops={name: rate * factor for name, rate in spec.tensor_flops.items()},
    )
    scaled = {name: value / factor if name.endswith("_s") else value for name, value in values.items()}
    now, then = seconds(spec, dtype, sizes, chosen, values), seconds(faster, dtype, sizes, chosen, scaled)
    np.testing.assert_allclose(then * factor, now, rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(problems(), constants())
def test_terms_are_not_negative_and_features_have_no_dimension(problem: Any, values: dict[str, float]) -> None:
    spec, dtype, sizes = problem
    configs, facts = legal(spec, dtype, sizes)
    found = gemm.terms(spec, **sizes, dtype=dtype, configs=configs, facts=facts, constants=values)
    for name, value in found.seconds.items():
        assert (np.asarray(value) >= 0).all(), name
    assert all(np.isfinite(v).all() for v in found.features.values())
    assert (found.blocks_per_sm >= 1).all()
    shares = [k for k in found.features if k in ("tail", "fill_m", "fill_n", "miss", "serialised", "registers")]
    assert len(shares) == 6 and all((found.features[k] <= 1 + TOLERANCE).all() and (found.features[k] >= 0).all() for k in shares)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(pm.gpus()), st.integers(1, 32), st.integers(0, 254), st.integers(0, 100_000), st.integers(1, 5000))
def test_occupancy_never_grows_with_what_a_block_asks(name: str, warps: int, regs: int, smem: int, more: int) -> None:
    spec = pm.gpu(name)
    base = int(blocks_per_sm(spec, 32 * warps, regs, smem).blocks_per_sm)
    assert 0 <= base <= spec.max_blocks_per_sm and base * warps <= spec.max_warps_per_sm
    assert int(blocks_per_sm(spec, 32 * warps, regs, smem + more).blocks_per_sm) <= base
    assert int(blocks_per_sm(spec, 32 * warps, regs + 1, smem).blocks_per_sm) <= base or regs == 0
    assert int(blocks_per_sm(spec, 32 * (warps + 1), regs, smem).blocks_per_sm) <= base
    larger = dataclasses.replace(spec, smem_per_sm_bytes=spec.smem_per_sm_bytes * 2, regs_per_sm=spec.regs_per_sm * 2)
    assert int(blocks_per_sm(larger, 32 * warps, regs, smem).blocks_per_sm) >= base


def test_reservations_are_about_this_law() -> None:
    """The gain in L2 that the growth laws leave room for: many small tiles of a small problem. Remove the reservation if this fails."""
    spec = pm.gpu("h200_sxm")
    small, large = ({"m": m, "n": 495, "k": 15920} for m in (53, 212))
    chosen = legal(spec, "bf16", small)
    ratio = seconds(spec, "bf16", large, chosen) / seconds(spec, "bf16", small, chosen)
    assert 0.6 < ratio.min() < 1.0
    assert pytest.approx(SPEC["tail_weight"]) == 0.9
