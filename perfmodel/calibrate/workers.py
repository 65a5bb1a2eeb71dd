"""Tasks of one fit, in this process or side by side in several, with the same results; a fit that is stopped leaves none behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from perfmodel.calibrate.steps import Progress
from perfmodel.measure.pool import die_with_parent

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Linear algebra of a worker uses one thread: the workers are as many as the cores."""


class Tasks:
    """Tasks by what they fit; `progress` is told which is at work and how many are done."""

    def __init__(self, pool: ProcessPoolExecutor | None, progress: Progress | None) -> None:
        self._pool, self._progress = pool, progress
        self._waiting: list[str] = []
        self._total = 0

    def submit(self, what: str, task: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        """Start a task, or put it off in the only process there is; the call that comes back waits for its result."""
        self._waiting.append(what)
        self._total += 1
        if self._pool is None:
            return lambda: self._here(what, task, arguments)
        future = self._pool.submit(task, *arguments)
        future.add_done_callback(lambda _: self._done(what))
        return future.result

    def _here(self, what: str, task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        self._say(what)
        result = task(*arguments)
        self._done(what)
        return result

    def _done(self, what: str) -> None:
        self._waiting.remove(what)
        self._say(self._waiting[0] if self._waiting else what)

    def _say(self, what: str) -> None:
        if self._progress:
            self._progress(what, self._total - len(self._waiting), self._total)


@contextlib.contextmanager
def tasks(workers: int, progress: Progress | None) -> Iterator[Tasks]:
    """Run tasks in so many processes, or in this one; none is left behind, whatever ends the block."""
    if workers <= 1:
        yield Tasks(None, progress)
        return
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    with _one_thread():
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(os.getpid(),))
        try:
            yield Tasks(pool, progress)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise
        pool.shutdown()


def _begin(parent: int) -> None:
    """Of a worker: the one that was asked hears Control-C, and ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Processes started within use one thread of linear algebra each."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
