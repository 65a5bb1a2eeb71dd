"""The GEMM kernels on a real device: numerics, cold timing, failures as rows, and facts against the launched binary. `pytest -m gpu`."""

from __future__ import annotations

import math
from typing import Any

import pytest

import perfmodel as pm
from perfmodel.measure.kernels.gemm import FAMILY
from perfmodel.measure.runner import LiveRunner
from perfmodel.measure.timing import Policy

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

QUICK = Policy(reps_middle=5, reps_final=9, reps_floor=5)
SHAPES = [(1, 4096, 4096), (17, 1536, 2048), (300, 1000, 4112), (1024, 1024, 1024)]


def capability() -> int:
    major, minor = torch.cuda.get_device_capability()
    return int(10 * major + minor)


def config(variant: str, bm: int, bn: int, bk: int, warps: int = 4, stages: int = 3, split: int = 1) -> dict[str, Any]:
    tile = {"block_m": bm, "block_n": bn, "block_k": bk, "num_warps": warps, "num_stages": stages}
    return {"variant": variant, **tile, "group_m": 4, "split_k": split}


CONFIGS = [
    config("pointer", 16, 64, 64),
    config("pointer", 64, 128, 64, split=4),
    config("pointer", 128, 128, 64, warps=8, stages=2),
    config("tma", 64, 64, 64, stages=4),
    config("tma", 128, 256, 64, warps=8),
    config("tma", 64, 64, 64, split=3),
    config("tma_swap", 16, 64, 128, stages=4),
    config("persistent", 128, 128, 64, warps=8),
    config("persistent", 128, 256, 64, warps=8),
]


@pytest.fixture(scope="module")
def runner() -> LiveRunner:
    return LiveRunner(FAMILY, {}, policy=QUICK)


@pytest.mark.parametrize("dtype", FAMILY.dtypes)
@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("chosen", CONFIGS, ids=lambda c: f"{c['variant']}-{c['block_m']}x{c['block_n']}x{c['block_k']}-{c['split_k']}")
def test_every_config_is_right_or_says_why_not(runner: LiveRunner, sizes: tuple[int, int, int], dtype: str, chosen: dict[str, Any]) -> None:
    problem = {**dict(zip("mnk", sizes, strict=True)), "dtype": dtype}
    row = runner.measure(problem, chosen)
    reason = FAMILY.illegal(problem, chosen, capability())
    if reason:
        assert (row["status"], row["reason"]) == ("illegal", reason)
        return
    assert row["status"] in ("ok", "out_of_resources"), row["reason"]
    if row["status"] == "ok":
        assert row["rel_error"] <= FAMILY.tolerance[dtype]
        assert 0 < row["min_us"] <= row["latency_us"] < 1e5 and row["reps"] >= 5 and row["finalist"]


def test_split_sums_are_deterministic_and_locks_are_left_clean() -> None:
    inputs = FAMILY.make_inputs({"m": 64, "n": 512, "k": 4096, "dtype": "bf16"}, "cuda", 0)
    prepared = FAMILY.prepare(inputs, config("pointer", 64, 64, 64, split=8))
    prepared.run()
    torch.cuda.synchronize()
    first = prepared.output.clone()
    for _ in range(20):
        prepared.output.fill_(math.nan)
        prepared.run()
        torch.cuda.synchronize()
        assert torch.equal(prepared.output, first)


def test_too_much_shared_memory_is_a_row(runner: LiveRunner) -> None:
    row = runner.measure({"m": 512, "n": 512, "k": 4096, "dtype": "bf16"}, config("pointer", 128, 256, 128, warps=8, stages=5))
    assert row["status"] == "out_of_resources" and row["reason"] and "latency_us" not in row


def test_library_baselines(runner: LiveRunner) -> None:
    for dtype in ("bf16", "fp16") + (("fp8",) if capability() >= 89 else ()):
        row = runner.baseline({"m": 512, "n": 1024, "k": 1024, "dtype": dtype}, "cublas")
        assert row["status"] == "ok" and row["variant"] == "cublas" and row["block_m"] is None, row["reason"]


def test_cold_timing_pays_for_dram(runner: LiveRunner) -> None:
    """A matrix that fits in L2 still comes from DRAM, since the cache is overwritten before each repetition."""
    problem = {"m": 16, "n": 4096, "k": 4096, "dtype": "bf16"}
    row = runner.measure(problem, config("pointer", 16, 64, 128, stages=4))
    assert row["status"] == "ok", row["reason"]
    weight_bytes = 4096 * 4096 * 2
    try:
        peak = pm.gpu(torch.cuda.get_device_name()).dram_bytes_per_s
    except pm.InputError:
        peak = 8e12
    assert row["latency_us"] > weight_bytes / peak * 1e6


def test_compiled_facts_are_the_launched_kernels() -> None:
    from perfmodel.measure.compile import compile_one

    problem = {"m": 512, "n": 1024, "k": 1024, "dtype": "bf16"}
    chosen = config("pointer", 64, 128, 64, stages=3)
    fact = compile_one("gemm", FAMILY.binary_of(problem, chosen), "bf16", capability())
    prepared = FAMILY.prepare(FAMILY.make_inputs(problem, "cuda", 0), chosen)
    launched = prepared.run()
    torch.cuda.synchronize()
    assert (launched.metadata.shared, launched.n_regs) == (fact["shared_bytes"], fact["regs"])  # type: ignore[attr-defined]
