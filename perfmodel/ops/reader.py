"""Reads the columns of a DataFrame as numbers: other spellings, codes for names, and one line that names the first bad row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError, listed, shown
from perfmodel.ops.cells import coded, plain_numbers
from perfmodel.ops.check import MAX_SIZE
from perfmodel.ops.kinds import KINDS, Field
from perfmodel.ops.work import Floats

if TYPE_CHECKING:
    import pandas as pd


def column_of(frame: pd.DataFrame, field: Field) -> str | None:
    """The column of `frame` that holds a field: its own name first, then the usual other spellings; None without one."""
    return next((name for name in (field.name, *field.also) if name in frame.columns), None)


class Reader:
    """A table of one kind while it is read."""

    def __init__(self, kind: str, frame: pd.DataFrame) -> None:
        self.kind, self.frame = kind, frame
        self.fields = {field.name: field for field in KINDS[kind].fields}

    def __len__(self) -> int:
        return len(self.frame)

    def check(self) -> None:
        """Raise InputError where a column is missing that the kind cannot do without."""
        needed = [field for field in self.fields.values() if field.default is None]
        if missing := [field.name for field in needed if column_of(self.frame, field) is None]:
            raise InputError(f"a {self.kind} table lacks column {', '.join(missing)}; it has {listed(map(str, self.frame.columns))}")

    def column(self, *names: str) -> Any:
        """The first of these columns that is there, or that of the field of the first name; None without one."""
        field = self.fields.get(names[0])
        found = column_of(self.frame, field) if field else next((name for name in names if name in self.frame.columns), None)
        return None if found is None else self.frame[found]

    def coded(self, code: Callable[[Any], float], *names: str) -> Floats:
        """A column of names by their codes; zeros where there is none."""
        column = self.column(*names)
        return np.zeros(len(self)) if column is None else coded(column, code)

    def read(self, field: Field) -> Floats:
        """One field of every row, its default where the table does not give it."""
        column = self.column(field.name)
        if column is None:
            return np.full(len(self), field.default, dtype=np.float64)
        if field.code is not None:
            return coded(column, field.code)
        return whole_numbers(self.kind, field, column, self.frame.index)

    def require(self, good: npt.NDArray[np.bool_], rule: str) -> None:
        """Raise InputError naming the first row that breaks a rule."""
        if not good.all():
            raise InputError(f"{self.kind} table: {rule}: row {self.frame.index[int(np.flatnonzero(~good)[0])]} does not")


def whole_numbers(kind: str, field: Field, series: Any, labels: Any) -> Floats:
    """A column as whole numbers; raises InputError naming the first bad row."""
    values = plain_numbers(kind, field.name, series)
    bad = ~((values >= field.least) & (values <= MAX_SIZE) & (values == np.floor(values)))
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"{kind} table: {field.name} must be a whole number of {field.least} or more: "
            f"row {labels[first]} has {shown(float(values[first]))} ({int(bad.sum())} such rows)"
        )
    return values
