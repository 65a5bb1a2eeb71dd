"""Hostile input to the planning part: an answer that is finite, or one short line; never Python's own error."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_cases import GENERATORS

import perfmodel as pm
from perfmodel.plan.result import Plan

LONGEST_LINE = 300
EXAMPLES = {"arguments": 300, "questions_of_plans": 60, "configs": 300, "price_files": 80, "commands": 120, "command_lines": 100}
RAN: Counter[str] = Counter()


def faults(call: Callable[[], object]) -> str:
    """What is wrong with how a case ended, empty where nothing is."""
    out, err = io.StringIO(), io.StringIO()
    with warnings.catch_warnings(record=True) as seen, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        warnings.simplefilter("always")
        try:
            found = call()
        except (pm.InputError, pm.NoAnswerError) as error:
            return _line(str(error))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    for warning in seen:
        if warning.category is not UserWarning and not warning.category.__module__.startswith("perfmodel"):
            return f"warns {warning.category.__name__}: {warning.message}"
        if wrong := _line(str(warning.message)):
            return wrong
    lines = err.getvalue().splitlines()
    if isinstance(found, int) and not isinstance(found, bool):  # an exit code
        if found not in (0, 1, 2) or (found and not lines) or (found == 2 and out.getvalue()):
            return f"exit code {found}, {len(lines)} lines of error"
        return next(filter(None, map(_line, lines)), "")
    return _insane(found)


def _line(text: str) -> str:
    return f"a line of {len(text)}: {text}" if len(text) > LONGEST_LINE or "\n" in text or not text.strip() else ""


def _insane(found: object) -> str:
    """Numbers of an answer that cannot be."""
    if isinstance(found, Plan):
        return _insane({name: v for name, v in found.nearest.items() if name.endswith(("_ms", "_s")) and found.goal.osl > 1})
    if isinstance(found, pd.DataFrame):
        numbers = found.select_dtypes("number").to_numpy(dtype=float)
        return "infinite or negative" if np.isinf(numbers).any() or (numbers < 0).any() else ""
    if isinstance(found, pm.ServingEstimate):
        values = [found.ttft_ms, found.throughput_tok_s, found.requests_per_s, *found.terms.values()]
        return "" if all(math.isfinite(v) and v >= 0 for v in values) else f"{found.ttft_ms}, {found.throughput_tok_s}"
    if isinstance(found, Mapping):
        return next((f"{name} = {v}" for name, v in found.items() if isinstance(v, float) and not math.isfinite(v)), "")
    if isinstance(found, list):
        return "" if all(math.isfinite(v) for v in found) else str(found)
    return "" if found is None or dataclasses.is_dataclass(found) else f"returned {found!r}"


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda g: g.__name__)
def test_an_answer_or_one_line(generator, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some of the cases write files

    @settings(max_examples=EXAMPLES[generator.__name__], deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.integers(0, 2**32 - 1))
    def each(seed):
        label, call = next(generator(np.random.default_rng(seed)))
        RAN[generator.__name__] += 1
        wrong = faults(call)
        assert not wrong, f"{label}: {wrong}"

    each()


def test_so_many_were_tried():
    total = sum(RAN.values())
    print(f"{total} hostile inputs to the planning part: {dict(RAN)}")
    assert total >= 800 or len(RAN) < len(GENERATORS)  # fewer where tests were picked by name
