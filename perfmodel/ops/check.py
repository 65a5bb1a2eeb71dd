"""Validation shared by the operators: one clear line for every impossible size."""

from __future__ import annotations

import math

from perfmodel.errors import InputError

MAX_SIZE = 2**31 - 1


def size(name: str, value: object, *, low: int = 1, high: int = MAX_SIZE) -> int:
    """Return `value` as an int in [low, high]; raises InputError naming the field, the value and what is allowed."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be a whole number of {low} or more, got {value!r}") from None
    if isinstance(value, bool) or not math.isfinite(number) or number != math.floor(number) or not low <= number <= high:
        raise InputError(f"{name} must be a whole number from {low} to {high}, got {value!r}")
    return int(number)
