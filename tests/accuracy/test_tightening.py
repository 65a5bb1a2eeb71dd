"""The rule that a gate's figures only tighten."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from tightening import rewrite, stored, worse_by

BETTER: Any = {"mean": "lower", "covered": "nominal", "rows": "higher", "baseline": "any"}
DAY = datetime.date(2030, 1, 2)


def table(mean: float = 0.1, covered: float = 0.7, rows: int = 100, baseline: float = 0.5) -> dict[str, dict[str, float]]:
    return {"gemm": {"mean": mean, "covered": covered, "rows": rows, "baseline": baseline}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gate.json"
    assert rewrite(path, table(), BETTER, []) == 0
    return path


@pytest.mark.parametrize(
    ("better", "before", "after", "loss"),
    [
        ("lower", 0.10, 0.12, 0.02),
        ("lower", 0.12, 0.10, -0.02),
        ("higher", 100, 99, 1),
        ("nominal", 0.75, 0.83, -0.02),
        ("nominal", 0.83, 0.75, 0.02),
        ("any", 0.1, 9.0, 0.0),
        ("lower", 0.1, float("nan"), float("inf")),
    ],
)
def test_what_is_worse(better: Any, before: float, after: float, loss: float) -> None:
    assert worse_by(better, before, after) == pytest.approx(loss)


@pytest.mark.parametrize("change", [{"mean": 0.09}, {"covered": 0.88}, {"rows": 120}, {"baseline": 0.9}])
def test_a_better_figure_is_stored(file: Path, change: dict[str, Any]) -> None:
    assert rewrite(file, table(**change), BETTER, []) == 0
    assert stored(file) == table(**change)
    assert json.loads(file.read_text())["accepted"] == []


@pytest.mark.parametrize("change", [{"mean": 0.101}, {"covered": 0.69}, {"covered": 0.91}, {"rows": 99}, {"mean": float("nan")}])
def test_a_worse_figure_is_refused_and_nothing_is_written(file: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert rewrite(file, table(**{"mean": 0.05, **change}), BETTER, []) == 1
    assert stored(file) == table()
    assert f"gemm, {next(iter(change))}" in capsys.readouterr().out


def test_a_lost_figure_and_a_lost_table_are_worse(file: Path) -> None:
    lost = table()
    del lost["gemm"]["mean"]
    assert rewrite(file, lost, BETTER, []) == 1
    assert rewrite(file, {}, BETTER, []) == 1
    assert stored(file) == table()


def test_a_new_table_is_taken(file: Path) -> None:
    assert rewrite(file, {**table(), "moe": {"mean": 0.4}}, BETTER, []) == 0
    assert stored(file)["moe"] == {"mean": 0.4}


def test_a_worse_figure_is_stored_with_its_reason_and_date(file: Path) -> None:
    assert rewrite(file, table(mean=0.2), BETTER, ["--accept-worse", "rows that beat the card are gone"], DAY) == 0
    assert stored(file) == table(mean=0.2)
    (kept,) = json.loads(file.read_text())["accepted"]
    assert kept == {
        "figure": "gemm, mean", "before": 0.1, "after": 0.2, "reason": "rows that beat the card are gone", "date": "2030-01-02",
    }  # fmt: skip
    assert rewrite(file, table(mean=0.15), BETTER, []) == 0
    assert json.loads(file.read_text())["accepted"] == [kept]


def test_a_reason_is_words(file: Path) -> None:
    assert rewrite(file, table(mean=0.2), BETTER, ["--accept-worse", "ok"]) == 2
    assert stored(file) == table()


def test_what_last_bits_move_never_loosens_a_figure(file: Path) -> None:
    for _ in range(5):
        assert rewrite(file, table(mean=0.10005), BETTER, []) == 0
    assert stored(file) == table()


def test_a_figure_of_which_nobody_said_what_is_better_is_an_error(file: Path) -> None:
    with pytest.raises(KeyError, match="median"):
        rewrite(file, {"gemm": {**table()["gemm"], "median": 0.1}}, BETTER, [])


def test_rows_of_a_list_are_told_apart_by_their_texts(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    rows = [{"runs": "a", "figure": "ttft", "mean": 0.1}, {"runs": "b", "figure": "ttft", "mean": 0.2}]
    assert rewrite(path, rows, BETTER, []) == 0
    assert rewrite(path, rows[::-1], BETTER, []) == 0
    assert rewrite(path, [rows[0], {**rows[1], "mean": 0.3}], BETTER, []) == 1
    assert rewrite(path, rows[:1], BETTER, []) == 1


def test_every_gate_has_stored_figures() -> None:
    folder = Path(__file__).parent
    for name in ("operators", "ranking", "serving", "collective", "moe", "anykernel"):
        assert stored(folder / f"{name}.json"), name
        assert "rewrite(" in (folder / f"test_{name}_gate.py").read_text(), name
