"""Bytes of weights on one GPU: exact shapes, sharding, padding, scales."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from perfmodel.hw.spec import GpuSpec
from perfmodel.plan.model import LayerSpec, ModelSpec
from perfmodel.plan.parallel import Parallel, stage_layers
from perfmodel.plan.tensors import PLAIN_DTYPES, Tensor, layer_tensors, outer_tensors

_BYTES: Mapping[str, float] = {
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "fp8_block": 1,
    "int8": 1,
    "int8_wo": 1,
    "int4_wo": 0.5,
    "nvfp4": 0.5,
    "mxfp4": 0.5,
    "nf4": 0.5,
}
_SCALE: Mapping[str, float] = {"int4_wo": 2, "int8_wo": 2, "nvfp4": 1, "mxfp4": 1, "nf4": 4}  # bytes of one group's scale
VOCAB_MULTIPLE = 64  # vLLM and SGLang pad the vocabulary to it before they split it (vocab_parallel_embedding)


def weight_bytes(model: ModelSpec, parallel: Parallel, gpu: GpuSpec | None = None, stage: int = 0) -> dict[str, float]:
    """Bytes by part on one GPU of a pipeline stage: attention, mlp, experts, shared_expert, router, norm, embedding, lm_head ...

    Counts what stays resident after loading: padded vocabulary, replicated key-value heads where TP exceeds them, scales and zero points
    of quantised weights, padding of mxfp4 experts, the decompressed latent projections of MLA at 16 bits, and the table of rotary angles.
    """
    found: dict[str, float] = defaultdict(float)
    plain = next((t.dtype for t in outer_tensors(model)), "bf16")
    for kind, count in stage_layers(model, parallel.pp, stage).items():
        layer = model.layers[kind]
        for tensor in layer_tensors(model, layer):
            found[tensor.part] += count * _tensor_bytes(tensor, model, layer, parallel, gpu)
        if layer.attention == "mla":  # absorbed W_UK and W_UV, kept beside kv_b_proj
            absorbed = layer.q_heads * (layer.qk_nope_head_dim + layer.v_head_dim) * layer.kv_lora_rank * 2
            found["attention"] += count * absorbed / parallel.tp
    padded = math.ceil(model.vocab / VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    padded = math.ceil(padded / parallel.tp) * parallel.tp
    first, last = stage == 0, stage == parallel.pp - 1
    for tensor in outer_tensors(model):
        wanted = first if tensor.part == "embedding" else last
        if tensor.part == "embedding" and model.tied_embeddings and last:
            wanted = True
        if wanted:
            rows = padded / parallel.tp if tensor.share == "vocab" else tensor.rows
            found[tensor.part] += _stored(tensor.dtype, rows, tensor.columns, model)
    rotary = max((layer.qk_rope_head_dim or layer.head_dim for layer in model.layers), default=0)
    found["buffers"] = float(model.max_context * rotary * _BYTES[plain])
    if model.other_params and first:
        found["other"] = model.other_params * 2.0 / parallel.tp
    return dict(found)


def _tensor_bytes(t: Tensor, model: ModelSpec, layer: LayerSpec, parallel: Parallel, gpu: GpuSpec | None) -> float:
    tp = parallel.tp
    rows, columns, copies = float(t.rows), float(t.columns), float(t.copies)
    if t.share == "column":
        rows /= tp
    elif t.share == "row":
        columns /= tp
    elif t.share == "kv":
        rows = rows / t.heads * max(1.0, t.heads / tp)
    elif t.share == "expert":
        copies /= parallel.ep
        if t.name == "experts_down":
            columns /= parallel.moe_tp
        elif t.name == "experts_up":
            rows /= parallel.moe_tp
        if t.dtype == "mxfp4":
            rows, columns = _padded_mxfp4(t, rows, columns, layer, gpu)
    return copies * _stored(t.dtype, rows, columns, model)


def _padded_mxfp4(t: Tensor, rows: float, columns: float, layer: LayerSpec, gpu: GpuSpec | None) -> tuple[float, float]:
    """vLLM pads mxfp4 experts: hidden to 256; inner to 64 for Triton's kernel (sm_90), to 128 for Marlin (older, and consumer cards)."""
    inner = 64 if gpu is not None and gpu.capability == (9, 0) else 128
    up = 2 if layer.gated else 1
    if t.name == "experts_down":
        return math.ceil(rows / 256) * 256, math.ceil(columns / inner) * inner
    return up * math.ceil(rows / up / inner) * inner, math.ceil(columns / 256) * 256


def _stored(dtype: str, rows: float, columns: float, model: ModelSpec) -> float:
    """Bytes of a matrix with its scales: one a row for fp8 and int8, a block for fp8_block, a group in a row for 4-bit types."""
    bytes_ = rows * columns * _BYTES[dtype]
    if dtype in PLAIN_DTYPES:
        return bytes_
    if dtype == "fp8_block":
        block = model.group_size or 128
        return bytes_ + 4.0 * math.ceil(rows / block) * math.ceil(columns / block)
    if dtype in ("fp8", "int8") or not model.group_size:
        return bytes_ + 4.0 * rows
    groups = rows * math.ceil(columns / model.group_size)
    zero = groups * _BYTES[dtype] if model.zero_points else 0.0
    return bytes_ + groups * _SCALE[dtype] + zero
