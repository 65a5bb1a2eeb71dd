"""Hostile input to everything but the planning part: an answer, or one short line; never Python's own error."""

from __future__ import annotations

import pytest

from .cases import generators, tried

CASES = 2000


def test_every_input_is_answered_or_refused_in_one_line(capsys: pytest.CaptureFixture[str], _own_folders: object) -> None:
    tally = tried(generators(), CASES)
    with capsys.disabled():
        print(f"\nhostile input: {next(tally.lines())}")
    assert tally.cases >= CASES
    assert not tally.failures, "\n".join(tally.lines())
