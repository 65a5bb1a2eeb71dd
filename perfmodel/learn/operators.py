"""Operator models at work: which fitted model answers, and its latency, interval and domain for arrays of operators."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.constants import constant_values
from perfmodel.elementwise import maximum
from perfmodel.errors import InputError
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn import kriging
from perfmodel.learn.calibration import Calibration, load_calibration
from perfmodel.learn.flat import log_ratio_of_one
from perfmodel.learn.model import FittedModel, find_model
from perfmodel.learn.residual import feature
from perfmodel.learn.transfer import tree_share, visible
from perfmodel.library.registry import MODELS
from perfmodel.library.terms import Floats, OperatorTerms
from perfmodel.units import US_PER_S

REGIMES_US = (10.0, 100.0)
PRIOR_WIDTH = 0.35  # half-width of log(measured / predicted) where no residual is at hand: a stated guess
KNOWN_ARCH_GROUP, NEW_ARCH_GROUP = "known", "new"


@dataclass(frozen=True, slots=True)
class OperatorPredictions:
    """n predictions: microseconds, the 80 % interval, the terms behind them, and whether each lies within what was measured."""

    latency_us: Floats
    low_us: Floats
    high_us: Floats
    terms: OperatorTerms
    model: FittedModel
    in_domain: npt.NDArray[np.bool_]


def operator_model(gpu: GpuSpec, what: str, calibration: str | Path | Calibration | None) -> FittedModel:
    """The model of `what` ("gemm", "attention_prefill" ...) that answers for a GPU.

    calibration None: the spec tier, a universal model that never saw this GPU; "auto": the user's or the shipped calibration of this
    GPU, else the spec tier; a Calibration or the path of one: that one, else the spec tier.
    """
    if calibration is None:
        return _spec_model(gpu.name, what)
    if isinstance(calibration, str) and calibration == "auto":
        return find_model(gpu.name, what) or _spec_model(gpu.name, what)
    if not isinstance(calibration, Calibration):
        calibration = load_calibration(calibration)
    if calibration.gpu and calibration.gpu != gpu.name:
        raise InputError(
            f"the calibration is of {calibration.gpu}, the question is about {gpu.name}: pass calibration (--calibration) auto or none"
        )
    return calibration.models.get(what) or _spec_model(gpu.name, what)


def _spec_model(gpu: str, what: str) -> FittedModel:
    """The universal model fitted without this GPU where it is one of the measured ones, else the one of all GPUs, else bare physics."""
    found = find_model("universal", f"{what}_without_{gpu}") or find_model("universal", what)
    return found or FittedModel(f"physics:{what}", "spec", {}, (-PRIOR_WIDTH, PRIOR_WIDTH))


def universal_model(what: str) -> FittedModel | None:
    """The universal model of all measured GPUs, this one's rows included where there are any."""
    return find_model("universal", what)


@functools.lru_cache(maxsize=256)
def _constants(law: str, overrides: tuple[tuple[str, float], ...]) -> dict[str, float]:
    return constant_values(law, dict(overrides))


def operator_terms(gpu: GpuSpec, what: str, columns: Mapping[str, Floats], constants: Mapping[str, float]) -> OperatorTerms:
    """The law of `what` over columns, with a model's constants on top of the spec-tier ones."""
    model = MODELS[what]
    values = _constants(model.law, tuple(sorted(constants.items())))
    with np.errstate(divide="ignore"):
        return model.terms(gpu, columns, values)


def _number(what: str, columns: Mapping[str, Floats]) -> Mapping[str, Any]:
    """The columns of one row as numbers, where the law takes them; else the columns."""
    return {name: column[0] for name, column in columns.items()} if MODELS[what].numbers and len(columns["dtype"]) == 1 else columns


def _row(terms: OperatorTerms) -> OperatorTerms:
    """Terms of single numbers as columns of length 1."""
    cells = np.array([terms.latency_s, terms.least_s, *terms.seconds.values(), *terms.features.values()], dtype=np.float64)
    columns = [cells[i : i + 1] for i in range(len(cells))]
    split = 2 + len(terms.seconds)
    seconds, features = zip(terms.seconds, columns[2:split], strict=True), zip(terms.features, columns[split:], strict=True)
    return OperatorTerms(columns[0], dict(seconds), dict(features), columns[1])


def predict_columns(gpu: GpuSpec, what: str, columns: Mapping[str, Floats], model: FittedModel) -> OperatorPredictions:
    """Latency of each row: the law, times exp of the tree, within what physics allows."""
    inputs = _number(what, columns)
    terms = operator_terms(gpu, what, inputs, model.constants)
    latency = terms.latency_s * US_PER_S
    length = len(columns["dtype"])
    if model.residual is not None:
        features = visible(model.card, gpu.arch, terms.features)
        learnt = log_ratio_of_one(model.residual, features) if length == 1 else model.residual.log_ratio(features, length)
        latency = latency * np.exp(tree_share(model.card, gpu.arch) * learnt)
    if kriging.CARD_KEY in model.card:
        rows = terms if inputs is columns else _row(terms)
        left = kriging.log_ratio(model.card[kriging.CARD_KEY], columns, np.log(rows.latency_s), rows.features)
        latency = latency * np.exp(left.reshape(latency.shape))
    least = terms.least_s * US_PER_S
    latency = maximum(latency, least)
    spread = np.exp(half_widths(model, gpu, latency, inputs["stack"]))
    inside = _in_domain(model, gpu, terms, inputs)
    low, high = maximum(latency / spread, least), latency * spread
    if inputs is columns:
        return OperatorPredictions(latency, low, high, terms, model, inside)
    return OperatorPredictions(np.array([latency]), np.array([low]), np.array([high]), _row(terms), model, np.array([inside]))


def half_widths(model: FittedModel, gpu: GpuSpec, latency_us: Floats, stack: Floats) -> Floats:
    """Half-width of the 80 % interval of log latency: by whether the architecture was measured, the stack is named, and the regime."""
    return width_table(model.card, gpu.arch, model.interval)[interval_group(latency_us, stack)]


def interval_group(latency_us: Floats, stack: Floats) -> npt.NDArray[np.intp]:
    """0, 1, 2 by regime (10 and 100 us); 3 more where the stack is not named."""
    low, high = REGIMES_US
    group: npt.NDArray[np.intp] = (latency_us > low) * 1 + (latency_us > high) * 1 + (stack == 0) * 3
    return group


def width_table(card: Mapping[str, Any], arch: str, fallback: tuple[float, float]) -> Floats:
    """The six half-widths that hold for this architecture."""
    widths = card.get("half_widths", {})
    found = widths.get(KNOWN_ARCH_GROUP if arch in card.get("archs", ()) else NEW_ARCH_GROUP) or widths.get(NEW_ARCH_GROUP)
    return np.asarray(found, dtype=np.float64) if found else np.full(6, max(-fallback[0], fallback[1]))


def _in_domain(model: FittedModel, gpu: GpuSpec, terms: OperatorTerms, columns: Mapping[str, Floats]) -> npt.NDArray[np.bool_]:
    inside = columns["dtype"] >= 0
    for name, (low, high) in model.envelope.items():
        values = feature(terms.features, name)
        inside = inside & (values >= low - 0.5) & (values <= high + 0.5)
    measured = model.card.get("dtype_codes")
    if measured is not None:
        known = np.zeros(16, dtype=bool)
        known[list(measured)] = True
        inside = inside & known[columns["dtype"].astype(np.intp)]
    return inside
