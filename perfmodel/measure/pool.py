"""One worker process a GPU; they share a list of tasks, and whatever a worker does, its point becomes a row.

A task is a list of points that share their inputs, so one worker takes all of it. The parent hands out one point at a time and keeps
the rows, so a worker that hangs or dies costs one point, and a parent that dies takes its workers along.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from perfmodel.measure.rows import Row

Point = dict[str, Any]
Task = Sequence[Point]
Keep = Callable[[Row], None]
START_S, SILENCE_S = 180.0, 40.0
PATIENCE = 3  # workers of one device that may die in a row before the device is given up


@dataclass(slots=True)
class _Device:
    index: int
    process: Any = None
    pipe: Connection | None = None
    points: deque[Point] = field(default_factory=deque)
    current: Point | None = None
    ready: bool = False
    since: float = 0.0
    started_s: float = 0.0
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class Pool:
    """`session(index, setup)` runs in each worker and returns the function that turns a point into what is measured of it.

    It must be importable by name (workers are spawned). `cost_s` of a point is what it is expected to take.
    """

    session: Callable[[int, Any], Callable[[Point], Row]]
    setup: Any
    devices: Sequence[int]

    def run(self, tasks: Sequence[Task], keep: Keep, *, budget_s: float, say: Callable[[Point, int], None] | None = None) -> None:
        """Measure tasks in order until each device has spent `budget_s` seconds of measuring; `keep` gets each row at once.

        A row is the point, what the session returned, and device, time_s, wall_s, status, reason. `say` gets each point as it starts,
        and how many points are left.
        """
        left = deque(deque(task) for task in tasks if task)
        spent = dict.fromkeys(self.devices, 0.0)
        devices = [_Device(i) for i in self.devices]
        try:
            while True:
                for device in devices:
                    if device.current is None and device.deaths < PATIENCE:
                        self._feed(device, left, budget_s - spent[device.index], say)
                busy = [d for d in devices if d.process is not None]
                if not busy:
                    return
                for device in self._news(busy):
                    if (row := self._take(device)) is not None:
                        spent[device.index] += row["wall_s"]
                        keep(row)
        finally:
            for device in devices:
                self._end(device)

    def _feed(self, device: _Device, left: deque[deque[Point]], budget_s: float, say: Callable[[Point, int], None] | None) -> None:
        """Give a device its next point, the worker first where it has none; end it when nothing is left that fits the budget."""
        if device.process is not None and not device.ready:
            return
        if not device.points and left:
            device.points = left.popleft()
        while device.points and float(device.points[0].get("cost_s", 0.0)) > budget_s:
            device.points.popleft()
            if not device.points and left:
                device.points = left.popleft()
        if not device.points:
            self._end(device)
        elif device.process is None:
            self._start(device)
        else:
            device.current = device.points.popleft()
            device.since, device.started_s = time.monotonic(), time.time()
            if say:
                say(device.current, sum(map(len, left)) + sum(map(len, [device.points])))
            assert device.pipe is not None
            device.pipe.send(device.current)

    def _start(self, device: _Device) -> None:
        context = multiprocessing.get_context("spawn")
        device.pipe, theirs = context.Pipe()
        device.process = context.Process(target=_worker, args=(self.session, device.index, self.setup, theirs, os.getpid()), daemon=True)
        device.process.start()
        theirs.close()
        device.ready, device.since = False, time.monotonic()

    def _news(self, busy: Sequence[_Device]) -> list[_Device]:
        limit = min(d.since + (SILENCE_S if d.ready else START_S) for d in busy) - time.monotonic()
        answered = set(wait([d.pipe for d in busy if d.pipe is not None], timeout=max(0.05, limit)))
        late = time.monotonic()
        return [d for d in busy if d.pipe in answered or late > d.since + (SILENCE_S if d.ready else START_S)]

    def _take(self, device: _Device) -> Row | None:
        """What a worker said: a row, or None when it only got ready. Silence and death are rows too."""
        assert device.pipe is not None
        status, reason, found = "timeout", f"no answer for {SILENCE_S if device.ready else START_S:.0f} s", {}
        if device.pipe.poll(0):
            try:
                status, reason, found = device.pipe.recv()
            except (EOFError, ConnectionResetError):
                status, reason = "crash", "the measuring process ended"
        if status == "ready":
            device.ready, device.since = True, time.monotonic()
            return None
        point, device.current = device.current, None
        gone = status in ("timeout", "crash")
        if gone:
            self._end(device)
            device.deaths += 1
        else:
            device.deaths = 0
        if point is None:
            point, found = {}, {"id": f"start of device {device.index}"}
        now = time.time()
        times = {"device": device.index, "time_s": round(device.started_s or now, 3), "wall_s": round(now - (device.started_s or now), 4)}
        return {**point, **times, **found, "status": status, "reason": reason}

    @staticmethod
    def _end(device: _Device) -> None:
        if device.process is not None:
            device.process.kill()
            device.process.join()
        if device.pipe is not None:
            device.pipe.close()
        device.process, device.pipe, device.ready = None, None, False


def _worker(session: Callable[[int, Any], Callable[[Point], Row]], index: int, setup: Any, pipe: Connection, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    die_with_parent(parent)
    try:
        measure = session(index, setup)
        pipe.send(("ready", "", {}))
        while True:
            point = pipe.recv()
            try:
                found = measure(point)
            except LostError as error:
                pipe.send(("crash", str(error), {}))
                return
            except Exception as error:  # whatever a library or a kernel raises is a row
                pipe.send(("error", short(error), {}))
                continue
            pipe.send((str(found.pop("status", "ok")), str(found.pop("reason", "")), found))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        os._exit(0)  # a poisoned context may hang an orderly exit


class LostError(RuntimeError):
    """The device is unusable in this process after a failed kernel: the process must end."""


def short(error: BaseException) -> str:
    """An exception as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent is gone, killed ones too (Linux; elsewhere the closed pipe does it later)."""
    import ctypes

    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(0)


def plain(row: Mapping[str, Any]) -> Row:
    """A row whose numbers are Python's own, for JSON."""
    return {k: v.item() if hasattr(v, "item") else v for k, v in row.items()}
