"""Answers for tables of operators that libraries and serving stacks run: which model answers which rows, and between which stacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.bound import within
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn import domain
from perfmodel.learn.calibration import CalibrationLike, prior_model, resolve
from perfmodel.learn.domain import NAMES, outside, unseen_types
from perfmodel.learn.model import FittedModel
from perfmodel.learn.operators import OperatorPredictions, operator_terms, predict_columns, universal_model
from perfmodel.learn.transfer import measured_stacks
from perfmodel.library.registry import MODELS, parts
from perfmodel.library.stacks import table_of_stacks
from perfmodel.library.terms import OperatorTerms
from perfmodel.ops import OperatorTable
from perfmodel.ops.names import ANY_STACK, STACKS, stack_code
from perfmodel.predict.any_stack import BY_STACK, between
from perfmodel.predict.dispatch import Dispatch, dispatch
from perfmodel.units import US_PER_S

STACKS_KEY, OTHER_STACKS_KEY = "only_stacks", "other_stacks_share"
"""Card entries: names of the stacks a model was fitted to, and how much of its correction, in logs, holds for others; 0 = the spec tier."""
TIE = 1e-5  # stacks that are as near as this, in logs, are equally near
CHUNK = 8192  # rows at a time: the working arrays of the GEMM law stay in cache


def answers(gpu: GpuSpec, table: OperatorTable, calibration: CalibrationLike) -> Iterator[tuple[Any, OperatorPredictions]]:
    """(rows, their answer) of a table of operators that libraries run, a chunk at a time.

    Without a stack, an answer covers the stacks' disagreement.
    """
    for part in _answering(gpu, table, calibration):
        asked = table.take(part.rows)
        for start in range(0, asked.rows, CHUNK):
            stop = min(start + CHUNK, asked.rows)
            at = slice(start, stop) if isinstance(part.rows, slice) else part.rows[start:stop]
            yield at, _answer(gpu, part, asked.take(slice(start, stop)))


def reasons(found: OperatorPredictions, gpu: GpuSpec, table: OperatorTable) -> tuple[str, ...]:
    """What the rows behind the answer to one operator do not show, in words."""
    asked = {name: values[0] for name, values in table.items()}
    features = {name: np.broadcast_to(values, (1,))[0] for name, values in found.terms.features.items()}
    return domain.reasons(int(found.outside[0]), gpu, _key(table), found.model, asked, features)


def detail(found: OperatorPredictions, table: OperatorTable) -> dict[str, Any]:
    """The law's own latency of one operator, and whose kernels answer."""
    return {"law_us": float(found.terms.latency_s[0]) * US_PER_S, "stack": STACKS[int(table["stack"][0])]}


def law_us(gpu: GpuSpec, table: OperatorTable, fitted: FittedModel) -> float:
    """What the law of one operator says on another GPU, with the same constants."""
    return float(operator_terms(gpu, _key(table), table, fitted.constants).latency_s[0]) * US_PER_S


def law_of(table: OperatorTable) -> str:
    """Name of the constants of the law that answers one operator."""
    return MODELS[_key(table)].law


def named(table: OperatorTable) -> bool:
    """Whether one operator's stack is known."""
    return int(table["stack"][0]) != ANY_STACK


def runs(gpu: GpuSpec, table: OperatorTable) -> Dispatch | None:
    """Which kernel a stack's rules choose for one operator, and why."""
    return dispatch(gpu, table)


def _key(table: OperatorTable) -> str:
    return parts(table)[0][0]


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Rows of a table that are answered alike.

    what: the law; model: the fitted one that answers; share: how much of its correction holds for them (1, but for stacks it was not
    fitted to); unnamed: whether they name neither stack nor kernel where that decides what runs.
    """

    model_key: str
    rows: Any
    model: FittedModel
    share: float
    unnamed: bool


def _answering(gpu: GpuSpec, columns: OperatorTable, calibration: CalibrationLike) -> Iterator[Part]:
    """The parts of a table of one kind.

    Of an element type that no row of the GPU is of, the spec tier answers; MoE with the constants of the GPU's own rows, which are of the
    card and its routing kernels, not of a type. Evidence, H100 served in MXFP4, shipped rows of 16 and 8 bits: TTFT median 15.8 % so,
    18.5 % with everyone's constants.
    """
    for model_key, piece in parts(columns):
        model = resolve(gpu, model_key, calibration)
        unseen = unseen_types(model.card, columns) if model.tier != "spec" else False
        if isinstance(unseen, bool) or not unseen.any():
            yield from _parts_of(model_key, columns, piece, model)
        else:
            rows = np.arange(len(unseen))[piece]
            spec = prior_model(gpu, model_key)
            if columns.kind == "moe":
                spec = dataclasses.replace(spec, constants=model.constants)
            for each, found in ((rows[~unseen[rows]], model), (rows[unseen[rows]], spec)):
                if len(each):
                    yield from _parts_of(model_key, columns, each, found)


def _parts_of(model_key: str, columns: OperatorTable, piece: Any, model: FittedModel) -> Iterator[Part]:
    """The parts of those rows of a table that one law answers."""
    stack, kernel = (columns[name][piece] for name in ("stack", "kernel"))
    own_kernels = MODELS[model_key].kind in BY_STACK
    if STACKS_KEY not in model.card and not own_kernels:
        if len(stack):
            yield Part(model_key, piece, model, 1.0, unnamed=False)
        return
    stack = stack.astype(np.intp)
    group = 0 * stack
    if STACKS_KEY in model.card:
        group = group + _outside_fit(tuple(model.card[STACKS_KEY]))[stack]
    if own_kernels:
        group = group + 2 * ((stack == ANY_STACK) & (kernel == 0))
    shares = 1.0, float(model.card.get(OTHER_STACKS_KEY, 0.0))
    found = np.flatnonzero(np.bincount(group)).tolist()
    for code in found:
        rows = piece if len(found) == 1 else np.arange(columns.rows)[piece][group == code]
        yield Part(model_key, rows, model, shares[code % 2], unnamed=code > 1)


@table_of_stacks
def _outside_fit(known: tuple[str, ...]) -> npt.NDArray[np.intp]:
    """By code of a stack: 1 where it is none of `known`."""
    found = np.ones(len(STACKS), dtype=np.intp)
    found[[stack_code(name) for name in known]] = 0
    return found


def _answer(gpu: GpuSpec, part: Part, columns: OperatorTable) -> OperatorPredictions:
    """The answer to a part of a table, or to a chunk of it."""
    everything = universal_model(part.model_key) if part.unnamed else None
    stacks = measured_stacks(everything.card, gpu.arch) if everything is not None else []
    return _any_stack(gpu, part, columns, stacks) if stacks else _predicted(gpu, part, columns)


def _predicted(gpu: GpuSpec, part: Part, columns: OperatorTable) -> OperatorPredictions:
    """What the part's model says; with a share below 1, the spec tier's answer and interval, moved by that share of its correction."""
    if part.share >= 1.0:
        return predict_columns(gpu, part.model_key, columns, part.model)
    base = predict_columns(gpu, part.model_key, columns, prior_model(gpu, part.model_key))
    if part.share <= 0.0:
        return base
    own = predict_columns(gpu, part.model_key, columns, part.model)
    moved = (own.latency_us / base.latency_us) ** part.share
    ends = within(base.latency_us * moved, base.low_us * moved, base.high_us * moved, own.least_us)
    return dataclasses.replace(own, **dict(zip(("latency_us", "low_us", "high_us"), ends, strict=True)))


def _any_stack(gpu: GpuSpec, part: Part, columns: OperatorTable, stacks: Sequence[int]) -> OperatorPredictions:
    """Rows that name neither stack nor kernel, answered from `stacks`, the ones measured on this tensor path.

    What such a row's time consists of is told of the stack whose answer is nearest to the one given; tier and domain are those of the
    model that would answer alone.
    """
    answers = []
    for stack in stacks:
        asked = columns.having(stack=0.0 * columns["stack"] + stack)
        answers.append(_predicted(gpu, next(_parts_of(part.model_key, asked, slice(None), part.model)), asked))
    latency, high = (np.reshape([getattr(answer, name) for answer in answers], (len(stacks), -1)) for name in ("latency_us", "high_us"))
    least = answers[0].least_us  # of the work, whoever does it
    bounds = within(*between(latency, np.log(high / latency)), least)
    apart = np.abs(np.log(latency / bounds[0]))
    nearest = (apart < apart.min(axis=0) + TIE).argmax(axis=0)  # of an even number two are: the first, whatever rounding says
    model = part.model if part.share > 0.0 else prior_model(gpu, part.model_key)
    beyond = outside(model, gpu, answers[0].terms, columns) & ~NAMES  # by sizes and types: the same for every stack
    if len(nearest) == 1:
        return OperatorPredictions(*bounds, answers[int(nearest[0])].terms, model, beyond, least)

    def nearest_stack(values: Sequence[npt.NDArray[np.float64]]) -> Any:
        return np.stack(values)[nearest, np.arange(len(nearest))]

    seconds = {name: nearest_stack([answer.terms.seconds[name] for answer in answers]) for name in answers[0].terms.seconds}
    terms = OperatorTerms(nearest_stack([answer.terms.latency_s for answer in answers]), seconds, {})
    return OperatorPredictions(*bounds, terms, model, beyond, least)
