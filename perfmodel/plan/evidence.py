"""Which operator models the step of an engine asks, and what was measured of them on its GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.calibration import Calibration, resolve
from perfmodel.learn.measured_rows import rows_of, sentence
from perfmodel.library.collective import LAW
from perfmodel.plan.model import ModelSpec
from perfmodel.plan.operators import weight_dtype

WIDE = ("bf16", "fp16", "fp32")


def operators_of(model: ModelSpec, gpu: GpuSpec, gpus: int) -> list[str]:
    """Names of the operator models that price a step on `gpus` GPUs."""
    found = {f"gemm{_narrow(model.lm_head_dtype, gpu)}"}
    for layer in model.layers:
        found.add(f"gemm{_narrow(layer.attention_dtype, gpu)}")
        if layer.mlp != "none":
            found.add(f"{'moe' if layer.mlp == 'moe' else 'gemm'}{_narrow(layer.mlp_dtype, gpu)}")
        if layer.mlp == "moe" and layer.shared_inter:
            found.add(f"gemm{_narrow(layer.shared_dtype, gpu)}")
        if layer.attention in ("gqa", "mla"):
            kind = "attention" if layer.attention == "gqa" else "mla"
            found |= {f"{kind}_prefill", f"{kind}_decode"}
    return [*sorted(found), "memory", *([LAW] if gpus > 1 else [])]


def _narrow(dtype: str, gpu: GpuSpec) -> str:
    return "" if weight_dtype(dtype, gpu) in WIDE else "_quantised"


def measured_on(gpu: GpuSpec, whats: Iterable[str], calibration: str | Path | Calibration | None = "auto") -> dict[str, Mapping[str, int]]:
    """Rows of this GPU behind the model that answers for each operator, by stack."""
    models = {what: resolve(gpu, "collective", calibration) if what == LAW else resolve(gpu, what, calibration) for what in whats}
    return {what: rows_of(model.card, gpu.name) for what, model in models.items()}


def notes(engines: Iterable[tuple[ModelSpec, GpuSpec, int]], calibration: str | Path | Calibration | None) -> list[str]:
    """What spec-tier figures of these engines (model, GPU, how many) rest on: rows of the GPU by operator, a line a GPU."""
    asked: dict[str, dict[str, None]] = {}
    cards: dict[str, GpuSpec] = {}
    for model, gpu, gpus in engines:
        cards[gpu.name] = gpu
        asked.setdefault(gpu.name, {}).update(dict.fromkeys(operators_of(model, gpu, gpus)))
    found = {name: sentence(measured_on(cards[name], whats, calibration)) for name, whats in sorted(asked.items())}
    nothing = [name for name, line in found.items() if not line]
    lines = [f"spec tier: nothing was ever measured on {', '.join(nothing)}; calibrate before you buy"] if nothing else []
    return lines + [f"{name}, spec tier where a stack or an operator has no row: {line}" for name, line in found.items() if line]
