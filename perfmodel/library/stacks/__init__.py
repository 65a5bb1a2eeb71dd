"""Serving stacks: which program runs for a call. One module a stack, which says so as a decision list with reasons and sources.

A module registers its Stack when it is imported; adding one is a module here and its name in `names.STACKS`, whose place is its code.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.library.stacks.stack import REGISTRY, Capability, Rule, Stack
from perfmodel.ops.names import KERNELS, STACKS

__all__ = ["Rule", "Stack", "attention_kernel", "attention_rule", "gemm_codes", "stack_flags", "stack_of"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def stack_of(name: str) -> Stack:
    """The stack of that name."""
    return REGISTRY[name]


def stack_flags(attribute: str, stack: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """A number or flag of each row's stack, by its code."""
    return _values(attribute)[stack]


def gemm_codes(stack: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Code of the stack whose library calls for products each row's stack shares."""
    return _gemm_codes()[stack]


@functools.cache
def _gemm_codes() -> npt.NDArray[np.intp]:
    return np.array([STACKS.index(REGISTRY[name].gemm_like or name) for name in STACKS])


@functools.cache
def _values(attribute: str) -> npt.NDArray[np.float64]:
    return np.array([float(getattr(REGISTRY[name], attribute)) for name in STACKS])


def attention_rule(capability: Capability, stack: str, fp8_cache: bool) -> Rule | None:
    """The rule by which a stack chooses its attention kernel on a GPU; None for one without rules, whose kernel is `other`."""
    return next((rule for rule in REGISTRY[stack].attention if rule.when(capability, fp8_cache)), None)


def attention_kernel(
    gpu: GpuSpec, stack: npt.NDArray[np.intp], kernel: npt.NDArray[np.intp], fp8_cache: npt.NDArray[np.bool_]
) -> npt.NDArray[np.intp]:
    """Code of each row's attention kernel: the named one, else the one that its stack's rules give."""
    return _kernels(gpu.capability)[fp8_cache.astype(np.intp), stack, kernel]


@functools.cache
def _kernels(capability: Capability) -> npt.NDArray[np.intp]:
    """(fp8 cache, stack, named kernel) -> kernel, of one compute capability."""
    table = np.broadcast_to(np.arange(len(KERNELS)), (2, len(STACKS), len(KERNELS))).copy()
    for code, name in enumerate(STACKS):
        for fp8 in range(2):
            rule = attention_rule(capability, name, bool(fp8))
            table[fp8, code, 0] = 0 if rule is None else KERNELS.index(rule.kernel)
    return table
