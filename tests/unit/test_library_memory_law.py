"""The memory-bound law by hand: a graph's floor, rows timed alone, narrow loads, and rows that one block walks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from perfmodel.analytic.constants import constant_values
from perfmodel.hw import gpu
from perfmodel.library import memory
from perfmodel.ops import OperatorTable


def seconds(name: str, kind: str, tokens: int, hidden: int, source: str = "", stack: str = "torch") -> float:
    frame = pd.DataFrame({"kind": [kind], "tokens": [tokens], "hidden": [hidden], "dtype": ["bf16"], "source": [source], "stack": stack})
    return float(memory.terms(gpu(name), OperatorTable.read("memory", frame), constant_values(memory.LAW, {})).latency_s[0])


def test_a_small_addition_costs_a_launch() -> None:
    assert 1e-6 < seconds("h200_sxm", "add", 1, 1024) < 2e-6  # measured: 1.3 us
    assert seconds("h200_sxm", "add", 1, 1024, "vidur") > seconds("h200_sxm", "add", 1, 1024) + 1e-6


def test_a_large_copy_streams_and_a_repeated_one_stays_in_l2() -> None:
    spec = gpu("h200_sxm")
    moved = 2 * 32768 * 8192 * 2
    assert seconds("h200_sxm", "copy", 32768, 8192) == pytest.approx(moved / spec.dram_bytes_per_s, rel=0.3)
    small = 2 * 1024 * 4096 * 2
    assert seconds("h200_sxm", "copy", 1024, 4096) - seconds("h200_sxm", "copy", 1, 1) < small / spec.dram_bytes_per_s


def test_a_kernel_timed_alone_finds_its_data_cold() -> None:
    gap = [seconds("h200_sxm", "add", 512, 4096, source) - seconds("h200_sxm", "add", 1, 1, source) for source in ("", "vidur")]
    assert gap[1] > 1.3 * gap[0]


def test_narrow_loads_fill_gddr_but_not_hbm() -> None:
    size = 4096, 16384
    moved = 3 * size[0] * size[1] * 2
    share = {name: moved / seconds(name, "silu_mul", *size, "vidur") / gpu(name).dram_bytes_per_s for name in ("a40", "a100_sxm4_80gb")}
    assert share["a40"] > 0.6 and share["a100_sxm4_80gb"] < 0.6


def test_a_served_model_runs_the_kernels_that_were_profiled_alone() -> None:
    torch, served = (seconds("h100_sxm", "silu_mul", 4096, 14336, stack=stack) for stack in ("torch", "vllm"))
    assert served > 1.3 * torch
    assert served == pytest.approx(seconds("h100_sxm", "silu_mul", 4096, 14336, "vidur"))


def test_a_longer_row_takes_its_block_longer() -> None:
    short, long = (seconds("h200_sxm", "rmsnorm", 1, hidden) for hidden in (1024, 16384))
    assert long - short > 15360 * 0.5 / gpu("h200_sxm").max_clock_hz


def test_the_source_of_a_row_is_read_where_there_is_one() -> None:
    frame = pd.DataFrame({"kind": "add", "tokens": 8, "hidden": 64, "source": ["vidur", "neusight", None]})
    assert OperatorTable.read("memory", frame)["alone"].tolist() == [1, 0, 0]
    assert np.all(OperatorTable.read("memory", frame.drop(columns="source"))["alone"] == 0)
