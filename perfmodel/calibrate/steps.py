"""What a fit is at: said to whoever listens, by code far below the one that shows it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

Progress = Callable[[str, int, int], None]
"""Takes what is being fitted, and how many steps of it are done of how many."""
_LISTENER: ContextVar[Progress | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def heard_by(listener: Progress) -> Iterator[None]:
    """Have the steps of what is fitted within said to `listener`."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def step(what: str, done: int, total: int) -> None:
    """Say that `done` of `total` steps of a fit are done and the next begins."""
    if listener := _LISTENER.get():
        listener(what, done, total)
