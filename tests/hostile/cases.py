"""The harness: hostile cases are drawn by number, tried, and judged.

A generator is a function `draw(rng) -> (label, call)`: a question drawn from a numpy Generator, ready to be asked by `call()`. A module
of this folder whose name ends in `_inputs` and that has a tuple GENERATORS of such functions is picked up by the tests and by
`python -m tests.hostile --cases 20000`.

An answer is sane when it is an InputError or NoAnswerError of one line; or a value whose latencies, where it has any, are finite and lie in
their interval; or, of a command line, an exit code of 0, 1, 2 or 130 with one short line on stderr where it failed. All else is a failure.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import pkgutil
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

import perfmodel as pm
from perfmodel.cli.main import run
from perfmodel.errors import InputError, NoAnswerError

Case = tuple[str, Callable[[], Any]]
Draw = Callable[[np.random.Generator], Case]
LONGEST_LINE = 300
EXIT_CODES = (0, 1, 2, 130)
ROUNDING = 1e-9


@dataclass(frozen=True)
class Said:
    """What a command line left behind."""

    code: int
    out: str
    err: str


def command(*arguments: str) -> Callable[[], Said]:
    """A command line, run in this process."""

    def call() -> Said:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(list(arguments))
        return Said(code, out.getvalue(), err.getvalue())

    return call


def generators() -> list[Draw]:
    """Those of every module of this folder, in the order of names."""
    found: list[Draw] = []
    package = importlib.import_module(__package__ or "")
    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name.endswith("_inputs")):
        found += getattr(importlib.import_module(f"{__package__}.{module}"), "GENERATORS", ())
    return found


def verdict(call: Callable[[], Any]) -> str:
    """What is wrong with the answer to a case; empty where nothing is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = call()
    except (InputError, NoAnswerError) as error:
        text = str(error)
        return "" if "\n" not in text.strip() and len(text) <= 2 * LONGEST_LINE else f"a message of {len(text)} characters: {text[:150]!r}"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        ours = [f for f in traceback.extract_tb(error.__traceback__) if "/perfmodel/" in f.filename]
        at = (ours or [where])[-1]
        return f"{type(error).__name__} at {at.filename.rpartition('/perfmodel/')[2]}:{at.lineno}: {str(error)[:100]!r}"
    return _said(answer) if isinstance(answer, Said) else _bounds(answer)


def _said(found: Said) -> str:
    if found.code not in EXIT_CODES:
        return f"exit code {found.code}"
    if "Traceback" in found.err:
        return f"a traceback: {found.err[-200:]!r}"
    lines = found.err.strip().splitlines()
    if found.code in (1, 2) and not (lines or found.out):
        return f"exit code {found.code} without a word"
    if found.code == 2 and len(lines) != 1:
        return f"{len(lines)} lines on stderr: {found.err[:200]!r}"
    longest = max(map(len, lines), default=0)
    return f"a line of {longest} characters on stderr: {found.err[:80]!r}" if longest > LONGEST_LINE else ""


def _bounds(answer: Any) -> str:
    """Whether latencies are positive, finite, and inside their interval."""
    frame = getattr(answer, "frame", answer)
    if not hasattr(frame, "latency_us") or not hasattr(frame, "low_us"):
        return _numbers(answer)
    low, middle, high = (np.atleast_1d(np.asarray(getattr(frame, n), dtype=float)) for n in ("low_us", "latency_us", "high_us"))
    good = (low > 0) & (low <= middle * (1 + ROUNDING)) & (middle <= high * (1 + ROUNDING)) & np.isfinite(high)
    if good.all():
        return ""
    i = int(np.flatnonzero(~good)[0])
    return f"an answer of {middle[i]:g} us in {low[i]:g} to {high[i]:g}"


def _numbers(answer: Any) -> str:
    """Whether the numbers of a plan, an estimate, prices or a count are finite and not negative."""
    if isinstance(answer, pm.ServingEstimate):
        values = [answer.ttft_ms, answer.throughput_tok_s, answer.requests_per_s, *answer.terms.values()]
    elif isinstance(answer, pd.DataFrame):
        values = [v for v in answer.select_dtypes("number").to_numpy(dtype=float).ravel() if not math.isnan(v)]
    elif isinstance(answer, Mapping):
        values = [v for v in answer.values() if isinstance(v, float)]
    elif isinstance(answer, list):  # room for a KV cache is negative where weights do not fit
        values = [abs(v) for v in answer if isinstance(v, float)]
    else:
        return ""
    return next((f"an answer with {value:g}" for value in values if not 0 <= value < math.inf), "")


@dataclass
class Tally:
    """What came of a run: how many cases, the failures by what is wrong with them, the seconds."""

    cases: int = 0
    seconds: float = 0.0
    failures: dict[str, list[str]] = field(default_factory=dict)
    slowest: tuple[float, str] = (0.0, "")

    @property
    def tracebacks(self) -> int:
        return sum(len(labels) for what, labels in self.failures.items() if " at " in what or "traceback" in what)

    def lines(self) -> Iterator[str]:
        """The report."""
        failed = sum(map(len, self.failures.values()))
        yield f"{self.cases} cases, {self.tracebacks} tracebacks, {failed} failures in all, {self.seconds:.1f} s"
        yield f"slowest: {self.slowest[0]:.1f} s, {self.slowest[1][:100]}"
        for what, labels in sorted(self.failures.items(), key=lambda item: -len(item[1])):
            yield f"{len(labels)} x {what}; first: {labels[0][:200]}"


def tried(draws: Iterable[Draw], count: int, seed: int = 0) -> Tally:
    """Ask `count` cases, dealt out evenly over the generators; the same for the same seed."""
    tally, every = Tally(), list(draws)
    began = time.perf_counter()
    for number in range(count):
        place = number % len(every)
        rng = np.random.default_rng([seed, place, number // len(every)])
        label, call = every[place](rng)
        start = time.perf_counter()
        what = verdict(call)
        took = time.perf_counter() - start
        tally.cases += 1
        tally.slowest = max(tally.slowest, (took, label))
        if what:
            tally.failures.setdefault(what, []).append(f"{label} (generator {place}, case {number // len(every)})")
    tally.seconds = time.perf_counter() - began
    return tally
