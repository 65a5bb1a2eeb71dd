"""What a calibration's worker does with a point: a ceiling, a library operator, or a config of a Triton kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perfmodel.measure import ceilings
from perfmodel.measure.kernels import family
from perfmodel.measure.operators import WHATS, OperatorMeter
from perfmodel.measure.pool import LostError, Point
from perfmodel.measure.rows import Row
from perfmodel.measure.runner import DeviceLostError, LiveRunner

KERNEL = "kernel:"


@dataclass(frozen=True, slots=True)
class Setup:
    """What all workers share: facts of the compiled binaries, by kernel and then by `fact_index_key`."""

    facts: Mapping[str, Mapping[str, Row]] = field(default_factory=dict)


def session(index: int, setup: Setup) -> Callable[[Point], Row]:
    """Open CUDA device `index` in this process and return the function that measures a point on it."""
    import torch

    torch.cuda.set_device(index)
    torch.zeros(1, device="cuda")
    name = torch.cuda.get_device_name(index)
    versions = {"gpu_name": name, "torch": str(torch.__version__), "cuda": str(torch.version.cuda)}
    operators: list[OperatorMeter] = []
    runners: dict[str, LiveRunner] = {}
    best: dict[tuple[Any, ...], float] = {}

    def kernel(point: Point) -> Row:
        what = str(point["what"]).removeprefix(KERNEL)
        module = family(what)
        if what not in runners:
            runners[what] = LiveRunner(module, setup.facts.get(what, {}), state=lambda: {"gpu": name})
        problem = {key: point[key] for key in (*module.problem_keys, "dtype")}
        try:
            if baseline := point.get("baseline"):
                return runners[what].baseline(problem, str(baseline))
            key = tuple(problem.values())
            row = runners[what].measure(problem, point, best_us=best.get(key, math.inf))
            if row["status"] == "ok":
                best[key] = min(best.get(key, math.inf), float(row["latency_us"]))
            return row
        except DeviceLostError as error:
            raise LostError(str(error)) from error

    def measure(point: Point) -> Row:
        what = str(point["what"])
        if what == "ceiling":
            return versions | ceilings.measure(str(point["name"]))
        if what in WHATS:
            if not operators:
                operators.append(OperatorMeter())
            found = operators[0].measure(point)
            torch.cuda.synchronize()
            return versions | found
        return versions | kernel(point)

    return measure
