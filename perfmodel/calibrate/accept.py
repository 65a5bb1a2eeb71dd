"""Which rows of a user's table are of the GPU that is asked about, before anything is fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfmodel.errors import InputError, PerfModelError
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.plausible import numbered
from perfmodel.ops.cells import factorized

if TYPE_CHECKING:
    import pandas as pd

GPU_COLUMNS = ("gpu", "gpu_name")


def rows_of_gpu(table: str, gpu: GpuSpec, frame: pd.DataFrame, *, skip_others: bool = False) -> pd.DataFrame:
    """The rows of a table that are of `gpu` by its gpu column, any of a GPU's names; all of them where it has no such column.

    Raises InputError, with row numbers, for rows of another GPU or of none, unless told to skip them; and where no row is left.
    """
    column = next((name for name in GPU_COLUMNS if name in frame.columns), None)
    if column is None or not len(frame):
        return frame
    codes, names = factorized(frame[column])
    own = np.array([is_gpu(gpu, name) for name in names], dtype=bool)[codes]
    if own.all():
        return frame
    labels, others = frame.index, np.flatnonzero(~own)
    found = ", ".join(name[:30] if isinstance(name, str) else "no GPU" for name in names[np.unique(codes[others])][:3])
    if not own.any():
        raise InputError(f"the {table} table is of {found}, the question is about {gpu.name}: name the GPU that was measured (--gpu)")
    if not skip_others:
        raise InputError(
            f"the {table} table: {numbered(list(labels), others)} are of {found}, not of {gpu.name}: "
            "leave them out, or pass skip_other_gpus=True (--skip-other-gpus)"
        )
    return frame[own]


def is_gpu(gpu: GpuSpec, name: object) -> bool:
    """Whether a name is one of this GPU's."""
    if isinstance(name, str):
        try:
            return find_gpu(name).name == gpu.name
        except PerfModelError:
            return False
    return False
