"""From measured rows to a Calibration: fits by kind, each checked on held-out shapes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfmodel.calibrate import keep
from perfmodel.calibrate.accept import rows_of_gpu
from perfmodel.calibrate.collective import fit_collective
from perfmodel.calibrate.kernel import fit_kernel
from perfmodel.calibrate.table import fit_table
from perfmodel.errors import InputError, shown
from perfmodel.hw import GpuSpec
from perfmodel.hw import gpu as find_gpu
from perfmodel.learn.calibration import Calibration, prior_model, resolve
from perfmodel.learn.model import FittedModel, find_model, shipped_model
from perfmodel.learn.stored import remove, stored
from perfmodel.ops.check import table
from perfmodel.ops.kinds import DTYPE
from perfmodel.ops.reader import column_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["calibrate_table", "fit_kernel", "remove", "stored"]


def calibrate_table(gpu: str | GpuSpec, tables: Mapping[str, pd.DataFrame], *, skip_other_gpus: bool = False) -> Calibration:
    """Correct the models of a GPU with measured rows.

    Parameters
    ----------
    gpu : str or GpuSpec
        Whose rows they are.
    tables : mapping of str to pandas.DataFrame
        By what they are of: "gemm", "attention", "moe", "memory" for library kernels, "kernel:gemm" for Triton configs, "collective". Each
        has the operator's fields and latency_us (microseconds); one without a dtype is taken as bf16, with a warning.
    skip_other_gpus : bool
        Use the rows of `gpu` where a column gpu names others too.

    Returns
    -------
    Calibration
        To pass as calibration=; nothing is written until its `save`. Where a calibration of this GPU is shipped, `.kept` says of each part
        which of the two was kept, and why.

    Raises
    ------
    InputError
        For tables that cannot be used, naming the table and the rows. Rows that cannot be (faster than the card, another unit) are left
        out with a warning that names them.

    Examples
    --------
    >>> import pandas as pd
    >>> import perfmodel as pm
    >>> rows = pd.read_csv("docs/examples/b200_gemm.csv")
    >>> mine = pm.calibrate_table("b200_sxm", {"gemm": rows})
    >>> pm.predict(pm.Gemm(64, 5120, 5120), "b200_sxm", stack="sglang", calibration=mine).tier
    'calibrated'
    """
    spec = gpu if isinstance(gpu, GpuSpec) else find_gpu(gpu)
    if not isinstance(tables, Mapping) or not tables:
        raise InputError('no table given: expected {"kernel:gemm": frame, ...}')
    models: dict[str, FittedModel] = {}
    for kind, given in tables.items():
        if not isinstance(kind, str):
            raise InputError(f"the name of a table is {shown(kind)}: expected kernel:gemm, gemm, collective ...")
        table(given, kind)
        frame = rows_of_gpu(kind, spec, given, skip_others=skip_other_gpus)
        if kind.startswith("kernel:"):
            what = kind.replace(":", "_")
            fitted = fit_kernel(kind.removeprefix("kernel:"), spec, frame, today=find_model(spec.name, what))
            models[what] = keep.better_whole(what, fitted, find_model(spec.name, what), shipped_model(spec.name, what))
        elif kind == "collective":
            fitted = fit_collective(
                spec, frame, priors=[model.constants for model in (prior_model(spec, "collective"), resolve(spec, "collective", "auto"))]
            )
            models[kind] = keep.better_whole(kind, fitted, find_model(spec.name, kind), shipped_model(spec.name, kind))
        else:
            models |= fit_table(kind, spec, frame)
        if "dtype" not in frame.columns and (kind.startswith("kernel:") or column_of(frame, DTYPE) is None):
            warnings.warn(f"the {kind} table has no dtype column: its rows are taken as bf16", stacklevel=2)
    return Calibration(spec.name, models)
