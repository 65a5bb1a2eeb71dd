"""What a Hugging Face config.json may hold: every field that the reader looks at, with its type and range. Other fields are left alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from perfmodel.ops.check import is_flag

WIDEST = 2**24  # of a tensor's side, vocabulary, number of heads or experts
LONGEST = 2**31 - 1  # tokens
MOST_LAYERS = 2000
MOST_PATTERNS = 20_000  # of modules that are not quantised
TEXT_GENERATION = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "ForImageTextToText", "ForVision2Seq", "ChatModel")
"""How classes end that have a language-model head. Older configs name ChatGLMModel, which has one too."""


def _no_bool(value: object) -> object:
    if is_flag(value):
        raise ValueError("must be a whole number")
    return value


def _one_value(value: object) -> object:
    """The value of a list with one entry a layer, all the same."""
    if isinstance(value, list) and value:
        if any(entry != value[0] for entry in value):
            raise ValueError("differs between layers, which this reader does not know")
        return _no_bool(value[0])
    return _no_bool(value)


def _decoder(names: list[str]) -> list[str]:
    if names and not any(name.endswith(TEXT_GENERATION) or name == "ChatGLMModel" for name in names):
        raise ValueError(f"generates no text: expected a class that ends in {', '.join(TEXT_GENERATION[:2])} ...")
    return names


Count = Annotated[int, BeforeValidator(_no_bool)]
Size = Annotated[int, BeforeValidator(_one_value), Field(ge=0, le=WIDEST)] | None  # 0: not there; what a layer needs is checked there
Tokens = Annotated[int, BeforeValidator(_one_value), Field(ge=0, le=LONGEST)] | None
Layers = Annotated[Count, Field(ge=1, le=MOST_LAYERS)] | None
Layer = Annotated[Count, Field(ge=0, le=MOST_LAYERS)]
Step = Annotated[int, BeforeValidator(_one_value), Field(ge=0, le=MOST_LAYERS)] | None
Flag = bool | None
Architectures = Annotated[list[str], Field(max_length=100), AfterValidator(_decoder)] | None
Kind = Literal["full_attention", "linear_attention", "sliding_attention", "chunked_attention"]
Pattern = Annotated[str, Field(max_length=1000)]
Patterns = Annotated[list[Pattern], Field(max_length=MOST_PATTERNS)] | None


class _Known(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())

    def given(self) -> dict[str, Any]:
        """The fields that the config has and that are not null."""
        return {name: value for name in self.model_fields_set if (value := getattr(self, name)) is not None}


class Vision(_Known):
    """The tower of a model that also sees."""

    hidden_size: Size = None
    embed_dim: Size = None
    num_hidden_layers: Layers = None
    depth: Layers = None
    num_layers: Layers = None
    intermediate_size: Size = None
    mlp_ratio: Annotated[float, Field(gt=0, le=64, allow_inf_nan=False)] | None = None


class _Types(_Known):
    model_type: str | None = None
    torch_dtype: str | None = None
    dtype: str | None = None
    quantization_config: Mapping[str, Any] | None = None
    compression_config: Mapping[str, Any] | None = None


class Whole(_Types):
    """What stands at the top of a config.json."""

    architectures: Architectures = None
    text_config: Mapping[str, Any] | None = None
    llm_config: Mapping[str, Any] | None = None
    language_config: Mapping[str, Any] | None = None
    vision_config: Vision | None = None
    tie_word_embeddings: Flag = None


class Decoder(_Types):
    """The language model's own fields, under the names that families.FIELDS lists and those of single architectures."""

    hidden_size: Size = None
    n_embd: Size = None
    d_model: Size = None
    padded_vocab_size: Size = None
    vocab_size: Size = None
    num_hidden_layers: Layers = None
    num_layers: Layers = None
    n_layer: Layers = None
    max_position_embeddings: Tokens = None
    seq_length: Tokens = None
    n_positions: Tokens = None
    tie_word_embeddings: Flag = None

    num_attention_heads: Size = None
    n_head: Size = None
    num_key_value_heads: Size = None
    multi_query_group_num: Size = None
    num_kv_heads: Size = None
    multi_query_attention: Flag = None
    head_dim: Size = None
    kv_channels: Size = None
    v_head_dim: Size = None
    q_lora_rank: Size = None
    kv_lora_rank: Size = None
    qk_nope_head_dim: Size = None
    qk_rope_head_dim: Size = None
    attention_bias: Flag = None
    attention_out_bias: Flag = None
    add_qkv_bias: Flag = None
    qkv_bias: Flag = None
    use_bias: Flag = None
    bias: Flag = None
    mlp_bias: Flag = None
    use_qk_norm: Flag = None

    layer_types: Annotated[list[Kind], Field(max_length=MOST_LAYERS)] | None = None
    sliding_window: Tokens = None
    use_sliding_window: Flag = None
    sliding_window_pattern: Step = Field(None, validation_alias=AliasChoices("sliding_window_pattern", "_sliding_window_pattern"))
    max_window_layers: Size = None
    attention_chunk_size: Tokens = None
    no_rope_layer_interval: Step = None
    full_attention_interval: Step = None
    linear_num_key_heads: Size = None
    linear_num_value_heads: Size = None
    linear_key_head_dim: Size = None
    linear_value_head_dim: Size = None
    linear_conv_kernel_dim: Size = None

    intermediate_size: Size = None
    ffn_hidden_size: Size = None
    intermediate_size_mlp: Size = None
    moe_intermediate_size: Size = None
    shared_expert_intermediate_size: Size = None
    num_local_experts: Size = None
    n_routed_experts: Size = None
    num_experts: Size = None
    moe_num_experts: Size = None
    num_experts_per_tok: Size = None
    moe_topk: Size = None
    moe_k: Size = None
    num_experts_per_token: Size = None
    n_shared_experts: Size = None
    moe_num_shared_experts: Size = None
    num_shared_experts: Size = None
    mlp_layer_types: Annotated[list[Literal["sparse", "dense"]], Field(max_length=MOST_LAYERS)] | None = None
    mlp_only_layers: Annotated[list[Layer], Field(max_length=MOST_LAYERS)] | None = None
    moe_layers: Annotated[list[Layer], Field(max_length=MOST_LAYERS)] | None = None
    interleave_moe_layer_step: Step = None
    moe_layer_start_index: Layer | None = None
    moe_layer_end_index: Annotated[Count, Field(ge=-1, le=MOST_LAYERS)] | None = None
    moe_layer_interval: Step = None
    first_k_dense_replace: Layer | None = None
    decoder_sparse_step: Step = None
    moe_layer_freq: Step = None


class Weights(_Known):
    """How one group stores its weights."""

    num_bits: Annotated[Count, Field(ge=1, le=32)] | None = None
    type: str | None = None
    strategy: str | None = None
    group_size: Annotated[Count, Field(ge=-1, le=WIDEST)] | None = None
    symmetric: Flag = None
    block_structure: Annotated[list[Annotated[Count, Field(ge=1, le=WIDEST)]], Field(min_length=2, max_length=2)] | None = None


class Group(_Known):
    """One group of modules of compressed-tensors."""

    weights: Weights | None = None
    input_activations: Mapping[str, Any] | None = None


class QuantizationConfig(_Known):
    """quantization_config, of any method."""

    quant_method: str | None = None
    quant_type: str | None = None
    modules_to_not_convert: Patterns = None
    ignored_layers: Patterns = None
    ignore: Patterns = None
    exclude_modules: Patterns = None
    llm_int8_skip_modules: Patterns = None
    lm_head: Flag = None
    bits: Annotated[Count, Field(ge=1, le=32)] | None = None
    w_bit: Annotated[Count, Field(ge=1, le=32)] | None = None
    weight_block_size: Annotated[list[Annotated[Count, Field(ge=1, le=WIDEST)]], Field(min_length=2, max_length=2)] | None = None
    zero_point: Flag = None
    sym: Flag = None
    group_size: Annotated[Count, Field(ge=-1, le=WIDEST)] | None = None
    q_group_size: Annotated[Count, Field(ge=-1, le=WIDEST)] | None = None
    load_in_4bit: Flag = Field(None, validation_alias=AliasChoices("load_in_4bit", "_load_in_4bit"))
    quant_algo: str | None = None
    config_groups: Annotated[dict[str, Group], Field(max_length=1000)] | None = None


class Bundled(_Known):
    """A file of data/models, or of the user's own folder of models."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    aliases: list[Annotated[str, Field(min_length=1, max_length=200)]]
    source: str
    licence: str
    config: Mapping[str, Any]
    other_params: Annotated[Count, Field(ge=0, le=10**13)] | None = None
    published_params: Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)] | None = None
