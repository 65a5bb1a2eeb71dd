"""Records of kernels: what each does, as attributes over codes, so that a law reads attributes of n calls and knows no names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from perfmodel.library.terms import Floats

Codes = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
Record = TypeVar("Record")


class Records(Generic[Record]):
    """Records, attribute by attribute: an array each, over their codes, made once."""

    def __init__(self, records: tuple[Record, ...]) -> None:
        self.records: tuple[Record, ...] = records
        self._known: dict[tuple[str, object], npt.NDArray[Any]] = {}
        self._names: dict[tuple[str, str], list[str]] = {}

    def where(self, attribute: str, value: object) -> Flags:
        """Whether each record's attribute has a value."""
        known = self._known.get((attribute, value))
        if known is None:
            known = self._known[attribute, value] = np.array([getattr(record, attribute) == value for record in self.records])
        return known

    def numbers(self, attribute: str) -> Floats:
        """A number of each record."""
        known = self._known.get((attribute, float))
        if known is None:
            known = self._known[attribute, float] = np.array([float(getattr(record, attribute)) for record in self.records])
        return known

    def names(self, attribute: str, other: str = "") -> list[str]:
        """The name that an attribute of each record holds, else the one that `other` holds."""
        known = self._names.get((attribute, other))
        if known is None:
            names = [getattr(record, attribute) or (getattr(record, other) if other else "") for record in self.records]
            known = self._names[attribute, other] = names
        return known


@dataclass(frozen=True, slots=True)
class Kernels(Generic[Record]):
    """Kernels of n calls: row i runs the record with code[i]."""

    of: Records[Record]
    code: Codes

    def flag(self, attribute: str, value: object = True) -> Flags:
        """Where an attribute has a value."""
        found: Flags = self.of.where(attribute, value)[self.code]
        return found

    def number(self, attribute: str) -> Floats:
        """A number of each row's kernel."""
        found: Floats = self.of.numbers(attribute)[self.code]
        return found

    def constant(self, c: Mapping[str, float], attribute: str, other: str = "", missing: float = 1.0) -> Floats:
        """The constant of the law that an attribute names, else the one that `other` names, else `missing`."""
        found: Floats = np.array([c[name] if name else missing for name in self.of.names(attribute, other)])[self.code]
        return found


def merged(name: str, known: Mapping[str, Any], part: str) -> dict[str, Any]:
    """The attributes of an entry's part, with what it has from the entry that it is like; empty where neither has the part."""
    entry = known[name]
    base = merged(entry["like"], known, part) if "like" in entry else {}
    return base | {k: v for k, v in entry.get(part, {}).items() if k != "source"}
