"""Keeps every test away from the user's own folders and GPU settings."""

from __future__ import annotations

import signal
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("same_examples", derandomize=True)  # a run of CI that fails, fails again
hypothesis.settings.load_profile("same_examples")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # started in the background: the programs under test would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("PERFMODEL_HOME", str(home))
    for name in ("PERFMODEL_STORE", "PERFMODEL_HWDB", "PERFMODEL_CALIBRATION"):
        monkeypatch.delenv(name, raising=False)
    return home
