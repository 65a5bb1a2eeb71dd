"""predict and predict_table for collectives: which fitted model answers, and its answer with interval, algorithm and protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.bound import within
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.calibration import CalibrationLike, resolve
from perfmodel.learn.card import BEYOND_KEY, COUNTS_KEY, MEASURED_KEY
from perfmodel.learn.collective_fit import Z80
from perfmodel.learn.domain import ARCH, COUNT, KIND, NO_ROWS, SIZE, STACK, WIDER, of_gpu, sizes_beyond
from perfmodel.learn.intervals import OUTSIDE
from perfmodel.learn.model import FittedModel
from perfmodel.library.collective import CollectiveTerms, columns, model
from perfmodel.library.collective_stacks import parse_stack
from perfmodel.ops.collective import Collective, collective_kind
from perfmodel.predict.prediction import Prediction
from perfmodel.units import US_PER_S

SAME_LIBRARY = ("nccl", "torch")  # torch calls NCCL: rows of one speak for the other, what the host adds is the law's


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
) -> tuple[CollectiveTerms, FittedModel, dict[str, Any], npt.NDArray[np.intp]]:
    """(terms, model, latency_us / low_us / high_us, what the model's rows do not show as in learn/domain) of checked columns.

    In is what lies in the model's own range and is of a number of GPUs, a kind and a stack that were measured, but small messages in.
    """
    fitted = resolve(gpu, "collective", calibration)
    terms = answer(gpu, columns_, stack, fitted)
    beyond = _outside(gpu, columns_, stack, fitted, terms)
    terms = dataclasses.replace(terms, in_domain=beyond == 0)
    spread = np.exp(Z80 * terms.log_sigma * np.where((beyond & WIDER) > 0, OUTSIDE, 1.0))
    least = np.asarray(terms.least_s) * US_PER_S
    latency = np.maximum(terms.latency_s * US_PER_S, least)
    ends = within(latency, latency / spread, latency * spread, least)
    return terms, fitted, dict(zip(("latency_us", "low_us", "high_us"), ends, strict=True)), beyond


def _outside(gpu: GpuSpec, columns_: Mapping[str, Any], stack: Any, fitted: FittedModel, terms: CollectiveTerms) -> npt.NDArray[np.intp]:
    """Of each row, what the model's rows do not show: a sum of domain.SIZE, COUNT ..."""
    count = len(terms.latency_s)
    smallest = fitted.envelope.get("log2_bytes", (0.0, 0.0))[0]  # below it steps rule, and they do not change with bytes
    seen = fitted.in_domain({**terms.features, "log2_bytes": np.maximum(terms.features["log2_bytes"], smallest)}, count)
    found = np.where(terms.in_domain & seen, 0, SIZE) + of_gpu(fitted.card, gpu)
    if (counts := fitted.card.get(COUNTS_KEY)) is not None:
        found |= np.where(np.isin(columns_["n_gpus"], counts), 0, COUNT)
    if (measured := fitted.card.get(MEASURED_KEY)) is not None:
        found |= np.where(_among(columns_["kind"], collective_kind, measured["kinds"]), 0, KIND)
        stacks = {name for of_gpu_ in measured["rows"].values() for name in of_gpu_}
        stacks |= set(SAME_LIBRARY) if stacks & set(SAME_LIBRARY) else set()
        found |= np.where(_among("nccl" if stack is None else stack, lambda name: parse_stack(name)[0], stacks), 0, STACK)
    return found


def _among(values: Any, canonical: Callable[[Any], str], known: Collection[str]) -> npt.NDArray[np.bool_]:
    """Which of some names are known, each distinct one looked up once."""
    texts = np.asarray(values, dtype=object).reshape(-1)
    inside = {value: canonical(value) in known for value in set(texts.tolist())}
    return np.array([inside[value] for value in texts.tolist()], dtype=bool)


def _reasons(code: int, op: Collective, gpu: GpuSpec, stack: str | None, fitted: FittedModel, terms: CollectiveTerms) -> tuple[str, ...]:
    """The same of one question in words."""
    found = []
    if code & NO_ROWS:
        found.append("no measured row for collective: the law alone")
    if code & ARCH:
        found.append(f"no row of {gpu.arch} for collective")
    if code & KIND:
        found.append(f"no row of {op.kind} for collective")
    if code & STACK:
        found.append(f"no row of stack {stack or 'nccl'} for collective")
    if code & COUNT:
        found.append(f"no row of {op.n_gpus} GPUs for collective (measured: {', '.join(map(str, fitted.card[COUNTS_KEY]))})")
    if code & SIZE:
        found += sizes_beyond(fitted, terms.features, 1e-9, 0.1) or [
            f"a message of {op.message_bytes} bytes over {op.nodes} nodes is beyond the evidence"
        ]
    return tuple(found)


def predict_collective(op: Collective, gpu: GpuSpec, stack: str | None, calibration: CalibrationLike) -> Prediction:
    """One collective; `detail` names algorithm, protocol and path."""
    terms, fitted, numbers, beyond = predict_rows(gpu, columns(op), stack, calibration)
    return Prediction(
        latency_us=float(numbers["latency_us"][0]),
        low_us=float(numbers["low_us"][0]),
        high_us=float(numbers["high_us"][0]),
        bound=str(terms.bound()[0]),
        terms={name: float(value[0]) * US_PER_S for name, value in terms.seconds.items()},
        tier=fitted.tier,
        in_domain=bool(terms.in_domain[0]),
        model_id=fitted.model_id,
        outside=_reasons(int(beyond[0]), op, gpu, stack, fitted, terms),
        detail={
            "algorithm": str(terms.algorithm[0]),
            "protocol": str(terms.protocol[0]),
            "path": str(terms.path[0]),
            "stack": stack or "nccl",
        },
    )
