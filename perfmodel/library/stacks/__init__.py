"""Serving stacks: which program runs for a call. One module a stack, which says so as a decision list with reasons and sources.

A module registers its Stack when it is imported; adding one is a module here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.library.stacks.stack import REGISTRY, Capability, Chooser, Rule, Stack, table_of_stacks
from perfmodel.ops.names import KERNELS, STACKS

__all__ = [
    "Rule", "Stack", "attention_kernel", "choosers", "gemm_codes", "like_first", "rule_of", "ruled", "stack_flags", "stack_names",
    "stack_of", "table_of_stacks",
]  # fmt: skip
OPERATORS = ("attention", "mla_prefill", "mla_decode", "moe")  # that stacks have decision lists of

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def stack_of(name: str) -> Stack:
    """The stack of that name."""
    return REGISTRY[name]


def stack_names() -> tuple[str, ...]:
    """All stacks, those of collectives alone among them."""
    return tuple(REGISTRY)


def like_first(name: str) -> Iterator[str]:
    """A stack, then the one that it is like, and so on."""
    while name:
        yield name
        name = REGISTRY[name].like


def stack_flags(attribute: str, stack: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """A number or flag of each row's stack, by its code."""
    return _values(attribute)[stack]


def gemm_codes(stack: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Code of the stack whose library calls for products each row's stack shares."""
    return _gemm_codes()[stack]


@table_of_stacks
def _gemm_codes() -> npt.NDArray[np.intp]:
    return np.array([STACKS.index(REGISTRY[name].gemm_like or name) for name in STACKS])


@table_of_stacks
def _values(attribute: str) -> npt.NDArray[np.float64]:
    return np.array([float(getattr(REGISTRY[name], attribute)) for name in STACKS])


@table_of_stacks
def choosers() -> Mapping[str, Chooser]:
    """Kernels that are several in decode, and how a call is told which."""
    return {kernel: choose for stack in REGISTRY.values() for kernel, choose in stack.decode_choosers.items()}


def rule_of(operator: str, capability: Capability, stack: str, fp8: bool) -> Rule | None:
    """The rule by which a stack, or else the one that it is like, chooses its kernel of an operator (OPERATORS); None without any."""
    rules = next((found for name in like_first(stack) if (found := getattr(REGISTRY[name], operator))), ())
    return next((rule for rule in rules if rule.when(capability, fp8)), None)


def ruled(
    operator: str, gpu: GpuSpec, stack: npt.NDArray[np.intp], fp8: npt.NDArray[np.bool_], known: Sequence[str]
) -> npt.NDArray[np.intp]:
    """Place among `known` of the kernel that each row's stack runs by its rules; 0 where it has none."""
    return _ruled(operator, gpu.capability, tuple(known))[fp8.astype(np.intp), stack]


@table_of_stacks
def _ruled(operator: str, capability: Capability, known: tuple[str, ...]) -> npt.NDArray[np.intp]:
    """(fp8, stack) -> place of the kernel."""

    def place(stack: str, fp8: bool) -> int:
        rule = rule_of(operator, capability, stack, fp8)
        return 0 if rule is None else known.index(rule.kernel)

    return np.array([[place(name, fp8) for name in STACKS] for fp8 in (False, True)])


def attention_kernel(
    gpu: GpuSpec, stack: npt.NDArray[np.intp], kernel: npt.NDArray[np.intp], fp8_cache: npt.NDArray[np.bool_]
) -> npt.NDArray[np.intp]:
    """Code of each row's attention kernel: the named one, else the one that its stack's rules give."""
    return np.where(kernel > 0, kernel, ruled("attention", gpu, stack, fp8_cache, KERNELS))
