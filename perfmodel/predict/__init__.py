"""Predictions: one operator, one Triton config, or a table of operators on a GPU. A single question is a table of one row.

route.py is the way of every table; libraries.py answers for kernels of libraries, collectives.py for communication, configs.py for Triton
configs; any_stack.py is between the stacks where nobody names one; explain.py says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.errors import InputError, shown
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.calibration import CalibrationLike
from perfmodel.ops.operator import Operator, check_operator
from perfmodel.predict.configs import predict_config
from perfmodel.predict.prediction import Prediction
from perfmodel.predict.route import predict_frame, predict_one

if TYPE_CHECKING:
    import pandas as pd


def predict(
    op: Operator, gpu: str | GpuSpec, *, stack: str | None = None, config: Any = None, calibration: CalibrationLike = "auto"
) -> Prediction:
    """Predict one operator on one GPU.

    Parameters
    ----------
    op : Gemm, Attention, MLA, MoE, MemoryBound or Collective
        What is to be computed.
    gpu : str or GpuSpec
        On which GPU; see `gpu`.
    stack : str, optional
        Whose kernel runs it: torch, vllm, sglang, trtllm; of a collective also nccl. Without one the interval covers the stacks'
        disagreement.
    config : mapping or triton.Config, optional
        One Triton config of the operator's kernel, in place of a library's kernel.
    calibration : "auto", None, str, Path or Calibration
        "auto": one's own of this GPU, else the shipped one, else the spec tier; None: the spec tier, as if this GPU had never been
        measured; or a calibration, or the folder of one.

    Returns
    -------
    Prediction
        Latency in microseconds with its 80 % interval, what binds it, and what it rests on.

    Raises
    ------
    InputError
        For an unknown GPU or stack, an element type that the GPU does not multiply, an impossible config, and a config with a stack.

    Examples
    --------
    >>> import perfmodel as pm
    >>> found = pm.predict(pm.Gemm(4096, 14336, 4096), "h100_sxm", stack="vllm")
    >>> found.low_us < found.latency_us < found.high_us
    True
    >>> found.bound, found.tier
    ('power', 'calibrated')
    """
    check_operator(op)
    spec = gpu if isinstance(gpu, GpuSpec) else find_gpu(gpu)
    if config is None:
        return predict_one(op, spec, stack=stack, calibration=calibration)
    if stack is not None:
        raise InputError(
            f"stack {shown(stack)} and config (--stack, --config): a Triton config is no library's kernel, so give one of the two"
        )
    return predict_config(op, spec, config, calibration)


def predict_table(
    kind: str, frame: pd.DataFrame, gpu: str | GpuSpec | None = None, *, calibration: CalibrationLike = "auto", keep_columns: bool = False
) -> pd.DataFrame:
    """Predict every row of a table of operators.

    Parameters
    ----------
    kind : str
        gemm, attention, mla, moe, collective or memory.
    frame : pandas.DataFrame
        One row an operator, one column a field of its class (m, n, k ...), under that name or a usual other one; optional columns: gpu,
        stack, dtype, kernel ... Columns that the kind does not know are ignored.
    gpu : str or GpuSpec, optional
        For all rows, in place of a column gpu.
    calibration : "auto", None, str, Path or Calibration
        As in `predict`.
    keep_columns : bool
        Whether the result has the columns of `frame` too, before its own.

    Returns
    -------
    pandas.DataFrame
        On the same index: latency_us, low_us, high_us (80 %), bound, tier, in_domain, and `outside`, what no row behind it shows.

    Raises
    ------
    InputError
        For an unknown kind, a missing column, and sizes or names that cannot be, naming the first such row.

    Examples
    --------
    >>> import pandas as pd
    >>> import perfmodel as pm
    >>> rows = pd.DataFrame({"m": [1, 64], "n": 4096, "k": 4096, "gpu": ["H100", "L20"]})
    >>> pm.predict_table("gemm", rows)["tier"].tolist()
    ['calibrated', 'spec']
    """
    return predict_frame(kind, frame, gpu, calibration=calibration, keep_columns=keep_columns)
