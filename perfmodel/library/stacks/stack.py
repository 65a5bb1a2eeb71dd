"""What a serving stack is to the laws: how it chooses kernels, and what it does around them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.ops.names import add_stack

Capability = tuple[int, int]
Floats = npt.NDArray[np.float64]
Chooser = Callable[[GpuSpec, Mapping[str, Floats], Floats], tuple[tuple[str, ...], npt.NDArray[np.intp], Floats]]
"""(GPU, columns of decode calls, 1 for an 8-bit cache) -> names of decode records, which of them each call runs, and the shares of the
keys that it is told to cut them into."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a decision list: `kernel` runs where `when(compute capability, fp8)` holds and no line before it did.

    fp8: of attention, the cache's element type. `because` ends the sentence 'STACK runs KERNEL because ...'; `source` is where it can be
    read.
    """

    kernel: str
    when: Callable[[Capability, bool], bool]
    because: str
    source: str


@dataclass(frozen=True, slots=True)
class Communication:
    """How a stack runs collectives.

    graphs: its calls are replayed in CUDA graphs, where the question does not say how; eager: it may be told to launch each of them, with
    a copy. from_python: each call outside of a graph waits for a Python host.
    rules: table of calibration/physics/collective_stacks.toml with the sizes up to which its own all-reduce kernels run ("": it has none,
    and its version is NCCL's); without_nvlink: those run for a pair without NVLink too.
    graph_us, call_us, p2p_calls, grouped_calls: constants of the law: what a call in a graph costs beside the launch, what the host takes
    for a call, and how much of that for a send with its receive, and for a group of them ("" for none, and for as much).
    """

    graphs: bool = True
    eager: bool = False
    from_python: bool = False
    rules: str = ""
    without_nvlink: bool = False
    graph_us: str = ""
    call_us: str = ""
    p2p_calls: str = ""
    grouped_calls: str = ""


@dataclass(frozen=True, slots=True)
class Stack:
    """A serving stack.

    release: the one whose rules these are; like: the stack whose rules and constants hold where this one has none of its own.
    attention, mla_prefill, mla_decode, moe: its decision lists of kernels; decode_choosers: how calls are told which kernel of several
    that go by one name in decode. communication: how it runs collectives, None where it runs none.
    appends_with_queries: one kernel handles queries, keys and values before attention; append_block_threads: threads of the block that
    appends a token's keys and values, at most (0: not by blocks a token). dense_cache: keys and values are tensors of their own, not pages.
    warm_elementwise: elementwise operators are kernels of its own, on tensors that repetition leaves in L2.
    constant_weights: its public GEMM rows were timed on uninitialised or constant weights, which toggle fewer bits; gemm_like: the stack
    whose library calls for products it shares (itself where empty). runs_operators: operators besides collectives.
    """

    name: str
    release: str = ""
    like: str = ""
    attention: tuple[Rule, ...] = ()
    mla_prefill: tuple[Rule, ...] = ()
    mla_decode: tuple[Rule, ...] = ()
    moe: tuple[Rule, ...] = ()
    decode_choosers: Mapping[str, Chooser] = field(default_factory=dict)
    communication: Communication | None = None
    appends_with_queries: bool = False
    append_block_threads: float = 0.0
    dense_cache: bool = False
    warm_elementwise: bool = False
    constant_weights: bool = False
    gemm_like: str = ""
    runs_operators: bool = True


REGISTRY: dict[str, Stack] = {}
P = ParamSpec("P")
T = TypeVar("T")
_TABLES: list[Callable[[], None]] = []


def register(stack: Stack) -> Stack:
    """Make a stack known by its name; tables over all stacks are made anew."""
    REGISTRY[stack.name] = stack
    if stack.runs_operators:
        add_stack(stack.name)
    for clear in _TABLES:
        clear()
    return stack


def table_of_stacks(make: Callable[P, T]) -> Callable[P, T]:
    """Decorates what makes a table over the codes of all stacks: it is kept until a stack registers."""
    kept: Any = functools.cache(make)
    _TABLES.append(kept.cache_clear)
    found: Callable[P, T] = kept
    return found


def always(_: Capability, __: bool) -> bool:
    """The condition of a decision list's last line."""
    return True
