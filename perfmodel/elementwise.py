"""numpy for laws, with one difference: of single numbers (np.float64), where, minimum, clip, power and the like cost a tenth of numpy's.

A law is written once, as `from perfmodel import elementwise as np`, for tables (arrays) and for one question (numbers); both give the same
bits. What else of numpy a law needs is listed here as it is: those functions are quick on single numbers, or a law calls them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
from numpy import (
    abs,
    arange,
    array,
    asarray,
    bool_,
    broadcast_to,
    ceil,
    concatenate,
    diff,
    empty,
    exp,
    exp2,
    flatnonzero,
    float64,
    floor,
    full,
    full_like,
    generic,
    inf,
    intp,
    isnan,
    linspace,
    log,
    log2,
    mod,
    nan,
    ndarray,
    ones,
    reshape,
    round,
    searchsorted,
    size,
    sqrt,
    stack,
    zeros,
)

__all__ = [
    "abs",
    "arange",
    "array",
    "asarray",
    "bool_",
    "broadcast_to",
    "ceil",
    "clip",
    "concatenate",
    "diff",
    "empty",
    "exp",
    "exp2",
    "flatnonzero",
    "float64",
    "floor",
    "full",
    "full_like",
    "generic",
    "inf",
    "intp",
    "isnan",
    "linspace",
    "log",
    "log2",
    "maximum",
    "minimum",
    "mod",
    "nan",
    "ndarray",
    "ones",
    "ones_like",
    "power",
    "reshape",
    "round",
    "searchsorted",
    "select",
    "size",
    "sqrt",
    "stack",
    "where",
    "zeros",
    "zeros_like",
]


def where(condition: Any, one: Any, other: Any) -> Any:
    """`one` where the condition holds, `other` elsewhere."""
    if isinstance(condition, ndarray) or isinstance(one, ndarray) or isinstance(other, ndarray):
        return numpy.where(condition, one, other)
    return _number(one if condition else other)


def select(conditions: Sequence[Any], choices: Sequence[Any], default: Any) -> Any:
    """The choice of the first condition that holds, element by element; `default` where none does."""
    if any(isinstance(value, ndarray) for value in (*conditions, *choices, default)):
        found = default
        for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):  # half of numpy.select's time
            found = numpy.where(condition, choice, found)
        return found
    return _number(next((choice for condition, choice in zip(conditions, choices, strict=True) if condition), default))


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two, element by element; NaN where one of them is."""
    if isinstance(a, ndarray) or isinstance(b, ndarray):
        return numpy.minimum(a, b)
    return _number(a if a <= b or a != a else b)  # noqa: PLR0124


def maximum(a: Any, b: Any) -> Any:
    """The larger of two, element by element; NaN where one of them is."""
    if isinstance(a, ndarray) or isinstance(b, ndarray):
        return numpy.maximum(a, b)
    return _number(a if a >= b or a != a else b)  # noqa: PLR0124


def ones_like(values: Any) -> Any:
    """1 for each element."""
    return numpy.ones_like(values) if isinstance(values, ndarray) else float64(1.0)


def zeros_like(values: Any) -> Any:
    """0 for each element."""
    return numpy.zeros_like(values) if isinstance(values, ndarray) else float64(0.0)


def clip(values: Any, low: Any, high: Any) -> Any:
    """Values no lower than `low`, then no higher than `high`, element by element."""
    return minimum(maximum(values, low), high)


def power(base: Any, exponent: Any) -> Any:
    """`base` to the power of `exponent`, element by element."""
    if isinstance(base, ndarray) or isinstance(exponent, ndarray):
        return numpy.power(base, exponent)
    return float64(base) ** exponent


def _number(value: Any) -> Any:
    """Python's own numbers as numpy's, which divide by zero to infinity and have astype."""
    if isinstance(value, generic):
        return value
    return float64(value) if type(value) is float else asarray(value)[()]
