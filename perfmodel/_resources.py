"""The one place that finds data files: user folder, then checkout, then wheel."""

from __future__ import annotations

import functools
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.boundary import expanded, parquet
from perfmodel.errors import InputError, NoAnswerError

if TYPE_CHECKING:
    import pandas as pd

_PACKAGE = Path(__file__).resolve().parent
FRESH_S = 1.0
"""Shipped files are looked at no more often: what another process changes in them is seen that much later, a user's own files at once."""
_LOOKS: dict[str, tuple[float, os.stat_result | None]] = {}  # path -> (until when it holds, what was there)
_WHERE = ("PERFMODEL_HOME", *(("LOCALAPPDATA",) if os.name == "nt" else ("XDG_DATA_HOME", "HOME")))
"""What the user's data folder depends on."""


def shipped(kind: str) -> Path:
    """Folder of shipped data (`hwdb`, `calibration` or `data`): beside the package in a checkout, inside it in a wheel."""
    checkout = _PACKAGE.parent / kind
    if (_PACKAGE.parent / "pyproject.toml").is_file() and checkout.is_dir():
        return checkout
    return _PACKAGE / "_data" / kind


def measured_data(what: str) -> Path:
    """A file or folder of data/ that only fits and scores need; a checkout has it. Raises NoAnswerError, with the next step, in a wheel."""
    path = shipped("data") / what
    if path.is_relative_to(_PACKAGE) and not path.exists():
        raise NoAnswerError(f"{what} is measured data of the project, which no wheel holds: run this in a checkout of perfmodel")
    return path


def measured_table(what: str, **options: Any) -> pd.DataFrame:
    """The rows of a parquet file of data/; `options` as pandas.read_parquet takes them. Raises as `measured_data` and `parquet` do."""
    import pandas as pd

    path = measured_data(what)
    with parquet():
        return pd.read_parquet(path, **options)


@functools.cache
def _shipped_paths() -> tuple[str, ...]:
    return tuple(f"{shipped(kind)}{os.sep}" for kind in ("hwdb", "calibration", "data"))


def look(path: str | Path) -> os.stat_result | None:
    """os.stat, None where there is nothing; of shipped files and folders at most FRESH_S old."""
    text, now = os.fspath(path), time.monotonic()
    until, state = _LOOKS.get(text, (0.0, None))
    if now < until:
        return state
    try:
        state = os.stat(text)
    except FileNotFoundError:
        state = None
    if f"{text}{os.sep}".startswith(_shipped_paths()):
        _LOOKS[text] = now + FRESH_S, state
    return state


def forget(path: Path) -> None:
    """Look at a file again when it is asked for next: this process has changed it."""
    _LOOKS.pop(os.fspath(path), None)


def user_folder() -> Path:
    """The user's own data folder (PERFMODEL_HOME, else the platform's); not created here."""
    override = os.environ.get("PERFMODEL_HOME")
    if override:
        return expanded(override)
    import platformdirs

    return Path(platformdirs.user_data_dir("perfmodel", appauthor=False))


def folders(kind: str) -> tuple[Path, Path]:
    """The user's folder of `kind`, which need not exist, and the shipped one. PERFMODEL_HWDB and PERFMODEL_CALIBRATION name the user's own.

    Raises InputError where one of them names no folder, and where PERFMODEL_HOME or its folder of that kind is something else.
    """
    return _folders(kind, tuple(map(os.environ.get, (f"PERFMODEL_{kind.upper()}", *_WHERE))))


@functools.lru_cache(maxsize=256)
def _folders(kind: str, environment: tuple[str | None, ...]) -> tuple[Path, Path]:
    """Both folders, checked once for each state of the variables that decide, the override first."""
    variable, override = f"PERFMODEL_{kind.upper()}", environment[0]
    if override:
        user = expanded(override)
        if not user.is_dir():
            raise InputError(f"{variable} names {user}, which is not a folder: correct it, create it, or unset it")
    else:
        user = user_folder() / kind
        for path in (user.parent, user):
            if path.exists() and not path.is_dir():
                raise InputError(f"{path} is not a folder: perfmodel keeps the user's own {kind} there; move it, or set PERFMODEL_HOME")
    return user, shipped(kind)


def layers(kind: str) -> list[Path]:
    """The folders of `kind` that there are, the user's first."""
    return [path for path, _ in stamped_layers(kind)]


def stamped_layers(kind: str) -> tuple[tuple[Path, int], ...]:
    """The folders of `kind` that there are, the user's first, stamped."""
    return stamped(folders(kind))


def stamped(paths: Iterable[Path]) -> tuple[tuple[Path, int], ...]:
    """Those paths that are folders, each with the time (ns) at which a file was last added to it or taken away."""
    found = []
    for path in paths:
        try:
            state = look(path)
        except OSError:
            continue
        if state is not None and stat.S_ISDIR(state.st_mode):
            found.append((path, state.st_mtime_ns))
    return tuple(found)
