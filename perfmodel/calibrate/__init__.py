"""From measured rows to a Calibration: fits by kind, each checked on held-out shapes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfmodel.calibrate.collective import fit_collective
from perfmodel.calibrate.kernel import fit_kernel
from perfmodel.calibrate.table import fit_table
from perfmodel.errors import InputError, shown
from perfmodel.hw import GpuSpec
from perfmodel.hw import gpu as find_gpu
from perfmodel.learn.calibration import Calibration
from perfmodel.learn.model import FittedModel
from perfmodel.library.columns import find
from perfmodel.ops.check import table
from perfmodel.predict_collective import collective_model

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["calibrate_table", "fit_kernel"]


def calibrate_table(gpu: str | GpuSpec, tables: Mapping[str, pd.DataFrame]) -> Calibration:
    """Correct the models of `gpu` with measured rows.

    Keys of `tables`: "kernel:gemm" for Triton configs; "gemm", "attention", "moe", "memory" for library kernels; "collective". Each
    frame has the operator's fields and latency_us (microseconds); one without a dtype is taken as bf16, with a warning. Pass the result
    as calibration=. Raises InputError naming the table and the rows for anything that cannot be used.
    """
    spec = gpu if isinstance(gpu, GpuSpec) else find_gpu(gpu)
    if not isinstance(tables, Mapping) or not tables:
        raise InputError('no table given: expected {"kernel:gemm": frame, ...}')
    models: dict[str, FittedModel] = {}
    for kind, frame in tables.items():
        if not isinstance(kind, str):
            raise InputError(f"the name of a table is {shown(kind)}: expected kernel:gemm, gemm, collective ...")
        table(frame, kind)
        if kind.startswith("kernel:"):
            models[kind.replace(":", "_")] = fit_kernel(kind.removeprefix("kernel:"), spec, frame)
        elif kind == "collective":
            models[kind] = fit_collective(spec, frame, priors=[collective_model(spec, known).constants for known in (None, "auto")])
        else:
            models |= fit_table(kind, spec, frame)
        if "dtype" not in frame.columns and (kind.startswith("kernel:") or find(frame, "dtype") is None):
            warnings.warn(f"the {kind} table has no dtype column: its rows are taken as bf16", stacklevel=2)
    return Calibration(spec.name, models)
