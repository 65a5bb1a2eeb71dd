"""From the cells of a DataFrame to numbers: codes for names, and one line for a cell that is neither name nor number."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError, shown
from perfmodel.ops.work import Floats


def coded(values: Any, code: Callable[[Any], float]) -> Floats:
    """Translate a column of names to codes, each distinct name once."""
    import pandas as pd

    if isinstance(getattr(values, "dtype", None), pd.CategoricalDtype):
        found, levels = values.cat.codes.to_numpy(), list(values.cat.categories)
        if (found < 0).any():
            levels = [*levels, None]
    else:
        found, uniques = factorized(values)
        levels = [None if pd.api.types.is_scalar(value) and pd.isna(value) else value for value in uniques]
    used = np.bincount(found[found >= 0], minlength=len(levels))
    table = np.array([float(code(level)) if used[i] or level is None else np.nan for i, level in enumerate(levels)])
    result: Floats = table[found]
    return result


def factorized(values: Any) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.object_]]:
    """(which of the distinct values each row has, those values); raises InputError for a cell that is no name, such as a list."""
    import pandas as pd

    text = isinstance(getattr(values, "dtype", None), pd.StringDtype)  # no cell can be anything but text there
    cells = values if text else np.asarray(values, dtype=object)
    try:
        codes, found = pd.factorize(cells, use_na_sentinel=False)
    except (TypeError, ArithmeticError):  # a list; a signalling NaN, which cannot be hashed
        row = next((i for i, value in enumerate(cells) if not pd.api.types.is_hashable(value)), 0)
        raise InputError(f"row {row} has {shown(cells[row])} in column {getattr(values, 'name', None)}: expected one name") from None
    return codes, np.asarray(found, dtype=object)


def plain_numbers(kind: str, name: str, series: Any) -> Floats:
    """A column as floats, missing cells NaN; raises InputError for one that holds anything else."""
    import pandas as pd

    column = pd.Series(series)
    if column.dtype.kind not in "cmM":  # complex numbers and dates would convert
        with contextlib.suppress(TypeError, ValueError, ArithmeticError):
            values: Floats = column.to_numpy(dtype=np.float64, na_value=np.nan)
            return values
    raise InputError(f"{kind} table: column {name} must hold numbers, it holds {column.dtype}")
