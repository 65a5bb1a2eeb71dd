"""What Triton's Autotuner is doing while it calls us: hooks get configs and arguments, but neither the kernel nor the keys."""

from __future__ import annotations

import sys
from collections.abc import Mapping
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
