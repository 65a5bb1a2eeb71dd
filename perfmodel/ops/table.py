"""OperatorTable: the one form of a question below the public interface, of one operator or a million."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.ops import names
from perfmodel.ops.check import table
from perfmodel.ops.kinds import KINDS, OperatorKind
from perfmodel.ops.operator import operator_kind
from perfmodel.ops.reader import Reader
from perfmodel.ops.work import Floats, Work

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False)
class OperatorTable(Mapping[str, Floats]):
    """n operators of one kind: columns of n numbers by name. What each counts or means: KINDS[kind].fields and .derived.

    Names (element type, stack, kernel) are codes of ops/names.py. A table is checked when it is read and not again.
    """

    kind: str
    columns: Mapping[str, Floats]

    def __getitem__(self, name: str) -> Floats:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def rows(self) -> int:
        """How many operators."""
        return len(next(iter(self.columns.values())))

    @classmethod
    def of(cls, op: Any, stack: str | None = None, kernel: str | None = None) -> OperatorTable:
        """The table of one checked operator, as a stack and, where it is said, one of its kernels runs it."""
        kind = KINDS[operator_kind(op)]
        found = dict(kind.of(op))
        if kind.read is not None:
            found |= {} if stack is None else {"stack": stack}
            return cls(kind.name, {name: _cell(value) for name, value in found.items()})
        found["stack"] = names.stack_code(stack)
        if kernel:
            found["kernel"] = names.kernel_code(kernel)
        return cls(kind.name, {name: np.array([value], dtype=np.float64) for name, value in found.items()})

    @classmethod
    def read(cls, kind: str, frame: pd.DataFrame) -> OperatorTable:
        """The operators of a DataFrame with one row each; columns that the kind does not know are ignored.

        Raises InputError naming missing columns, and the first bad row of a column.
        """
        table(frame, kind)
        known: OperatorKind = KINDS[kind]
        if known.read is not None:
            return cls(kind, known.read(frame))
        reader = Reader(kind, frame)
        reader.check()
        columns = {field.name: reader.read(field) for field in known.fields}
        if known.complete is not None:
            known.complete(columns, reader)
        return cls(kind, columns)

    def take(self, rows: Any) -> OperatorTable:
        """The rows of an index, mask or slice."""
        return OperatorTable(self.kind, {name: values[rows] for name, values in self.columns.items()})

    def having(self, **columns: Floats) -> OperatorTable:
        """The same operators with other values in some columns."""
        return OperatorTable(self.kind, {**self.columns, **columns})

    def work(self) -> Work:
        """Flops and compulsory bytes of each row."""
        return KINDS[self.kind].work(self)

    def least_work(self) -> Work:
        """The part of it that no routing avoids."""
        kind = KINDS[self.kind]
        return (kind.least_work or kind.work)(self)


def _cell(value: Any) -> Any:
    """A column of one row: a number, or whatever stands for a name."""
    if isinstance(value, float):
        return np.array([value])
    cell = np.empty(1, dtype=object)
    cell[0] = value
    return cell
