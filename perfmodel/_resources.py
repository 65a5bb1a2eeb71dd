"""The one place that finds data files: user folder, then checkout, then wheel."""

from __future__ import annotations

import functools
import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_WHERE = ("PERFMODEL_HOME", "XDG_DATA_HOME", "HOME", "LOCALAPPDATA")  # what the user's data folder depends on


def shipped(kind: str) -> Path:
    """Folder of shipped data (`hwdb`, `calibration` or `data`): beside the package in a checkout, inside it in a wheel."""
    checkout = _PACKAGE.parent / kind
    if (_PACKAGE.parent / "pyproject.toml").is_file() and checkout.is_dir():
        return checkout
    return _PACKAGE / "_data" / kind


def user_folder() -> Path:
    """The user's own data folder (PERFMODEL_HOME, else the platform's); not created here."""
    override = os.environ.get("PERFMODEL_HOME")
    if override:
        return Path(override).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("perfmodel", appauthor=False))


def layers(kind: str) -> list[Path]:
    """Folders to search for `kind`, the user's first. PERFMODEL_HWDB and PERFMODEL_CALIBRATION name the user's own."""
    return [p for p in _folders(kind, tuple(map(os.environ.get, (f"PERFMODEL_{kind.upper()}", *_WHERE)))) if p.is_dir()]


@functools.lru_cache(maxsize=256)
def _folders(kind: str, environment: tuple[str | None, ...]) -> tuple[Path, Path]:
    """Both folders, whether they exist or not; `environment`: the variables that decide, the override first."""
    user = Path(environment[0]).expanduser() if environment[0] else user_folder() / kind
    return user, shipped(kind)
