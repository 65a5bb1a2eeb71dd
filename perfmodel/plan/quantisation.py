"""Which element types a checkpoint's weights are in: from a Hugging Face quantization_config, or asked for by name."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError

PLAIN = ("bf16", "fp16")
BLOCK = 128  # rows and columns that share one scale in DeepSeek's block-wise fp8
_NAMES = {"mxfp4": "mxfp4", "nf4": "nf4", "bnb_4bit": "nf4", "bnb": "nf4", "compressed-tensors-w4a16": "int4_wo"}
_GROUP = {"fp8_block": BLOCK, "int4_wo": 128, "nvfp4": 16, "mxfp4": 32, "nf4": 64}
_KEPT = ("lm_head", "router", "embed_tokens")  # what every method leaves at 16 bits unless it says otherwise


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How weights are stored. `ignored`: the checkpoint's patterns of modules that stay at 16 bits; group_size 0: a row or the tensor."""

    weight_dtype: str
    group_size: int = 0
    zero_points: bool = False
    ignored: tuple[str, ...] = ()
    lm_head: bool = False

    def keeps(self, *modules: str) -> bool:
        """Whether the modules (dotted names as in the checkpoint) stay at 16 bits."""
        return self.weight_dtype in PLAIN or any(_matches(pattern, module) for pattern in self.ignored for module in modules)


def from_name(name: str) -> Quantisation:
    """The usual recipe of a type asked for by name: every projection but router and head. Raises InputError for an unknown name."""
    key = str(name).strip().lower()
    if key in ("none", ""):
        raise InputError(f"quantization {name!r}: leave it out to take the model as it is published, or say bf16, fp8, int4_wo ...")
    kind = _NAMES.get(key) or parse_dtype(key).name
    if kind == "fp32":
        raise InputError(
            "quantization fp32: no serving stack keeps weights in it; use bf16, fp16, fp8, fp8_block, int8, int4_wo, nvfp4 or mxfp4"
        )
    return Quantisation(kind, _GROUP.get(kind, 0), kind == "int4_wo" and key == "awq", _KEPT if kind not in PLAIN else ())


def from_config(config: Mapping[str, Any] | None, plain: str) -> Quantisation:
    """Read a quantization_config; without one the weights are `plain` ("bf16", "fp16"). Raises InputError naming what it does not know."""
    if not config:
        return Quantisation(plain)
    method = str(config.get("quant_method", config.get("quant_type", ""))).lower().replace("_", "-")
    ignored = tuple(
        str(p)
        for field in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "llm_int8_skip_modules")
        for p in config.get(field) or ()
    )
    head = bool(config.get("lm_head", False))
    bits = config.get("bits", config.get("w_bit", 4))
    if method in ("fp8", "fbgemm-fp8"):
        block = config.get("weight_block_size")
        return Quantisation("fp8_block" if block else "fp8", int(block[0]) if block else 0, False, ignored, head)
    if method == "mxfp4":
        return Quantisation("mxfp4", 32, False, ignored, head)
    if method in ("awq", "gptq", "gptqmodel", "auto-round", "autoround", "awq-marlin", "gptq-marlin"):
        if bits not in (4, 8):
            raise InputError(f"quantization_config.bits = {bits!r}: weight-only checkpoints of 4 or 8 bits are known")
        zeros = bool(config.get("zero_point", not config.get("sym", True)))
        group = int(config.get("group_size", config.get("q_group_size", 128)))
        return Quantisation("int4_wo" if bits == 4 else "int8_wo", max(group, 0), zeros, ignored, head)
    if method == "bitsandbytes":
        four = bool(config.get("load_in_4bit") or config.get("_load_in_4bit"))
        return Quantisation("nf4" if four else "int8_wo", 64 if four else 0, False, ignored, head)
    if method == "modelopt" or "quant_algo" in config:
        algorithm = str(config.get("quant_algo", "")).upper()
        kind = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_AWQ": "int4_wo", "INT4_AWQ": "int4_wo", "W8A8_SQ_PER_CHANNEL": "int8"}.get(algorithm)
        if kind is None:
            raise InputError(f"quantization_config.quant_algo = {algorithm!r}: FP8, NVFP4, W4A16_AWQ and W8A8_SQ_PER_CHANNEL are known")
        return Quantisation(kind, _GROUP.get(kind, 0), False, ignored, head)
    if method == "compressed-tensors":
        return _compressed(config, ignored)
    known = "fp8, fbgemm_fp8, mxfp4, awq, gptq, bitsandbytes, modelopt, compressed-tensors"
    raise InputError(
        f"quantization_config.quant_method = {method!r}: known are {known}; or pass quantization (--quantization) to say what it is"
    )


def _compressed(config: Mapping[str, Any], ignored: tuple[str, ...]) -> Quantisation:
    groups = config.get("config_groups") or {}
    if not groups:
        raise InputError("quantization_config.config_groups is missing: compressed-tensors says there what is quantised")
    first = next(iter(groups.values()))
    weights, activations = first.get("weights") or {}, first.get("input_activations")
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    group = int(weights.get("group_size") or 0)
    names = {
        ("float", 8): "fp8_block" if strategy == "block" else "fp8",
        ("int", 8): "int8" if activations else "int8_wo",
        ("int", 4): "int4_wo",
        ("float", 4): "mxfp4" if group == 32 else "nvfp4",
    }
    found = names.get((str(kind), int(bits or 0)))
    if found is None:
        raise InputError(f"quantization_config: weights of type {kind!r} with {bits!r} bits: known are float 8 and 4, int 8 and 4")
    if found == "fp8_block":
        group = int((weights.get("block_structure") or [BLOCK])[0])
    return Quantisation(found, group, not weights.get("symmetric", True), ignored)


def _matches(pattern: str, module: str) -> bool:
    """The three spellings in use: re:<regex>, a glob, or a piece of the dotted name between dots."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    if "*" in pattern:
        return fnmatch.fnmatchcase(module, pattern) or fnmatch.fnmatchcase(module, pattern + ".*")
    return f".{pattern}." in f".{module}."


def common(flags: Mapping[str, Sequence[bool]]) -> tuple[str, ...]:
    """Parts that stay at 16 bits in every layer ("attention") or in some ("attention of 2 layers"), for display."""
    lines = []
    for part, kept in flags.items():
        if kept and all(kept):
            lines.append(part)
        elif any(kept):
            lines.append(f"{part} of {sum(kept)} layers")
    return tuple(lines)
