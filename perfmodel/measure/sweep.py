"""Time many configs on many problems inside a budget, surviving kernels that hang or crash.

    python -m perfmodel.measure.sweep --dtype bf16 --shapes shapes.json --configs configs.json --out DIR --budget 300

Binaries are compiled first, in worker processes; then one child process times, and this process writes each row to
DIR/rows.jsonl as it comes. A child that falls silent is killed, its config becomes a row with status "timeout", and a new child
goes on. Rows already in the file are not measured again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import random
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from perfmodel.errors import InputError, shown, unknown_name
from perfmodel.measure.compile import compile_many
from perfmodel.measure.kernels import KernelFamily, family
from perfmodel.measure.rows import Appender, Row, read, row_key
from perfmodel.measure.runner import DeviceLostError, LiveRunner, Runner, fact_index_key
from perfmodel.measure.timing import Policy

_SILENCE_S = 25.0
_START_S = 120.0


@dataclass(frozen=True, slots=True)
class Work:
    """One problem, the configs to time on it in order, and the library calls to time beside them."""

    problem: dict[str, Any]
    configs: tuple[dict[str, Any], ...]
    baselines: tuple[str, ...] = ()
    best_us: float = math.inf


@dataclass(slots=True)
class Sweep:
    """What a sweep is asked to do. `budget_s` is wall time, everything included; compiling ends after `compile_share` of it."""

    kernel: str
    work: list[Work]
    out: Path
    budget_s: float
    arch: int
    workers: int = 14
    started: float = field(default_factory=time.monotonic)
    compile_share: float = 0.4
    policy: Policy = field(default_factory=Policy)

    @property
    def deadline(self) -> float:
        """End of the budget on the monotonic clock, seconds."""
        return self.started + self.budget_s


def make_work(
    kernel: KernelFamily,
    problems: Sequence[Mapping[str, Any]],
    configs: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    done: Iterable[Row],
    arch: int,
    seed: int | None = None,
) -> list[Work]:
    """Pair problems with their configs, leaving out what `done` holds and what cannot run.

    `configs` is keyed by the problem's sizes joined by "x", or "*" for every other problem.

    A `seed` shuffles the configs of each problem; None keeps the given order.
    """
    keys = (*kernel.problem_keys, "dtype", *kernel.config_keys)
    sizes = len(kernel.problem_keys) + 1
    known = {row_key(r, keys): r for r in done}
    work = []
    for problem in problems:
        name = "x".join(str(problem[k]) for k in kernel.problem_keys)
        wanted = [dict(c) for c in configs.get(name, configs.get("*", ()))]
        unknown = [c for c in wanted if set(kernel.config_keys) - set(c)]
        if unknown:
            raise InputError(f"config {unknown[0]} lacks {', '.join(sorted(set(kernel.config_keys) - set(unknown[0])))}")
        fresh = [c for c in wanted if row_key({**problem, **c}, keys) not in known and not kernel.illegal(problem, c, arch)]
        if seed is not None:
            random.Random(f"{seed}|{name}").shuffle(fresh)
        none = dict.fromkeys(kernel.config_keys)
        left = tuple(b for b in kernel.baselines if row_key({**problem, **none, "variant": b}, keys) not in known)
        here = [r for r in known.values() if r["status"] == "ok" and row_key(r, keys[:sizes]) == row_key(problem, keys[:sizes])]
        best = min((float(r["latency_us"]) for r in here if r["variant"] not in kernel.baselines), default=math.inf)
        work.append(Work(dict(problem), tuple(fresh), left, best))
    return work


def compile_all(sweep: Sweep, report: Any = None) -> dict[str, Row]:
    """Compile what the sweep will launch, in order of first use; returns facts by `fact_index_key`, also appended to facts.jsonl."""
    kernel = family(sweep.kernel)
    jobs: dict[str, tuple[dict[str, Any], str]] = {}
    longest = max((len(w.configs) for w in sweep.work), default=0)
    for rank in range(longest):  # the first configs of every problem before the second ones
        for w in sweep.work:
            if rank < len(w.configs):
                binary = kernel.binary_of(w.problem, w.configs[rank])
                jobs.setdefault(fact_index_key(binary, w.problem["dtype"]), (binary, w.problem["dtype"]))
    known = compiled_before(sweep)
    facts: dict[str, Row] = {}
    log = Appender(sweep.out / "facts.jsonl")
    until = sweep.started + sweep.compile_share * sweep.budget_s
    try:
        for row in compile_many(sweep.kernel, jobs.values(), sweep.arch, workers=sweep.workers, deadline=until, progress=report):
            key = fact_index_key(row["binary"], row["dtype"])
            facts[key] = row
            if key not in known:
                log.add(row)
    finally:
        log.close()
    return facts


def compiled_before(sweep: Sweep) -> dict[str, Row]:
    """Facts by `fact_index_key` that an earlier run left in facts.jsonl for this source and target."""
    this = (family(sweep.kernel).source_hash(), sweep.arch)
    rows = read(sweep.out / "facts.jsonl")
    return {fact_index_key(r["binary"], r["dtype"]): r for r in rows if (r["source_hash"], r["arch"]) == this}


def run_work(runner: Runner, work: Sequence[Work], deadline: float, send: Any) -> None:
    """Measure everything in order, each problem within its share of the time left; then again what the first round left out.

    `send` gets ("start", problem, config) before and ("row", row) after each measurement.
    """
    best = [item.best_us for item in work]
    configs = [deque(item.configs) for item in work]
    baselines = [deque(item.baselines) for item in work]
    while (left := [i for i in range(len(work)) if baselines[i] or configs[i]]) and time.monotonic() < deadline:
        for place, i in enumerate(left):
            now = time.monotonic()
            until = now + (deadline - now) / (len(left) - place)
            while baselines[i]:
                name = baselines[i].popleft()
                send(("start", work[i].problem, {"variant": name}))
                send(("row", runner.baseline(work[i].problem, name)))
            while configs[i] and time.monotonic() <= until:
                config = configs[i].popleft()
                send(("start", work[i].problem, config))
                row = runner.measure(work[i].problem, config, best_us=best[i])
                if row["status"] == "ok":
                    best[i] = min(best[i], float(row["latency_us"]))
                send(("row", row))


def _fact(kernel: KernelFamily, problem: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    return fact_index_key(kernel.binary_of(problem, config), problem["dtype"])


def _child(kernel: str, facts: dict[str, Row], work: list[Work], deadline: float, policy: Policy, pipe: Connection) -> None:
    try:
        run_work(LiveRunner(family(kernel), facts, policy=policy), work, deadline, pipe.send)
        pipe.send(("done",))
    except DeviceLostError as lost:
        pipe.send(("lost", str(lost)))
    except Exception as error:  # the exit below would take it along unseen
        pipe.send(("lost", f"{type(error).__name__}: {error}"))
    finally:
        pipe.close()
        os._exit(0)  # a poisoned context may hang an orderly exit


def _remaining(work: Sequence[Work], kernel: KernelFamily, done: set[tuple[Any, ...]]) -> list[Work]:
    keys = (*kernel.problem_keys, "dtype", *kernel.config_keys)
    none = dict.fromkeys(kernel.config_keys)
    left = []
    for w in work:
        configs = tuple(c for c in w.configs if row_key({**w.problem, **c}, keys) not in done)
        baselines = tuple(b for b in w.baselines if row_key({**w.problem, **none, "variant": b}, keys) not in done)
        if configs or baselines:
            left.append(Work(w.problem, configs, baselines, w.best_us))
    return left


def supervise(sweep: Sweep, facts: dict[str, Row], report: Any = None, child_main: Any = None) -> list[Row]:
    """Time the sweep's work in child processes until it is done or the budget is spent; returns the new rows.

    `child_main` replaces what a child runs, for tests.
    """
    kernel = family(sweep.kernel)
    keys = (*kernel.problem_keys, "dtype", *kernel.config_keys)
    compiled = [
        Work(w.problem, tuple(c for c in w.configs if _fact(kernel, w.problem, c) in facts), w.baselines, w.best_us) for w in sweep.work
    ]
    total = sum(len(w.configs) + len(w.baselines) for w in compiled)
    log, rows, done = Appender(sweep.out / "rows.jsonl"), list[Row](), set[tuple[Any, ...]]()
    context = multiprocessing.get_context("spawn")

    def keep(row: Row) -> None:
        rows.append(row)
        done.add(row_key(row, keys))
        log.add(row)
        if report:
            report(len(rows), total)

    try:
        while (left := _remaining(compiled, kernel, done)) and time.monotonic() < sweep.deadline - 5:
            mine, theirs = context.Pipe(duplex=False)
            child = context.Process(target=child_main or _child, args=(sweep.kernel, facts, left, sweep.deadline - 3, sweep.policy, theirs))
            child.start()
            theirs.close()
            status, reason, current = _listen(mine, keep, sweep.deadline)
            child.kill()
            child.join()
            if status == "done" or current is None:
                if status != "done":
                    print(f"sweep: the timing process ended before its first kernel ({status}: {reason})", file=sys.stderr)
                break
            if time.monotonic() < sweep.deadline:
                problem, config = current
                blank = {"kernel": sweep.kernel, **problem, **dict.fromkeys(kernel.config_keys), **config}
                keep(blank | {"status": status, "reason": reason, "source_hash": kernel.source_hash()})
    finally:
        log.close()
    return rows


def _listen(pipe: Connection, keep: Any, deadline: float) -> tuple[str, str, tuple[Any, Any] | None]:
    """Take rows from a child until it ends: ("done" | "timeout" | "crash", reason, the problem and config it was at)."""
    current: tuple[Any, Any] | None = None
    patience = _START_S
    while True:
        try:
            if not pipe.poll(min(patience, max(0.1, deadline - time.monotonic()))):
                return "timeout", f"no answer for {patience:.0f} s", current
            message = pipe.recv()
        except (EOFError, ConnectionResetError):
            return "crash", "the timing process ended", current
        if message[0] == "start":
            current, patience = (message[1], message[2]), _SILENCE_S
        elif message[0] == "row":
            keep(message[1])
        elif message[0] == "lost":
            return "crash", message[1], current
        else:
            return "done", "", current


def read_shapes(path: Path, dtype: str, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Problems from a JSON list of objects or of lists of sizes."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, list) or not data:
        raise InputError(f"{path} must hold a non-empty JSON list of shapes")
    shapes = [dict(zip(keys, s, strict=True)) if isinstance(s, list) else dict(s) for s in data]
    return [{"dtype": dtype, **{k: int(v) if k in keys else v for k, v in s.items()}} for s in shapes]


def read_configs(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Configs from a JSON list (for every shape), or an object of lists by shape ("4096x4096x4096") with "*" for the others."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return {"*": data} if isinstance(data, list) else dict(data)


def read_policy(fields: Sequence[str]) -> Policy:
    """The timing policy with these fields ("hopeless=2") in place of its own; raises InputError for an unknown one and for no number."""
    known = {name: type(value) for name, value in dataclasses.asdict(Policy()).items()}
    given: dict[str, Any] = {}
    for name, _, value in (text.partition("=") for text in fields):
        if name not in known:
            raise unknown_name("field of the timing policy", name, known)
        try:
            given[name] = known[name](value)
        except ValueError:
            raise InputError(f"{name} of the timing policy must be a number, got {shown(value)}") from None
        if not given[name] > 0:
            raise InputError(f"{name} of the timing policy must be above 0, got {value}")
    return Policy(**given)


def summary(rows: Iterable[Row], kernel: KernelFamily) -> str:
    """One line a problem: best config, its latency, and each baseline's latency and ratio."""
    keys = (*kernel.problem_keys, "dtype")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(row_key(row, keys), []).append(row)
    lines, ratios = [], []
    for key, group in groups.items():
        good = [r for r in group if r["status"] == "ok"]
        ours = min((r for r in good if r["variant"] not in kernel.baselines), key=lambda r: float(r["latency_us"]), default=None)
        text = f"{'x'.join(str(k) for k in key[:-1])} {key[-1]}: {len(good)}/{len(group)} ok"
        if ours:
            text += f", best {ours['latency_us']:.2f} us " + " ".join(str(ours[k]) for k in kernel.config_keys)
        for lib in (r for r in good if r["variant"] in kernel.baselines):
            text += f", {lib['variant']} {lib['latency_us']:.2f} us"
            if ours:
                ratios.append(float(ours["latency_us"]) / float(lib["latency_us"]))
                text += f" (ours / library {ratios[-1]:.3f})"
        lines.append(text)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines.append(f"geometric mean of ours / library over {len(ratios)} problems: {mean:.4f}")
    return "\n".join(lines)


def _progress(what: str) -> Any:
    last = [0.0]

    def report(done: int, total: int) -> None:
        if time.monotonic() - last[0] > 5 or done == total:
            last[0] = time.monotonic()
            print(f"{what}: {done}/{total}", file=sys.stderr, flush=True)

    return report


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of a sweep; see the module."""
    parser = argparse.ArgumentParser(prog="python -m perfmodel.measure.sweep", description="Time kernel configs on this GPU.")
    parser.add_argument("--kernel", default="gemm")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--shapes", type=Path, required=True, help="JSON list of [m, n, k] or objects")
    parser.add_argument("--configs", type=Path, required=True, help="JSON list of configs, or an object of lists by shape")
    parser.add_argument("--out", type=Path, required=True, help="folder for rows.jsonl and facts.jsonl; an earlier run there is continued")
    parser.add_argument("--budget", type=float, default=300.0, help="wall time in seconds, compilation included")
    parser.add_argument("--seed", type=int, default=None, help="shuffle the configs of each shape; without it they run in the given order")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="compiler processes")
    parser.add_argument("--compile-share", type=float, default=0.4, help="share of the budget after which what is not compiled is left out")
    parser.add_argument(
        "--policy", nargs="+", default=(), metavar="NAME=VALUE", help="fields of the timing policy: hopeless=2 reps_final=9"
    )
    stage = parser.add_mutually_exclusive_group()
    stage.add_argument("--compile-only", action="store_true", help="only fill Triton's cache and facts.jsonl, for a sweep that follows")
    stage.add_argument("--compiled", action="store_true", help="compile nothing: what facts.jsonl holds is in Triton's cache")
    args = parser.parse_args(argv)
    kernel = family(args.kernel)
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device: a sweep needs one", file=sys.stderr)
        return 1
    major, minor = torch.cuda.get_device_capability()
    arch = major * 10 + minor
    started = time.monotonic()
    before = read(args.out / "rows.jsonl")
    problems = read_shapes(args.shapes, args.dtype, kernel.problem_keys)
    work = make_work(kernel, problems, read_configs(args.configs), done=before, arch=arch, seed=args.seed)
    sweep = Sweep(args.kernel, work, args.out, args.budget, arch, args.workers, started, args.compile_share, read_policy(args.policy))
    facts = compiled_before(sweep) if args.compiled else compile_all(sweep, _progress("compiled"))
    print(f"{len(facts)} binaries compiled by {time.monotonic() - started:.1f} s", file=sys.stderr)
    if args.compile_only:
        return 0
    rows = supervise(sweep, facts, _progress("timed"))
    print(summary([*before, *rows], kernel))
    print(f"{len(rows)} rows in {time.monotonic() - started:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
