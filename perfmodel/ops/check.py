"""Validation shared by operators and tables: one clear line for every impossible size, and for what is no table."""

from __future__ import annotations

import math
from typing import Any

from perfmodel.errors import InputError, shown

MAX_SIZE = 2**31 - 1
MAX_ELEMENTS = 2**46


def size(name: str, value: object, *, low: int = 1, high: int = MAX_SIZE) -> int:
    """Return `value` as an int in [low, high]; raises InputError naming the field, the value and what is allowed."""
    if type(value) is int and low <= value <= high:
        return value
    try:
        number = math.nan if is_flag(value) or getattr(value, "ndim", 0) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, ArithmeticError):
        raise InputError(f"{name} must be a whole number of {low} or more, got {shown(value)}") from None
    if not math.isfinite(number) or number != math.floor(number) or not low <= number <= high:
        raise InputError(f"{name} must be a whole number from {low} to {high}, got {shown(value)}")
    return int(number)


def is_flag(value: object) -> bool:
    """Whether a value is true or false, Python's or numpy's, and no number."""
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool"


def holdable(what: str, *elements: int) -> None:
    """Raise InputError where one of an operator's tensors has more elements than any GPU holds."""
    if max(elements) > MAX_ELEMENTS:
        raise InputError(f"{what} has a tensor of {max(elements):.3g} elements, more than {MAX_ELEMENTS}: no GPU holds it")


def table(frame: Any, what: str) -> None:
    """Raise InputError unless `frame` is a DataFrame whose columns have one plain name each."""
    columns = getattr(frame, "columns", None)
    if columns is None or not hasattr(frame, "iloc"):
        raise InputError(f"the {what} table must be a pandas DataFrame, not {type(frame).__name__}")
    if columns.nlevels > 1:
        raise InputError(f"the {what} table has columns of {columns.nlevels} levels: give plain names")
    if not columns.is_unique:
        raise InputError(f"the {what} table has column {shown(columns[columns.duplicated()][0])} more than once")
