"""The errors perfmodel raises on purpose. Anything else that escapes is a bug and keeps its traceback."""

from __future__ import annotations

from collections.abc import Iterable


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


def unknown_name(what: str, name: object, known: Iterable[str]) -> InputError:
    """Build the error for an unknown name, with the nearest known ones."""
    import difflib

    names = sorted(known)
    near = difflib.get_close_matches(str(name).lower(), names, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    return InputError(f"unknown {what} {name!r}: {hint}known: {', '.join(names)}")
