"""A calibration run on this machine's GPUs: the plan, what earlier calls have measured of it, and the rest within the budget.

Everything is in one folder: rows.jsonl (a line a point, appended as it comes), state.jsonl (clock, power, throttling over time) and
run.json (what was asked, where). A call that was killed loses the point that was being timed; the next call goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from perfmodel._atomic import write_atomically
from perfmodel._resources import user_folder
from perfmodel.calibrate.plan import Plan
from perfmodel.errors import InputError
from perfmodel.measure.devices import Device
from perfmodel.measure.lock import gpu_lock
from perfmodel.measure.pool import Point, Pool, plain
from perfmodel.measure.rows import Appender, Row, read
from perfmodel.measure.session import KERNEL, Setup, session
from perfmodel.measure.state import Monitor, averages

ROWS, STATE, META = "rows.jsonl", "state.jsonl", "run.json"
Say = Callable[[str, int, int, float], None]
"""What is being timed, points done, points in the plan, seconds of the budget left."""


def run_folder(gpu_name: str, out: Path | None = None) -> Path:
    """Where a GPU's run is kept: `out`, else runs/<gpu> in the user's folder."""
    return out if out is not None else user_folder() / "runs" / gpu_name


def compile_points(points: Sequence[Point], arch: int, *, workers: int, say: Say | None = None) -> dict[str, dict[str, Row]]:
    """Compile the kernels of a plan on the host's cores, before any GPU time is spent: facts by kernel and fact_index_key."""
    from perfmodel.measure.compile import compile_many
    from perfmodel.measure.kernels import family
    from perfmodel.measure.runner import fact_index_key

    facts: dict[str, dict[str, Row]] = {}
    for name in sorted({str(p["what"]).removeprefix(KERNEL) for p in points if str(p["what"]).startswith(KERNEL)}):
        module, jobs = family(name), {}
        for point in points:
            if point["what"] == KERNEL + name and not point.get("baseline"):
                problem = {key: point[key] for key in (*module.problem_keys, "dtype")}
                if module.illegal(problem, point, arch) is None:
                    binary = module.binary_of(problem, point)
                    jobs[fact_index_key(binary, point["dtype"])] = (binary, str(point["dtype"]))
        facts[name] = {}
        for row in compile_many(name, jobs.values(), arch, workers=workers, loop=False):
            facts[name][fact_index_key(row["binary"], row["dtype"])] = row
            if say:
                say(f"compiling {name} on the CPU", len(facts[name]), len(jobs), 0.0)
    return facts


def stored_rows(folder: Path) -> list[Row]:
    """The rows of a run, those of other ranks included."""
    return [row for path in sorted(folder.glob("rows*.jsonl")) for row in read(path)]


def set_aside(folder: Path) -> Path | None:
    """Move a run out of the way, so that the next one starts anew; returns where it went."""
    if not folder.exists():
        return None
    target = folder.with_name(f"{folder.name}.{time.strftime('%Y%m%dT%H%M%S')}")
    shutil.move(folder, target)
    return target


def execute(
    plan: Plan,
    folder: Path,
    devices: Sequence[Device],
    *,
    part: tuple[int, int] = (0, 1),
    workers: int | None = None,
    say: Say | None = None,
    worker: Any = session,
    monitor: Callable[[Device], Monitor] | None = None,
    heard: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Measure what is left of a plan within what is left of its budget; returns all rows of the run.

    The budget is seconds of each GPU from the start of a point to its row, over all calls; starting processes and compiling is not in it.
    `part` = (rank, ranks): of several hosts' processes this one takes every ranks-th task and writes a file of its own. `worker` replaces
    what a worker process runs (measure/session), `monitor` what watches a device, for tests; `heard` gets each row once it is kept.
    Raises NoAnswerError when another calibration holds a GPU.
    """
    rank, ranks = part
    rows_path = folder / (ROWS if ranks == 1 else f"rows-{rank}.jsonl")
    with contextlib.ExitStack() as held:
        for device in devices:
            held.enter_context(gpu_lock(device.uuid))
        check_same(folder, plan)
        known = stored_rows(folder)
        mine = [row for row in known if int(row.get("rank", 0)) == rank]
        spent = sum(float(r.get("wall_s") or 0.0) for r in mine) / max(1, len(devices))
        tasks = plan.left((str(row["id"]) for row in known), part)
        left_s = plan.budget_s - spent
        if not tasks or left_s <= 0:
            return known
        setup = Setup(_facts(tasks, plan, workers, say) if worker is session else {})
        watch = {d.index: held.enter_context((monitor or _monitor)(d)) for d in devices}
        log, states = Appender(rows_path), Appender(folder / STATE)
        held.callback(log.close)
        held.callback(states.close)
        fresh: list[Row] = []
        seen = dict.fromkeys(watch, 0)
        total = len(known) + sum(map(len, tasks))
        clock = {"left": left_s}

        def keep(row: Row) -> None:
            samples = watch[row["device"]].during(row["time_s"], row["time_s"] + row["wall_s"])
            row = plain({**row, **averages(samples), "rank": rank, "run": plan.digest})
            log.add(row)
            fresh.append(row)
            if heard:
                heard(row)
            clock["left"] -= float(row["wall_s"]) / len(devices)
            for index, monitor_ in watch.items():
                for sample in monitor_.samples[seen[index] :]:
                    states.add({"device": index, "rank": rank, **sample.as_row()})
                    seen[index] += 1

        def starting(point: Point, _: int) -> None:
            if say:
                say(str(point["id"]), len(known) + len(fresh), total, clock["left"])

        Pool(worker, setup, [d.index for d in devices]).run(tasks, keep, budget_s=left_s, say=starting)
        return known + fresh


def _facts(tasks: Sequence[Sequence[Point]], plan: Plan, workers: int | None, say: Say | None) -> dict[str, dict[str, Row]]:
    major, minor = plan.gpu.capability
    points = [p for task in tasks for p in task]
    return compile_points(points, 10 * major + minor, workers=workers or max(1, (os.cpu_count() or 2) - 1), say=say)


def _monitor(device: Device) -> Monitor:
    return Monitor(device.uuid, own=_family)


def _family() -> set[int]:
    """This process and its children."""
    import multiprocessing

    return {os.getpid(), *(p.pid for p in multiprocessing.active_children() if p.pid is not None)}


def check_same(folder: Path, plan: Plan) -> None:
    """Make a run's folder, or see that it is this GPU's: another seed or budget may add to it. Raises InputError where it is not."""
    path = folder / META
    asked = {"gpu": plan.gpu.name, "budget_s": plan.budget_s, "seed": plan.seed, "plan": plan.digest}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else asked
        if before.get("gpu") != plan.gpu.name:
            raise InputError(f"{folder} holds a run of {before.get('gpu')}, not of {plan.gpu.name}: name another folder with --run")
        write_atomically(path, json.dumps(asked, indent=1) + "\n")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}): name another folder with --run") from None
    except json.JSONDecodeError:
        raise InputError(f"{path}: not JSON, perhaps half-written: delete it or start anew with --fresh") from None


def read_states(rows: Path) -> list[Row]:
    """Samples of the devices beside a run's rows: state.jsonl, or NAME.state.parquet beside NAME.parquet; none where there are none."""
    return read(rows.with_suffix(".state.parquet") if rows.suffix == ".parquet" else rows.with_name(STATE))


def summary_line(rows: Sequence[Row]) -> Iterator[str]:
    """How many points of each kind were measured, and how many failed."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(str(row.get("what", "worker")), []).append(row)
    for kind, members in kinds.items():
        good = sum(r["status"] == "ok" for r in members)
        yield f"{kind}: {good} of {len(members)} ok"
