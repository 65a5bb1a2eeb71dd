"""From a Hugging Face config.json to a ModelSpec. Every field that is missing or impossible is one line that names it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfmodel.boundary import validated
from perfmodel.errors import InputError, shown
from perfmodel.ops.check import size
from perfmodel.plan.config_schema import Decoder, Vision, Whole
from perfmodel.plan.families import FAMILIES, FIELDS, SAME_AS, Family, Flag
from perfmodel.plan.model import LayerSpec, ModelSpec
from perfmodel.plan.quantisation import Quantisation, common, from_config, from_name

Config = Mapping[str, Any]
_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "bf16",
    "float": "bf16",
    "auto": "bf16",
    "float8_e4m3fn": "bf16",
}
"""What a stack keeps layers in that are not quantised, by torch_dtype: float32 checkpoints are cast down."""
_SLIDING = ("sliding_attention", "chunked_attention")


def parse_config(
    config: Config, name: str, *, quantization: str | None = None, assume_dense: bool = False, where: str = "config.json"
) -> ModelSpec:
    """Read one config. `where` names it in errors. Raises InputError for an unknown architecture unless `assume_dense`."""
    whole = validated(Whole, config, where)
    decoder = validated(Decoder, _language_part(config, whole), where)
    model_type = decoder.model_type or f"{whole.model_type or ''}_text"
    model_type = SAME_AS.get(model_type.lower(), model_type.lower())
    text = decoder.given()
    family = _family(model_type, text, assume_dense, where)
    plain = _dtype(whole, decoder, where)
    recipe = from_name(quantization) if quantization is not None else from_config(_quantization(whole, decoder), plain, where)
    text = {**family.defaults, **text}
    fields = _Fields(text, where)
    hidden, count = fields.number("hidden"), fields.number("layers")
    layers, order, kept = _layers(fields, family, hidden, count, recipe, plain)
    tied = text.get("tie_word_embeddings", family.tied if whole.tie_word_embeddings is None else whole.tie_word_embeddings)
    quantised = recipe.weight_dtype not in ("bf16", "fp16")
    return ModelSpec(
        name=name,
        hidden=hidden,
        vocab=fields.number("vocab"),
        layers=layers,
        order=order,
        tied_embeddings=bool(tied),
        max_context=fields.number("context", default=4096),
        weight_dtype=recipe.weight_dtype,
        activation_dtype=recipe.weight_dtype if not quantised else plain,
        lm_head_dtype=recipe.weight_dtype if recipe.lm_head and not tied else plain,
        group_size=recipe.group_size,
        zero_points=recipe.zero_points,
        other_params=_seeing_params(whole.vision_config),
        unquantised=(*common(kept), *(() if recipe.lm_head else ("lm_head",)), "embedding", "router") if quantised else (),
        model_type=model_type,
    )


def _family(model_type: str, text: Config, assume_dense: bool, where: str) -> Family:
    """What is known of the architecture; nothing beyond a plain dense one where that is to be assumed."""
    family = FAMILIES.get(model_type)
    if family is not None:
        return family
    if not assume_dense:
        near = difflib.get_close_matches(model_type, FAMILIES, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}? " if near else ""
        raise InputError(
            f"{where}: model_type = {shown(model_type)} is none of the {len(FAMILIES)} known architectures: {hint}"
            "assume_dense (--assume-dense) reads it as a plain dense transformer"
        )
    if _first(text, FIELDS["num_experts"]) or text.get("kv_lora_rank"):
        raise InputError(f"{where}: model_type = {shown(model_type)} has experts or latent attention: it cannot be read as dense")
    return Family()


def _language_part(config: Config, whole: Whole) -> Config:
    """The language model's own config, inside multimodal wrappers."""
    return next(filter(None, (whole.text_config, whole.llm_config, whole.language_config)), config)


def _seeing_params(vision: Vision | None) -> int:
    """Parameters of a vision tower, from its config: attention 4 h^2 and an MLP of 2 h i a layer; 0 where it does not say."""
    if vision is None:
        return 0
    hidden, layers = vision.hidden_size or vision.embed_dim, vision.num_hidden_layers or vision.depth or vision.num_layers
    if not hidden or not layers:
        return 0
    inter = vision.intermediate_size or hidden * (vision.mlp_ratio or 4)
    return int(layers * (4 * hidden**2 + 2 * hidden * inter))


def _dtype(whole: Whole, decoder: Decoder, where: str) -> str:
    value = decoder.torch_dtype or decoder.dtype or whole.torch_dtype or whole.dtype or "bfloat16"
    found = _DTYPES.get(value.removeprefix("torch."))
    if found is None:
        raise InputError(
            f"{where}: torch_dtype = {shown(value)}: expected one of {', '.join(_DTYPES)}; others stand in quantization_config"
        )
    return found


def _quantization(whole: Whole, decoder: Decoder) -> Config | None:
    return whole.quantization_config or decoder.quantization_config or whole.compression_config


class _Fields:
    """Numbers of a checked config under the names that configs give them."""

    def __init__(self, config: Config, where: str) -> None:
        self.config, self.where = config, where

    def number(self, field: str, *, default: int | None = None, low: int = 1) -> int:
        return self.of(FIELDS.get(field, (field,)), default=default, low=low)

    def of(self, names: Sequence[str], *, default: int | None = None, low: int = 1) -> int:
        for key in names:
            value = self.config.get(key)
            if value is not None:
                return size(f"{self.where}: {key}", value, low=low)
        if default is None:
            raise InputError(f"{self.where}: field {names[0]} is missing: it must be a whole number of {low} or more")
        return default

    def flag(self, flag: Flag) -> bool:
        return flag if isinstance(flag, bool) else bool(self.config.get(flag, False))


def _first(config: Config, names: Iterable[str]) -> Any:
    return next((config[n] for n in names if config.get(n)), None)


def _layers(
    fields: _Fields, family: Family, hidden: int, count: int, recipe: Quantisation, plain: str
) -> tuple[tuple[LayerSpec, ...], tuple[int, ...], dict[str, list[bool]]]:
    """The kinds of layer, which stands where, and which parts stay at 16 bits in each."""
    windows, linear, moe = _windows(fields, family, count), _linear(fields, count), _sparse(fields, count)
    attention = {kind: _attention(fields, family, hidden, kind) for kind in set(linear)}
    mlp = {kind: _mlp(fields, family, kind) for kind in set(moe)}
    kinds: list[dict[str, Any]] = []
    order: list[int] = []
    kept: dict[str, list[bool]] = {"attention": [], "mlp": [], "shared_expert": []}
    for i in range(count):
        base = f"model.layers.{i}"
        block = "linear_attn" if linear[i] else "self_attn"
        keeps = {
            "attention": recipe.keeps(f"{base}.{block}.{'in_proj_qkvz' if linear[i] else 'o_proj'}"),
            "mlp": recipe.keeps(*_mlp_modules(base, moe[i])),
            "shared_expert": recipe.keeps(f"{base}.mlp.shared_experts.up_proj", f"{base}.mlp.shared_expert.up_proj"),
        }
        kept["attention"].append(keeps["attention"])
        kept["mlp"].append(keeps["mlp"])
        if mlp[moe[i]].get("shared_inter"):
            kept["shared_expert"].append(keeps["shared_expert"])
        kind = {
            **attention[linear[i]],
            **mlp[moe[i]],
            "window": 0 if linear[i] else windows[i],
            "norms": family.norms,
            "attention_dtype": plain if keeps["attention"] else recipe.weight_dtype,
            "mlp_dtype": plain if keeps["mlp"] else recipe.weight_dtype,
            "shared_dtype": plain if keeps["shared_expert"] else recipe.weight_dtype,
        }
        if kind not in kinds:
            kinds.append(kind)
        order.append(kinds.index(kind))
    return tuple(LayerSpec(count=order.count(i), **kind) for i, kind in enumerate(kinds)), tuple(order), kept


def _mlp_modules(base: str, moe: bool) -> tuple[str, ...]:
    if not moe:
        return f"{base}.mlp.down_proj", f"{base}.feed_forward.down_proj"
    return (
        f"{base}.mlp.experts.0.down_proj",
        f"{base}.mlp.experts",
        f"{base}.block_sparse_moe.experts.0.w2",
        f"{base}.feed_forward.experts.down_proj",
    )


def _attention(fields: _Fields, family: Family, hidden: int, linear: bool) -> dict[str, Any]:
    config = fields.config
    if linear:
        names = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim")
        keys = ("linear_key_heads", "linear_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv")
        return {"attention": "linear", **{key: fields.number(name) for key, name in zip(keys, names, strict=True)}}
    heads = fields.number("q_heads")
    if family.mla:
        rank = config.get("q_lora_rank")
        return {
            "attention": "mla",
            "q_heads": heads,
            "kv_heads": heads,
            "q_lora_rank": 0 if rank is None else fields.number("q_lora_rank"),
            "kv_lora_rank": fields.number("kv_lora_rank"),
            "qk_nope_head_dim": (nope := fields.number("qk_nope_head_dim")),
            "qk_rope_head_dim": (rope := fields.number("qk_rope_head_dim")),
            "head_dim": nope + rope,
            "v_head_dim": fields.number("v_head_dim"),
        }
    kv_heads = fields.number("kv_heads", default=heads) if config.get("multi_query_attention", True) else heads
    if heads % kv_heads:
        raise InputError(f"{fields.where}: num_key_value_heads = {kv_heads} must divide num_attention_heads = {heads}")
    default = hidden // heads if hidden % heads == 0 else None
    if default is None and not _first(config, FIELDS["head_dim"]):
        raise InputError(f"{fields.where}: num_attention_heads = {heads} must divide hidden_size = {hidden}, or head_dim must be given")
    head_dim = fields.number("head_dim", default=default)
    return {
        "attention": "gqa",
        "q_heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "v_head_dim": head_dim,
        "qkv_bias": fields.flag(family.qkv_bias),
        "o_bias": fields.flag(family.o_bias),
        "qk_norm": fields.flag(family.qk_norm),
        "output_gate": fields.flag(family.output_gate),
    }


def _mlp(fields: _Fields, family: Family, moe: bool) -> dict[str, Any]:
    config = fields.config
    same = {"gated": family.gated, "mlp_bias": fields.flag(family.mlp_bias)}
    if not moe:
        return {"mlp": "dense", "inter": fields.of((*family.dense_inter, *FIELDS["inter"])), **same}
    inter = fields.of(family.moe_inter)
    shared = 0
    if family.shared_is_expert:
        shared = inter
    elif config.get("shared_expert_intermediate_size"):
        shared = fields.number("shared_expert_intermediate_size")
    else:
        number = _first(config, ("n_shared_experts", "moe_num_shared_experts", "num_shared_experts"))
        shared = inter * size(f"{fields.where}: n_shared_experts", number) if number else 0
    experts, top_k = fields.number("num_experts"), fields.number("top_k")
    if top_k > experts:
        raise InputError(f"{fields.where}: num_experts_per_tok = {top_k} must be at most the number of experts, {experts}")
    return {"mlp": "moe", "num_experts": experts, "top_k": top_k, "moe_inter": inter, "shared_inter": shared, **same}


def _linear(fields: _Fields, count: int) -> list[bool]:
    config = fields.config
    kinds = _layer_types(fields, count)
    if kinds:
        return [kind == "linear_attention" for kind in kinds]
    if config.get("full_attention_interval") and config.get("linear_num_value_heads"):
        step = fields.number("full_attention_interval")
        return [(i + 1) % step != 0 for i in range(count)]
    return [False] * count


def _layer_types(fields: _Fields, count: int) -> list[str]:
    return _listed(fields, "layer_types", count)


def _listed(fields: _Fields, field: str, count: int) -> list[str]:
    """A list with one entry a layer; empty where the config has none."""
    found: list[str] = fields.config.get(field) or []
    if found and len(found) != count:
        raise InputError(f"{fields.where}: {field} has {len(found)} entries for num_hidden_layers = {count}")
    return found


def _windows(fields: _Fields, family: Family, count: int) -> list[int]:
    """Keys that each layer's queries see, 0: all."""
    config = fields.config
    field = "attention_chunk_size" if family.sliding == "chunked" else "sliding_window"
    if not config.get(field) or config.get("use_sliding_window") is False:
        return [0] * count
    window = fields.number(field)
    kinds = _layer_types(fields, count)
    if kinds:
        return [window if kind in _SLIDING else 0 for kind in kinds]
    if family.sliding == "pattern":
        step = fields.number("sliding_window_pattern", default=6)
        slides = [(i + 1) % step != 0 for i in range(count)]
    elif family.sliding == "chunked":
        step = fields.number("no_rope_layer_interval", default=4)
        slides = [(i + 1) % step != 0 for i in range(count)]
    elif family.sliding == "even":
        slides = [i % 2 == 0 for i in range(count)]
    elif family.sliding == "late":
        first = fields.number("max_window_layers", default=count, low=0)
        slides = [i >= first for i in range(count)]
    else:
        slides = [family.sliding == "all"] * count
    return [window if slide else 0 for slide in slides]


def _sparse(fields: _Fields, count: int) -> list[bool]:
    """Which layers have experts."""
    config = fields.config
    if not _first(config, FIELDS["num_experts"]):
        return [False] * count
    if kinds := _listed(fields, "mlp_layer_types", count):
        return [kind == "sparse" for kind in kinds]
    if listed := config.get("moe_layers"):
        return [i in listed for i in range(count)]
    if "interleave_moe_layer_step" in config:
        step = fields.number("interleave_moe_layer_step")
        return [(i + 1) % step == 0 for i in range(count)]
    if "moe_layer_start_index" in config:
        first, step = fields.of(("moe_layer_start_index",), low=0), fields.number("moe_layer_interval", default=1)
        last = fields.number("moe_layer_end_index", default=-1, low=-1)
        return [first <= i and (last < 0 or i <= last) and (i + 1) % step == 0 for i in range(count)]
    first = fields.of(("first_k_dense_replace",), default=0, low=0)
    step = fields.of(("decoder_sparse_step", "moe_layer_freq"), default=1)
    dense = set(config.get("mlp_only_layers", ()))
    if "decoder_sparse_step" in config:
        return [i not in dense and (i + 1) % step == 0 for i in range(count)]
    return [i >= first and i % step == 0 for i in range(count)]
