"""The weight tensors of a model: exact shapes, in which element type, and how parallelism shares them out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfmodel.plan.model import LayerSpec, ModelSpec

PLAIN_DTYPES = ("bf16", "fp16")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One weight matrix (or vector: rows 1) of a layer, `copies` times. `rows` are output features.

    share: "column" (rows split over TP), "row" (columns split over TP), "kv" (rows are key-value heads: split while there are enough, else
    replicated), "replicated", "expert" (copies split over EP, the inner size over TP), "vocab" (rows padded and split over TP).
    """

    name: str
    part: str  # attention, mlp, experts, shared_expert, router, norm, embedding, lm_head
    rows: int
    columns: int
    dtype: str
    share: str
    copies: int = 1
    heads: int = 0  # of a "kv" tensor

    @property
    def elements(self) -> int:
        """Parameters."""
        return self.rows * self.columns * self.copies


def layer_tensors(model: ModelSpec, layer: LayerSpec) -> list[Tensor]:
    """Every weight of one layer of a kind."""
    plain = model.activation_dtype if model.activation_dtype in PLAIN_DTYPES else "bf16"
    attention = {"gqa": _gqa, "mla": _mla, "linear": _linear}[layer.attention]
    norms = [Tensor("norms", "norm", layer.norms, model.hidden, plain, "replicated")]
    return [*attention(model.hidden, layer, plain), *_mlp(model.hidden, layer, plain), *norms]


def outer_tensors(model: ModelSpec) -> list[Tensor]:
    """Embedding, final norm and head. A tied head has no tensor of its own."""
    plain = model.activation_dtype if model.activation_dtype in PLAIN_DTYPES else "bf16"
    found = [
        Tensor("embed_tokens", "embedding", model.vocab, model.hidden, plain, "vocab"),
        Tensor("norm", "norm", 1, model.hidden, plain, "replicated"),
    ]
    if not model.tied_embeddings:
        found.append(Tensor("lm_head", "lm_head", model.vocab, model.hidden, model.lm_head_dtype, "vocab"))
    return found


def all_tensors(model: ModelSpec) -> Iterator[tuple[int, Tensor]]:
    """(how many times, tensor) over the whole model."""
    for layer in model.layers:
        for tensor in layer_tensors(model, layer):
            yield layer.count, tensor
    for tensor in outer_tensors(model):
        yield 1, tensor


def parameters(model: ModelSpec) -> int:
    """Parameters of the model, a vision tower included."""
    return sum(count * tensor.elements for count, tensor in all_tensors(model)) + model.other_params


def active_parameters(model: ModelSpec) -> int:
    """Parameters that one token multiplies with: its routed experts only, no embedding table unless it is the head too."""
    total = 0
    for layer in model.layers:
        for t in layer_tensors(model, layer):
            share = layer.top_k / layer.num_experts if t.part == "experts" else 1.0
            total += round(layer.count * t.elements * share)
    return total + model.vocab * model.hidden + model.hidden


def _gqa(hidden: int, layer: LayerSpec, plain: str) -> list[Tensor]:
    q, kv, dtype = layer.q_heads * layer.head_dim, layer.kv_heads * layer.head_dim, layer.attention_dtype
    found = [
        Tensor("q_proj", "attention", q * (2 if layer.output_gate else 1), hidden, dtype, "column"),
        Tensor("k_proj", "attention", kv, hidden, dtype, "kv", heads=layer.kv_heads),
        Tensor("v_proj", "attention", kv, hidden, dtype, "kv", heads=layer.kv_heads),
        Tensor("o_proj", "attention", hidden, q, dtype, "row"),
    ]
    if layer.qkv_bias:
        found.append(Tensor("q_bias", "attention", q, 1, plain, "column"))
        found.append(Tensor("kv_bias", "attention", 2 * kv, 1, plain, "kv", heads=layer.kv_heads))
    if layer.o_bias:
        found.append(Tensor("o_bias", "attention", hidden, 1, plain, "replicated"))
    if layer.qk_norm:
        found.append(Tensor("qk_norm", "norm", 2, layer.head_dim, plain, "replicated"))
    return found


def _mla(hidden: int, layer: LayerSpec, plain: str) -> list[Tensor]:
    q, dtype, rank = layer.q_heads * layer.head_dim, layer.attention_dtype, layer.kv_lora_rank
    wide = layer.q_heads * (layer.qk_nope_head_dim + layer.v_head_dim)
    found = [
        Tensor("kv_a_proj", "attention", rank + layer.qk_rope_head_dim, hidden, dtype, "replicated"),
        Tensor("kv_a_norm", "norm", 1, rank, plain, "replicated"),
        Tensor("kv_b_proj", "attention", wide, rank, dtype, "column"),
        Tensor("o_proj", "attention", hidden, layer.q_heads * layer.v_head_dim, dtype, "row"),
    ]
    if not layer.q_lora_rank:
        return [Tensor("q_proj", "attention", q, hidden, dtype, "column"), *found]
    return [
        Tensor("q_a_proj", "attention", layer.q_lora_rank, hidden, dtype, "replicated"),
        Tensor("q_a_norm", "norm", 1, layer.q_lora_rank, plain, "replicated"),
        Tensor("q_b_proj", "attention", q, layer.q_lora_rank, dtype, "column"),
        *found,
    ]


def _linear(hidden: int, layer: LayerSpec, plain: str) -> list[Tensor]:
    keys, values = layer.linear_key_heads * layer.linear_key_head_dim, layer.linear_value_heads * layer.linear_value_head_dim
    dtype = layer.attention_dtype
    return [
        Tensor("in_proj_qkvz", "attention", 2 * keys + 2 * values, hidden, dtype, "column"),
        Tensor("in_proj_ba", "attention", 2 * layer.linear_value_heads, hidden, plain, "column"),
        Tensor("conv1d", "attention", 2 * keys + values, layer.linear_conv, plain, "column"),
        Tensor("decay", "attention", 2 * layer.linear_value_heads, 1, plain, "column"),
        Tensor("state_norm", "norm", 1, layer.linear_value_head_dim, plain, "replicated"),
        Tensor("out_proj", "attention", hidden, values, dtype, "row"),
    ]


def _mlp(hidden: int, layer: LayerSpec, plain: str) -> list[Tensor]:
    up = 2 if layer.gated else 1
    if layer.mlp == "dense":
        found = [
            Tensor("up_proj", "mlp", up * layer.inter, hidden, layer.mlp_dtype, "column"),
            Tensor("down_proj", "mlp", hidden, layer.inter, layer.mlp_dtype, "row"),
        ]
        if layer.mlp_bias:
            found.append(Tensor("up_bias", "mlp", up * layer.inter, 1, plain, "column"))
            found.append(Tensor("down_bias", "mlp", hidden, 1, plain, "replicated"))
        return found
    experts = layer.num_experts
    found = [
        Tensor("router", "router", experts, hidden, plain, "replicated"),
        Tensor("experts_up", "experts", up * layer.moe_inter, hidden, layer.mlp_dtype, "expert", experts),
        Tensor("experts_down", "experts", hidden, layer.moe_inter, layer.mlp_dtype, "expert", experts),
    ]
    if layer.mlp_bias:
        found.append(Tensor("router_bias", "router", experts, 1, plain, "replicated"))
        found.append(Tensor("experts_bias", "experts", up * layer.moe_inter + hidden, 1, plain, "expert", experts))
    if layer.shared_inter:
        found += [
            Tensor("shared_up", "shared_expert", up * layer.shared_inter, hidden, layer.shared_dtype, "column"),
            Tensor("shared_down", "shared_expert", hidden, layer.shared_inter, layer.shared_dtype, "row"),
        ]
    return found
