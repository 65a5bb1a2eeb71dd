"""The one place that finds data files: user folder, then checkout, then wheel."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


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
    override = os.environ.get(f"PERFMODEL_{kind.upper()}")
    user = Path(override).expanduser() if override else user_folder() / kind
    return [p for p in (user, shipped(kind)) if p.is_dir()]
