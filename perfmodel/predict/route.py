"""The one route of a question: a table of operators on GPUs, answered a chunk at a time. One operator is a table of one row."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError, unknown_name
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.calibration import CalibrationLike
from perfmodel.learn.domain import labels
from perfmodel.learn.model import FittedModel
from perfmodel.learn.operators import OperatorPredictions
from perfmodel.library.registry import kinds
from perfmodel.ops import OperatorTable
from perfmodel.ops.cells import factorized
from perfmodel.ops.operator import Operator
from perfmodel.predict import collectives, libraries
from perfmodel.predict.dispatch import Dispatch
from perfmodel.predict.explain import Explanation, explanation
from perfmodel.predict.prediction import Prediction
from perfmodel.units import US_PER_S

if TYPE_CHECKING:
    import pandas as pd

COLLECTIVE = "collective"


class Answerer(Protocol):
    """A module that answers tables of some kinds of operators; all but `answers` are about a table of one row."""

    def answers(self, gpu: GpuSpec, table: OperatorTable, calibration: CalibrationLike) -> Iterator[tuple[Any, OperatorPredictions]]:
        """(rows, their answer) of a table, a chunk at a time."""
        ...

    def reasons(self, found: OperatorPredictions, gpu: GpuSpec, table: OperatorTable) -> tuple[str, ...]:
        """What the rows behind the answer do not show, in words."""
        ...

    def detail(self, found: OperatorPredictions, table: OperatorTable) -> dict[str, Any]:
        """What else there is to say of the answer."""
        ...

    def law_us(self, gpu: GpuSpec, table: OperatorTable, fitted: FittedModel) -> float:
        """The law's latency on another GPU, with the same constants."""
        ...

    def law_of(self, table: OperatorTable) -> str:
        """Name of the law's constants."""
        ...

    def named(self, table: OperatorTable) -> bool:
        """Whether it is known whose kernels run."""
        ...

    def runs(self, gpu: GpuSpec, table: OperatorTable) -> Dispatch | None:
        """Which kernel a stack's rules choose, and why."""
        ...


def _answerer(kind: str) -> Answerer:
    return collectives if kind == COLLECTIVE else libraries


def predict_one(op: Operator, gpu: GpuSpec, *, stack: str | None = None, calibration: CalibrationLike = "auto") -> Prediction:
    """Predict one operator as the library of `stack` runs it; without a stack, the answer covers the stacks' disagreement."""
    asked = OperatorTable.of(op, stack)
    by = _answerer(asked.kind)
    _, found = next(by.answers(gpu, asked, calibration))
    return Prediction(
        latency_us=float(found.latency_us[0]),
        low_us=float(found.low_us[0]),
        high_us=float(found.high_us[0]),
        bound=str(found.terms.bound()[0]),
        terms={name: float(np.broadcast_to(value, (1,))[0]) * US_PER_S for name, value in found.terms.seconds.items()},
        tier=found.model.tier,
        in_domain=not found.outside[0],
        model_id=found.model.model_id,
        outside=by.reasons(found, gpu, asked) if found.outside[0] else (),
        detail=by.detail(found, asked),
        explainer=functools.partial(_explain, op, gpu, asked, found.model),
    )


def _explain(op: Operator, gpu: GpuSpec, asked: OperatorTable, model: FittedModel, found: Prediction) -> Explanation:
    by = _answerer(asked.kind)
    return explanation(
        found,
        what=f"{op} by {found.detail['stack']}",
        gpu=gpu,
        law=by.law_of(asked),
        latency_of=lambda spec: by.law_us(spec, asked, model),
        card=model.card,
        named=by.named(asked),
        runs=by.runs(gpu, asked),
    )


def predict_frame(
    kind: str, frame: pd.DataFrame, gpu: str | GpuSpec | None = None, *, calibration: CalibrationLike = "auto", keep_columns: bool = False
) -> pd.DataFrame:
    """Predict every row of a table of one kind; see predict_table."""
    import pandas as pd

    known = (*kinds(), COLLECTIVE)
    if not isinstance(kind, str) or kind not in known:
        raise unknown_name("kind of table", kind, known)
    asked, length = OperatorTable.read(kind, frame), len(frame)
    numbers = {name: np.empty(length) for name in ("latency_us", "low_us", "high_us")}
    bound, tier, beyond = Labels(length), Labels(length), np.zeros(length, dtype=np.uint8)
    for spec, rows in _by_gpu(frame, gpu):
        own = asked if rows is None else asked.take(rows)
        for at, found in _answerer(kind).answers(spec, own, calibration):
            here = at if rows is None else rows[at]
            for name, values in numbers.items():
                values[here] = getattr(found, name)
            bound.put(here, list(found.terms.seconds), found.terms.largest())
            tier.put(here, [found.model.tier], 0)
            beyond[here] = found.outside
    outside = pd.Index(labels(range(256))).take(beyond.astype(np.intp))  # in short words; empty inside
    columns = {**numbers, "bound": bound.column(), "tier": tier.column(), "in_domain": beyond == 0, "outside": outside}
    answers = pd.DataFrame(columns, index=frame.index)
    return pd.concat([frame.drop(columns=list(answers), errors="ignore"), answers], axis=1) if keep_columns else answers


class Labels:
    """A column of a few names, kept as codes until it is whole."""

    def __init__(self, length: int) -> None:
        self.codes = np.zeros(length, dtype=np.int16)
        self.names: dict[str, int] = {}

    def put(self, at: Any, names: Sequence[str], codes: npt.NDArray[np.integer[Any]] | int) -> None:
        """Rows `at` have names[codes]."""
        places = np.array([self.names.setdefault(name, len(self.names)) for name in names], dtype=np.int16)
        self.codes[at] = places[codes]

    def column(self) -> Any:
        """The names, in pandas' own type for text."""
        import pandas as pd

        return pd.Index(list(self.names), dtype=None if self.names else object).take(self.codes)


def _by_gpu(frame: pd.DataFrame, gpu: str | GpuSpec | None) -> Iterator[tuple[GpuSpec, npt.NDArray[np.intp] | None]]:
    """(GPU, its rows) of a table; the argument wins over the column."""
    if gpu is not None:
        yield find_gpu(gpu), None
        return
    if "gpu" not in frame.columns:
        raise InputError("which GPU? pass gpu= or give the table a gpu column")
    codes, names = factorized(frame["gpu"])
    for code, name in enumerate(names):
        yield find_gpu(name), np.flatnonzero(codes == code)
