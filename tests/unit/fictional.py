"""A GPU and constants of round numbers, so that a law's terms can be worked out by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfmodel.analytic.constants import physics
from perfmodel.hw import gpu
from perfmodel.library.terms import OperatorTerms
from perfmodel.ops import OperatorTable

US = 1e-6


def card(arch: str = "sm_89", **changes: Any) -> Any:
    """100 SMs, 1 GHz quoted and 2 GHz at most, 1e12 B/s of DRAM, 1e13 B/s of L2, 1000 bf16 flop a clock and SM (4000 by warp groups)."""
    per_clock = 4e14 if arch in ("sm_90", "sm_100") else 1e14
    return dataclasses.replace(
        gpu("h100_sxm" if arch in ("sm_90", "sm_100") else "l40s"), name="round", arch=arch, sms=100, boost_clock_hz=1e9, max_clock_hz=2e9,
        l2_bytes=10**8, l2_bytes_per_s=1e13, l2_latency_s=0.5e-6, dram_bytes=80 * 2**30, dram_bytes_per_s=1e12, dram_latency_s=1e-6,
        tensor_flops={"bf16": per_clock, "fp16": per_clock, "fp8": 2 * per_clock, "int8": 2 * per_clock}, fp32_flops=1e13,
        sfu_per_clock_per_sm=10.0, power_w=1000.0, **changes,
    )  # fmt: skip


def neutral(law: str, **values: float) -> dict[str, float]:
    """Every constant of a law 1, but for `values`: powers of overlaps then add, shares and costs change nothing; nothing is idle."""
    found = {name: 0.0 if name == "idle_share" else 1.0 for name in physics(law)}
    assert not set(values) - set(found), set(values) - set(found)
    return {**found, **values}


def ask(law: Callable[..., OperatorTerms], on: Any, c: dict[str, float], kind: str, /, **row: Any) -> Any:
    """`seconds`, `features` and `latency_s` of one operator, as numbers; a row says the same alone and in a table."""
    with np.errstate(divide="ignore"):  # features are logarithms, of terms that a test may have made 0
        table, three = (law(on, OperatorTable.read(kind, pd.DataFrame([row] * rows)), c) for rows in (1, 3))
    first = {name: float(np.broadcast_to(v, 1)[0]) for name, v in table.seconds.items()}
    for name, value in three.seconds.items():
        assert np.broadcast_to(value, 3) == pytest.approx(first[name], rel=1e-9), name
    assert three.latency_s == pytest.approx(float(table.latency_s[0]), rel=1e-9)
    return SimpleNamespace(
        latency_s=float(table.latency_s[0]), least_s=float(np.ravel(table.least_s)[0]),
        seconds=first,
        features={name: float(np.broadcast_to(v, 1)[0]) for name, v in table.features.items()},
    )  # fmt: skip


def close(value: Any) -> Any:
    """Equal but for rounding."""
    return pytest.approx(value, rel=1e-9)
