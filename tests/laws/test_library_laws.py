"""What must hold of every operator law, whatever the sizes and the GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.analytic.constants import physics
from perfmodel.hw import gpu
from perfmodel.learn.calibration import resolve
from perfmodel.learn.operators import operator_terms, predict_columns
from perfmodel.library.registry import MODELS, parts
from perfmodel.ops import OperatorTable
from perfmodel.ops.attention import Attention
from perfmodel.ops.gemm import Gemm
from perfmodel.ops.memory import MemoryBound
from perfmodel.ops.mla import MLA
from perfmodel.ops.moe import MoE

GPUS = ["a100_sxm4_80gb", "h100_sxm", "h200_sxm", "b200_sxm", "l20", "l40s", "rtx_pro_6000", "a10", "h20"]
MONOTONE = 0.998  # the soft minimum over tiles may fall by 0.11 % between powers of two (worst: b200_sxm, m 16 to 32, n 2048, k 512)
power = st.integers(0, 13).map(lambda e: 2**e)


def law(op: Any, spec: Any, stack: str = "vllm") -> Any:
    columns = OperatorTable.of(op, stack)
    return operator_terms(spec, parts(columns)[0][0], columns, {})


def seconds(op: Any, spec: Any) -> float:
    return float(law(op, spec).latency_s[0])


def faster(spec: Any, factor: float) -> Any:
    """Every rate up, every latency down by `factor`."""
    return dataclasses.replace(
        spec,
        boost_clock_hz=spec.boost_clock_hz * factor, max_clock_hz=spec.max_clock_hz * factor, l2_bytes_per_s=spec.l2_bytes_per_s * factor,
        l2_latency_s=spec.l2_latency_s / factor, dram_bytes_per_s=spec.dram_bytes_per_s * factor,
        dram_latency_s=spec.dram_latency_s / factor,
        tensor_flops={k: v * factor for k, v in spec.tensor_flops.items()}, fp32_flops=spec.fp32_flops * factor,
        power_w=spec.power_w * factor,
    )  # fmt: skip


def operators(size: int, other: int) -> list[Any]:
    return [
        Gemm(size, other, 256),
        Attention("decode", size, 1, max(other, 2), 8, 2, 128),
        Attention("prefill", 2, max(size, 2), max(size, 2), 8, 2, 128),
        MoE(size, 1024, 512, 64, 4),
        MLA("decode", size, 1, max(other, 2), 16),
        MemoryBound("rmsnorm", size, other),
    ]


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(GPUS), size=power, other=power)
def test_latency_is_finite_and_over_every_term_that_must_be_paid(name: str, size: int, other: int) -> None:
    for op in operators(size, other):
        terms = law(op, gpu(name))
        assert np.isfinite(terms.latency_s).all()
        assert all(np.isfinite(v).all() for v in terms.features.values())
        for term in ("dram", "tensor", "l2", "launch"):
            if term in terms.seconds:
                assert terms.latency_s >= terms.seconds[term] * (1 - 1e-9), (op, term)


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(GPUS), m=power, n=power, k=st.integers(6, 13).map(lambda e: 2**e))
def test_gemm_never_beats_the_flops_of_the_highest_clock(name: str, m: int, n: int, k: int) -> None:
    spec = gpu(name)
    peak = spec.tensor_rate("bf16") * spec.max_clock_hz / spec.boost_clock_hz
    assert seconds(Gemm(m, n, k), spec) >= 2.0 * m * n * k / peak


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("size", [4096, 16384])
def test_no_answer_beats_the_datasheet(name: str, size: int) -> None:
    spec = gpu(name)
    found = predict_columns(spec, "gemm", OperatorTable.of(Gemm(size, size, size), "vllm"), resolve(spec, "gemm", "auto"))
    least = 2e6 * size**3 / spec.tensor_rate("bf16") / physics("library_gemm")["peak_share"].value
    assert least * (1 - 1e-9) <= found.low_us <= found.latency_us <= found.high_us


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(GPUS), size=power, other=power, factor=st.sampled_from([2, 4]))
def test_more_work_takes_longer(name: str, size: int, other: int, factor: int) -> None:
    spec = gpu(name)
    assert seconds(Gemm(size * factor, other, 512), spec) >= MONOTONE * seconds(Gemm(size, other, 512), spec)
    assert seconds(Gemm(64, size * factor, 512), spec) >= MONOTONE * seconds(Gemm(64, size, 512), spec)
    for small, large in (
        (Attention("decode", size, 1, 1024, 8, 2, 128), Attention("decode", size * factor, 1, 1024, 8, 2, 128)),
        (Attention("prefill", size, 256, 256, 8, 2, 128), Attention("prefill", size * factor, 256, 256, 8, 2, 128)),
        (MemoryBound("add", size, 1024), MemoryBound("add", size * factor, 1024)),
    ):
        assert seconds(large, spec) >= MONOTONE * seconds(small, spec)


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(GPUS), size=power, other=power)
def test_more_dram_bandwidth_is_never_worse(name: str, size: int, other: int) -> None:
    spec = gpu(name)
    wider = dataclasses.replace(spec, dram_bytes_per_s=2 * spec.dram_bytes_per_s)
    for op in operators(size, other):
        assert seconds(op, wider) <= seconds(op, spec) * (1 + 1e-9), op


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(GPUS), size=power, other=power)
def test_scaling_every_rate_scales_all_but_the_fixed_part(name: str, size: int, other: int) -> None:
    spec = gpu(name)
    for op in operators(size, other):
        slow, fast = seconds(op, spec), seconds(op, faster(spec, 2.0))
        assert slow / 2 * (1 - 1e-9) <= fast <= slow, op


@pytest.mark.parametrize(
    "op", [Gemm(16, 8192, 8192), Attention("decode", 64, 1, 4096, 32, 8, 128), MoE(16, 4096, 1536, 128, 8), MemoryBound("add", 65536, 4096)]
)
def test_h200_beats_h100_by_no_more_than_its_bandwidth(op: Any) -> None:
    h100, h200 = gpu("h100_sxm"), gpu("h200_sxm")
    gain = seconds(op, h100) / seconds(op, h200)
    assert 1.05 < gain <= h200.dram_bytes_per_s / h100.dram_bytes_per_s + 1e-9


@pytest.mark.parametrize("what", sorted(MODELS))
def test_no_gpu_name_among_the_features(what: str) -> None:
    assert not set(MODELS[what].domain) & {"gpu", "name"}
