"""What measured rows alone give: interpolation in a table, roughness along its axis, and the distance of two stacks."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from perfmodel.calibrate.operator_rows import Rows, read_rows
from perfmodel.cli.main import run
from perfmodel.evaluate import interpolation_baseline as floor

Capture = pytest.CaptureFixture[str]


def gemms(cells: list[tuple[int, int, int, float]], stack: str = "vllm") -> Rows:
    frame = pd.DataFrame(cells, columns=["m", "n", "k", "latency_us"])
    return read_rows("gemm", frame.assign(gpu="h100_sxm", dtype="bf16", stack=stack))


def decode(cells: list[tuple[int, int, int, int, float]]) -> Rows:
    frame = pd.DataFrame(cells, columns=["batch", "kv_len", "q_heads", "kv_heads", "latency_us"])
    return read_rows("attention_decode", frame.assign(gpu="h100_sxm", dtype="bf16", stack="vllm", head_dim=128, phase="decode"))


def law(m: int, n: int, k: int) -> float:
    return float(0.01 * m**0.5 * n**0.8 * k**0.3)


def test_a_power_law_is_interpolated_exactly_inside_and_taken_from_the_nearest_outside() -> None:
    sizes = (64, 256, 1024)
    table = gemms([(m, n, k, law(m, n, k)) for m in sizes for n in sizes for k in sizes])
    asked = gemms([(100, 300, 700, 1.0), (64, 1024, 512, 1.0), (2048, 1100, 1024, 1.0)])
    found, outside = floor.interpolated(table, asked)
    assert np.allclose(np.exp(found[:2]) * 1e6, [law(100, 300, 700), law(64, 1024, 512)])
    assert outside.tolist() == [False, False, True]
    assert np.isclose(np.exp(found[2]) * 1e6, law(1024, 1024, 1024))


def test_rows_with_other_kv_heads_are_not_mixed_and_one_size_is_enough() -> None:
    table = decode([(b, s, h, h // 4, 1e-3 * b * s * h) for b in (1, 4) for s in (128, 512) for h in (8, 32)])
    found, outside = floor.interpolated(table, decode([(2, 256, 16, 4, 1.0), (2, 256, 16, 16, 1.0)]))
    assert outside.tolist() == [True, True]  # no row has these KV heads
    alike = decode([(b, s, h, 2, 1e-3 * b * s * h) for b in (1, 4) for s in (128, 512) for h in (8, 32)])
    found, outside = floor.interpolated(alike, decode([(2, 256, 16, 2, 1.0)]))
    assert not outside.any() and np.isclose(np.exp(found[0]) * 1e6, 1e-3 * 2 * 256 * 16)
    line = decode([(1, s, 8, 2, 1.0 * s) for s in (512, 128)])  # only one size varies
    found, outside = floor.interpolated(line, decode([(1, 256, 8, 2, 1.0), (1, 1024, 8, 2, 1.0)]))
    assert outside.tolist() == [False, True] and np.allclose(np.exp(found) * 1e6, [256.0, 512.0])


def test_rows_of_one_plane_have_no_inside() -> None:
    table = gemms([(m, m, 64, 1.0 * m) for m in (64, 128, 256, 512)])
    found, outside = floor.interpolated(table, gemms([(100, 100, 64, 1.0)]))
    assert outside.all() and np.isclose(np.exp(found[0]) * 1e6, 128.0)


def test_neighbours_are_the_two_next_rows_of_the_same_shape() -> None:
    rows = gemms([(64, 64, 64, 2.0), (128, 64, 64, 6.0), (256, 64, 64, 8.0), (1024, 64, 64, 9.0), (128, 128, 64, 5.0)])
    found = floor.between_neighbours(rows, rows)
    assert np.isclose(found[1], abs(np.sqrt(2.0 * 8.0) / 6.0 - 1))
    assert np.isnan(found[[0, 2, 3, 4]]).all()  # at an end, next to a gap, alone
    some = rows.take(np.array([3, 1]))
    assert np.isclose(floor.between_neighbours(rows, some)[1], found[1])


def test_the_nearest_stack_is_compared_without_its_common_factor() -> None:
    sizes = [(64, 64, 64), (128, 64, 64), (256, 64, 64)]
    pieces = [
        pd.DataFrame(sizes, columns=["m", "n", "k"]).assign(stack=stack, latency_us=times)
        for stack, times in (("vllm", [10.0, 20.0, 30.0]), ("torch", [11.0, 22.0, 36.3]), ("trtllm", [50.0, 20.0, 9.0]))
    ]
    rows = read_rows("gemm", pd.concat(pieces, ignore_index=True).assign(gpu="h100_sxm", dtype="bf16"))
    found = floor.other_stacks(rows, rows)
    assert np.allclose(found[:3], [0.0, 0.0, 0.1])
    alone = gemms([(64, 64, 64, 1.0)])
    assert np.isnan(floor.other_stacks(alone, alone)).all()


def test_the_mode_scores_the_rows_of_mode_stack_table(capsys: Capture) -> None:
    found = {}
    for mode in ("interpolated", "stack-table"):
        words = f"evaluate operators --operator gemm --gpu h200_sxm --mode {mode} --sample 400 --by operator,gpu,stack --json"
        assert run(words.split()) == 0
        found[mode] = json.loads(capsys.readouterr().out)[0]
    table, model = found["interpolated"], found["stack-table"]
    assert all(table[name] == model[name] for name in ("rows", "roofline", "two_constants"))
    assert table["answered"] == 100.0 and 0 < table["outside"] < 50 and table["inside"] < table["two_constants"]
    assert 0 < table["neighbours"] < table["mean"] and table["other_stack"] is None and "covered" not in table
