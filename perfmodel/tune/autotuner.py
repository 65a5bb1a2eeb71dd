"""What Triton's Autotuner is doing while it calls us: hooks get configs and arguments, but neither the kernel nor the keys."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


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


def compile_together(tuner: Any, configs: Sequence[Any], call: Mapping[str, Any]) -> None:
    """Compile `configs` of the launch that `tuner` is at, side by side: Triton times them one by one, and would compile them so too.

    call: keyword arguments of the launch. Nothing runs on the GPU. Does nothing where Triton cannot compile aside (before 3.4) or the
    launch is none. A config that does not compile is left to Triton, which says so where it is timed.
    """
    import triton

    mode = getattr(triton, "AsyncCompileMode", None)
    if mode is None or tuner is None or "grid" not in call or len(configs) < 2:
        return
    with (
        contextlib.suppress(Exception),  # what is wrong with a launch, the launch itself says
        ThreadPoolExecutor(min(len(configs), os.cpu_count() or 1)) as pool,
        mode(pool, ignore_errors=True),
    ):
        for config in configs:
            current = {**call, **config.all_kwargs(), "warmup": True}
            if config.pre_hook is not None:  # it may shape a descriptor, which is part of what is compiled
                config.pre_hook({**tuner.nargs, **current})
            tuner.fn.run(*tuner.nargs.values(), **current)
