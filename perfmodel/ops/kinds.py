"""A kind of operator, as tables know it: its columns with unit and meaning, its rules, its work. Each operator's file registers one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfmodel.ops import names
from perfmodel.ops.work import Floats, Work

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.ops.reader import Reader

Columns = Mapping[str, Floats]


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a kind's tables.

    unit: what a value counts, "" for names; default: where a table has no such column (None: it must have it); least: of a size, the
    smallest; also: how public tables spell it; code: of a name, the number that stands for it.
    """

    name: str
    unit: str
    meaning: str
    default: float | None = None
    least: int = 1
    also: tuple[str, ...] = ()
    code: Callable[[Any], float] | None = None


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """One kind of operator.

    fields: columns that a table may give; derived: (name, meaning) of those that `complete` adds; complete: adds them and raises
    InputError for rows that cannot be; of: what it would find for one checked operator; work: flops and compulsory bytes of each row;
    least_work: those that no routing avoids, where that is less; read: reads a whole table where names are of an open list, so that
    columns hold the names themselves.
    """

    name: str
    fields: tuple[Field, ...]
    work: Callable[[Columns], Work]
    of: Callable[[Any], Mapping[str, Any]]
    complete: Callable[[dict[str, Floats], Reader], None] | None = None
    derived: tuple[tuple[str, str], ...] = ()
    least_work: Callable[[Columns], Work] | None = None
    read: Callable[[pd.DataFrame], dict[str, Any]] | None = None

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns without which there is no question."""
        return tuple(field.name for field in self.fields if field.default is None)


DTYPE = Field(
    "dtype", "", "element type of operands", 0.0, 0, ("compute_dtype", "precision", "quantization", "gemm_dtype"), names.dtype_code
)
STACK = Field("stack", "", "serving stack or library that runs it", 0.0, 0, ("framework", "backend"), names.stack_code)
KERNEL = Field("kernel", "", "kernel that the stack was told to run", 0.0, 0, ("kernel_source", "impl"), names.kernel_code)
VERSION = ("stack_version", "framework_version", "backend_version", "version")  # spellings of the stack's release

KINDS: dict[str, OperatorKind] = {}


def register(kind: OperatorKind) -> OperatorKind:
    """Make a kind known to tables by its name; returns it."""
    KINDS[kind.name] = kind
    return kind


def named(fields: tuple[Field, ...], op: Any) -> dict[str, float]:
    """The sizes of one checked operator that has an attribute for each of these fields; its element type and no kernel."""
    found = {field.name: getattr(op, field.name) for field in fields if field.code is None}
    return {**found, "dtype": float(names.dtype_code(op.dtype)), "kernel": 0.0}
