"""Stored figures of the accuracy gates, which only tighten.

A file holds {"figures": ..., "accepted": [...]}. Writing it anew keeps each figure that is as good, takes each that is better, and refuses,
writing nothing, when one is worse: an error up, coverage further from the nominal 80 %, a row or a table lost. Only
`--accept-worse "reason"` takes a worse one, and the file then keeps what was accepted, why, and when.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

Better = Literal["lower", "higher", "nominal", "any"]
NOMINAL = 0.8  # coverage of the intervals, as stated
NOISE = 1e-4  # of a figure: what another processor's last bits move; the better of both is kept


def stored(path: Path) -> Any:
    """The figures of a gate's file."""
    return json.loads(path.read_text(encoding="utf-8"))["figures"]


def flat(figures: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """((table, ..., figure), number) of nested figures; rows of a list are named by their texts."""
    if isinstance(figures, Mapping):
        for key, value in figures.items():
            if not isinstance(value, str):
                yield from flat(value, (*name, key))
    elif isinstance(figures, list):
        for row in figures:
            yield from flat(row, (*name, *(value for value in row.values() if isinstance(value, str))))
    else:
        yield name, figures


def worse_by(better: Better, before: float, after: float) -> float:
    """How much worse a figure has become; negative: better, 0 where no value is better than another."""
    if better == "any":
        return 0.0
    if not math.isfinite(after):
        return math.inf
    if better == "nominal":
        return abs(after - NOMINAL) - abs(before - NOMINAL)
    return after - before if better == "lower" else before - after


def tightened(before: Any, after: Any, better: Mapping[str, Better]) -> tuple[Any, list[tuple[tuple[str, ...], float, float | None]]]:
    """(the figures to store, those that are worse or gone: name, before, after). `better`: by the last part of a figure's name.

    Raises KeyError for a figure of which nobody said what is better.
    """
    old, new = dict(flat(before)), dict(flat(after))
    worse: list[tuple[tuple[str, ...], float, float | None]] = [(name, value, None) for name, value in old.items() if name not in new]
    kept: dict[tuple[str, ...], float] = {}
    for name, value in new.items():
        which = better[name[-1]]
        loss = worse_by(which, old[name], value) if name in old else 0.0
        if loss > NOISE:
            worse.append((name, old[name], value))
        elif loss > 0:
            kept[name] = old[name]
    return _with(after, kept), worse


def rewrite(
    path: Path, after: Any, better: Mapping[str, Better], arguments: Sequence[str] | None = None, today: datetime.date | None = None
) -> int:
    """Store a gate's new figures, or say which are worse and store nothing; the exit code. `arguments`: of the command line."""
    parser = argparse.ArgumentParser(prog=path.stem, description="Writes the figures of this gate anew. They may only get better.")
    parser.add_argument("--accept-worse", metavar="REASON", help="why a worse figure is right; kept in the file with the date")
    reason = parser.parse_args(arguments).accept_worse
    if reason is not None and len(reason.split()) < 3:
        print("--accept-worse takes a reason in words, three at least")
        return 2
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"figures": {}, "accepted": []}
    figures, worse = tightened(held["figures"], after, better)
    old, new = dict(flat(held["figures"])), dict(flat(figures))
    for name in sorted(set(old) | set(new)):
        if old.get(name) != new.get(name):
            print(f"{', '.join(name)}: {old.get(name)} -> {new.get(name)}")
    if worse and reason is None:
        print(f"{path.name}: nothing written, {len(worse)} figures are worse:")
        for name, one, other in worse:
            print(f"  {', '.join(name)}: {one} -> {'gone' if other is None else other}")
        print('change what made them worse, or say why it is right: --accept-worse "reason"')
        return 1
    date = (today or datetime.datetime.now(datetime.UTC).date()).isoformat()
    accepted = [{"figure": ", ".join(name), "before": one, "after": other, "reason": reason, "date": date} for name, one, other in worse]
    path.write_text(json.dumps({"figures": figures, "accepted": [*held["accepted"], *accepted]}, indent=1) + "\n", encoding="utf-8")
    return 0


def _with(figures: Any, kept: Mapping[tuple[str, ...], float], name: tuple[str, ...] = ()) -> Any:
    """Nested figures, those of `kept` put in their places."""
    if isinstance(figures, Mapping):
        return {key: value if isinstance(value, str) else _with(value, kept, (*name, key)) for key, value in figures.items()}
    if isinstance(figures, list):
        return [_with(row, kept, (*name, *(value for value in row.values() if isinstance(value, str)))) for row in figures]
    return kept.get(name, figures)
