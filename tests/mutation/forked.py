"""Runs chosen tests in a forked child, with one function changed in place: the child starts with everything imported and collected.

Each child begins as the tests' process was after collection, so it pays neither imports nor what an earlier test left behind. A test may
use five times its usual processor time and two seconds more; the child is then ended by a signal, and the mutant counts as killed.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import resource
import signal
import sys
import threading
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

PATIENCE, SECONDS_MORE = 5.0, 2.0
Found = dict[str, Any]
_FORKING = threading.Lock()


class Reports:
    """A pytest plugin that remembers whether a test failed."""

    def __init__(self) -> None:
        self.failed: str | None = None
        self.passed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid
        elif report.when == "call" and report.passed:
            self.passed = True


def in_child(work: Callable[[], Found]) -> Found | None:
    """What `work` returns in a forked child; None when a signal ended it or it raised."""
    with _FORKING:  # no other child is to hold this pipe open
        read, write = os.pipe()
        child = os.fork()
        if child:
            os.close(write)
    if child == 0:
        os.close(read)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        code = 1
        try:
            with os.fdopen(write, "w") as pipe:
                json.dump(work(), pipe)
            code = 0
        finally:
            os._exit(code)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if os.waitstatus_to_exitcode(status) == 0 and text else None


def run_items(items: Sequence[pytest.Item], reports: Reports, usual_s: Callable[[str], float]) -> Found:
    """The first test that fails, or none; the tests' order is kept."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, PATIENCE * usual_s(item.nodeid) + SECONDS_MORE)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        if reports.failed is not None:
            break
    return {"failed": reports.failed}


def caches(packages: Sequence[str]) -> list[Any]:
    """Every cache of functions of these packages and of what asks them; files that were read stay read."""
    names = (*(f"perfmodel.{package}" for package in packages), "perfmodel.predict", "perfmodel.tune")
    found = (o for o in gc.get_objects() if isinstance(o, functools._lru_cache_wrapper))
    return [o for o in found if str(getattr(o, "__module__", "")).startswith(names)]


def forget(held: Sequence[Any]) -> None:
    for cache in held:
        cache.cache_clear()


def observe(item: pytest.Item, reports: Reports, root: Path) -> Found:
    """Processor seconds of one test, whether it passed, and the functions of perfmodel that it called, as `file function`."""
    called: set[types.CodeType] = set()

    def note(frame: types.FrameType, event: str, _: object) -> None:
        called.add(frame.f_code)  # of calls alone: without a local trace function no line is traced

    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    sys.settrace(note)
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    sys.settrace(None)
    seconds = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
    names = set()
    for code in called:
        path = Path(code.co_filename)
        if path.is_relative_to(root):
            names.add(f"{path.relative_to(root).as_posix()} {outermost(code.co_qualname)}")
    return {"passed": reports.passed and reports.failed is None, "seconds": round(seconds, 3), "functions": sorted(names)}


def outermost(qualname: str) -> str:
    """The function of a module, or the method of a class, that a nested one is written in."""
    return qualname.split(".<locals>", maxsplit=1)[0]


def replace(root: Path, file: str, function: str, tree: Any) -> bool:
    """Give a loaded function the code of a changed tree; False where that cannot be done in place."""
    module = sys.modules.get("perfmodel." + file.removesuffix(".py").replace("/", "."))
    target: Any = module
    for part in function.split("."):
        target = vars(target).get(part) if target is not None else None
    target = plain(target)
    code = _code(compile(tree, str(root / file), "exec"), function)
    if target is None or code is None or code.co_freevars != target.__code__.co_freevars:
        return False
    target.__code__ = code
    return True


def plain(target: Any) -> types.FunctionType | None:
    """The function behind a property, a class or static method, or a cache."""
    for _ in range(4):
        if isinstance(target, types.FunctionType):
            return target if not hasattr(target, "__wrapped__") else plain(target.__wrapped__)
        for name in ("__wrapped__", "fget", "__func__", "func"):
            if hasattr(target, name):
                target = getattr(target, name)
                break
        else:
            return None
    return None


def _code(code: types.CodeType, function: str) -> types.CodeType | None:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            if constant.co_qualname == function:
                return constant
            inner = _code(constant, function)
            if inner is not None:
                return inner
    return None
