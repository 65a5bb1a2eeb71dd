"""Operator models at work: which fitted model answers, and its latency, interval and domain for arrays of operators."""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.bound import within
from perfmodel.analytic.constants import constant_values
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn import kriging, scope
from perfmodel.learn.boost import sliced
from perfmodel.learn.card import UNCERTAINTY_KEY
from perfmodel.learn.domain import CODES, WIDER, outside
from perfmodel.learn.intervals import OUTSIDE
from perfmodel.learn.model import TREE_DIGEST, FittedModel, find_model, shipped_model, shipped_owners
from perfmodel.learn.residual import Residual
from perfmodel.learn.transfer import NEW_ARCH_GROUP, TREE_NAMES, arch_group, new_kernels, path_margin, tree_share, visible
from perfmodel.library.least import least_s
from perfmodel.library.registry import MODELS
from perfmodel.library.terms import Floats, OperatorTerms, PricedTerms
from perfmodel.ops import OperatorTable
from perfmodel.units import US_PER_S

REGIMES_US = (10.0, 100.0)
COVARIATES = "kin"  # in a kriging entry: the calibrations behind Place.covariates, as `covariate_digests` has them


@dataclass(frozen=True, slots=True)
class OperatorPredictions:
    """n predictions: microseconds, the 80 % interval, the terms behind them, what the rows behind them do not show, and the bound.

    Arrays of n. outside: a sum of domain.SIZE, DTYPE ... a row, 0 within what was measured.
    """

    latency_us: Floats
    low_us: Floats
    high_us: Floats
    terms: PricedTerms
    model: FittedModel
    outside: npt.NDArray[np.intp]
    least_us: Floats  # what no program beats: low_us is no less


def universal_model(model_key: str) -> FittedModel | None:
    """The universal model of all measured GPUs, this one's rows included where there are any."""
    return find_model("universal", model_key)


@functools.lru_cache(maxsize=256)
def _constants(law: str, overrides: tuple[tuple[str, float], ...]) -> dict[str, float]:
    return constant_values(law, dict(overrides))


def operator_terms(gpu: GpuSpec, model_key: str, columns: Mapping[str, Floats], constants: Mapping[str, float]) -> OperatorTerms:
    """The law of `what` over columns, with a model's constants on top of the spec-tier ones."""
    model = MODELS[model_key]
    values = _constants(model.law, tuple(sorted(constants.items())))
    with np.errstate(divide="ignore"):
        return model.terms(gpu, columns, values)


def predict_columns(gpu: GpuSpec, model_key: str, columns: OperatorTable, model: FittedModel) -> OperatorPredictions:
    """Latency of each row: the law, times exp of the tree, within what physics allows.

    The tree has nothing to say of an element type or a kind of operator whose code it never saw: the law alone answers.
    """
    if (held := scope.scope_of(model.card)) is not None:
        return cast(
            OperatorPredictions,
            scope.scoped(gpu, model_key, columns, model, held, lambda asked, one: predict_columns(gpu, model_key, asked, one)),
        )
    terms, log_ratio, far = _corrected(gpu, model_key, columns, model)
    beyond = outside(model, gpu, terms, columns)
    log_ratio = np.where((beyond & CODES) > 0, 0.0, log_ratio)
    least = np.maximum(terms.least_s, least_s(gpu, columns)) * US_PER_S
    latency = np.maximum(terms.latency_s * US_PER_S * np.exp(log_ratio), least)
    widened = np.where((beyond & WIDER) > 0, also_outside(path_margin(model.card, gpu.arch)), 1.0)
    spread = np.exp(half_widths(model, gpu, latency, terms.features, log_ratio) * far * widened)
    return OperatorPredictions(*within(latency, latency / spread, latency * spread, least), terms, model, beyond, least)


def also_outside(margin: float) -> float:
    """How much more an interval that is `margin` times as wide for its architecture is widened outside of the sizes or types measured.

    sqrt(margin^2 + OUTSIDE^2 - 1) / margin: unknowns that have nothing to do with each other add up in squares. OUTSIDE where margin is 1.
    """
    return math.sqrt(margin**2 + OUTSIDE**2 - 1.0) / margin


def correction(gpu: GpuSpec, model_key: str, columns: Mapping[str, Floats], model: FittedModel) -> tuple[OperatorTerms, Floats]:
    """(terms of the law, log of what tree and interpolation add to its latency) of each row."""
    return _corrected(gpu, model_key, columns, model)[:2]


def _corrected(
    gpu: GpuSpec, model_key: str, columns: Mapping[str, Floats], model: FittedModel
) -> tuple[OperatorTerms, Floats, Floats | float]:
    """`correction`, and how much wider than usual an interval is for the distance from the rows that were measured."""
    terms = operator_terms(gpu, model_key, columns, model.constants)
    learnt = tree_log_ratio(gpu, model, terms)
    entry = model.card.get(kriging.CARD_KEY)
    if entry is None:
        return terms, learnt, 1.0
    base = _as_interpolated(model, kriging.trees(entry))
    before = learnt if base is model else tree_log_ratio(gpu, base, terms)
    others = covariate_models(gpu, model_key)
    wanted = entry.get(COVARIATES)
    if not isinstance(wanted, Mapping):
        raise kriging.another_version()
    known = {name: model for name, model in others.items() if name in wanted}
    where = place(gpu, model_key, columns, base, terms, before, list(known.values()))
    if covariate_digests(known) != wanted or not kriging.fits(entry, where):
        entry = _fitted_again(gpu, model_key, entry, base)
        where = place(gpu, model_key, columns, base, terms, before, list(others.values()))
    between, far = kriging.interpolated(entry, where)
    return terms, learnt + between, far


_AGAIN: OrderedDict[int, tuple[Mapping[str, Any], dict[str, Any]]] = OrderedDict()  # by identity, with the old entry held


def _fitted_again(gpu: GpuSpec, model_key: str, entry: Mapping[str, Any], base: FittedModel) -> dict[str, Any]:
    """An entry of an earlier perfmodel as its rows give it among the calibrations that are shipped now.

    Raises InputError for one that was stored without its rows.
    """
    kept = _AGAIN.get(id(entry))
    if kept is not None and kept[0] is entry:
        return kept[1]
    columns, log_latency = kriging.rows_of(entry)
    terms = operator_terms(gpu, model_key, columns, base.constants)
    learnt = tree_log_ratio(gpu, base, terms)
    where = place(gpu, model_key, columns, base, terms, learnt, list(covariate_models(gpu, model_key).values()))
    found = kriging.fit(where, log_latency - np.log(terms.latency_s) - learnt, entry["share"], entry["apart"])
    found |= {name: entry[name] for name in (kriging.SPREAD,) if name in entry}
    _AGAIN[id(entry)] = (entry, found)
    while len(_AGAIN) > kriging.KEPT:
        _AGAIN.popitem(last=False)
    return found


@functools.lru_cache(maxsize=64)
def _first_trees(residual: Residual, trees: int) -> Residual:
    return sliced(residual, trees)


def _as_interpolated(model: FittedModel, trees: int) -> FittedModel:
    """The model that an interpolation is on top of: without the rounds that were added to its tree beside it."""
    if model.residual is None or model.residual.flat.trees == trees:
        return model
    return replace(model, residual=_first_trees(model.residual, trees) if trees else None)


def tree_log_ratio(gpu: GpuSpec, model: FittedModel, terms: OperatorTerms) -> Floats:
    """What a model's tree adds to the log latency of its law on a GPU; 0 without a tree."""
    log_ratio: Floats = np.zeros_like(terms.latency_s)
    if model.residual is None:
        return log_ratio
    features = visible(model.card, gpu.arch, terms.features)
    share = tree_share(model.card, gpu.arch, terms.features)
    log_ratio = share * model.residual.log_ratio(features, len(log_ratio))
    return log_ratio


def covariate_models(gpu: GpuSpec, model_key: str) -> Mapping[str, FittedModel]:
    """The shipped calibrations of other GPUs, by name, that were fitted to rows of their own GPU alone."""
    return _kin(gpu.name, model_key)


@functools.lru_cache(maxsize=64)
def _kin(gpu: str, model_key: str) -> Mapping[str, FittedModel]:
    found = {name: shipped_model(name, model_key) for name in shipped_owners(model_key) if name != gpu}
    return {name: model for name, model in found.items() if model is not None and model.residual is not None and "prior" not in model.card}


def covariate_digests(models: Mapping[str, FittedModel]) -> dict[str, str]:
    """What tells whether calibrations are still the ones that an entry was made with."""
    return {name: str(model.card[TREE_DIGEST]) for name, model in models.items()}


def place(
    gpu: GpuSpec,
    model_key: str,
    columns: Mapping[str, Floats],
    model: FittedModel,
    terms: OperatorTerms,
    learnt: Floats,
    others: Sequence[FittedModel],
) -> kriging.Place:
    """Where rows stand for the interpolation on top of `model`, whose law gave `terms` and whose tree `learnt`."""
    log_law = np.log(terms.latency_s)
    said = []
    for other in others:
        own = operator_terms(gpu, model_key, columns, other.constants)
        said.append(np.log(own.latency_s) + tree_log_ratio(gpu, other, own) - log_law - learnt)
    leaves = None
    if model.residual is not None:
        said.append(learnt)
        leaves = model.residual.leaves(visible(model.card, gpu.arch, terms.features), np.size(log_law))
    return kriging.place(columns, log_law, terms.features, kriging.beside(said) if said else None, leaves, terms.variant)


def half_widths(model: FittedModel, gpu: GpuSpec, latency_us: Floats, features: Mapping[str, Floats], log_ratio: Floats) -> Floats:
    """Half-width of the 80 % interval of log latency: by whether rows like these were measured, the stack is named, and the regime.

    A row is new where its architecture is, and where its stack brings a kernel of its own that no row of the tensor path shows. Evidence,
    prefill of the H100 left out, whose stacks the H200's rows of torch do not show: 70 % covered by the architecture alone, 80 % by both.
    A GPU's own model is as sure of a stack that it was never shown as of none. Widths of GPUs left out are those of a row without `doubt`;
    `log_ratio` is what tree and interpolation add to the law.
    """
    shown = visible(model.card, gpu.arch, features) if TREE_NAMES in model.card else features
    group = interval_group(latency_us, shown["stack"])
    widths: Floats = width_table(model.card, gpu.arch, model.interval)[group]
    new = new_kernels(model.card, gpu.arch, features)
    if new is not False and arch_group(model.card, gpu.arch) != NEW_ARCH_GROUP:
        widths = np.where(new, width_table(model.card, gpu.arch, model.interval, NEW_ARCH_GROUP)[group], widths)
    learnt = model.card.get(UNCERTAINTY_KEY)
    return widths if learnt is None else widths * uncertainty_factor(log_ratio, non_roofline_share(features), features["stack"], learnt)


def uncertainty_factor(log_ratio: Floats, beyond: Floats, stack: Floats, learnt: float) -> Floats:
    """How many times less sure than one by a known rate alone an answer is: what was learnt and what no datasheet says add up.

    sqrt(1 + (log_ratio / learnt)^2 + beyond^2): on a GPU that was not measured a correction of `learnt` is as doubtful as the rest. 1 where
    no stack is named: which one it is matters more there.
    """
    factor: Floats = np.where(stack > 0, np.sqrt(1.0 + (log_ratio / learnt) ** 2 + beyond**2), 1.0)
    return factor


def non_roofline_share(features: Mapping[str, Floats]) -> Floats:
    """Share of the law's latency that neither DRAM nor tensor cores at their rates account for: caches, chains, launches, power."""
    rates = [features[name] for name in ("dram", "tensor") if name in features]
    beyond: Floats = 1.0 - np.exp(functools.reduce(np.maximum, rates))
    return beyond


def interval_group(latency_us: Floats, stack: Floats) -> npt.NDArray[np.intp]:
    """0, 1, 2 by regime (10 and 100 us); 3 more where the stack is not named."""
    low, high = REGIMES_US
    group: npt.NDArray[np.intp] = (latency_us > low).astype(np.intp) + (latency_us > high) + 3 * (stack == 0)
    return group


def width_table(card: Mapping[str, Any], arch: str, fallback: tuple[float, float], group: str | None = None) -> Floats:
    """The six half-widths that hold for this architecture, or those of `group` on it."""
    widths = card.get("half_widths", {})
    found = widths.get(group or arch_group(card, arch)) or widths.get(NEW_ARCH_GROUP)
    if not found:
        return np.full(6, max(-fallback[0], fallback[1]))
    return path_margin(card, arch) * np.asarray(found, dtype=np.float64)
