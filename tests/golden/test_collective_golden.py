"""Reviewed predictions of collectives. After a change that is meant, read the difference and write them anew:

python tests/golden/rewrite.py collective
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import perfmodel as pm
from perfmodel.ops.collective import KINDS

FILE = Path(__file__).with_name("collective.json")
GPUS = (
    ("a100_sxm4_80gb", 8),
    ("h100_sxm", 8),
    ("h100_sxm", 2),
    ("h200_sxm", 2),
    ("b200_sxm", 8),
    ("l40s", 2),
    ("l40s", 8),
    ("rtx_pro_6000", 8),
)
SIZES = (1024, 2**18, 2**24, 2**30)


def questions() -> list[tuple[str, str, int, int, str]]:
    plain = [(gpu, kind, n, size, "nccl") for gpu, n in GPUS for kind in KINDS for size in SIZES]
    stacks = [
        (gpu, "all_reduce", n, size, s)
        for gpu, n in GPUS[:4]
        for s in ("torch", "torch_graph", "vllm", "sglang_eager", "trtllm")
        for size in SIZES
    ]
    return plain + stacks


def answers() -> dict[str, list[float | str]]:
    found: dict[str, list[float | str]] = {}
    for gpu, kind, n, size, stack in questions():
        for tier, calibration in (("auto", "auto"), ("spec", None)):
            one = pm.predict(pm.Collective(kind, size, n), gpu, stack=stack, calibration=calibration)
            row = [f"{one.latency_us:.4g}", f"{one.low_us:.4g}", f"{one.high_us:.4g}"]
            found[f"{gpu} x{n} {kind} {size} {stack} {tier}"] = [*map(float, row), f"{one.detail['algorithm']} {one.detail['protocol']}"]
    return found


def test_predictions_are_the_reviewed_ones() -> None:
    expected = json.loads(FILE.read_text())
    found = answers()
    assert list(found) == list(expected)
    for name, row in found.items():
        assert row[3] == expected[name][3], name
        assert row[:3] == pytest.approx(expected[name][:3], rel=2e-3), name
