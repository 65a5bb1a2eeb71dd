"""Measured rows of Triton configs: those that ran, with a column for each size of the problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.errors import InputError
from perfmodel.kernels.family import KernelFamily

if TYPE_CHECKING:
    import pandas as pd


def rows_that_ran(frame: pd.DataFrame) -> pd.DataFrame:
    """The measured rows that ran and gave the right answer, where the frame says (columns status, correct)."""
    if "status" in frame.columns:
        frame = frame[frame["status"] == "ok"]
    if "correct" in frame.columns:
        frame = frame[frame["correct"].eq(True)]
    return frame


def with_size_columns(module: KernelFamily, frame: pd.DataFrame, what: str) -> pd.DataFrame:
    """The frame with one column a size of the family, read from its ALIASES where its own name is absent, and its DEFAULTS where both are.

    Raises InputError naming `what` and the missing columns.
    """
    found: dict[str, Any] = {}
    for size in module.SIZES:
        known = [name for name in (size, *module.ALIASES.get(size, ())) if name in frame.columns]
        if known:
            found[size] = frame[known[0]]
        elif size in module.DEFAULTS:
            found[size] = module.DEFAULTS[size]
    missing = [c for c in module.SIZES if c not in found] + (["latency_us"] if "latency_us" not in frame.columns else [])
    if missing:
        raise InputError(f"{what} lacks column {', '.join(missing)}; it has {', '.join(map(str, frame.columns))}")
    return frame.assign(**found)
