"""Keeps every test away from the user's own folders and GPU settings."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("PERFMODEL_HOME", str(home))
    for name in ("PERFMODEL_STORE", "PERFMODEL_HWDB", "PERFMODEL_CALIBRATION"):
        monkeypatch.delenv(name, raising=False)
    return home
