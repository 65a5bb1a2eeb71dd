"""Tables of MoE layers, and what public ones mean where sizes do not say: experts without a gate, expert parallelism as it was timed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError, plain, shown
from perfmodel.ops import names
from perfmodel.ops.cells import coded
from perfmodel.ops.kinds import DTYPE, KERNEL, STACK, VERSION, Columns, Field, OperatorKind, named, register
from perfmodel.ops.moe import moe_work, skew, touched_experts
from perfmodel.ops.work import Floats, Work

if TYPE_CHECKING:
    from perfmodel.ops.reader import Reader

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


_FIELDS = (
    Field("tokens", "tokens", "tokens of the layer, all GPUs together", also=("num_tokens",)),
    Field("hidden", "elements", "width of a token", also=("hidden_size", "n_embd")),
    Field("inter", "elements", "width inside an expert", also=("inter_size", "intermediate_size")),
    Field("num_experts", "experts", "experts of the layer", also=("experts",)),
    Field("top_k", "experts", "experts of a token", also=("topk",)),
    Field("tp", "GPUs", "GPUs that share each expert", 1.0, also=("moe_tp_size", "tp_size")),
    Field("ep", "GPUs", "GPUs that share out the experts", 1.0, also=("moe_ep_size", "ep_size")),
    DTYPE,
    STACK,
    KERNEL,
)
_DERIVED = (
    ("skew", "exponent of the routing's power law, 0 for balanced"),
    ("stage", "0 for both grouped GEMMs, 1 for the first alone, 2 for the second"),
    ("gated", "1 where an expert has a gate"),
    ("old", "1 for rows of a release older than SINCE"),
    ("whole_tokens", "1 where a token that reaches a GPU brings all its top_k rows there"),
)


def _complete(columns: dict[str, Floats], reader: Reader) -> None:
    columns["skew"] = reader.coded(lambda name: skew("" if name is None else name), "distribution")
    columns["stage"] = reader.coded(_stage_code, "weight")
    nongated = reader.coded(lambda name: "nongated" in plain(name).lower(), "kernel")
    columns["old"] = _old(columns["stack"], reader.column(*VERSION))
    columns["gated"] = gated(columns["hidden"], columns["inter"], columns["old"], nongated > 0)
    columns["whole_tokens"] = whole_tokens(columns["stack"], columns["ep"], columns["old"])
    reader.require(columns["top_k"] <= columns["num_experts"], "top_k must be at most num_experts")
    reader.require(np.mod(columns["num_experts"], columns["ep"]) == 0, "ep must divide num_experts")


def _old(stack: Floats, version: Any) -> Floats:
    """1 for rows of a release of their stack that is older than SINCE; `version`: a column of a DataFrame, or None."""
    found = np.zeros(len(stack))
    for name, since in SINCE.items() if version is not None else ():
        mine = stack == names.stack_code(name)
        found[mine] = coded(version[mine], partial(is_older, since))
    return found


def _stage_code(value: Any) -> float:
    text = plain(value).lower()
    if value is None or text in ("", "both", "all"):
        return 0.0
    if text in ("w13", "w1", "gate_up"):
        return 1.0
    if text in ("w2", "down"):
        return 2.0
    raise InputError(f"weight must be w13 or w2 (one grouped GEMM alone) or both, got {shown(value)}")


def _of(op: Any) -> dict[str, float]:
    with_gate = 0.0 if (op.hidden, op.inter) in UNGATED else 1.0
    return {**named(_FIELDS, op), "skew": skew(op.distribution), "stage": 0.0, "gated": with_gate, "old": 0.0, "whole_tokens": 0.0}


def _work(columns: Columns) -> Work:
    experts, routed = columns["num_experts"], columns["tokens"] * columns["top_k"]
    spread = touched_experts(columns["tokens"], columns["top_k"], experts)
    return _experts(columns, np.where(columns["skew"] > 0, spread, np.minimum(routed, experts)))


def _experts(columns: Columns, touched: Floats) -> Work:
    first, second = 1.0 + columns["gated"], 1.0  # hidden x inter of the two grouped GEMMs
    stage = columns["stage"]
    matrices = np.where(stage == 2, 0.0, first) + np.where(stage == 1, 0.0, second)
    inter = columns["inter"] / columns["tp"]
    sizes = columns["tokens"], columns["hidden"], inter, columns["top_k"], columns["ep"]
    a_bytes, b_bytes, out_bytes = names.widths(columns)
    return moe_work(*sizes, touched, a_bytes, b_bytes, out_bytes, matrices=matrices, reads=np.where(stage == 2, 0.0, 1.0))


def _least_work(columns: Columns) -> Work:
    """Work that no routing avoids: top_k experts where it is skewed; activations of as many tokens as this GPU's rows need."""
    experts, routed = columns["num_experts"], columns["tokens"] * columns["top_k"]
    touched = np.where(columns["skew"] > 0, columns["top_k"], np.minimum(routed, experts))
    alone = {**columns, "tokens": columns["tokens"] / np.minimum(columns["ep"], columns["top_k"])}  # ep: each GPU sees some of the tokens
    whole, some = _experts(columns, touched), _experts(alone, touched)
    out = np.where(columns["stage"] == 1, 0.0, np.asarray(some.write_bytes))
    return Work(whole.flops, some.read_bytes, out)


register(OperatorKind("moe", _FIELDS, _work, _of, _complete, _DERIVED, _least_work))
