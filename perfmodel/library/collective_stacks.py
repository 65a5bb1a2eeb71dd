"""How a stack runs collectives: its name as questions spell it, versions, and the sizes at which it changes algorithm."""

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
from perfmodel.library.stacks import like_first, stack_names, stack_of, table_of_stacks
from perfmodel.library.stacks.stack import Communication

Floats = npt.NDArray[np.float64]
DEFAULT_STACK = "nccl"
_SAME = {"pynccl": "nccl", "nccltests": "nccl", "pytorch": "torch", "tensorrtllm": "trtllm", "trt": "trtllm", "none": "nccl", "": "nccl"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest messages, in bytes, of each way to run an all-reduce; 0 means never. push: second-generation kernel."""

    one_shot: float
    custom: float
    multicast: float
    push: bool


@table_of_stacks
def communicating() -> Mapping[str, Communication]:
    """The stacks that run collectives, each as it says itself or else as the one that it is like."""
    said = {name: next((how for like in like_first(name) if (how := stack_of(like).communication)), None) for name in stack_names()}
    return {name: how for name, how in said.items() if how is not None}


@table_of_stacks
def _by_letters() -> Mapping[str, str]:
    """Names of those stacks without underscores."""
    return {name.replace("_", ""): name for name in communicating()}


def parse_stack(name: object) -> tuple[str, bool, bool]:
    """(stack, eager, in a graph) of "vllm", "vllm_graph", "SGLang_eager", "NCCL" ...

    Stacks that replay CUDA graphs do so unless "_eager" is said; the others launch each call unless "_graph" is.
    Raises InputError for an unknown stack.
    """
    text = plain(name).lower().replace("-", "_").replace(" ", "_")
    eager, graph = text.endswith("_eager"), text.endswith("_graph")
    bare = text.removesuffix("_eager").removesuffix("_graph").replace("_", "")
    known = communicating()
    stack = _by_letters().get(_SAME.get(bare, bare), "")
    if not stack:
        raise unknown_name("stack for a collective", name, [*known, "vllm_eager", "vllm_graph"])
    how = known[stack]
    return stack, eager and how.eager, graph or (how.graphs and not eager)


def from_python(name: object) -> bool:
    """Whether each call of that stack is launched by a Python host: a stack told to be eager, or one that always is outside of graphs."""
    stack, eager, graph = parse_stack(name)
    return eager or (communicating()[stack].from_python and not graph)


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
    how, nvlink = communicating()[stack], path in NVLINK
    alone = not nvlink and (n_gpus > 2 or not how.without_nvlink)  # without NVLink the kernels run for a pair at most
    if not how.rules or path == "pcie_sockets" or alone:  # peer access is needed
        return Limits(0, 0, 0, False)
    chosen: dict[str, Any] = {}
    for rule in tables("collective_stacks")[how.rules]["rules"]:
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
