"""How often files are looked at: the user's own on each question, shipped ones once a second."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfmodel import _resources
from perfmodel._resources import FRESH_S, forget, look


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("perfmodel._resources.time.monotonic", lambda: now[0])
    return now


def size(path: Path) -> int | None:
    state = look(path)
    return None if state is None else state.st_size


def test_a_users_own_file_is_looked_at_each_time(tmp_path: Path, clock: list[float]) -> None:
    path = tmp_path / "card.json"
    assert look(path) is None
    for text in ("a", "bc"):
        path.write_text(text)
        assert size(path) == len(text)
    path.unlink()
    assert look(path) is None


def test_a_shipped_file_is_looked_at_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    monkeypatch.setattr(_resources, "_shipped_paths", lambda: (f"{tmp_path / 'calibration'}{os.sep}",))
    monkeypatch.setattr(_resources, "_LOOKS", {})
    (tmp_path / "calibration").mkdir()
    path, beside = tmp_path / "calibration" / "card.json", tmp_path / "calibration_of_mine"
    assert look(path) is None and look(beside) is None
    path.write_text("abc")
    beside.write_text("abc")
    clock[0] += 0.9 * FRESH_S
    assert look(path) is None and size(beside) == 3
    clock[0] += 0.2 * FRESH_S
    assert size(path) == 3
    path.write_text("abcd")
    assert size(path) == 3
    forget(path)  # as the process does that wrote it
    assert size(path) == 4


def test_a_model_saved_over_a_shipped_one_answers_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    from perfmodel.learn.model import FittedModel, find_model

    monkeypatch.setattr(_resources, "_shipped_paths", lambda: (f"{tmp_path}{os.sep}",))
    monkeypatch.setattr(_resources, "_LOOKS", {})
    monkeypatch.setenv("PERFMODEL_CALIBRATION", str(tmp_path))
    for name in ("first", "second"):
        FittedModel(name, "calibrated", {}, (-0.1, 0.1)).save(tmp_path / "l20" / "kernel_gemm")
        found = find_model("l20", "kernel_gemm")
        assert found is not None and found.model_id == name


def test_what_cannot_be_looked_at_is_no_missing_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError):
        look(tmp_path / "file" / "card.json")
