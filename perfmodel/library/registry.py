"""Which law answers which rows: the laws that the modules of this package register."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

import perfmodel.library as package
from perfmodel.library.law import REGISTRY, OperatorLaw
from perfmodel.ops import OperatorTable

for _module in pkgutil.iter_modules(package.__path__):
    if _module.name != "registry":
        importlib.import_module(f"{package.__name__}.{_module.name}")

MODELS: Mapping[str, OperatorLaw] = REGISTRY


def kinds() -> tuple[str, ...]:
    """Kinds of tables that some law answers."""
    return tuple(dict.fromkeys(law.kind for law in MODELS.values()))


def parts(table: OperatorTable) -> list[tuple[str, npt.NDArray[np.intp] | slice]]:
    """(model, rows) of a table, of every law that answers some of them: attention by phase, GEMM by 16-bit or quantised ..."""
    found: list[tuple[str, npt.NDArray[np.intp] | slice]] = []
    for name, law in MODELS.items():
        if law.kind != table.kind:
            continue
        mine = None if law.answers is None else law.answers(table)
        if mine is None or mine.all():
            return [(name, slice(None))]
        if mine.any():
            found.append((name, np.flatnonzero(mine)))
    return found
