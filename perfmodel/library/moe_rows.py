"""What the rows of public MoE tables mean where sizes do not say: experts without a gate, expert parallelism as it was timed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.library import names
from perfmodel.library.terms import Floats

UNGATED = ((2688, 1856), (8192, 5120))
"""(hidden, inter) of public models whose experts have no gate: Nemotron 3 Nano and its larger sibling (model cards)."""
SINCE: Mapping[str, tuple[int, ...]] = {"vllm": (0, 24), "sglang": (0, 5, 14)}
"""First release of a stack whose public rows time experts without a gate, and of SGLang, only the rows of this GPU.

Evidence: in the A100 rows (SGLang 0.5.10, vLLM 0.14) the sizes of UNGATED take as long as three matrices; and 57.5 ms on 2, 4 and 8 GPUs
alike where one GPU takes 57.8 (128 experts, 4096 x 1536, 16384 tokens, balanced), while TensorRT-LLM's fall with the GPUs.
"""


def is_older(since: tuple[int, ...], version: Any) -> float:
    """1 where a release is older than `since`; 0 for newer and for unknown ones."""
    found = tuple(int(part) for part in re.findall(r"\d+", str(version))[:3])
    return float(bool(found) and found < since)


def gated(hidden: Floats, inter: Floats, old: Floats, plain: npt.NDArray[np.bool_]) -> Floats:
    """1 where experts have a gate: all but those that the kernel's name (`plain`) or, in newer rows, the sizes mark."""
    known = np.logical_or.reduce([(hidden == h) & (inter == i) for h, i in UNGATED])
    return np.where(plain | (known & (old == 0)), 0.0, 1.0)


def whole_tokens(stack: Floats, ep: Floats, old: Floats) -> Floats:
    """1 where every token that reaches a GPU brings all its top_k rows there: SGLang's older rows with expert parallelism."""
    return np.where((old > 0) & (ep > 1) & (stack == names.STACKS.index("sglang")), 1.0, 0.0)
