"""Docstrings of the public interface: sections in numpydoc's form for every parameter, and examples that run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import perfmodel as pm

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {name: getattr(pm, name) for name in pm.__all__ if not name.startswith("__")}
CALLED = {
    name: thing
    for name, thing in PUBLIC.items()
    if inspect.isfunction(thing) or (inspect.isclass(thing) and not issubclass(thing, Exception))
}
RESULTS = ("Prediction", "Ranking", "Calibration", "Plan", "ServingEstimate")  # made by functions, not by callers


def sections(thing: Any) -> dict[str, str]:
    """Texts under the underlined headings of a docstring."""
    parts = re.split(r"^(\w[\w ]*)\n-+\n", inspect.getdoc(thing) or "", flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", CALLED)
def test_every_parameter_is_described(name: str) -> None:
    thing, found = CALLED[name], sections(CALLED[name])
    if name in RESULTS:
        assert "Attributes" in found
        return
    described = set(
        re.findall(r"\w+", " ".join(line.split(" : ")[0] for line in found.get("Parameters", "").splitlines() if " : " in line))
    )
    wanted = {p.name for p in inspect.signature(thing).parameters.values() if p.kind is not p.VAR_KEYWORD}
    assert wanted <= described, f"not described: {sorted(wanted - described)}"
    assert inspect.isclass(thing) or "Returns" in found
    assert "Examples" in found


@pytest.mark.parametrize("module", sorted({thing.__module__ for thing in CALLED.values()}))
def test_examples_run(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    failed, _ = doctest.testmod(importlib.import_module(module))
    assert failed == 0
