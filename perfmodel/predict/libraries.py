"""predict and predict_table for library kernels: tables in, tables out."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.bound import within
from perfmodel.errors import InputError, unknown_name
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.calibration import Calibration, CalibrationLike, resolve
from perfmodel.learn.domain import NAMES, labels, outside, reasons, unseen_types
from perfmodel.learn.model import FittedModel
from perfmodel.learn.operators import OperatorPredictions, operator_terms, predict_columns, universal_model
from perfmodel.learn.transfer import measured_stacks
from perfmodel.library import collective_rows
from perfmodel.library.collective import LAW
from perfmodel.library.columns import factorized, read_frame, read_operator, take
from perfmodel.library.names import ANY_STACK, STACKS, stack_code
from perfmodel.library.registry import KINDS as OPERATOR_KINDS
from perfmodel.library.registry import MODELS, parts
from perfmodel.library.terms import OperatorTerms
from perfmodel.ops.check import table
from perfmodel.predict.any_stack import BY_STACK, between
from perfmodel.predict.collectives import predict_collective, predict_rows
from perfmodel.predict.explain import Explanation, explanation
from perfmodel.predict.prediction import Prediction
from perfmodel.units import US_PER_S

if TYPE_CHECKING:
    import pandas as pd

KINDS = (*OPERATOR_KINDS, "collective")
STACKS_KEY, OTHER_STACKS_KEY = "only_stacks", "other_stacks_share"
"""Card entries: names of the stacks a model was fitted to, and how much of its correction, in logs, holds for others; 0 = the spec tier."""
TIE = 1e-5  # stacks that are as near as this, in logs, are equally near
CHUNK = 8192  # rows at a time: the working arrays of the GEMM law stay in cache


def predict_one(op: Any, gpu: GpuSpec, *, stack: str | None = None, calibration: CalibrationLike = "auto") -> Prediction:
    """Predict one operator as the library of `stack` runs it; without a stack, the answer covers the stacks' disagreement."""
    kind = getattr(op, "operator", None) or op.kind
    if kind == "collective":
        answer = predict_collective(op, gpu, stack, calibration)
        return dataclasses.replace(answer, explainer=functools.partial(_explain_collective, op, gpu, stack, calibration))
    columns = read_operator(kind, op, stack)
    part = next(_answering(gpu, kind, columns, calibration))
    what, found = part.what, _answer(gpu, part, columns)
    return Prediction(
        latency_us=float(found.latency_us[0]),
        low_us=float(found.low_us[0]),
        high_us=float(found.high_us[0]),
        bound=str(found.terms.bound()[0]),
        terms={name: float(np.broadcast_to(value, (1,))[0]) * US_PER_S for name, value in found.terms.seconds.items()},
        tier=found.model.tier,
        in_domain=not found.outside[0],
        model_id=found.model.model_id,
        outside=_said(found, gpu, what, columns),
        detail={"law_us": float(found.terms.latency_s[0]) * US_PER_S, "stack": STACKS[int(columns["stack"][0])]},
        explainer=functools.partial(_explain, op, gpu, what, columns, part.model),
    )


def _explain(op: Any, gpu: GpuSpec, what: str, columns: Mapping[str, Any], model: FittedModel, found: Prediction) -> Explanation:
    def latency_of(spec: GpuSpec) -> float:
        return float(operator_terms(spec, what, columns, model.constants).latency_s[0])

    title = f"{op} by {found.detail['stack']}"
    named = found.detail["stack"] != "any"
    return explanation(found, what=title, gpu=gpu, law=MODELS[what].law, latency_of=latency_of, card=model.card, named=named)


def _explain_collective(op: Any, gpu: GpuSpec, stack: str | None, calibration: CalibrationLike, found: Prediction) -> Explanation:
    model = resolve(gpu, "collective", calibration)

    def latency_of(spec: GpuSpec) -> float:
        return predict_collective(op, spec, stack, Calibration(spec.name, {LAW: model})).latency_us

    title = f"{op} by {found.detail['stack']}"
    return explanation(found, what=title, gpu=gpu, law=LAW, latency_of=latency_of, card=model.card, named=True)


def predict_frame(
    kind: str, frame: pd.DataFrame, gpu: str | GpuSpec | None = None, *, calibration: CalibrationLike = "auto"
) -> pd.DataFrame:
    """Predict every row of a table of one kind; see predict_table."""
    import pandas as pd

    if not isinstance(kind, str) or kind not in KINDS:
        raise unknown_name("kind of table", kind, KINDS)
    table(frame, kind)
    columns = {} if kind == "collective" else read_frame(kind, frame)
    length = len(frame)
    numbers = {name: np.empty(length) for name in ("latency_us", "low_us", "high_us")}
    bound, tier, beyond = Labels(length), Labels(length), np.zeros(length, dtype=np.uint8)
    for spec, rows in _by_gpu(frame, gpu):
        if kind == "collective":
            at = slice(None) if rows is None else rows
            own_columns, stacks = collective_rows.read_columns(frame if rows is None else frame.iloc[rows])
            if not length:
                continue
            answer, fitted, found_us, outside_of = predict_rows(spec, own_columns, stacks, calibration)
            for name, values in found_us.items():
                numbers[name][at] = values
            bound.put(at, list(answer.seconds), answer.largest())
            tier.put(at, [fitted.tier], 0)
            beyond[at] = outside_of
            continue
        own = take(columns, rows) if rows is not None else columns
        for part in _answering(spec, kind, own, calibration):
            asked = take(own, part.rows)
            size = len(asked["dtype"])
            for start in range(0, size, CHUNK):
                found = _answer(spec, part, take(asked, slice(start, start + CHUNK)))
                at = _positions(rows, part.rows, start, min(start + CHUNK, size))
                _store(found, at, numbers, bound, tier, beyond)
    columns_of = {**numbers, "bound": bound.column(), "tier": tier.column(), "in_domain": beyond == 0, "outside": _named(beyond)}
    return pd.DataFrame(columns_of, index=frame.index)


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Rows of a table that are answered alike.

    what: the law; model: the fitted one that answers; share: how much of its correction holds for them (1, but for stacks it was not
    fitted to); unnamed: whether they name neither stack nor kernel where that decides what runs.
    """

    what: str
    rows: Any
    model: FittedModel
    share: float
    unnamed: bool


def _answering(gpu: GpuSpec, kind: str, columns: Mapping[str, npt.NDArray[np.float64]], calibration: CalibrationLike) -> Iterator[Part]:
    """The parts of a table of one kind.

    Of an element type that no row of the GPU is of, the spec tier answers; MoE with the constants of the GPU's own rows, which are of the
    card and its routing kernels, not of a type. Evidence, H100 served in MXFP4, shipped rows of 16 and 8 bits: TTFT median 15.8 % so,
    18.5 % with everyone's constants.
    """
    for what, piece in parts(kind, columns):
        model = resolve(gpu, what, calibration)
        unseen = unseen_types(model.card, columns) if model.tier != "spec" else False
        if isinstance(unseen, bool) or not unseen.any():
            yield from _parts_of(what, columns, piece, model)
        else:
            rows = np.arange(len(unseen))[piece]
            spec = resolve(gpu, what, None)
            if kind == "moe":
                spec = dataclasses.replace(spec, constants=model.constants)
            for each, found in ((rows[~unseen[rows]], model), (rows[unseen[rows]], spec)):
                if len(each):
                    yield from _parts_of(what, columns, each, found)


def _parts_of(what: str, columns: Mapping[str, npt.NDArray[np.float64]], piece: Any, model: FittedModel) -> Iterator[Part]:
    """The parts of those rows of a table that one law answers."""
    stack, kernel = (columns[name][piece] for name in ("stack", "kernel"))
    own_kernels = MODELS[what].kind in BY_STACK
    if STACKS_KEY not in model.card and not own_kernels:
        if len(stack):
            yield Part(what, piece, model, 1.0, unnamed=False)
        return
    stack = stack.astype(np.intp)
    group = 0 * stack
    if STACKS_KEY in model.card:
        group = group + _strangers(tuple(model.card[STACKS_KEY]))[stack]
    if own_kernels:
        group = group + 2 * ((stack == ANY_STACK) & (kernel == 0))
    shares = 1.0, float(model.card.get(OTHER_STACKS_KEY, 0.0))
    found = np.flatnonzero(np.bincount(group)).tolist()
    for code in found:
        rows = piece if len(found) == 1 else np.arange(len(columns["stack"]))[piece][group == code]
        yield Part(what, rows, model, shares[code % 2], unnamed=code > 1)


@functools.lru_cache(maxsize=64)
def _strangers(known: tuple[str, ...]) -> npt.NDArray[np.intp]:
    """By code of a stack: 1 where it is none of `known`."""
    found = np.ones(len(STACKS), dtype=np.intp)
    found[[stack_code(name) for name in known]] = 0
    return found


def _answer(gpu: GpuSpec, part: Part, columns: Mapping[str, npt.NDArray[np.float64]]) -> OperatorPredictions:
    """The answer to a part of a table, or to a chunk of it."""
    everything = universal_model(part.what) if part.unnamed else None
    stacks = measured_stacks(everything.card, gpu.arch) if everything is not None else []
    return _any_stack(gpu, part, columns, stacks) if stacks else _predicted(gpu, part, columns)


def _predicted(gpu: GpuSpec, part: Part, columns: Mapping[str, npt.NDArray[np.float64]]) -> OperatorPredictions:
    """What the part's model says; with a share below 1, the spec tier's answer and interval, moved by that share of its correction."""
    if part.share >= 1.0:
        return predict_columns(gpu, part.what, columns, part.model)
    base = predict_columns(gpu, part.what, columns, resolve(gpu, part.what, None))
    if part.share <= 0.0:
        return base
    own = predict_columns(gpu, part.what, columns, part.model)
    moved = (own.latency_us / base.latency_us) ** part.share
    ends = within(base.latency_us * moved, base.low_us * moved, base.high_us * moved, own.least_us)
    return dataclasses.replace(own, **dict(zip(("latency_us", "low_us", "high_us"), ends, strict=True)))


def _any_stack(gpu: GpuSpec, part: Part, columns: Mapping[str, npt.NDArray[np.float64]], stacks: Sequence[int]) -> OperatorPredictions:
    """Rows that name neither stack nor kernel, answered from `stacks`, the ones measured on this tensor path.

    What such a row's time consists of is told of the stack whose answer is nearest to the one given; tier and domain are those of the
    model that would answer alone.
    """
    answers = []
    for stack in stacks:
        asked = {**columns, "stack": 0.0 * columns["stack"] + stack}
        answers.append(_predicted(gpu, next(_parts_of(part.what, asked, slice(None), part.model)), asked))
    latency, high = (np.reshape([getattr(answer, name) for answer in answers], (len(stacks), -1)) for name in ("latency_us", "high_us"))
    least = answers[0].least_us  # of the work, whoever does it
    bounds = within(*between(latency, np.log(high / latency)), least)
    apart = np.abs(np.log(latency / bounds[0]))
    nearest = (apart < apart.min(axis=0) + TIE).argmax(axis=0)  # of an even number two are: the first, whatever rounding says
    model = part.model if part.share > 0.0 else resolve(gpu, part.what, None)
    beyond = outside(model, gpu, answers[0].terms, columns) & ~NAMES  # by sizes and types: the same for every stack
    if len(nearest) == 1:
        return OperatorPredictions(*bounds, answers[int(nearest[0])].terms, model, beyond, least)

    def told(values: Sequence[npt.NDArray[np.float64]]) -> Any:
        return np.stack(values)[nearest, np.arange(len(nearest))]

    seconds = {name: told([answer.terms.seconds[name] for answer in answers]) for name in answers[0].terms.seconds}
    terms = OperatorTerms(told([answer.terms.latency_s for answer in answers]), seconds, {})
    return OperatorPredictions(*bounds, terms, model, beyond, least)


def _said(found: OperatorPredictions, gpu: GpuSpec, what: str, columns: Mapping[str, npt.NDArray[np.float64]]) -> tuple[str, ...]:
    """What the rows behind the answer to one operator do not show, in words."""
    if not found.outside[0]:
        return ()
    asked = {name: values[0] for name, values in columns.items()}
    features = {name: np.broadcast_to(values, (1,))[0] for name, values in found.terms.features.items()}
    return reasons(int(found.outside[0]), gpu, what, found.model, asked, features)


def _named(beyond: npt.NDArray[np.uint8]) -> Any:
    """A column of what the rows behind each answer do not show, in short words; empty inside."""
    import pandas as pd

    return pd.Index(labels(range(256))).take(beyond.astype(np.intp))


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


def _store(
    found: OperatorPredictions,
    at: Any,
    numbers: Mapping[str, npt.NDArray[np.float64]],
    bound: Labels,
    tier: Labels,
    beyond: npt.NDArray[np.uint8],
) -> None:
    numbers["latency_us"][at] = found.latency_us
    numbers["low_us"][at] = found.low_us
    numbers["high_us"][at] = found.high_us
    bound.put(at, list(found.terms.seconds), found.terms.largest())
    tier.put(at, [found.model.tier], 0)
    beyond[at] = found.outside


def _positions(rows: npt.NDArray[np.intp] | None, piece: Any, start: int, stop: int) -> Any:
    """Where a chunk of a part of a GPU's rows stands in the table."""
    if isinstance(piece, slice):
        return slice(start, stop) if rows is None else rows[start:stop]
    chosen = piece[start:stop]
    return chosen if rows is None else rows[chosen]


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
