"""The driver's management library (NVML, package nvidia-ml-py): the one place that opens it. What it does not say is None."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

Ask = Callable[..., Any]
"""ask("nvmlDeviceGetPowerUsage", *more): what NVML says of one GPU; None where GPU, driver or library does not support the question."""


def library() -> Any:
    """The module, ready to be asked; None without it or without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, no driver, no permission: each caller says what it does without
        return None
    return pynvml


def device(uuid: str | None, index: int = 0) -> Ask | None:
    """Ask the GPU of `uuid`, else torch's `index` as long as CUDA_VISIBLE_DEVICES does not renumber; None where there is none to ask."""
    nvml = library()
    if nvml is None or not (uuid or not os.environ.get("CUDA_VISIBLE_DEVICES")):
        return None
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode()) if uuid else nvml.nvmlDeviceGetHandleByIndex(index)
    except Exception:  # a MIG slice, or a GPU of another machine
        return None

    def ask(name: str, *more: Any) -> Any:
        try:
            return getattr(nvml, name)(handle, *more)
        except Exception:  # NVMLError_NotSupported and friends, or an older library
            return None

    return ask


def driver_version() -> str | None:
    """The driver's version; None where NVML cannot be asked."""
    nvml = library()
    return None if nvml is None else str(nvml.nvmlSystemGetDriverVersion())


def devices() -> list[tuple[str, str]]:
    """(name, UUID) of every GPU of this machine, CUDA_VISIBLE_DEVICES or not; none where NVML cannot be asked."""
    if (nvml := library()) is None:
        return []
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    return [(str(nvml.nvmlDeviceGetName(h)), str(nvml.nvmlDeviceGetUUID(h))) for h in handles]
