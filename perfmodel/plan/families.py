"""What a Hugging Face model_type implies and its config.json does not say: biases, norms, ties, names of fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Flag = bool | str  # a fact of the architecture, or the config field that decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Facts of one architecture, read from its published modelling code. A string names the config field that decides."""

    qkv_bias: Flag = False
    o_bias: Flag = False
    mlp_bias: Flag = False
    qk_norm: Flag = False
    gated: bool = True
    norms: int = 2
    tied: bool = False  # where the config does not say
    output_gate: Flag = False
    mla: bool = False
    moe_inter: tuple[str, ...] = ("moe_intermediate_size", "intermediate_size")
    dense_inter: tuple[str, ...] = ("intermediate_size",)
    shared_is_expert: bool = False  # one shared expert of a routed expert's size (Llama 4)
    defaults: Mapping[str, int] = field(default_factory=dict)  # what its configs may leave out, as the class that reads them fills in
    sliding: str = (
        ""  # layers with a window: "all", "even", "pattern", "late" (from max_window_layers on), "chunked"; "": by layer_types only
    )


_BIAS = "attention_bias"
_GEMMA2 = {"vocab_size": 256000, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192}
_GEMMA3 = {**_GEMMA2, "vocab_size": 262208, "max_position_embeddings": 131072}
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(qkv_bias=_BIAS, o_bias=_BIAS, mlp_bias="mlp_bias"),
        "llama4_text": Family(
            qkv_bias=_BIAS,
            moe_inter=("intermediate_size",),
            dense_inter=("intermediate_size_mlp",),
            shared_is_expert=True,
            sliding="chunked",
        ),
        "mistral": Family(sliding="all"),
        "ministral": Family(sliding="all"),
        "ministral3": Family(sliding="all"),
        "mixtral": Family(sliding="all"),
        "qwen2": Family(qkv_bias=True, sliding="late"),
        "qwen2_moe": Family(qkv_bias=True, sliding="late"),
        "qwen3": Family(qk_norm=True, qkv_bias=_BIAS, o_bias=_BIAS, sliding="late"),
        "qwen3_moe": Family(qk_norm=True, qkv_bias=_BIAS, o_bias=_BIAS, sliding="late"),
        "qwen3_next": Family(qk_norm=True, output_gate=True),
        "qwen3_5_text": Family(qk_norm=True, output_gate=True),
        "qwen3_5_moe_text": Family(qk_norm=True, output_gate=True),
        "gemma": Family(tied=True, defaults={"vocab_size": 256000, "head_dim": 256}),
        "gemma2": Family(norms=4, tied=True, sliding="even", defaults=_GEMMA2),
        "gemma3_text": Family(norms=4, qk_norm=True, tied=True, sliding="pattern", defaults=_GEMMA3),
        "phi3": Family(),  # its sliding_window is longer than any context it is served with
        "phimoe": Family(qkv_bias=_BIAS, o_bias=_BIAS, moe_inter=("intermediate_size",)),
        "glm": Family(qkv_bias=_BIAS),
        "glm4": Family(qkv_bias=_BIAS, norms=4),
        "glm4_moe": Family(qkv_bias=_BIAS, qk_norm="use_qk_norm"),
        "glm4_moe_lite": Family(mla=True),
        "chatglm": Family(qkv_bias="add_qkv_bias"),
        "deepseek_v2": Family(mla=True),
        "deepseek_v3": Family(mla=True),
        "kimi_k2": Family(mla=True),
        "gpt_oss": Family(qkv_bias=True, o_bias=True, mlp_bias=True, moe_inter=("intermediate_size",), sliding="even"),
        "cohere": Family(norms=1, tied=True, qk_norm="use_qk_norm"),
        "cohere2": Family(norms=1, tied=True, sliding="pattern"),
        "olmo2": Family(qk_norm=True),
        "olmo3": Family(qk_norm=True),
        "granite": Family(qkv_bias=_BIAS, o_bias=_BIAS),
        "starcoder2": Family(qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", gated=False, tied=True),
        "internlm2": Family(qkv_bias="bias", o_bias="bias"),
        "internlm3": Family(qkv_bias="qkv_bias", o_bias="bias"),
        "seed_oss": Family(qkv_bias=_BIAS, o_bias="attention_out_bias"),
        "exaone4": Family(qk_norm=True, sliding="pattern"),
        "smollm3": Family(qkv_bias=_BIAS, o_bias=_BIAS, tied=True),
        "minimax_m2": Family(qk_norm="use_qk_norm", moe_inter=("intermediate_size",)),
        "ernie4_5": Family(qkv_bias="use_bias", tied=True),
        "ernie4_5_moe": Family(qkv_bias="use_bias", tied=True),
    }
)
"""Architectures whose tensors are known. Source: each one's modelling code in huggingface/transformers or in the model's own repository."""

SAME_AS: Mapping[str, str] = MappingProxyType(
    {
        "qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2", "qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3",
        "qwen3_vl_moe_text": "qwen3_moe", "gemma3": "gemma3_text", "llama4": "llama4_text", "qwen3_5_moe": "qwen3_5_moe_text",
        "qwen3_5": "qwen3_5_text", "yi": "llama", "solar": "llama",
    }
)  # fmt: skip
"""Other names of an architecture, among them the language part of models that also see."""

FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "hidden": ("hidden_size", "n_embd", "d_model"),
        "vocab": ("padded_vocab_size", "vocab_size"),
        "layers": ("num_hidden_layers", "num_layers", "n_layer"),
        "q_heads": ("num_attention_heads", "n_head"),
        "kv_heads": ("num_key_value_heads", "multi_query_group_num", "num_kv_heads"),
        "head_dim": ("head_dim", "kv_channels"),
        "inter": ("intermediate_size", "ffn_hidden_size"),
        "num_experts": ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"),
        "top_k": ("num_experts_per_tok", "moe_topk", "moe_k", "num_experts_per_token"),
        "context": ("max_position_embeddings", "seq_length", "n_positions"),
    }
)
"""Names that configs give to the same thing, the first found wins."""
