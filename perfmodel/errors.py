"""The errors perfmodel raises on purpose. Anything else that escapes is a bug and keeps its traceback."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Any

LONGEST_VALUE = 60
"""Characters of a value that a message shows."""
LONGEST_LINE = 280
"""Characters of a line that the command line writes about an error."""
LONGEST_LIST = 120
"""Characters of known names that a message lists."""


class PerfModelError(Exception):
    """Base of every deliberate error; `exit_code` is what the command line returns."""

    exit_code = 1


class InputError(PerfModelError, ValueError):
    """The question itself is wrong (size, name, file): one line saying what, which value, what is allowed."""

    exit_code = 2


class InputWarning(UserWarning):
    """Part of what was given is left out of the answer (a broken file beside good ones, rows that cannot be): one line, exit code 0."""


class NoAnswerError(PerfModelError):
    """The question is fine but has no answer here (no legal config, no GPU); says the next step."""


def shown(value: object, limit: int = LONGEST_VALUE) -> str:
    """A value as a message shows it: its repr on one line, cut at `limit` characters; never fails, and never formats a huge one whole."""
    try:
        if getattr(value, "shape", None) == () and hasattr(value, "item"):
            value = value.item()  # a number of numpy's as the number it is
        text = _REPR.repr(value)
    except Exception:  # somebody else's __repr__
        text = f"<{type(value).__name__}>"
    return _cut(" ".join(text.split()), limit)


def plain(value: object, limit: int = LONGEST_VALUE) -> str:
    """A name or a path as a message shows it: without quotes, on one line, cut at `limit` characters."""
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception:  # somebody else's __str__
        text = f"<{type(value).__name__}>"
    return _cut(" ".join("".join(c if c.isprintable() or c.isspace() else "?" for c in text[: 4 * limit]).split()), limit)


def listed(names: Iterable[str], limit: int = LONGEST_LIST) -> str:
    """Names with commas between them; those that do not fit into `limit` characters are counted."""
    every = [plain(name) for name in names]
    kept = every
    while len(kept) > 1 and len(", ".join(kept)) > limit:
        kept = kept[:-1]
    more = len(every) - len(kept)
    return ", ".join(kept) + (f" and {more} more" if more else "")


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


class _Short(reprlib.Repr):
    """repr() of plain values, of what nests or is long only the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 3, 2 * LONGEST_VALUE, 2 * LONGEST_VALUE, 2 * LONGEST_VALUE

    def repr_int(self, value: int, level: int) -> str:
        """A whole number; one with thousands of digits, which Python refuses to write, by its size."""
        bits = value.bit_length()
        return repr(value) if bits < 14_000 else f"{'-' if value < 0 else ''}a whole number of about {bits * 0.30103:.0f} digits"

    def repr_str(self, value: str, level: int) -> str:
        """The beginning of a text."""
        return repr(value if len(value) <= self.maxstring else value[: self.maxstring])

    def repr_instance(self, value: Any, level: int) -> str:
        """Arrays and frames by their kind and size, anything else by its repr."""
        if (shape := getattr(value, "shape", None)) and isinstance(shape, tuple):
            return f"<{type(value).__name__} of {' x '.join(map(str, shape))}>"
        return repr(value)[: self.maxother]


_REPR = _Short()


def unknown_name(what: str, name: object, known: Iterable[str]) -> InputError:
    """Build the error for an unknown name, with the nearest known ones."""
    import difflib

    names = sorted(map(str, known))
    near = difflib.get_close_matches(plain(name).lower(), names, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    return InputError(f"unknown {what} {shown(name)}: {hint}known: {listed(names)}")
