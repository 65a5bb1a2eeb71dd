"""Which program runs for one call, and why: the line of a stack's decision list that chose it, in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.analytic.constants import tables
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.registry import MODELS, parts
from perfmodel.library.stacks import like_first, rule_of, stack_of
from perfmodel.ops import OperatorTable
from perfmodel.ops.names import A_BYTES, ANY_STACK, DTYPES, STACKS


@dataclass(frozen=True, slots=True)
class Dispatch:
    """`sentence`: stack, its release, architecture and cache, the kernel and the reason; `source`: where the rule can be read."""

    sentence: str
    source: str


def dispatch(gpu: GpuSpec, table: OperatorTable) -> Dispatch | None:
    """The rule behind the kernel of a table of one row; None where no stack is named, a kernel is, or the stack has no such rules."""
    law = MODELS[parts(table)[0][0]]
    stack = STACKS[int(table["stack"][0])]
    if not law.rules or stack == STACKS[ANY_STACK] or table["kernel"][0] > 0:
        return None
    cache = table.get("kv_dtype", np.zeros(1)).astype(np.intp)
    rule = rule_of(law.rules, gpu.capability, stack, bool(A_BYTES[cache][0] < 2))
    own = any(getattr(stack_of(name), law.rules) for name in like_first(stack) if name != STACKS[ANY_STACK])
    if rule is None or not own:
        return None
    title = tables(law.records).get(rule.kernel, {}).get("title") or tables(law.records)[f"{stack}_{rule.kernel}"]["title"]
    caller = f"{stack} {stack_of(stack).release}".rstrip()
    dtype = DTYPES[int(cache[0])]
    holding = f" with {'a' if dtype[0] == 'b' else 'an'} {dtype} cache" if "kv_dtype" in table else ""
    return Dispatch(f"{caller} on {gpu.arch}{holding} runs {title} because {rule.because}", rule.source)
