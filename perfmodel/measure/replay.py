"""A runner that answers from stored rows, so that everything above it can be tested without a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perfmodel.errors import InputError
from perfmodel.measure.kernels import Config, Problem
from perfmodel.measure.rows import Row, read, row_key


class ReplayRunner:
    """Answers `measure` and `baseline` like a LiveRunner, from rows measured before.

    `problem_keys` and `config_keys` say which columns are which. A config that was never measured gives a row with status
    "missing". `asked` counts the answers given: what a search would have cost on a GPU.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]], problem_keys: tuple[str, ...], config_keys: tuple[str, ...]) -> None:
        self._problem_keys = (*problem_keys, "dtype")
        self._config_keys = config_keys
        self._rows: dict[tuple[Any, ...], Row] = {}
        for row in rows:
            self._rows[row_key(row, (*self._problem_keys, *config_keys))] = dict(row)
        if not self._rows:
            raise InputError("no rows to replay")
        self.asked = 0

    @classmethod
    def from_file(cls, path: Path, problem_keys: tuple[str, ...], config_keys: tuple[str, ...]) -> ReplayRunner:
        """Replay a JSONL or parquet file of a sweep."""
        return cls(read(path), problem_keys, config_keys)

    def measure(self, problem: Problem, config: Config, *, best_us: float = math.inf) -> Row:
        """The stored row of this config on this problem; `best_us` changes nothing here."""
        self.asked += 1
        question = {**{k: config.get(k) for k in self._config_keys}, **{k: problem[k] for k in self._problem_keys}}
        found = self._rows.get(row_key(question, (*self._problem_keys, *self._config_keys)))
        return dict(found) if found else question | {"status": "missing", "reason": "never measured"}

    def baseline(self, problem: Problem, name: str) -> Row:
        """The stored row of a library call."""
        return self.measure(problem, {**dict.fromkeys(self._config_keys), "variant": name})

    def problems(self) -> list[dict[str, Any]]:
        """The distinct problems stored, in file order."""
        seen = dict.fromkeys(key[: len(self._problem_keys)] for key in self._rows)
        return [dict(zip(self._problem_keys, key, strict=True)) for key in seen]
