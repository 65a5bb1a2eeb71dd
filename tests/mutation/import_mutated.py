"""A pytest plugin that imports one module of perfmodel with one change: PERFMODEL_MUTANT = "library/gemm.py:17"."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path

from mutants import mutated

ROOT = Path(__file__).resolve().parents[2] / "perfmodel"


class _Loader(importlib.machinery.SourceFileLoader):
    place = 0

    def get_code(self, fullname: str) -> types.CodeType:
        path = Path(self.get_filename(fullname))
        return compile(mutated(ROOT, path.relative_to(ROOT).as_posix(), self.place), str(path), "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, file: str, place: int) -> None:
        self.path, self.place = ROOT / file, place
        self.name = "perfmodel." + file.removesuffix(".py").replace("/", ".")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        loader = _Loader(fullname, str(self.path))
        loader.place = self.place
        return importlib.machinery.ModuleSpec(fullname, loader, origin=str(self.path))


if "PERFMODEL_MUTANT" in os.environ:
    _file, _place = os.environ["PERFMODEL_MUTANT"].rsplit(":", 1)
    sys.meta_path.insert(0, _Finder(_file, int(_place)))
