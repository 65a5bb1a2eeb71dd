"""How many rows of a GPU the models that answer for it have, by operator and stack: a sentence that is true of what was asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.calibration import Calibration
from perfmodel.learn.card import MEASURED_KEY
from perfmodel.learn.operators import operator_model
from perfmodel.library.collective import LAW
from perfmodel.predict_collective import collective_model

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


def measured_on(gpu: GpuSpec, whats: Iterable[str], calibration: str | Path | Calibration | None = "auto") -> dict[str, Mapping[str, int]]:
    """Rows of this GPU behind the model that answers for each operator, by stack."""
    models = {what: collective_model(gpu, calibration) if what == LAW else operator_model(gpu, what, calibration) for what in whats}
    return {what: rows_of(model.card, gpu.name) for what, model in models.items()}


def counted(stacks: Mapping[str, int]) -> str:
    """'2,272 rows of this GPU, torch and TRT-LLM', or 'no row of this GPU'."""
    if not stacks:
        return "no row of this GPU"
    *first, last = (STACKS.get(name, name) for name in stacks)
    return f"{sum(stacks.values()):,} rows of this GPU, {' and '.join([', '.join(first), last] if first else [last])}"


def sentence(found: Mapping[str, Mapping[str, int]]) -> str:
    """'GEMM: 2,272 rows of this GPU, torch; MoE: none', for the operators of `measured_on`; '' where no operator has a row."""
    if not any(found.values()):
        return ""
    return "; ".join(f"{WORDS[what]}: {counted(stacks) if stacks else 'none'}" for what, stacks in found.items())
