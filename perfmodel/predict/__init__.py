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
    """Predict one operator on one GPU: a library kernel of `stack`, or with `config` one Triton config of the operator's kernel.

    Raises InputError for an unknown GPU, an impossible config, a config together with a stack, or a dtype the GPU has no tensor cores for.
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
    kind: str, frame: pd.DataFrame, gpu: str | GpuSpec | None = None, *, calibration: CalibrationLike = "auto"
) -> pd.DataFrame:
    """Predict every row of `frame`, which has one column a field of the operator (optional: gpu, stack, dtype, kernel ...).

    kind: gemm, attention, moe, collective or memory. Returns latency_us, low_us, high_us, bound, tier and in_domain on the same
    index. Unknown columns are ignored; raises InputError naming the first bad row for sizes that cannot be.
    """
    return predict_frame(kind, frame, gpu, calibration=calibration)
