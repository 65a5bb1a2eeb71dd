"""Which operators one engine step runs: shapes of every GEMM, attention call, expert layer, norm and collective of one GPU.

Everything is emitted into a Book: rows of (operator, how often, at which point, in which term), for `step` to price in one table a kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.hw.spec import GpuSpec
from perfmodel.plan.deployment import Deployment
from perfmodel.plan.model import OPERATOR_DTYPE, LayerSpec

Floats = npt.NDArray[np.float64]
ACTIVATION_BYTES = 2.0  # residual stream and messages between GPUs are 16-bit
FUSED_QUANTISATION = ("fp8", "int8")
ROUTING = "power_law_1.01"
"""How real routers share out tokens: skewed. Few experts are touched at small batches, and the busiest makes the others wait."""
EXPERT_STACK = {"int4_wo": "trtllm", "int8_wo": "trtllm"}
"""No stack has rows of experts whose weights alone are narrow. TensorRT-LLM's CUTLASS ones are nearest, of the three that served runs of
gpt-oss-120b were held against: like Marlin's they read weights in the order they are stored in."""
NARROW = 128.0  # columns of the narrowest GEMM in the public rows
STATE_BYTES = 4.0  # recurrent state of linear attention is kept in fp32


class Book:
    """Operators to be priced. `owner` says which table of points the rows belong to."""

    def __init__(self) -> None:
        self.entries: dict[str, list[tuple[int, str, Floats, Floats, dict[str, Any]]]] = {}

    def add(self, table: str, owner: int, term: str, count: float | Floats, points: npt.ArrayLike, **columns: Any) -> None:
        """`count` operators at each point (of `owner`), columns scalar or one value a point; nothing where a size is 0."""
        where = np.asarray(points, dtype=np.float64)
        counts = np.broadcast_to(np.asarray(count, dtype=np.float64), where.shape)
        self.entries.setdefault(table, []).append((owner, term, where, counts, columns))


def weight_dtype(name: str, gpu: GpuSpec) -> str:
    """The element type the operator models know a weight type by.

    Where the GPU has no tensor cores for it, engines widen the weights on the way in (Marlin kernels): 8 or 4 bits of weight only.
    """
    found = parse_dtype(OPERATOR_DTYPE.get(name) or name)
    if found.rate in ("fp8", "fp4") and found.rate not in gpu.tensor_flops:
        return "int4_wo" if found.rate == "fp4" else "int8_wo"
    return found.name


def widened(name: str, gpu: GpuSpec) -> bool:
    """Whether weights of this type are stored narrower than the GPU can multiply."""
    return parse_dtype(OPERATOR_DTYPE.get(name) or name).name != weight_dtype(name, gpu)


def token_operators(book: Book, owner: int, d: Deployment, tokens: Floats) -> None:
    """Everything whose time depends on how many tokens a GPU's attention rank steps with, and on nothing else."""
    at = np.arange(len(tokens))
    hidden = d.model.hidden
    book.add("memory", owner, "embedding", 1, at, kind="embedding", tokens=tokens, hidden=hidden)
    if d.tp > 1:
        _all_reduce(book, owner, d, at, tokens, 1)
    for layer in d.model.layers:
        _attention_projections(book, owner, d, layer, at, tokens)
        _mlp(book, owner, d, layer, at, tokens)
        book.add("memory", owner, "norms", layer.norms * layer.count, at, kind="add_rmsnorm", tokens=tokens, hidden=hidden)
    book.add("memory", owner, "norms", 1, at, kind="add_rmsnorm", tokens=tokens, hidden=hidden)
    if d.pp > 1:
        book.add("collective", owner, "pipeline", d.pp - 1, at, kind="p2p", message_bytes=tokens * hidden * ACTIVATION_BYTES, n_gpus=2)


def output_operators(book: Book, owner: int, d: Deployment, sequences: Floats) -> None:
    """Language-model head and sampling of the sequences that get a token."""
    at, vocab = np.arange(len(sequences)), float(d.model.vocab)
    _gemm(book, owner, d, "lm head", 1, at, sequences, np.ceil(vocab / d.tp), d.model.hidden, d.model.lm_head_dtype)
    if d.tp > 1:
        book.add(
            "collective", owner, "communication", 1, at, kind="all_gather", message_bytes=sequences * vocab * ACTIVATION_BYTES, n_gpus=d.tp
        )
    book.add("memory", owner, "sampling", 1, at, kind="sampling", tokens=sequences, hidden=vocab)


def decode_operators(book: Book, owner: int, d: Deployment, sequences: Floats, kv_len: Floats) -> None:
    """Attention of `sequences` that each add one token to kv_len - 1 earlier ones."""
    at = np.arange(len(sequences))
    for layer in d.model.layers:
        if layer.attention == "gqa":
            _gqa(book, owner, d, layer, at, "decode", sequences, np.ones_like(sequences), kv_len)
        elif layer.attention == "mla":
            _mla(book, owner, d, layer, at, "decode", sequences, np.ones_like(sequences), kv_len)
            absorbed = {"batch": layer.q_heads // d.tp}
            _gemm(
                book,
                owner,
                d,
                "mla projections",
                layer.count,
                at,
                sequences,
                layer.kv_lora_rank,
                layer.qk_nope_head_dim,
                d.dtype,
                **absorbed,
            )
            _gemm(book, owner, d, "mla projections", layer.count, at, sequences, layer.v_head_dim, layer.kv_lora_rank, d.dtype, **absorbed)
        else:
            _state(book, owner, d, layer, at, sequences)


def prefill_operators(book: Book, owner: int, d: Deployment, sequences: Floats, q_len: Floats, kv_len: Floats) -> None:
    """Attention of `sequences` prompts (or chunks of them) of q_len new tokens that see kv_len in all."""
    at = np.arange(len(sequences))
    for layer in d.model.layers:
        if layer.attention == "gqa":
            _gqa(book, owner, d, layer, at, "prefill", sequences, q_len, kv_len)
        elif layer.attention == "mla":
            _mla(book, owner, d, layer, at, "prefill", sequences, q_len, kv_len)
            width = (layer.q_heads // d.tp) * (layer.qk_nope_head_dim + layer.v_head_dim)
            dtype = layer.attention_dtype
            _gemm(book, owner, d, "mla projections", layer.count, at, sequences * kv_len, width, layer.kv_lora_rank, dtype)
        else:
            _state(book, owner, d, layer, at, sequences * np.ceil(q_len / 64.0))  # chunked form: the state moves once in 64 tokens


def _attention_projections(book: Book, owner: int, d: Deployment, layer: LayerSpec, at: Any, tokens: Floats) -> None:
    count, hidden, dtype = layer.count, d.model.hidden, layer.attention_dtype
    if layer.attention == "gqa":
        q, kv = layer.q_heads / d.tp * layer.head_dim, max(layer.kv_heads / d.tp, 1.0) * layer.head_dim
        out = layer.q_heads / d.tp * (layer.v_head_dim or layer.head_dim)
        _gemm(book, owner, d, "attention projections", count, at, tokens, q * (2 if layer.output_gate else 1) + 2 * kv, hidden, dtype)
        if layer.qk_norm:
            rows = (q + kv) / layer.head_dim
            book.add("memory", owner, "norms", count, at, kind="rmsnorm", tokens=tokens * rows, hidden=layer.head_dim)
        if d.stack != "trtllm":  # TensorRT-LLM's attention operator does both, and its rows hold them
            book.add("memory", owner, "rope and cache", count, at, kind="rope", tokens=tokens, hidden=q + kv)
            book.add("memory", owner, "rope and cache", count, at, kind="copy", tokens=tokens, hidden=2 * kv)
    elif layer.attention == "mla":
        latent, head = layer.kv_lora_rank + layer.qk_rope_head_dim, layer.qk_nope_head_dim + layer.qk_rope_head_dim
        q = layer.q_heads // d.tp * head
        out = layer.q_heads / d.tp * layer.v_head_dim
        if layer.q_lora_rank:
            _gemm(book, owner, d, "attention projections", count, at, tokens, layer.q_lora_rank + latent, hidden, dtype)
            _gemm(book, owner, d, "attention projections", count, at, tokens, q, layer.q_lora_rank, dtype)
        else:
            _gemm(book, owner, d, "attention projections", count, at, tokens, q + latent, hidden, dtype)
        book.add("memory", owner, "norms", count, at, kind="rmsnorm", tokens=tokens, hidden=layer.q_lora_rank + layer.kv_lora_rank)
        book.add("memory", owner, "rope and cache", count, at, kind="rope", tokens=tokens, hidden=layer.qk_rope_head_dim * (q // head + 1))
        book.add("memory", owner, "rope and cache", count, at, kind="copy", tokens=tokens, hidden=latent)
    else:
        keys = layer.linear_key_heads * layer.linear_key_head_dim / d.tp
        values = layer.linear_value_heads * layer.linear_value_head_dim / d.tp
        out = values
        _gemm(book, owner, d, "attention projections", count, at, tokens, 2 * keys + 2 * values, hidden, dtype)  # q, k, v and the gate
        book.add(
            "memory", owner, "rope and cache", count, at, kind="silu_mul", tokens=tokens, hidden=2 * keys + values
        )  # short convolution
        book.add("memory", owner, "norms", count, at, kind="rmsnorm", tokens=tokens, hidden=values)
    _gemm(book, owner, d, "attention projections", count, at, tokens, hidden, out, dtype)
    if d.tp > 1:
        _all_reduce(book, owner, d, at, tokens, count)


def _mlp(book: Book, owner: int, d: Deployment, layer: LayerSpec, at: Any, tokens: Floats) -> None:
    hidden, count = d.model.hidden, layer.count
    if layer.mlp == "dense":
        _dense(book, owner, d, "mlp", count, at, tokens, hidden, layer.inter / d.tp, layer.mlp_dtype, layer.gated)
        if d.tp > 1:
            _all_reduce(book, owner, d, at, tokens, count)
    elif layer.mlp == "moe":
        everyone = tokens * d.dp
        _gemm(book, owner, d, "router", count, at, tokens, layer.num_experts, hidden, d.dtype)
        shape: dict[str, Any] = {"hidden": hidden, "inter": layer.moe_inter, "num_experts": layer.num_experts, "top_k": layer.top_k}
        experts = weight_dtype(layer.mlp_dtype, d.gpu)
        shape |= {"dtype": experts, "distribution": ROUTING, "tp": d.moe_tp, "ep": d.ep}
        book.add("moe", owner, "experts", count, at, tokens=everyone, stack=EXPERT_STACK.get(experts, d.stack), **shape)
        if layer.shared_inter:
            _dense(book, owner, d, "mlp", count, at, tokens, hidden, layer.shared_inter / d.tp, layer.shared_dtype, layer.gated)
        if d.dp > 1:
            message = everyone * hidden * ACTIVATION_BYTES
            for op in ("all_gather", "reduce_scatter"):
                book.add("collective", owner, "communication", count, at, kind=op, message_bytes=message, n_gpus=d.tp * d.dp)
        elif d.tp > 1:
            _all_reduce(book, owner, d, at, tokens, count)


def _dense(
    book: Book,
    owner: int,
    d: Deployment,
    term: str,
    count: int,
    at: Any,
    tokens: Floats,
    hidden: float,
    inter: float,
    dtype: str,
    gated: bool,
) -> None:
    _gemm(book, owner, d, term, count, at, tokens, inter * (2 if gated else 1), hidden, dtype)
    book.add("memory", owner, "activation", count, at, kind="silu_mul" if gated else "gelu", tokens=tokens, hidden=inter)
    _gemm(book, owner, d, term, count, at, tokens, hidden, inter, dtype)


def _gemm(
    book: Book, owner: int, d: Deployment, term: str, count: float, at: Any, m: Floats, n: float, k: float, dtype: str, batch: int = 1
) -> None:
    """One GEMM. Quantised rows of the GEMM tables hold a separate quantisation of the activations, which engines fuse into the kernel
    before: it is taken off, as what the narrowest of those GEMMs takes over a 16-bit one. Block-scaled ones quantise separately."""
    name = weight_dtype(dtype, d.gpu)
    book.add("gemm", owner, term, count, at, m=m, n=np.ceil(n), k=np.ceil(k), batch=batch, dtype=name)
    if name in FUSED_QUANTISATION and d.fuses_quantisation:
        book.add("gemm", owner, term, -count, at, m=m, n=NARROW, k=np.ceil(k), dtype=name)
        book.add("gemm", owner, term, count, at, m=m, n=NARROW, k=np.ceil(k), dtype="bf16")


def _all_reduce(book: Book, owner: int, d: Deployment, at: Any, tokens: Floats, count: int) -> None:
    message = tokens * d.model.hidden * ACTIVATION_BYTES
    book.add("collective", owner, "communication", count, at, kind="all_reduce", message_bytes=message, n_gpus=d.tp)


def _gqa(book: Book, owner: int, d: Deployment, layer: LayerSpec, at: Any, phase: str, batch: Floats, q: Floats, kv: Floats) -> None:
    heads = {
        "q_heads": layer.q_heads // d.tp,
        "kv_heads": max(layer.kv_heads // d.tp, 1),
        "head_dim": layer.head_dim,
        "window": layer.window,
    }
    book.add(
        "attention",
        owner,
        f"attention {phase}",
        layer.count,
        at,
        phase=phase,
        batch=batch,
        q_len=q,
        kv_len=kv,
        kv_dtype=d.kv_dtype,
        **heads,
    )


def _mla(book: Book, owner: int, d: Deployment, layer: LayerSpec, at: Any, phase: str, batch: Floats, q: Floats, kv: Floats) -> None:
    term, heads = f"attention {phase}", layer.q_heads // d.tp
    book.add("mla", owner, term, layer.count, at, phase=phase, batch=batch, q_len=q, kv_len=kv, num_heads=heads, kv_dtype=d.kv_dtype)


def _state(book: Book, owner: int, d: Deployment, layer: LayerSpec, at: Any, moves: Floats) -> None:
    """Recurrent state of linear attention: read and written once a move. Source: gated delta rule, arXiv 2412.06464."""
    values = layer.linear_value_heads / d.tp
    elements = values * layer.linear_key_head_dim * layer.linear_value_head_dim * STATE_BYTES / ACTIVATION_BYTES
    book.add("memory", owner, "attention state", layer.count, at, kind="copy", tokens=moves, hidden=elements)
