"""The list of what a calibration run times, in order of value, and what it will cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.calibrate.points import Chosen, candidates, choose, configs_of
from perfmodel.calibrate.recipe import KERNELS, OPERATORS, read_recipe
from perfmodel.errors import InputError
from perfmodel.hw.spec import GpuSpec
from perfmodel.measure.ceilings import ceilings_of
from perfmodel.measure.pool import Point

LEAST_BUDGET_S, MOST_BUDGET_S = 10.0, 3600.0
SLACK = 1.3  # the list is this much longer than the budget: what a run saves on one part it spends on the next
WIDEST = 0.5  # half-width from which a part is as uncertain as it gets
KEYS = (
    "what", "name", "dtype", "phase", "kernel", "kind", "m", "n", "k", "batch", "q_heads", "kv_heads", "head_dim", "q_len", "kv_len",
    "tokens", "hidden", "baseline", "variant", "block_m", "block_n", "block_k", "group_m", "split_k", "num_warps", "num_stages",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a plan: its share of the budget (s), points, their cost (s), share of the prior's uncertainty they take away."""

    name: str
    budget_s: float
    points: int
    cost_s: float
    explained: float
    prior_half_width: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Tasks in the order to run them (a task's points share their inputs), for one GPU, budget (s) and seed."""

    gpu: GpuSpec
    budget_s: float
    seed: int
    tasks: tuple[tuple[Point, ...], ...]
    parts: tuple[Part, ...]

    @property
    def points(self) -> list[Point]:
        """All points in order."""
        return [point for task in self.tasks for point in task]

    @property
    def digest(self) -> str:
        """Short hash of what is asked; the same list has the same one."""
        return hashlib.sha256(json.dumps([p["id"] for p in self.points]).encode()).hexdigest()[:12]

    def left(self, done: Iterable[str], part: tuple[int, int] = (0, 1)) -> list[tuple[Point, ...]]:
        """Of every ranks-th task (`part` = rank, ranks), what is left when the points with these ids are known."""
        known = set(done)
        return [left for task in self.tasks[part[0] :: part[1]] if (left := tuple(p for p in task if p["id"] not in known))]


def point_id(point: Mapping[str, Any]) -> str:
    """What tells two points apart, as one string."""
    return " ".join(f"{key}={point[key]}" for key in KEYS if point.get(key) is not None)


def check_budget(budget_s: float) -> None:
    """Raise InputError for a budget outside 10 to 3600 s."""
    if not LEAST_BUDGET_S <= budget_s <= MOST_BUDGET_S:
        raise InputError(f"budget must be {LEAST_BUDGET_S:.0f} to {MOST_BUDGET_S:.0f} seconds, got {budget_s:g}")


def make_plan(gpu: GpuSpec, *, budget_s: float = 120.0, seed: int = 0, recipe: Mapping[str, Any] | None = None) -> Plan:
    """Choose the points of a run. Deterministic for the same GPU, budget, seed, recipe and models.

    Ceilings come first; then the parts share what is left by use x width of the prior's interval, and run side by side, so that a run cut
    short has some of each. Raises InputError for a budget outside 10 to 3600 s.
    """
    check_budget(budget_s)
    recipe = recipe or read_recipe()
    found = ceilings_of(gpu) if "ceilings" in recipe else []
    ceilings: list[Point] = [{"what": "ceiling", "name": c.name, "cost_s": c.cost_s} for c in found]
    used = sum(c.cost_s for c in found)
    names = [name for name in (*OPERATORS, *KERNELS) if name in recipe]
    spaces = {name: candidates(name, recipe[name], gpu, seed) for name in names}
    weight = {name: recipe[name]["use"] * float(np.minimum(c.width, WIDEST).mean()) for name, c in spaces.items()}
    left_s = max(0.0, budget_s - used)
    share = {name: left_s * w / sum(weight.values()) for name, w in weight.items()}
    chosen = [choose(spaces[name], SLACK * share[name]) for name in names if share[name] > 0]
    tasks = [[p] for p in ceilings] + _side_by_side(chosen, share, recipe, gpu, seed)
    parts = [Part("ceilings", used, len(ceilings), used, 0.0, 0.0)] if ceilings else []
    for c in chosen:
        within = int(np.searchsorted(np.cumsum(c.cost_s), share[c.part], side="right"))
        explained = float(c.explained[within - 1]) if within else 0.0
        parts.append(Part(c.part, share[c.part], within, float(c.cost_s[:within].sum()), explained, c.width))
    return Plan(gpu, budget_s, seed, tuple(tuple({**p, "id": point_id(p)} for p in task) for task in tasks), tuple(parts))


def _side_by_side(
    chosen: Sequence[Chosen], share: Mapping[str, float], recipe: Mapping[str, Any], gpu: GpuSpec, seed: int
) -> list[list[dict[str, Any]]]:
    """Tasks of all parts, each part as far through its share as the others."""
    queue = []
    for part in chosen:
        reached = np.cumsum(part.cost_s) / share[part.part]
        for i, (point, cost) in enumerate(zip(part.points, part.cost_s.tolist(), strict=True)):
            queue.append((float(reached[i]), part.part, point, cost))
    queue.sort(key=lambda entry: (entry[0], entry[1]))
    tasks = []
    for _, part_name, point, cost in queue:
        if part_name in KERNELS:
            rows = configs_of(point, recipe[part_name], gpu, seed)
            tasks.append([{**row, "cost_s": round(cost / len(rows), 5)} for row in rows])
        else:
            tasks.append([{**point, "cost_s": round(cost, 5)}])
    return tasks
