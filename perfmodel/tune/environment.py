"""Which GPU, driver and library versions a timing belongs to, found without importing torch or starting CUDA."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from perfmodel.errors import NoAnswerError
from perfmodel.hw import nvml

_VERSION = re.compile(r"^__version__\s*(?::\s*\w+\s*)?=\s*(['\"][^'\"]+['\"])", re.MULTILINE)
NO_GPU = "no NVIDIA GPU is visible here, and tuning times kernels on one: use `perfmodel rank` here, or tune on the target machine"


@dataclass(frozen=True, slots=True)
class Environment:
    """What a timing depends on beside the problem and the config: the driver's name of the GPU, and versions."""

    gpu: str
    driver: str
    triton: str
    torch: str


def current(device: str | None = None) -> Environment:
    """The environment of CUDA device 0 as this process would see it; `device` replaces the GPU's name where there is no GPU.

    Raises NoAnswerError, with the next step, when there is no GPU.
    """
    found = _device()
    if found is None and device is None:
        raise NoAnswerError(NO_GPU)
    name, driver = found or (str(device), "none")
    return Environment(name, driver, version("triton"), version("torch"))


def version(package: str) -> str:
    """A package's `__version__` from its source, with the local part (+cu130) that wheel metadata may lack; "none" without it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        return "none"
    for path in (Path(spec.origin).with_name("version.py"), Path(spec.origin)):
        if path.is_file() and (found := _VERSION.search(path.read_text(encoding="utf-8", errors="replace"))):
            return str(ast.literal_eval(found.group(1)))
    return importlib.metadata.version(package)


def _device() -> tuple[str, str] | None:
    """Name and driver of the first visible GPU, or None. Asks torch only where GPUs differ and their numbering is CUDA's own."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.split(",")[0].strip() in ("", "-1"):
        return None
    listed = _from_nvml() or _from_command()
    if not listed:
        return None
    first = (visible or "").split(",")[0].strip()
    for name, uuid, driver in listed:
        if len(first) > 4 and uuid.startswith(first):
            return name, driver
    if len({name for name, _, _ in listed}) == 1 and not first.startswith("MIG"):
        return listed[0][0], listed[0][2]
    import torch

    return (str(torch.cuda.get_device_name(0)), listed[0][2]) if torch.cuda.is_available() else None


def _from_nvml() -> list[tuple[str, str, str]]:
    """(name, uuid, driver) of each GPU of this machine through the management library; empty without it."""
    return [(name, uuid, str(nvml.driver_version())) for name, uuid in nvml.devices()]


def _from_command() -> list[tuple[str, str, str]]:
    query = ["nvidia-smi", "--query-gpu=name,uuid,driver_version", "--format=csv,noheader"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [tuple(field.strip() for field in line.split(",")) for line in text.splitlines()]
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 3]
