"""Answers for tables of collectives: the fitted model's latency with its interval, algorithm and protocol, and what no row shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.bound import within
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.calibration import Calibration, CalibrationLike, resolve
from perfmodel.learn.card import BEYOND_KEY, COUNTS_KEY, MEASURED_KEY
from perfmodel.learn.collective_fit import Z80
from perfmodel.learn.domain import ARCH, COUNT, KIND, NO_ROWS, SIZE, STACK, WIDER, of_gpu, sizes_beyond
from perfmodel.learn.intervals import OUTSIDE
from perfmodel.learn.model import FittedModel
from perfmodel.learn.operators import OperatorPredictions
from perfmodel.library.collective import LAW, CollectiveTerms, model
from perfmodel.library.collective_stacks import DEFAULT_STACK, parse_stack
from perfmodel.ops import OperatorTable
from perfmodel.ops.collective import collective_kind
from perfmodel.predict.dispatch import Dispatch
from perfmodel.units import US_PER_S

SAME_LIBRARY = ("nccl", "torch")  # torch calls NCCL: rows of one speak for the other, what the host adds is the law's


def priced(gpu: GpuSpec, columns: Mapping[str, Any], fitted: FittedModel) -> CollectiveTerms:
    """The law with a fitted model's constants: those of the GPU counts it was measured on, or those its card keeps for more GPUs."""
    terms = model(gpu, columns, fitted.constants)
    if (beyond := fitted.card.get(BEYOND_KEY)) is None:
        return terms
    more = np.broadcast_to(columns["n_gpus"], terms.latency_s.shape) > beyond["gpus"]
    if not more.any():
        return terms
    other = model(gpu, columns, beyond["constants"])

    def either(one: Any, two: Any) -> Any:
        return {name: either(one[name], two[name]) for name in one} if isinstance(one, Mapping) else np.where(more, two, one)

    names = [field.name for field in dataclasses.fields(CollectiveTerms)]
    return CollectiveTerms(**{name: either(getattr(terms, name), getattr(other, name)) for name in names})


def answers(gpu: GpuSpec, table: OperatorTable, calibration: CalibrationLike) -> Iterator[tuple[slice, OperatorPredictions]]:
    """The answer to a table of collectives, whole.

    In domain: within the model's own range, and of a number of GPUs, a kind and a stack that were measured; small messages always.
    """
    if not table.rows:
        return
    fitted = resolve(gpu, LAW, calibration)
    terms = priced(gpu, table, fitted)
    beyond = _outside(gpu, table, fitted, terms)
    spread = np.exp(Z80 * terms.log_sigma * np.where((beyond & WIDER) > 0, OUTSIDE, 1.0))
    least = np.asarray(terms.least_s) * US_PER_S
    latency = np.maximum(terms.latency_s * US_PER_S, least)
    yield slice(None), OperatorPredictions(*within(latency, latency / spread, latency * spread, least), terms, fitted, beyond, least)


def _outside(gpu: GpuSpec, table: OperatorTable, fitted: FittedModel, terms: CollectiveTerms) -> npt.NDArray[np.intp]:
    """Of each row, what the model's rows do not show: a sum of domain.SIZE, COUNT ..."""
    count = len(terms.latency_s)
    smallest = fitted.envelope.get("log2_bytes", (0.0, 0.0))[0]  # below it steps rule, and they do not change with bytes
    seen = fitted.in_domain({**terms.features, "log2_bytes": np.maximum(terms.features["log2_bytes"], smallest)}, count)
    found = np.where(terms.in_domain & seen, 0, SIZE) + of_gpu(fitted.card, gpu)
    if (counts := fitted.card.get(COUNTS_KEY)) is not None:
        found |= np.where(np.isin(table["n_gpus"], counts), 0, COUNT)
    if (measured := fitted.card.get(MEASURED_KEY)) is not None:
        found |= np.where(_among(table["kind"], collective_kind, measured["kinds"]), 0, KIND)
        stacks = {name for of_gpu_ in measured["rows"].values() for name in of_gpu_}
        stacks |= set(SAME_LIBRARY) if stacks & set(SAME_LIBRARY) else set()
        found |= np.where(_among(table.get("stack", DEFAULT_STACK), lambda name: parse_stack(name)[0], stacks), 0, STACK)
    return found


def _among(values: Any, canonical: Callable[[Any], str], known: Collection[str]) -> npt.NDArray[np.bool_]:
    """Which of some names are known, each distinct one looked up once."""
    texts = np.asarray(values, dtype=object).reshape(-1)
    inside = {value: canonical(value) in known for value in set(texts.tolist())}
    return np.array([inside[value] for value in texts.tolist()], dtype=bool)


def reasons(found: OperatorPredictions, gpu: GpuSpec, table: OperatorTable) -> tuple[str, ...]:
    """What the rows behind the answer to one collective do not show, in words."""
    code, fitted = int(found.outside[0]), found.model
    kind, n_gpus, stack = (table.get(name, [DEFAULT_STACK])[0] for name in ("kind", "n_gpus", "stack"))
    said = []
    if code & NO_ROWS:
        said.append("no measured row for collective: the law alone")
    if code & ARCH:
        said.append(f"no row of {gpu.arch} for collective")
    if code & KIND:
        said.append(f"no row of {kind} for collective")
    if code & STACK:
        said.append(f"no row of stack {stack} for collective")
    if code & COUNT:
        said.append(f"no row of {n_gpus:.0f} GPUs for collective (measured: {', '.join(map(str, fitted.card[COUNTS_KEY]))})")
    if code & SIZE:
        said += sizes_beyond(fitted, found.terms.features, 1e-9, 0.1) or [
            f"a message of {table['message_bytes'][0]:.0f} bytes over {table['nodes'][0]:.0f} nodes is beyond the evidence"
        ]
    return tuple(said)


def detail(found: OperatorPredictions, table: OperatorTable) -> dict[str, Any]:
    """Algorithm, protocol and path of the answer to one collective, and whose it is."""
    terms = cast(CollectiveTerms, found.terms)
    ways = {name: str(getattr(terms, name)[0]) for name in ("algorithm", "protocol", "path")}
    return {**ways, "stack": str(table.get("stack", [""])[0]) or DEFAULT_STACK}


def law_us(gpu: GpuSpec, table: OperatorTable, fitted: FittedModel) -> float:
    """What the answer to one collective would be on another GPU, by the same model."""
    return float(next(answers(gpu, table, Calibration(gpu.name, {LAW: fitted})))[1].latency_us[0])


def law_of(_: OperatorTable) -> str:
    """Name of the constants of the law."""
    return LAW


def runs(_: GpuSpec, __: OperatorTable) -> Dispatch | None:
    """Algorithm and protocol are in `detail`: no stack's rule chooses between kernels."""
    return None


def named(_: OperatorTable) -> bool:
    """Without a stack NCCL is meant: it is always known."""
    return True
