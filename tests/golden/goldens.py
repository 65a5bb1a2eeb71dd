"""Reviewed figures in JSON files beside the tests: how they are compared, and written anew.

    python tests/golden/rewrite.py            all of them; prints every difference
    python tests/golden/rewrite.py plan laws  some

Numbers are held to RELATIVE: processors differ in the last bits. Near 0 (the logarithm of a share of 1) to ABSOLUTE.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RELATIVE, ABSOLUTE = 1e-6, 1e-9
DIGITS = 8
Figures = dict[str, Any]


def read(path: Path) -> Figures:
    found: Figures = json.loads(path.read_text(encoding="utf-8"))
    return found


def flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(name, number or text) of nested figures."""
    if isinstance(value, Mapping):
        for key in value:
            yield from flat(f"{name}: {key}", value[key])
    elif isinstance(value, list | tuple):
        for at, each in enumerate(value):
            yield from flat(f"{name} [{at}]", each)
    else:
        yield name, value


def differences(before: Figures, after: Figures) -> list[str]:
    """A line a figure that is new, gone or beyond the tolerance."""
    old, new = (dict(pair for name in figures for pair in flat(name, figures[name])) for figures in (before, after))
    return [f"{name}: {old.get(name)} -> {new.get(name)}" for name in [*old, *(n for n in new if n not in old)] if not same(old, new, name)]


def same(old: Figures, new: Figures, name: str) -> bool:
    if (name in old) != (name in new):
        return False
    a, b = old[name], new[name]
    if isinstance(a, bool | str) or isinstance(b, bool | str) or a is None or b is None or (type(a) is int and type(b) is int):
        return bool(a == b)
    return bool(a == b) or abs(a - b) <= RELATIVE * abs(a) + ABSOLUTE * (abs(a) < 1e-3)


def number(value: Any) -> float:
    """As it is stored."""
    return float(f"{float(value):.{DIGITS}g}")


def shipped_only() -> None:
    """For scripts: no calibration or database of the user's."""
    os.environ["PERFMODEL_HOME"] = tempfile.mkdtemp()
    for name in ("PERFMODEL_HWDB", "PERFMODEL_CALIBRATION"):
        os.environ.pop(name, None)


def rewrite(path: Path, after: Figures) -> list[str]:
    """Write a file, a line a case; what changed."""
    lines = differences(read(path) if path.exists() else {}, after)
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(after[name])}" for name in after)
    path.write_text("{\n" + rows + "\n}\n", encoding="utf-8")
    return lines
