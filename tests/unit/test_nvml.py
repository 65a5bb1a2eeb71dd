"""The one place that opens NVML: by UUID where there is one, and None for whatever does not answer."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from perfmodel.hw import nvml


def fake(**change: object) -> SimpleNamespace:
    def watts(handle: object) -> int:
        if handle != "GPU-b":
            raise RuntimeError("not supported")
        return 300_000

    by_uuid = {b"GPU-a": "GPU-a", b"GPU-b": "GPU-b"}
    return SimpleNamespace(
        **{
            "nvmlInit": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByUUID": by_uuid.__getitem__,
            "nvmlDeviceGetHandleByIndex": lambda index: ("GPU-a", "GPU-b")[index],
            "nvmlDeviceGetName": lambda handle: "NVIDIA H200",
            "nvmlDeviceGetUUID": lambda handle: handle,
            "nvmlDeviceGetPowerUsage": watts,
            **change,
        }
    )


def test_a_gpu_is_asked_by_uuid_and_what_it_does_not_say_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake())
    ask, other = nvml.device("GPU-b"), nvml.device("GPU-a")
    assert ask and ask("nvmlDeviceGetPowerUsage") == 300_000 and ask("nvmlNoSuchQuestion") is None
    assert other and other("nvmlDeviceGetPowerUsage") is None
    assert nvml.device("GPU-elsewhere") is None
    assert nvml.devices() == [("NVIDIA H200", "GPU-a"), ("NVIDIA H200", "GPU-b")] and nvml.driver_version() == "580.1"


def test_an_index_is_trusted_only_where_nothing_renumbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    ask = nvml.device(None, 1)
    assert ask and ask("nvmlDeviceGetUUID") == "GPU-b"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert nvml.device(None, 0) is None
    by_uuid = nvml.device("GPU-b")
    assert by_uuid and by_uuid("nvmlDeviceGetUUID") == "GPU-b"


def refuse() -> None:
    raise RuntimeError("Driver Not Loaded")


@pytest.mark.parametrize("module", [None, fake(nvmlInit=refuse)])
def test_without_library_or_driver_nothing_is_said(monkeypatch: pytest.MonkeyPatch, module: SimpleNamespace | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert nvml.device("GPU-a") is None and nvml.devices() == [] and nvml.driver_version() is None
