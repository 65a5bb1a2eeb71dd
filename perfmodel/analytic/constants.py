"""Constants of the laws: a value, the range calibration may move it in, and its source, from calibration/physics/<law>.toml."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel._resources import folders
from perfmodel.boundary import read_toml
from perfmodel.errors import InputError, shown


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of a law."""

    value: float
    low: float
    high: float
    source: str


INCLUDE = "include"  # top-level key of a law's file: laws whose constants are its own too


@functools.cache
def physics(law: str) -> Mapping[str, Constant]:
    """The shipped spec-tier constants of a law, those of the laws it includes first."""
    found = dict(tables(law))
    shared: dict[str, Constant] = {}
    for other in found.pop(INCLUDE, []):
        shared |= physics(other)
    try:
        own = {n: Constant(float(e["value"]), float(e["low"]), float(e["high"]), str(e["source"])) for n, e in found.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"calibration/physics/{law}.toml: {error}; reinstall perfmodel or restore the file") from None
    return shared | own


@functools.cache
def tables(law: str) -> dict[str, Any]:
    """The tables of calibration/physics/<law>.toml: the shipped file, else the user's own, of a law that is not shipped."""
    own, ours = (folder / "physics" / f"{law}.toml" for folder in folders("calibration"))
    path = own if own.is_file() and not ours.is_file() else ours
    try:
        return read_toml(path)
    except InputError as error:
        raise InputError(f"cannot read the constants in {path}: {error}; reinstall perfmodel or restore the file") from None


def constant_values(law: str, overrides: Mapping[str, float] | None = None) -> dict[str, float]:
    """Values of a law's constants, `overrides` (a calibration's) on top."""
    values = {name: c.value for name, c in physics(law).items()}
    for name, value in (overrides or {}).items():
        if name not in values:
            raise InputError(f"calibration moves an unknown constant {shown(name)} of the {law} law: it was made by another version")
        values[name] = float(value)
    return values
