"""Where a correction by a user's few rows holds: the stacks and element types of its rows. Everywhere else the shipped calibration answers.

A calibration shipped for the same GPU rests on thousands of rows of several stacks. Rows of one of them say nothing of the others'
kernels, so a correction of it carries the pairs that its rows show; where those agree with the shipped interval, its own is no wider.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.bound import within
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.card import DTYPE_CODES
from perfmodel.learn.model import FittedModel, shipped_model
from perfmodel.ops import OperatorTable

CARD_KEY = "holds_for"
CAPPED_KEY = "no_wider_for"
NARROWING_KEY = "narrowing"
STACK_CODES = 64
Pairs = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """(stack, dtype, kv_dtype) codes that a correction answers for, and those of them where the shipped interval is the widest.

    narrowing: from 0 to 1, how far (in logs) a narrower interval of the correction is believed there.
    """

    holds_for: Pairs
    no_wider_for: Pairs
    narrowing: float = 1.0

    def card(self) -> dict[str, Any]:
        """Card entries."""
        return {
            CARD_KEY: [list(pair) for pair in self.holds_for],
            CAPPED_KEY: [list(pair) for pair in self.no_wider_for],
            NARROWING_KEY: self.narrowing,
        }


def pairs_of(columns: Mapping[str, Any]) -> Pairs:
    """The different (stack, dtype, kv_dtype) of a table's columns."""
    found = np.stack([np.asarray(columns[name], dtype=np.int64) for name in _names(columns)], axis=1)
    return tuple((int(a), int(b), int(c)) for a, b, c in np.unique(found, axis=0))


def scope_of(card: Mapping[str, Any]) -> Scope | None:
    """The scope of a model; None for one that answers everything."""
    if CARD_KEY not in card:
        return None
    return Scope(_pairs(card[CARD_KEY]), _pairs(card.get(CAPPED_KEY, ())), float(card.get(NARROWING_KEY, 1.0)))


def _pairs(value: Iterable[Sequence[int]]) -> Pairs:
    return tuple((int(a), int(b), int(c)) for a, b, c in value)


def _names(columns: Mapping[str, Any]) -> tuple[str, str, str]:
    return "stack", "dtype", "kv_dtype" if "kv_dtype" in columns else "dtype"


@functools.lru_cache(maxsize=64)
def _members(pairs: Pairs) -> npt.NDArray[np.bool_]:
    """By stack, dtype and kv_dtype: whether it is one of `pairs`. A pair without a stack stands for every stack."""
    found = np.zeros((STACK_CODES, DTYPE_CODES, DTYPE_CODES), dtype=bool)
    for stack, dtype, kv in pairs:
        found[slice(None) if stack == 0 else stack, dtype, kv] = True
    return found


def inside(pairs: Pairs, columns: Mapping[str, Any]) -> Any:
    """Which rows have one of these pairs."""
    stack, dtype, kv = (np.asarray(columns[name]).astype(np.intp) for name in _names(columns))
    return _members(pairs)[stack, dtype, kv]


def outside_model(gpu: GpuSpec, model_key: str, model: FittedModel) -> FittedModel:
    """What answers where a correction does not hold: the shipped calibration, or the correction itself where it is gone."""
    return shipped_model(gpu.name, model_key) or unscoped(model)


def unscoped(model: FittedModel) -> FittedModel:
    """The same correction, for everything."""
    return replace(model, card={name: value for name, value in model.card.items() if name not in (CARD_KEY, CAPPED_KEY, NARROWING_KEY)})


Ask = Callable[[OperatorTable, FittedModel], Any]


def scoped(gpu: GpuSpec, model_key: str, columns: OperatorTable, model: FittedModel, scope: Scope, ask: Ask) -> Any:
    """The answers of a model within its scope and of the shipped one outside of it; `ask(columns, model)` gives OperatorPredictions."""
    own, other = unscoped(model), outside_model(gpu, model_key, model)
    mine = inside(scope.holds_for, columns)
    pieces = []
    for rows, held in ((np.flatnonzero(mine), True), (np.flatnonzero(~mine), False)):
        if len(rows):
            asked = columns.take(rows)
            found = ask(asked, other)
            pieces.append((rows, _capped(asked, scope, ask(asked, own), found) if held else found))
    return pieces[0][1] if len(pieces) == 1 else _merged(len(mine), pieces, model)


def _capped(columns: Mapping[str, Any], scope: Scope, own: Any, other: Any) -> Any:
    """`own` with intervals no wider, in logs, than those of `other` where the scope says so, and only so much narrower."""
    if not scope.no_wider_for:
        return own
    cap = inside(scope.no_wider_for, columns)

    def end(name: str) -> Any:
        mine, theirs = (np.abs(np.log(getattr(one, name) / one.latency_us)) for one in (own, other))
        return np.where(cap, np.minimum(theirs + scope.narrowing * (mine - theirs), theirs), mine)

    ends = own.latency_us * np.exp(-end("low_us")), own.latency_us * np.exp(end("high_us"))
    _, low, high = within(own.latency_us, *ends, own.least_us)
    return replace(own, low_us=low, high_us=high)


def _merged(length: int, pieces: Sequence[tuple[npt.NDArray[np.intp], Any]], model: FittedModel) -> Any:
    """Predictions of parts of a table, as those of the whole."""

    def whole(values: Sequence[Any]) -> Any:
        parts = [np.broadcast_to(value, (len(rows),)) for (rows, _), value in zip(pieces, values, strict=True)]
        result = np.empty(length, dtype=np.result_type(*parts))
        for (rows, _), part in zip(pieces, parts, strict=True):
            result[rows] = part
        return result

    found = [answer for _, answer in pieces]
    terms = [answer.terms for answer in found]
    merged = replace(
        terms[0],
        latency_s=whole([t.latency_s for t in terms]),
        seconds={name: whole([t.seconds[name] for t in terms]) for name in terms[0].seconds},
        features={name: whole([t.features[name] for t in terms]) for name in terms[0].features},
        least_s=whole([t.least_s for t in terms]),
        variant=None if terms[0].variant is None else whole([t.variant for t in terms]),
    )
    numbers = {
        name: whole([getattr(answer, name) for answer in found]) for name in ("latency_us", "low_us", "high_us", "outside", "least_us")
    }
    return replace(found[0], **numbers, terms=merged, model=model)
