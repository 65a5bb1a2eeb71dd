"""What a serving stack is to the laws: how it chooses kernels, and what it does around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a decision list: `kernel` runs where `when(compute capability, fp8 cache)` holds and no line before it did.

    `because` ends the sentence 'STACK runs KERNEL because ...'; `source` is where it can be read.
    """

    kernel: str
    when: Callable[[Capability, bool], bool]
    because: str
    source: str


@dataclass(frozen=True, slots=True)
class Stack:
    """A serving stack.

    attention: its decision list of attention kernels. appends_with_queries: one kernel handles queries, keys and values before attention;
    append_block_threads: threads of the block that appends a token's keys and values, at most (0: not by blocks a token).
    dense_cache: keys and values are tensors of their own, not pages.
    mla_absorbed: latent-attention prefill multiplies with the up-projections absorbed; mla_whole_requests: its decode blocks take whole
    requests on mma.sync; mla_casts_cache: its decode converts an fp8 cache, the whole pool, before a warp-group kernel reads it.
    constant_weights: its public GEMM rows were timed on uninitialised or constant weights, which toggle fewer bits; gemm_like: the stack
    whose library calls for products it shares (itself where empty).
    """

    name: str
    attention: tuple[Rule, ...] = ()
    appends_with_queries: bool = False
    append_block_threads: float = 0.0
    dense_cache: bool = False
    mla_absorbed: bool = False
    mla_whole_requests: bool = False
    mla_casts_cache: bool = False
    constant_weights: bool = False
    gemm_like: str = ""


REGISTRY: dict[str, Stack] = {}


def register(stack: Stack) -> Stack:
    """Make a stack known by its name."""
    REGISTRY[stack.name] = stack
    return stack


def always(_: Capability, __: bool) -> bool:
    """The condition of a decision list's last line."""
    return True
