"""Rank the configs of any Triton kernel on any GPU: compile each for that GPU, read what it does, apply the law. No GPU needed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.analytic.bound import within
from perfmodel.errors import InputError, NoAnswerError, shown
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels.anykernel import ir, law
from perfmodel.kernels.anykernel.facts import Binary
from perfmodel.kernels.anykernel.values import Unknown
from perfmodel.kernels.anykernel.work import Work, analyse
from perfmodel.measure.kernel_call import Call, config_fields, describe, jit_function, type_name
from perfmodel.measure.kernel_compile import TIMEOUT_S, compile_calls
from perfmodel.ops.check import size
from perfmodel.tune.autotuner import numbers
from perfmodel.tune.expressions import evaluate
from perfmodel.tune.listener import measured
from perfmodel.tune.store import canonical
from perfmodel.units import US_PER_S

if TYPE_CHECKING:
    import pandas as pd

Grid = Any
Progress = Callable[[str, int, int], None]
_MOST_PROGRAMS = 2**31 - 1  # along x (CUDA programming guide, technical specifications)


@dataclass(frozen=True, slots=True)
class Ranked:
    """One legal config: its estimate by the law, and the latency it is ranked by (measured where the store has it), microseconds;
    least_us: what no program of this work beats."""

    config: Mapping[str, Any]
    position: int
    latency_us: float
    low_us: float
    high_us: float
    tier: str
    estimate: law.Estimate
    binary: Binary
    least_us: float


@dataclass(frozen=True, slots=True)
class KernelRanking:
    """Configs of one kernel for one call, best first; `pruned` has those that cannot run, with their reasons."""

    kernel: str
    gpu: GpuSpec
    ranked: tuple[Ranked, ...]
    pruned: tuple[tuple[Mapping[str, Any], str], ...]
    notes: tuple[str, ...]
    top_k: int | None = None

    def __len__(self) -> int:
        return len(self.ranked)

    def rows(self) -> list[dict[str, Any]]:
        """The best `top_k` as flat rows: the config's fields, latency and interval, what binds it, and its facts."""
        return [
            {
                **r.config,
                "latency_us": r.latency_us,
                "low_us": r.low_us,
                "high_us": r.high_us,
                "bound": r.estimate.bound,
                "waves": r.estimate.waves,
                "blocks_per_sm": r.estimate.blocks_per_sm,
                "limiter": r.estimate.limiter,
                "tier": r.tier,
                "regs": r.binary.regs,
                "spill_bytes": r.binary.spill_bytes,
                "shared_bytes": r.binary.shared_bytes,
                "position": r.position,
            }
            for r in self.ranked[: self.top_k]
        ]

    @property
    def frame(self) -> pd.DataFrame:
        """`rows` as a table; `position` counts in the list that was given."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def top(self, k: int) -> list[dict[str, Any]]:
        """The best `k` configs as plain dicts."""
        return [dict(r.config) for r in self.ranked[: size("k", k)]]


def rank_kernel(
    problem: Any,
    gpu: str | GpuSpec,
    kernel: Any,
    *,
    grid: Grid,
    configs: Any = None,
    arguments: Mapping[str, Any] | None = None,
    trip_count: float | str | None = None,
    top_k: int | None = None,
    workers: int | None = None,
    timeout_s: float = TIMEOUT_S,
    folder: Path | None = None,
    store: str | Path | None = None,
    progress: Progress | None = None,
) -> KernelRanking:
    """Rank the configs of a @triton.jit function for one call of it.

    problem: an operator, a mapping of argument names to numbers, or None; its sizes go to the arguments of the same name (m to M).
    arguments: the others, by name: numbers, example tensors, or pointer types like "*bf16". grid: a tuple, a function of the
    arguments and constants as one passes to the kernel, or text like "cdiv(M, BLOCK_M), heads". trip_count: for loops whose bounds
    depend on data, a number or text. configs: mappings, triton.Config or a DataFrame; left out, those of the kernel's autotuner.
    Raises InputError for a call that cannot be, NoAnswerError when no config compiles or fits.
    """
    spec = gpu if isinstance(gpu, GpuSpec) else find_gpu(gpu)
    limit = None if top_k is None else size("top_k", top_k)
    function, heuristics, own = jit_function(kernel)
    given = _configs(configs if configs is not None else own, function)
    known, pointer = _arguments(problem, arguments or {}, function)
    calls = [describe(function, heuristics, known, config, pointer) for config in given]
    grids = [_grid(grid, call) for call in calls]
    arch = int(spec.arch.removeprefix("sm_"))
    compiled = compile_calls(function, calls, arch, workers=workers, timeout_s=timeout_s, folder=folder, progress=progress)
    constants = law.constants()
    timed = {canonical(c): us for c, us in measured(function, numbers(known), spec.full_name, store)}
    works: dict[Any, Work | str] = {}
    ranked: list[Ranked] = []
    pruned: list[tuple[Mapping[str, Any], str]] = []
    notes: list[str] = []
    for position, (config, call, shape, one) in enumerate(zip(given, calls, grids, compiled, strict=True)):
        reason = one.reason or (law.reasons(spec, one.binary) if one.binary else "") or ""
        if one.binary is None or reason:
            pruned.append((config, reason))
            continue
        work = _work(works, one.ttir, call, shape, trip_count)
        if isinstance(work, str):
            raise InputError(f"{function.__name__}: {work}")
        notes += work.notes
        found = law.estimate(spec, work, one.binary, constants, call.sizes)
        least_us = law.least_s(spec, work, call.sizes) * US_PER_S
        ranked.append(_ranked(config, position, found, one.binary, constants["interval_log"], least_us))
    ranked = _with_timings(ranked, timed)
    if not ranked:
        raise NoAnswerError(f"no config of {function.__name__} can run on {spec.name}: {pruned[0][1]}")
    ranked.sort(key=lambda r: (r.latency_us, r.position))
    return KernelRanking(str(function.__name__), spec, tuple(ranked), tuple(pruned), tuple(dict.fromkeys(notes)), limit)


def _ranked(config: Mapping[str, Any], position: int, found: law.Estimate, binary: Binary, width: float, least_us: float) -> Ranked:
    predicted = found.latency_s * US_PER_S
    latency, low, high = within(predicted, predicted * math.exp(-width), predicted * math.exp(width), least_us)
    return Ranked(config, position, float(latency), float(low), float(high), "spec", found, binary, least_us)


def _with_timings(ranked: list[Ranked], timed: Mapping[str, float]) -> list[Ranked]:
    """Timed configs at their own latency; the others moved by the middle ratio of timed to predicted, so that both compare."""
    known = {r.position: timed[canonical(r.config)] for r in ranked if canonical(r.config) in timed}
    if not known:
        return ranked
    shift = math.exp(float(np.median([math.log(known[r.position] / r.latency_us) for r in ranked if r.position in known])))
    moved = []
    for r in ranked:
        if r.position in known:
            us = known[r.position]
            moved.append(dataclasses.replace(r, latency_us=us, low_us=us, high_us=us, tier="measured"))
        else:
            us, low, high = (float(v) for v in within(r.latency_us * shift, r.low_us * shift, r.high_us * shift, r.least_us))
            moved.append(dataclasses.replace(r, latency_us=us, low_us=low, high_us=high, tier="calibrated"))
    return moved


def _configs(configs: Any, function: Any) -> list[dict[str, Any]]:
    if configs is None:
        raise InputError(f"{function.__name__} has no @triton.autotune: give its configs")
    if hasattr(configs, "to_dict") and hasattr(configs, "columns"):
        rows: Sequence[Any] = configs.to_dict("records")
    elif isinstance(configs, Mapping):
        rows = [configs]
    elif isinstance(configs, Sequence) and not isinstance(configs, str | bytes):
        rows = list(configs)
    else:
        raise InputError(f"configs must be a list of configs or a DataFrame, not {type(configs).__name__}")
    if not rows:
        raise InputError("the config list is empty: give at least one config")
    return [config_fields(row, i) for i, row in enumerate(rows)]


def _arguments(problem: Any, arguments: Mapping[str, Any], function: Any) -> tuple[dict[str, Any], str | None]:
    """Arguments with the problem's sizes among them, and the element type of pointers that nobody described."""
    names = {p.name.lower(): p.name for p in function.params}
    pointer = None
    sizes: Mapping[str, Any] = {}
    if isinstance(problem, Mapping):
        sizes = problem
        unknown = [n for n in problem if n.lower() not in names and n != "dtype"]
        if unknown:
            raise InputError(f"{function.__name__} has no argument {', '.join(unknown)}; it has {', '.join(function.arg_names)}")
    elif dataclasses.is_dataclass(problem) and not isinstance(problem, type):
        sizes = {f.name: getattr(problem, f.name) for f in dataclasses.fields(problem)}
    elif problem is not None:
        raise InputError(f"expected an operator or a mapping of sizes, not {type(problem).__name__}")
    if "dtype" in sizes:
        pointer = type_name(sizes["dtype"])
    found = {names[n.lower()]: v for n, v in sizes.items() if n.lower() in names and n != "dtype"}
    wrong = [n for n in arguments if n not in function.arg_names]
    if wrong:
        raise InputError(f"{function.__name__} has no argument {', '.join(wrong)}; it has {', '.join(function.arg_names)}")
    return {**found, **arguments}, pointer


def _grid(grid: Grid, call: Call) -> tuple[int, int, int]:
    """Programs along x, y and z."""
    if isinstance(grid, str):
        from ast import Tuple, parse, unparse

        try:
            tree = parse(f"({grid},)" if not grid.strip().startswith("(") else grid, mode="eval").body
        except SyntaxError:
            raise InputError(f"grid {shown(grid)}: not an expression, or expressions with commas between") from None
        parts = [unparse(e) for e in tree.elts] if isinstance(tree, Tuple) else [grid]
        raw: Any = [evaluate(part, call.every_value, "grid") for part in parts]
    elif callable(grid):
        try:
            raw = grid({**call.every_value, **call.options})
        except Exception as error:
            raise InputError(f"the grid's function failed: {type(error).__name__}: {error}") from None
    else:
        raw = grid
    sides = list(raw) if isinstance(raw, Sequence) else [raw]
    if not 1 <= len(sides) <= 3:
        raise InputError(f"a grid has one to three sides, got {len(sides)}")
    whole = [size("a side of the grid", int(s) if isinstance(s, float | np.floating) and s == int(s) else s) for s in sides]
    if math.prod(whole) > _MOST_PROGRAMS:
        raise InputError(f"the grid has {math.prod(whole)} programs; a launch has at most {_MOST_PROGRAMS}")
    x, y, z = (*whole, 1, 1)[:3]
    return x, y, z


def _work(works: dict[Any, Work | str], ttir: str, call: Call, grid: tuple[int, int, int], trip_count: float | str | None) -> Work | str:
    """Work of a call, shared by configs with the same representation, or why there is none."""
    trips = evaluate(trip_count, call.every_value, "trip_count") if isinstance(trip_count, str) else trip_count
    key = (ttir, grid, trips)
    if key not in works:
        try:
            works[key] = analyse(ir.parse(ttir), call.values, grid, call.contents, trips)
        except Unknown as what:
            works[key] = str(what)
        except RecursionError:
            works[key] = "its code is nested too deep to be read"
        except ValueError as error:
            works[key] = f"cannot read what the compiler made of it: {error}"
    return works[key]
