"""Hostile input to the whole public interface: an answer, or one short line; never Python's own error."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cases import generators, tried

CASES = 2000


def test_every_input_is_answered_or_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, _own_folders: object
) -> None:
    monkeypatch.chdir(tmp_path)  # some of the cases write files
    tally = tried(generators(), CASES)
    with capsys.disabled():
        print(f"\nhostile input: {next(tally.lines())}")
    assert tally.cases >= CASES
    assert not tally.failures, "\n".join(tally.lines())
