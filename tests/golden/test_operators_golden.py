"""Reviewed predictions of library operators: attention, MoE, MLA, memory and GEMM by shipped models, on several stacks and GPUs.

They follow the shipped models and constants, so a new fit changes them. Written by `python tests/golden/rewrite.py operators`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from goldens import differences, number, read

import perfmodel as pm

FILE = Path(__file__).with_name("operators.json")
OPERATORS: dict[str, Any] = {
    "gemm 4096x4096x4096 bf16": pm.Gemm(4096, 4096, 4096),
    "gemm 32x8192x28672 bf16": pm.Gemm(32, 8192, 28672),
    "gemm 1x6144x4096 int4_wo": pm.Gemm(1, 6144, 4096, dtype="int4_wo"),
    "prefill 4 x 2048, 32/8 heads of 128": pm.Attention("prefill", 4, 2048, 2048, 32, 8, 128),
    "prefill 1 x 512 after 8192, window 1024, 64/8 heads of 64": pm.Attention("prefill", 1, 512, 8704, 64, 8, 64, window=1024),
    "decode 64 x 4096, 32/8 heads of 128": pm.Attention("decode", 64, 1, 4096, 32, 8, 128),
    "decode 1 x 100000, 64/4 heads of 128": pm.Attention("decode", 1, 1, 100000, 64, 4, 128),
    "MLA prefill 2 x 1024, 128 heads": pm.MLA("prefill", 2, 1024, 1024, 128),
    "MLA decode 32 x 3000, 16 heads": pm.MLA("decode", 32, 1, 3000, 16),
    "MoE 64 tokens, 8 of 128 experts": pm.MoE(64, 4096, 1536, 128, 8),
    "MoE 4096 tokens, 2 of 8 experts, skewed": pm.MoE(4096, 4096, 14336, 8, 2, tp=2, distribution="power_law_1.2"),
    "rmsnorm 512 x 4096": pm.MemoryBound("rmsnorm", 512, 4096),
    "silu_mul 8192 x 14336": pm.MemoryBound("silu_mul", 8192, 14336),
}
ASKED = [  # GPU, stack, calibration
    ("h100_sxm", "vllm", "auto"),
    ("h100_sxm", "trtllm", None),
    ("h200_sxm", "sglang", "auto"),
    ("a100_sxm4_80gb", "vllm", "auto"),
    ("l40s", "sglang", "auto"),
    ("l20", "vllm", "auto"),
    ("b200_sxm", "trtllm", "auto"),
]


def key(name: str, gpu: str, stack: str, calibration: str | None) -> str:
    return f"{name} | {gpu} | {stack} | {calibration or 'spec'}"


def answer(op: Any, gpu: str, stack: str, calibration: str | None) -> dict[str, Any]:
    p = pm.predict(op, gpu, stack=stack, calibration=calibration)
    numbers = {name: number(getattr(p, name)) for name in ("latency_us", "low_us", "high_us")}
    return {**numbers, "bound": p.bound, "tier": p.tier, "in_domain": bool(p.in_domain)}


def figures() -> dict[str, Any]:
    return {key(name, *asked): answer(op, *asked) for name, op in OPERATORS.items() for asked in ASKED}


@pytest.mark.parametrize("name", OPERATORS)
def test_every_prediction_is_as_reviewed(name: str) -> None:
    expected = {k: v for k, v in read(FILE).items() if k.startswith(f"{name} |")}
    lines = differences(expected, {key(name, *asked): answer(OPERATORS[name], *asked) for asked in ASKED})
    assert not lines, "\n".join(lines)
