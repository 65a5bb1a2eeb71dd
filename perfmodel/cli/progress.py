"""What is being done, on stderr, once it has taken two seconds: one changing line on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

_AFTER_S = 2.0
_LINE_EVERY_S = 10.0
_BAR = 20  # characters


class Progress:
    """A context manager; call it with (what, done, total) as the work goes on. Silent for quick work."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._terminal = sys.stderr.isatty()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> Progress:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __call__(self, what: str, done: int, total: int) -> None:
        """Say how far the work is."""
        self._what = f"{what} {done}/{total}"

    def bar(self, what: str, done: int, total: int, note: str = "") -> None:
        """The same with a bar before it."""
        self(f"[{'#' * (_BAR * done // max(total, 1)):{_BAR}}] {note}{what}", done, total)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def _show(self) -> None:
        if self._done.wait(_AFTER_S):
            return
        while True:
            text = f"perfmodel: {self._what}, {time.monotonic() - self._began:.0f} s"
            print(f"\r\x1b[K{text}" if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr, flush=True)
            if self._done.wait(0.5 if self._terminal else _LINE_EVERY_S):
                break
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
