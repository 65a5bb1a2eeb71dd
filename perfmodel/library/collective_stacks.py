"""How a serving stack runs an all-reduce: stack names, versions, and the sizes at which it changes algorithm."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.constants import tables
from perfmodel.errors import plain, unknown_name
from perfmodel.hw.node import NVLINK
from perfmodel.hw.spec import GpuSpec

Floats = npt.NDArray[np.float64]
DEFAULT_STACK = "nccl"
STACKS = (DEFAULT_STACK, "torch", "vllm", "sglang", "trtllm")
_SAME = {"pynccl": "nccl", "nccltests": "nccl", "pytorch": "torch", "tensorrtllm": "trtllm", "trt": "trtllm", "none": "nccl", "": "nccl"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest messages, in bytes, of each way to run an all-reduce; 0 means never. push: second-generation kernel."""

    one_shot: float
    custom: float
    multicast: float
    push: bool


def parse_stack(name: object) -> tuple[str, bool, bool]:
    """(stack, eager, in a graph) of "vllm", "vllm_graph", "SGLang_eager", "NCCL" ...

    Serving stacks replay CUDA graphs unless "_eager" is said; nccl (from C, as nccl-tests does) and torch (from Python) launch each
    call unless "_graph" is.
    Raises InputError for an unknown stack.
    """
    text = plain(name).lower().replace("-", "_").replace(" ", "_")
    eager, graph = text.endswith("_eager"), text.endswith("_graph")
    bare = text.removesuffix("_eager").removesuffix("_graph").replace("_", "")
    stack = _SAME.get(bare, bare)
    if stack not in STACKS:
        raise unknown_name("stack for a collective", name, [*STACKS, "vllm_eager", "vllm_graph"])
    return stack, eager and stack in ("vllm", "sglang"), graph or (stack not in ("nccl", "torch") and not eager)


def from_python(name: object) -> bool:
    """Whether each call of that stack is launched by a Python host: serving stacks with "_eager", and torch without "_graph"."""
    stack, eager, graph = parse_stack(name)
    return eager or (stack == "torch" and not graph)


@functools.lru_cache(maxsize=4096)
def version_key(version: object) -> tuple[int, ...]:
    """Leading numbers of a version, for comparison: "0.5.6.post2" -> (0, 5, 6); unknown or empty counts as the newest."""
    text = str(version).strip().lower()
    if text in ("", "none", "nan", "latest"):
        return (10**6,)
    found = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return tuple(int(x) for x in found[1].split(".")) if found else (10**6,)


def limits(stack: str, version: object, gpu: GpuSpec, n_gpus: int, path: str) -> Limits:
    """The stack's rule for a group: the last one that has begun with `version` and fits the GPU's compute capability."""
    return _limits(stack, version_key(version), gpu.arch, n_gpus, path)


@functools.lru_cache(maxsize=4096)
def _limits(stack: str, version: tuple[int, ...], arch: str, n_gpus: int, path: str) -> Limits:
    if stack in ("nccl", "torch"):
        return Limits(0, 0, 0, False)
    nvlink = path in NVLINK
    if path == "pcie_sockets" or (not nvlink and (n_gpus > 2 or stack == "trtllm")):
        return Limits(
            0, 0, 0, False
        )  # peer access is needed, and without NVLink the kernels run for a pair only; TensorRT-LLM's not at all
    chosen: dict[str, Any] = {}
    for rule in tables("collective_stacks")[stack]["rules"]:
        if version_key(rule["since"]) <= version and arch in rule.get("arch", [arch]):
            chosen = rule
    multicast = _limit(chosen.get("multicast_bytes", {}), n_gpus)
    return Limits(_limit(chosen["one_shot_bytes"], n_gpus), _limit(chosen["custom_bytes"], n_gpus), multicast, chosen["kernel"] == "push")


def _limit(by_gpus: Mapping[str, float], n_gpus: int) -> float:
    if str(n_gpus) in by_gpus:
        return float(by_gpus[str(n_gpus)])
    if "*" in by_gpus:
        return float(by_gpus["*"]) if n_gpus <= 8 else 0.0
    larger = sorted(int(n) for n in by_gpus if int(n) >= n_gpus)
    return float(by_gpus[str(larger[0])]) if larger else 0.0
