"""Tune one problem on the GPU of this machine: rank by the model, time only the top few, keep every timing, answer from them."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel._resources import folders
from perfmodel.errors import InputError, NoAnswerError
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.registry import aliases, files, normalise
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels import family_for, kernel_family
from perfmodel.kernels.configs import FACTS, family_configs
from perfmodel.learn.calibration import CalibrationLike
from perfmodel.ops.check import size
from perfmodel.ops.operator import Operator, check_operator
from perfmodel.predict.configs import op_sizes
from perfmodel.tune import environment
from perfmodel.tune.environment import Environment
from perfmodel.tune.rank import Ranking, rank
from perfmodel.tune.store import Key, Run, Store, canonical

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.measure.kernels import KernelFamily
    from perfmodel.measure.runner import Runner

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many of it are done and how many there are."""

BUDGET_S = 180.0
"""Wall time of one tune, compilation included; what is left then is reported as not measured."""

_STOPS_BEFORE_S = 5.0  # a sweep starts nothing in the last seconds of its budget
_TRANSIENT = ("timeout", "crash", "error")
_DETAIL = ("min_us", "reps", "unstable", "power_w", "other_processes", "rel_error", "regs", "spills", "shared")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One config: what the model and the timer said, microseconds. `status` is ok, a failure or not_measured; `reason` says why."""

    config: Mapping[str, Any]
    predicted_us: float | None
    latency_us: float | None
    spread: float | None
    unstable: bool
    status: str
    reason: str


@dataclass(frozen=True, slots=True)
class TuneResult:
    """The best config found for one problem on one GPU, and everything it was chosen from.

    `latency_us` is a median of cold launches with `spread` = interquartile range / median; `baseline_us` holds the library's time by
    name; `source` is "measured" where something was timed now, "store" where nothing was.
    """

    op: Operator
    gpu: str
    config: Mapping[str, Any]
    latency_us: float
    spread: float | None
    predicted_us: float | None
    candidates: tuple[Candidate, ...]
    baseline_us: Mapping[str, float]
    source: str
    notes: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """What a notebook shows: the candidates, fastest first."""
        return str(self.frame.to_html())

    @property
    def frame(self) -> pd.DataFrame:
        """One row a candidate, fastest first, failures last."""
        import pandas as pd

        return pd.DataFrame([{**c.config, **{n: getattr(c, n) for n in Candidate.__slots__[1:]}} for c in self.candidates])


def tune(
    op: Operator,
    *,
    kernel: str | None = None,
    top_k: int = 8,
    gpu: str | GpuSpec | None = None,
    calibration: CalibrationLike = "auto",
    store: str | Path | None = None,
    runner: Runner | None = None,
    force: bool = False,
    configs: Any = None,
    progress: Progress | None = None,
) -> TuneResult:
    """Find the fastest config of a kernel for an operator on this machine's GPU, by timing the model's best candidates.

    Parameters
    ----------
    op : Gemm, Attention, MoE
        What is computed.
    kernel : str, optional
        A kernel family; None: the one that computes `op`.
    top_k : int
        How many candidates are timed.
    gpu : str or GpuSpec, optional
        The GPU of this machine; None: ask the driver. An unknown one gets a draft in the user's hwdb folder.
    calibration : "auto", None, str, Path or Calibration
        As in `predict`.
    store : str or Path, optional
        The file of results; None: the user's.
    runner : Runner, optional
        Answers in the GPU's place.
    force : bool
        Time all candidates again, stored or not.
    configs : list or DataFrame, optional
        Choose among these only.
    progress : callable, optional
        Called with what is being done, how many are done, and how many there are.

    Returns
    -------
    TuneResult
        The best config, its latency in microseconds, every candidate, and whether the store or the GPU answered.

    Raises
    ------
    InputError
        For bad input and a store that cannot be used.
    NoAnswerError
        Without a GPU, and when every candidate failed.

    Notes
    -----
    Only configs without a stored timing under the same kernel source, GPU, driver and versions are compiled and timed; each result is
    stored as it comes.

    Examples
    --------
    >>> import perfmodel as pm
    >>> found = pm.tune(pm.Gemm(4096, 4096, 4096))  # doctest: +SKIP
    >>> found.config, found.latency_us  # doctest: +SKIP
    """
    check_operator(op)
    name, count = kernel or family_for(op), size("top_k", top_k)
    notes: list[str] = []
    spec, place = _where(gpu, live=runner is None, notes=notes)
    ranking = rank(op, spec, kernel=name, configs=_own_configs(name, configs), calibration=calibration)
    from perfmodel.measure.kernels import family as measured_family

    family = measured_family(name)
    sizes = op_sizes(op, name)
    problem = {**sizes, "dtype": op.dtype}
    key = Key(name, sizes, op.dtype, family.source_hash(), place.gpu, place.driver, place.triton, place.torch)
    predicted = {canonical(c): p for c, p in _predictions(ranking, family.config_keys)}
    allowed = None if configs is None else set(predicted)
    skipped = "not asked"
    with Store(store) as book:
        known = {} if force else _stored(book, key, allowed)
        wanted = [c for c, _ in _predictions(ranking, family.config_keys, count) if canonical(c) not in known]
        if wanted:
            session = _Session(family, problem, key, predicted, book)
            timed = {canonical(r.config) for r in book.latest(key, "baseline") if r.status == "ok"} if not force else set()
            baselines = tuple(b for b in family.baselines if canonical({"variant": b}) not in timed)
            if runner is None:
                skipped = _time_live(session, spec, wanted, baselines, progress)
            else:
                _time_with(runner, session, wanted, baselines, progress)
            known = _stored(book, key, allowed, retry=False) | session.outside
        libraries = {str(r.config["variant"]): r.latency_us for r in book.latest(key, "baseline") if r.latency_us}
    lost = [Candidate(c, predicted[canonical(c)], None, None, False, "not_measured", skipped) for c in wanted if canonical(c) not in known]
    return _answer(op, spec, known, lost, predicted, libraries, notes, "measured" if wanted else "store")


def _where(gpu: str | GpuSpec | None, *, live: bool, notes: list[str]) -> tuple[GpuSpec, Environment]:
    """The GPU's spec and the environment its timings belong to."""
    asked = None if gpu is None else find_gpu(gpu)
    place = environment.current(None if live or asked is None else asked.full_name)
    if live and "none" in (place.torch, place.triton):
        raise NoAnswerError("timing kernels needs torch and triton: pip install 'perfmodel[gpu]', or use `perfmodel rank`")
    if asked is not None:
        if live and normalise(place.gpu) not in {normalise(n) for n in (asked.name, asked.full_name, *asked.aliases)}:
            raise InputError(f"this machine has {place.gpu}, not {asked.name}: leave the GPU out, or use `perfmodel rank`")
        return asked, place
    stem = aliases()[0].get(normalise(place.gpu))
    return (find_gpu(stem) if stem in files() else _draft(place.gpu, notes)), place


def _draft(name: str, notes: list[str]) -> GpuSpec:
    """A draft entry for a GPU that hwdb does not know, from the live device."""
    from perfmodel.hw.probe import probe_device, write_draft

    spec = probe_device()
    folder = folders("hwdb")[0]
    try:
        notes.append(f"{name} was unknown: a draft is in {write_draft(spec, folder)}; check its numbers against the datasheet")
    except InputError as error:
        notes.append(f"{name} is unknown and its draft was not saved: {error}")
    return spec


def _own_configs(name: str, configs: Any) -> list[dict[str, Any]] | None:
    """A caller's list as configs of the project's kernel; rows without a variant are its pointer kernel."""
    if configs is None:
        return None
    parsed = family_configs(kernel_family(name), configs, own=True)
    return [{k: v for k, v in row.items() if k not in FACTS} for row in parsed.rows()]


def _predictions(ranking: Ranking, keys: Sequence[str], count: int | None = None) -> list[tuple[dict[str, Any], float]]:
    """(config, predicted microseconds), best first, without repetitions; with `count` the ranking's shortlist of that many."""
    best = ranking.order if count is None else np.array(ranking.shortlist(count), dtype=np.int64)
    rows = ranking.configs.take(best).rows()
    pairs = [({k: row[k] for k in keys}, float(us)) for row, us in zip(rows, ranking.predictions.latency_us[best], strict=True)]
    first = {canonical(pair[0]): pair for pair in reversed(pairs)}
    return [pair for pair in pairs if first[canonical(pair[0])] is pair]


def _stored(book: Store, key: Key, allowed: set[str] | None, *, retry: bool = True) -> dict[str, Run]:
    """Stored runs by config, of the allowed ones. With `retry`, passing failures count as unknown while nothing has succeeded."""
    found = {canonical(run.config): run for run in book.latest(key)}
    found = {text: run for text, run in found.items() if allowed is None or text in allowed}
    if retry and all(run.status != "ok" for run in found.values()):
        found = {text: run for text, run in found.items() if run.status not in _TRANSIENT}
    return found


class _Session:
    """Turns rows of the runner into stored runs, each on disk before the next is measured."""

    def __init__(self, family: KernelFamily, problem: Mapping[str, Any], key: Key, predicted: Mapping[str, float], book: Store) -> None:
        self.family, self.problem, self.key, self.book = family, dict(problem), key, book
        self.outside: dict[str, Run] = {}
        self._predicted = predicted

    def keep(self, row: Mapping[str, Any]) -> None:
        """Store one row. One of another source or version than asked for goes under its own key, and a replay's gap is not stored."""
        role = "baseline" if row["variant"] in self.family.baselines else "config"
        config = {"variant": row["variant"]} if role == "baseline" else {k: row[k] for k in self.family.config_keys}
        stamps = {n: str(row[n]) for n in ("source_hash", "gpu", "driver", "triton", "torch") if row.get(n) is not None}
        key = Key(**{**{n: getattr(self.key, n) for n in Key.__slots__}, **stamps})
        run = Run(
            key=key,
            config=config,
            role=role,
            status=str(row["status"]),
            reason=str(row.get("reason") or ""),
            at=datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
            latency_us=row.get("latency_us") if row["status"] == "ok" else None,
            spread=row.get("spread"),
            predicted_us=self._predicted.get(canonical(config)),
            clock_mhz=row.get("clock_mhz"),
            detail={n: row[n] for n in _DETAIL if row.get(n) is not None},
        )
        if run.status != "missing":
            self.book.add([run])
        if role == "config" and (key != self.key or run.status == "missing"):
            self.outside[canonical(config)] = run


def _time_with(
    runner: Runner, session: _Session, wanted: list[dict[str, Any]], baselines: tuple[str, ...], progress: Progress | None
) -> None:
    from perfmodel.measure.sweep import Work, run_work

    done, total = 0, len(wanted) + len(baselines)

    def take(message: tuple[Any, ...]) -> None:
        nonlocal done
        if message[0] == "row":
            session.keep(message[1])
            done += 1
            if progress:
                progress("timing", done, total)

    run_work(runner, [Work(session.problem, tuple(wanted), baselines)], math.inf, take)


def _time_live(
    session: _Session, spec: GpuSpec, wanted: list[dict[str, Any]], baselines: tuple[str, ...], progress: Progress | None
) -> str:
    """Compile in worker processes, then time in a child that may hang or crash without harm; says why some may be left out."""
    from perfmodel.measure.rows import read
    from perfmodel.measure.sweep import Sweep, Work, compile_all, supervise

    arch = int(spec.arch.removeprefix("sm_"))
    for config in wanted:
        if reason := session.family.illegal(session.problem, config, arch):
            session.keep({**config, "status": "illegal", "reason": reason})
    legal = tuple(c for c in wanted if not session.family.illegal(session.problem, c, arch))
    with tempfile.TemporaryDirectory(prefix="perfmodel-tune-") as folder:
        workers = max(1, min(len(legal), os.cpu_count() or 1))
        work = [Work(session.problem, legal, baselines)]
        sweep = Sweep(session.family.name, work, Path(folder), BUDGET_S, arch, workers, time.monotonic())
        kept = 0

        def take(done: int = 0, total: int = 0) -> None:
            nonlocal kept
            rows = read(Path(folder) / "rows.jsonl")
            for row in rows[kept:]:
                session.keep(row)
            kept = len(rows)
            if progress and total:
                progress("timing", done, total)

        with _spawn_without_main():
            facts = compile_all(sweep, (lambda done, total: progress("compiling", done, total)) if progress else None)
            try:
                supervise(sweep, facts, take)
            finally:
                take()
        if time.monotonic() < sweep.deadline - _STOPS_BEFORE_S:
            return "the timing process ended before it"
        return f"not reached within {BUDGET_S:.0f} s"


@contextlib.contextmanager
def _spawn_without_main() -> Iterator[None]:
    """Keep child processes from running the caller's script again: it may have no `__main__` guard, or no file (`python -`)."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _answer(
    op: Operator,
    spec: GpuSpec,
    known: Mapping[str, Run],
    lost: list[Candidate],
    predicted: Mapping[str, float],
    libraries: Mapping[str, float | None],
    notes: list[str],
    source: str,
) -> TuneResult:
    candidates = lost + [
        Candidate(r.config, predicted.get(text, r.predicted_us), r.latency_us, r.spread, bool(r.detail.get("unstable")), r.status, r.reason)
        for text, r in known.items()
    ]
    candidates.sort(key=lambda c: (c.status != "ok", c.latency_us or math.inf, canonical(c.config)))
    best = candidates[0]
    if best.status != "ok" or best.latency_us is None:
        why = "; ".join(dict.fromkeys(f"{c.status}: {c.reason}".rstrip(": ") for c in candidates))
        raise NoAnswerError(f"none of {len(candidates)} candidates ran on {spec.name} ({why}): raise top_k, or retry with force")
    failed = sum(c.status != "ok" for c in candidates)
    if failed:
        notes.append(f"{failed} of {len(candidates)} candidates gave no time; each has its reason")
    if best.unstable:
        notes.append(f"the best config's spread is {100 * (best.spread or 0):.0f} %: unstable, tune again with force on a quiet GPU")
    others = max((int(r.detail.get("other_processes") or 0) for r in known.values()), default=0)
    if others and source == "measured":
        notes.append(f"{others} other processes were on the GPU while timing")
    return TuneResult(
        op=op,
        gpu=spec.name,
        config=best.config,
        latency_us=best.latency_us,
        spread=best.spread,
        predicted_us=best.predicted_us,
        candidates=tuple(candidates),
        baseline_us={name: float(us) for name, us in libraries.items() if us},
        source=source,
        notes=tuple(notes),
    )
