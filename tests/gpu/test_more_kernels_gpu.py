"""The attention and fused-MoE kernels on a real device: numerics, cold timing, failures as rows, facts against the launched binary, and
the library beside prefill. `pytest -m gpu`."""

from __future__ import annotations

from typing import Any

import pytest

import perfmodel as pm
from perfmodel.measure.kernels import family
from perfmodel.measure.runner import LiveRunner
from perfmodel.measure.timing import Policy

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

QUICK = Policy(reps_middle=5, reps_final=9, reps_floor=5)
WIDE = {"num_warps": 4, "num_stages": 3}
PREFILL = {"batch": 2, "q_len": 700, "kv_len": 900, "q_heads": 8, "kv_heads": 2, "head_dim": 64, "causal": 1}
DECODE = {"batch": 3, "kv_len": 1500, "q_heads": 16, "kv_heads": 2, "head_dim": 128}
MOE = {"tokens": 77, "hidden": 512, "inter": 352, "num_experts": 8, "top_k": 2, "random": 1}
CASES = [
    *(("attention_prefill", PREFILL, {"variant": v, "block_m": 64, "block_n": 64, **WIDE}) for v in ("pointer", "banded", "tma")),
    ("attention_decode", DECODE, {"variant": "pointer", "block_n": 64, "num_splits": 5, **WIDE}),
    ("fused_moe", MOE, {"variant": "pointer", "block_m": 16, "block_n": 64, "block_k": 64, "group_m": 4, **WIDE}),
]


@pytest.mark.parametrize(("name", "problem", "config"), CASES, ids=lambda x: x if isinstance(x, str) else x.get("variant", ""))
def test_right_and_timed(name: str, problem: dict[str, Any], config: dict[str, Any]) -> None:
    runner = LiveRunner(family(name), {}, policy=QUICK)
    row = runner.measure({**problem, "dtype": "bf16"}, config)
    if row["status"] == "illegal":
        assert "9.0" in row["reason"]
        return
    assert row["status"] == "ok", row["reason"]
    assert 0 < row["min_us"] <= row["latency_us"] < 1e5 and row["finalist"]


def test_too_much_shared_memory_is_a_row() -> None:
    runner = LiveRunner(family("attention_prefill"), {}, policy=QUICK)
    config = {"variant": "pointer", "block_m": 128, "block_n": 256, "num_warps": 8, "num_stages": 4}
    row = runner.measure({**PREFILL, "head_dim": 128, "dtype": "bf16"}, config)
    assert row["status"] == "out_of_resources" and row["reason"] and "latency_us" not in row


def test_compiled_facts_are_the_launched_kernels() -> None:
    from perfmodel.measure.compile import compile_one

    name, problem, config = CASES[1]
    found = family(name)
    major, minor = torch.cuda.get_device_capability()
    fact = compile_one(name, found.binary_of(problem, config), "bf16", 10 * major + minor)
    prepared = found.prepare(found.make_inputs({**problem, "dtype": "bf16"}, "cuda", 0), config)
    launched = prepared.run()
    torch.cuda.synchronize()
    assert (launched.metadata.shared, launched.n_regs) == (fact["shared_bytes"], fact["regs"])  # type: ignore[attr-defined]


def test_tuned_prefill_is_near_the_library(tmp_path: Any) -> None:
    """Plain Triton attention loses to the library's warp-specialised kernel on Hopper, but not by half."""
    op = pm.Attention("prefill", 2, 2048, 2048, 16, 4, 128)
    found = pm.tune(op, top_k=4, store=tmp_path / "store.sqlite")
    assert found.latency_us < 1.5 * found.baseline_us["sdpa"]
