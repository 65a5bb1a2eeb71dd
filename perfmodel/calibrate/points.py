"""Which points of an operator's space to time: those that take most uncertainty away a second of measuring.

Before anything is timed, log(measured / predicted) of two points is taken to be correlated as learn/kriging has it, and as wide as the
universal model's own interval is at each. Timing a point shrinks what is unknown around it; the next point is the one that shrinks the
weighted sum over the whole space most, for what it costs. No measurement enters, so the list is known before the run and the same for
the same seed. Source of the criterion: Seo et al., Gaussian process regression: active data selection and test point rejection, 2000
(after Cohn, 1996).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.calibrate.design import calibration_points
from perfmodel.calibrate.recipe import KERNELS, KIND, draw
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn import kriging
from perfmodel.learn.calibration import prior_model
from perfmodel.learn.operators import half_widths, operator_terms, predict_columns
from perfmodel.library.terms import OperatorTerms
from perfmodel.measure.operators import cost_s
from perfmodel.ops import OperatorTable
from perfmodel.units import US_PER_S

Floats = npt.NDArray[np.float64]
CANDIDATES = {"gemm": 3000}
OTHER_CANDIDATES = 1600
CHOSEN = 600  # from here on what is left is alike, and the rest follows as it was drawn
KERNEL_ROW_S, KERNEL_SHAPE_S = 0.013, 0.05  # timing one config cold 25 times; making a shape's inputs and reference
LEAST_US = 1.0


@dataclass(frozen=True, slots=True)
class Candidates:
    """What could be timed of one part: points, the prior's law of each, half-width of its 80 % interval (log), cost (s)."""

    part: str
    frame: Any
    terms: OperatorTerms
    width: Floats
    cost_s: Floats


@dataclass(frozen=True, slots=True)
class Chosen:
    """Points of one part in the order to take them, what each costs (s), and the share of the part's uncertainty gone after each."""

    part: str
    points: list[dict[str, Any]]
    cost_s: Floats
    explained: Floats
    width: float  # mean over the space


def candidates(part: str, space: dict[str, Any], gpu: GpuSpec, seed: int) -> Candidates:
    """A sample of a part's space with what the prior says of it; it stands for the space too."""
    frame = draw(part, space, CANDIDATES.get(part, OTHER_CANDIDATES), seed)
    if part in KERNELS:
        frame = _multiplied(frame, gpu)
    what = "gemm" if part in KERNELS else part
    columns = OperatorTable.read(KIND[part], frame)
    model = prior_model(gpu, what)
    latency = predict_columns(gpu, what, columns, model).latency_us
    keep = np.flatnonzero(latency <= space["longest_us"])
    frame, latency, columns = frame.iloc[keep].reset_index(drop=True), np.maximum(latency[keep], LEAST_US), columns.take(keep)
    terms = operator_terms(gpu, what, columns, model.constants)
    if part in KERNELS:
        low, high = prior_model(gpu, part).interval
        width = np.full(len(frame), (high - low) / 2.0)
        each = 2 * (space["best"] + space["spread"]) + 1
        cost = KERNEL_SHAPE_S + each * (KERNEL_ROW_S + 25e-6 * latency)
    else:
        width = half_widths(model, gpu, latency, terms.features, np.log(latency / US_PER_S / terms.latency_s))
        names = frame["kernel"] if "kernel" in frame else [KIND[part]] * len(frame)
        cost = np.array([cost_s(str(name), us) for name, us in zip(names, latency.tolist(), strict=True)])
    return Candidates(part, frame, terms, width, cost)


def greedy(covariance: Floats, width: Floats, cost: Floats, allowed_s: float) -> tuple[list[int], Floats]:
    """Indices in order, and the share of sum(width^2 x variance) explained after each; until `allowed_s` seconds are spent.

    After CHOSEN points the others follow in their own order.
    """
    left = covariance.astype(np.float32)
    weight = (width**2).astype(np.float32)
    whole = float(weight @ np.diag(left))
    free = np.ones(len(cost), dtype=bool)
    order: list[int] = []
    explained: list[float] = []
    spent = 0.0
    while len(order) < min(CHOSEN, len(cost)):
        variance = np.diag(left) + kriging.NOISE
        gain = (weight @ left**2) / variance / cost
        gain[~free | (cost > allowed_s - spent)] = -1.0
        best = int(np.argmax(gain))
        if gain[best] <= 0:
            break
        column = left[:, best].copy()
        left -= np.outer(column, column / variance[best])
        free[best] = False
        spent += float(cost[best])
        order.append(best)
        explained.append(1.0 - float(weight @ np.diag(left)) / whole)
    for i in np.flatnonzero(free).tolist() if len(order) == CHOSEN else ():
        if cost[i] <= allowed_s - spent:
            spent += float(cost[i])
            order.append(i)
            explained.append(explained[-1])
    return order, np.array(explained)


def choose(c: Candidates, allowed_s: float) -> Chosen:
    """Points of one part for at most `allowed_s` seconds of measuring."""
    where = kriging.place(OperatorTable.read(KIND[c.part], c.frame), np.log(c.terms.latency_s), c.terms.features)
    order, explained = greedy(kriging.covariance(where, where), c.width, c.cost_s, allowed_s)
    records = c.frame.iloc[order].to_dict("records")
    points = [{"what": KIND[c.part], **{str(k): v for k, v in r.items()}} for r in records]
    return Chosen(c.part, points, c.cost_s[order], explained, float(c.width.mean()))


def _multiplied(frame: Any, gpu: GpuSpec) -> Any:
    """The points of element types that the GPU has tensor cores for."""
    rates = [d in ("bf16", "fp16") or d in gpu.tensor_flops for d in frame["dtype"]]
    return frame[np.array(rates)].reset_index(drop=True)


def configs_of(point: dict[str, Any], space: dict[str, Any], gpu: GpuSpec, seed: int) -> list[dict[str, Any]]:
    """The rows of one kernel shape: the library's call first, then the configs to time."""
    sizes = {name: int(point[name]) for name in ("m", "n", "k")}
    found = calibration_points("gemm", gpu, sizes, str(point["dtype"]), best=space["best"], spread=space["spread"], seed=seed)
    base = {"what": "kernel:gemm", **sizes, "dtype": str(point["dtype"])}
    return [{**base, "baseline": "cublas"}, *({**base, **config} for config in found)]
