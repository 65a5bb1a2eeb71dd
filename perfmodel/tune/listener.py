"""Keeps what Triton's autotuner times in the store, so that later ranks of the same kernel know those rows.

Triton 3.8 tells a listener of every tuning (`triton.knobs.autotuning.listener`): `listen()` once is enough. Before that, `record(kernel)`
after a launch keeps what its last tuning timed.
"""

from __future__ import annotations

import datetime
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfmodel.errors import InputError
from perfmodel.measure.kernel_call import config_fields, jit_function
from perfmodel.measure.kernel_compile import source_hash
from perfmodel.tune import environment
from perfmodel.tune.autotuner import calling, first_dtype, numbers
from perfmodel.tune.store import Key, Run, Store, store_path

_US_PER_MS = 1e3
_state: dict[str, Any] = {"path": None, "warned": False}


def listen(store: str | Path | None = None) -> bool:
    """From now on keep every tuning of this process in the store; a listener already there is called too.

    Returns False, with one warning, where the installed Triton has no listener: use `record` there. Raises InputError for an
    unusable store.
    """
    with Store(store):
        pass  # says now what is wrong with it
    try:
        from triton import knobs
    except ImportError:
        raise InputError("triton is not installed: there is no autotuner to listen to") from None
    if not hasattr(knobs.autotuning, "listener"):
        _warn("this Triton has no autotuning listener (3.8 has): call perfmodel.tune.listener.record(kernel) after a launch instead")
        return False
    _state["path"] = store_path(store)
    before = knobs.autotuning.listener
    if getattr(before, "perfmodel", False):
        return True

    def listener(**told: Any) -> None:
        if before is not None:
            before(**told)
        try:
            tuner = calling()
            arguments = {} if tuner is None else dict(tuner.nargs or {})
            sizes = numbers(arguments) if arguments else named_key((), told["key"])
            keep(told["fn"], sizes, first_dtype(arguments) or _dtype_of(told["key"]), told["configs_timings"], _state["path"])
        except Exception as error:  # a launch of the user's must not fail over a note
            _warn(f"perfmodel did not keep a tuning: {error}")

    listener.perfmodel = True  # type: ignore[attr-defined]
    knobs.autotuning.listener = listener
    return True


def listening() -> Path | None:
    """The store that tunings of this process go to; None when nobody listens."""
    path: Path | None = _state["path"]
    return path


def record(kernel: Any, store: str | Path | None = None) -> int:
    """Keep what the last tuning of an @triton.autotune kernel timed; returns how many rows were new.

    Raises InputError for a kernel without an autotuner, or before its first tuning.
    """
    timings = getattr(kernel, "configs_timings", None)
    cache = getattr(kernel, "cache", None)
    if timings is None or not cache:
        raise InputError("nothing to record: the kernel has no @triton.autotune, or has not been tuned in this process")
    key = list(cache)[-1]
    return keep(jit_function(kernel)[0], named_key(kernel.keys, key), _dtype_of(key), timings, store)


def named_key(names: Any, key: Any) -> dict[str, int]:
    """The whole numbers of an autotuner's key under the names of its arguments; by place where the names are not known."""
    labels = [*names, *(f"key{i}" for i in range(len(names), len(key)))]
    return numbers(dict(zip(labels, key, strict=False)))


def _dtype_of(key: Any) -> str:
    return next((str(k).removeprefix("torch.") for k in key if isinstance(k, str) and k.startswith("torch.")), "")


def keep(function: Any, sizes: Mapping[str, int], dtype: str, timings: Mapping[Any, Any], store: str | Path | None) -> int:
    """Store the timings (milliseconds: a number, or median and quantiles) of one tuning; returns how many rows were new."""
    place = environment.current()
    key = Key(str(function.__name__), dict(sizes), dtype, source_hash(function), place.gpu, place.driver, place.triton, place.torch)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
    runs = []
    for config, timing in timings.items():
        values = [float(t) for t in (timing if isinstance(timing, list | tuple) else [timing])]
        good = bool(values) and math.isfinite(values[0]) and values[0] > 0
        spread = (values[2] - values[1]) / values[0] if good and len(values) >= 3 else None
        runs.append(
            Run(
                key=key,
                config=config_fields(config),
                role="config",
                status="ok" if good else "error",
                reason="" if good else "the autotuner could not run it",
                at=now,
                latency_us=values[0] * _US_PER_MS if good else None,
                spread=spread,
                detail={"from": "triton autotuner"},
            )
        )
    with Store(store) as book:
        return book.add(runs)


def measured(function: Any, arguments: Mapping[str, int], gpu: str, store: str | Path | None) -> list[tuple[dict[str, Any], float]]:
    """(config, microseconds) stored for this kernel source on this GPU (driver's name), of calls whose stored sizes all agree."""
    path = store_path(store)
    if not path.is_file():
        return []
    with Store(path, create=False) as book:
        runs = book.of_kernel(str(function.__name__), source_hash(function), gpu)
    same = [r for r in runs if r.key.sizes and all(arguments.get(k) == v for k, v in r.key.sizes.items())]
    return [(dict(r.config), float(r.latency_us)) for r in same if r.latency_us]


def _warn(text: str) -> None:
    if not _state["warned"]:
        _state["warned"] = True
        warnings.warn(text, RuntimeWarning, stacklevel=3)
