"""predict and predict_table for collectives: which fitted model answers, and its answer with interval, algorithm and protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.analytic.bound import within
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.calibration import Calibration, resolve
from perfmodel.learn.card import BEYOND_KEY, COUNTS_KEY
from perfmodel.learn.collective_fit import Z80
from perfmodel.learn.intervals import OUTSIDE
from perfmodel.learn.model import FittedModel, find_model
from perfmodel.library.collective import LAW, CollectiveTerms, columns, model
from perfmodel.ops.collective import Collective
from perfmodel.prediction import Prediction
from perfmodel.units import US_PER_S

CalibrationLike = str | Path | Calibration | None


def collective_model(gpu: GpuSpec, calibration: CalibrationLike) -> FittedModel:
    """The model that answers for a GPU: as `resolve` says; the spec tier of a measured GPU is the universal model fitted without it."""
    found = resolve(gpu, LAW, calibration)
    if found.tier == "spec" and not found.constants:
        return find_model("universal", f"{LAW}_without_{gpu.name}") or found
    return found


def answer(gpu: GpuSpec, columns_: Mapping[str, Any], stack: Any, fitted: FittedModel) -> CollectiveTerms:
    """The law with a fitted model's constants: those of the GPU counts it was measured on, or those its card keeps for more GPUs."""
    terms = model(gpu, columns_, stack, fitted.constants)
    if (beyond := fitted.card.get(BEYOND_KEY)) is None:
        return terms
    more = np.broadcast_to(columns_["n_gpus"], terms.latency_s.shape) > beyond["gpus"]
    if not more.any():
        return terms
    other = model(gpu, columns_, stack, beyond["constants"])

    def either(one: Any, two: Any) -> Any:
        return {name: either(one[name], two[name]) for name in one} if isinstance(one, Mapping) else np.where(more, two, one)

    names = [field.name for field in dataclasses.fields(CollectiveTerms)]
    return CollectiveTerms(**{name: either(getattr(terms, name), getattr(other, name)) for name in names})


def predict_rows(
    gpu: GpuSpec, columns_: Mapping[str, Any], stack: Any, calibration: CalibrationLike
) -> tuple[CollectiveTerms, FittedModel, dict[str, Any]]:
    """(terms, model, latency_us / low_us / high_us) of checked columns.

    in_domain counts the model's own range and the numbers of GPUs that were measured, but small messages in.
    """
    fitted = collective_model(gpu, calibration)
    terms = answer(gpu, columns_, stack, fitted)
    smallest = fitted.envelope.get("log2_bytes", (0.0, 0.0))[0]  # below it steps rule, and they do not change with bytes
    seen = fitted.in_domain({**terms.features, "log2_bytes": np.maximum(terms.features["log2_bytes"], smallest)}, len(terms.latency_s))
    if (counts := fitted.card.get(COUNTS_KEY)) is not None:
        seen = seen & np.isin(columns_["n_gpus"], counts)
    terms = dataclasses.replace(terms, in_domain=terms.in_domain & seen)
    least = np.asarray(terms.least_s) * US_PER_S
    latency, spread = np.maximum(terms.latency_s * US_PER_S, least), np.exp(Z80 * terms.log_sigma * np.where(terms.in_domain, 1.0, OUTSIDE))
    ends = within(latency, latency / spread, latency * spread, least)
    return terms, fitted, dict(zip(("latency_us", "low_us", "high_us"), ends, strict=True))


def predict_collective(op: Collective, gpu: GpuSpec, stack: str | None, calibration: CalibrationLike) -> Prediction:
    """One collective; `detail` names algorithm, protocol and path."""
    terms, fitted, numbers = predict_rows(gpu, columns(op), stack, calibration)
    return Prediction(
        latency_us=float(numbers["latency_us"][0]),
        low_us=float(numbers["low_us"][0]),
        high_us=float(numbers["high_us"][0]),
        bound=str(terms.bound()[0]),
        terms={name: float(value[0]) * US_PER_S for name, value in terms.seconds.items()},
        tier=fitted.tier,
        in_domain=bool(terms.in_domain[0]),
        model_id=fitted.model_id,
        detail={
            "algorithm": str(terms.algorithm[0]),
            "protocol": str(terms.protocol[0]),
            "path": str(terms.path[0]),
            "stack": stack or "nccl",
        },
    )
