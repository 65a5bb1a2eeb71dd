"""How many rows of a GPU the models that answer for it have, by operator and stack: a sentence that is true of what was asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfmodel.learn.card import MEASURED_KEY
from perfmodel.library.collective import LAW

WORDS = {
    "gemm": "GEMM", "gemm_quantised": "quantised GEMM", "attention_prefill": "prefill attention", "attention_decode": "decode attention",
    "mla_prefill": "MLA prefill", "mla_decode": "MLA decode", "moe": "MoE", "moe_quantised": "quantised MoE", "moe_kernel": "MoE kernel",
    "memory": "memory-bound", LAW: "collectives",
}  # fmt: skip
STACKS = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TRT-LLM", "nccl": "NCCL", "any": "no stack named"}


def rows_of(card: Mapping[str, Any], gpu: str) -> Mapping[str, int]:
    """Rows of a GPU that a model with this card was fitted to, by stack; none where there are none."""
    found: Mapping[str, int] = card.get(MEASURED_KEY, {}).get("rows", {}).get(gpu, {})
    return found


def counted(stacks: Mapping[str, int]) -> str:
    """'2,272 rows of this GPU, torch and TRT-LLM', or 'no row of this GPU'."""
    if not stacks:
        return "no row of this GPU"
    *first, last = (STACKS.get(name, name) for name in stacks)
    return f"{sum(stacks.values()):,} rows of this GPU, {' and '.join([', '.join(first), last] if first else [last])}"


def sentence(found: Mapping[str, Mapping[str, int]]) -> str:
    """'GEMM: 2,272 rows of this GPU, torch; MoE: none', from the rows by stack of each operator; '' where no operator has a row."""
    if not any(found.values()):
        return ""
    return "; ".join(f"{WORDS[what]}: {counted(stacks) if stacks else 'none'}" for what, stacks in found.items())
