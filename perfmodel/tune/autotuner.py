"""What Triton's Autotuner is doing while it calls us: hooks get configs and arguments, but neither the kernel nor the keys."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

RACE_WARMUP_MS, RACE_MS = 1, 5
LEADERS = 3  # at its power limit a GPU runs kernels that tie in a race up to 5 % apart
RACE_SPREAD = 0.05  # a config this much slower in the race does not win the long timing


def calling(depth: int = 6) -> Any:
    """The Autotuner that called the hook we are in, or None. It is the `self` of a frame above that has a kernel, configs and keys."""
    frame = sys._getframe(1)
    for _ in range(depth):
        if frame is None:
            return None
        owner = frame.f_locals.get("self")
        if owner is not None and all(hasattr(owner, name) for name in ("fn", "configs", "keys", "nargs")):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None


def numbers(arguments: Mapping[str, Any]) -> dict[str, int]:
    """The whole numbers among a call's arguments: what tells one problem of a kernel from another."""
    return {k: int(v) for k, v in arguments.items() if isinstance(v, int) and not isinstance(v, bool) and not k.startswith("num_")}


def first_dtype(arguments: Mapping[str, Any]) -> str | None:
    """Element type of the first tensor (or descriptor of one) among the arguments."""
    for value in arguments.values():
        kind = getattr(value, "dtype", None) or getattr(getattr(value, "base", None), "dtype", None)
        if kind is not None:
            return str(kind).removeprefix("torch.")
    return None


@contextlib.contextmanager
def triton_starting() -> Iterator[None]:
    """Have Triton's driver built while the block runs, over by its end: a C module that its first use on a machine compiles, 0.4 s.

    The rest of Triton's start is Python, which would only take turns with the block.
    """
    thread = None
    with contextlib.suppress(RuntimeError):  # no more threads: then later, at the launch
        thread = _start_of_triton()
    try:
        yield
    finally:
        if thread is not None:
            thread.join()


@functools.cache
def _start_of_triton() -> threading.Thread:
    def start() -> None:
        with contextlib.suppress(Exception):  # what is wrong with the driver, the launch itself says
            import triton

            triton.runtime.driver.active.get_current_target()

    thread = threading.Thread(target=start, name="perfmodel starts triton", daemon=True)
    thread.start()
    return thread


def compile_together(tuner: Any, configs: Sequence[Any], call: Mapping[str, Any]) -> None:
    """Compile `configs` of the launch that `tuner` is at, side by side: Triton times them one by one, and would compile them so too.

    The first to be ready is launched once while the others compile, where a race may launch: with it Triton builds the C launcher that
    all of them share. call: keyword arguments of the launch. Does nothing where Triton cannot compile aside (before 3.4) or the launch
    is none. A config that does not compile is left to Triton, which says so where it is timed.
    """
    import triton

    mode = getattr(triton, "AsyncCompileMode", None)
    if mode is None or tuner is None or "grid" not in call or len(configs) < 2:
        return
    with (
        contextlib.suppress(Exception),  # what is wrong with a launch, the launch itself says
        _without_collection(),
        ThreadPoolExecutor(min(len(configs), os.cpu_count() or 1)) as pool,
        mode(pool, ignore_errors=True),
    ):
        compiling = {}
        for config in configs:
            current = {**call, **config.all_kwargs(), "warmup": True}
            if config.pre_hook is not None:  # it may shape a descriptor, which is part of what is compiled
                config.pre_hook({**tuner.nargs, **current})
            kernel = tuner.fn.run(*tuner.nargs.values(), **current)
            if hasattr(kernel, "future"):
                compiling[kernel.future] = (kernel, config)
        if _may_launch(tuner, call):
            for done in as_completed(compiling):
                if done.exception() is None:
                    kernel, config = compiling[done]
                    kernel.result()
                    _launch(tuner, config, call)()
                    break


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """No garbage is collected while the block runs.

    A collection inside `ast.parse` may give the turn to another thread, and two threads in it fail one another with "AST constructor
    recursion depth mismatch" (CPython before 3.11.8 and 3.12.2, gh-106905). Triton parses in each thread that compiles.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def race(tuner: Any, configs: Sequence[Any], call: Mapping[str, Any]) -> list[Any]:
    """The leaders of a short race of `configs` at the launch that `tuner` is at, fastest first: Triton spends 125 ms on each it times.

    Each runs RACE_MS twice with a cold L2, hooks of the tuner and of the config included, as when Triton times it. All of them come back
    where nothing may be launched, nothing can be saved, or none of them runs.
    """
    if not _may_launch(tuner, call) or len(configs) <= LEADERS:
        return list(configs)
    from triton.testing import do_bench

    launches = [_launch(tuner, config, call) for config in configs]
    times = [0.0] * len(configs)
    for i in (*range(len(configs)), *reversed(range(len(configs)))):  # there and back: a GPU slows down as it warms up
        times[i] += _time_or_never(do_bench, launches[i])
    order = sorted(range(len(configs)), key=lambda i: times[i])
    led = [i for i in order if times[i] <= times[order[0]] * (1.0 + RACE_SPREAD)][:LEADERS]
    return [configs[i] for i in led] if times[order[0]] < math.inf else list(configs)


def _may_launch(tuner: Any, call: Mapping[str, Any]) -> bool:
    """Whether we may run configs: not where the tuner has a benchmark of its own, or keeps results on disk by its list of configs."""
    own_rules = getattr(tuner, "cache_results", False) or getattr(tuner, "_do_bench", None) is not None
    return tuner is not None and not own_rules and call.get("warmup") is False


def _launch(tuner: Any, config: Any, call: Mapping[str, Any]) -> Callable[[], None]:
    current = {**call, **config.all_kwargs()}
    arguments = {**tuner.nargs, **current}

    def launch() -> None:
        if config.pre_hook is not None:
            config.pre_hook(arguments)
        tuner.pre_hook(arguments)
        try:
            tuner.fn.run(*tuner.nargs.values(), **current)
        except Exception as error:
            tuner.post_hook(arguments, exception=error)
            raise
        tuner.post_hook(arguments, exception=None)

    return launch


def _time_or_never(do_bench: Any, launch: Callable[[], None]) -> float:
    try:
        return float(do_bench(launch, warmup=RACE_WARMUP_MS, rep=RACE_MS, return_mode="median"))
    except Exception:  # too large for this GPU, say: it loses
        return math.inf
