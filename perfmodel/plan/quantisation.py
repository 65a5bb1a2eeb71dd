"""Which element types a checkpoint's weights are in: from a Hugging Face quantization_config, or asked for by name."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.boundary import validated
from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError, shown, unknown_name
from perfmodel.plan.config_schema import QuantizationConfig, Weights

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
    if not isinstance(name, str) or name.strip().lower() in ("none", ""):
        raise InputError(f"quantization {shown(name)}: leave it out to take the model as it is published, or say bf16, fp8, int4_wo ...")
    key = name.strip().lower()
    kind = _NAMES.get(key) or _known(key, name)
    if kind == "fp32":
        raise InputError(
            "quantization fp32: no serving stack keeps weights in it; use bf16, fp16, fp8, fp8_block, int8, int4_wo, nvfp4 or mxfp4"
        )
    return Quantisation(kind, _GROUP.get(kind, 0), kind == "int4_wo" and key == "awq", _KEPT if kind not in PLAIN else ())


def _known(key: str, name: str) -> str:
    try:
        return parse_dtype(key).name
    except InputError:
        raise unknown_name("quantization", name, (*_GROUP, *PLAIN, "fp8", "int8", "int8_wo")) from None


def from_config(config: Mapping[str, Any] | None, plain: str, where: str = "config.json") -> Quantisation:
    """Read a quantization_config; without one the weights are `plain` ("bf16", "fp16"). Raises InputError naming what it does not know."""
    if not config:
        return Quantisation(plain)
    where = f"{where}: quantization_config"
    found = validated(QuantizationConfig, config, where)
    method = (found.quant_method or found.quant_type or "").lower().replace("_", "-")
    lists = (found.modules_to_not_convert, found.ignored_layers, found.ignore, found.exclude_modules, found.llm_int8_skip_modules)
    ignored = tuple(pattern for patterns in lists for pattern in patterns or ())
    _compiles(ignored, where)
    head = bool(found.lm_head)
    if method in ("fp8", "fbgemm-fp8"):
        block = found.weight_block_size
        return Quantisation("fp8_block" if block else "fp8", block[0] if block else 0, False, ignored, head)
    if method == "mxfp4":
        return Quantisation("mxfp4", 32, False, ignored, head)
    if method in ("awq", "gptq", "gptqmodel", "auto-round", "autoround", "awq-marlin", "gptq-marlin"):
        return _weight_only(found, ignored, head, where)
    if method == "bitsandbytes":
        four = bool(found.load_in_4bit)
        return Quantisation("nf4" if four else "int8_wo", 64 if four else 0, False, ignored, head)
    if method == "modelopt" or found.quant_algo is not None:
        algorithm = (found.quant_algo or "").upper()
        kind = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_AWQ": "int4_wo", "INT4_AWQ": "int4_wo", "W8A8_SQ_PER_CHANNEL": "int8"}.get(algorithm)
        if kind is None:
            raise InputError(f"{where}.quant_algo = {shown(algorithm)}: FP8, NVFP4, W4A16_AWQ and W8A8_SQ_PER_CHANNEL are known")
        return Quantisation(kind, _GROUP.get(kind, 0), False, ignored, head)
    if method == "compressed-tensors":
        return _compressed(found, ignored, where)
    known = "fp8, fbgemm_fp8, mxfp4, awq, gptq, bitsandbytes, modelopt, compressed-tensors"
    raise InputError(f"{where}.quant_method = {shown(method)}: known are {known}; or pass quantization (--quantization) to say what it is")


def _weight_only(found: QuantizationConfig, ignored: tuple[str, ...], head: bool, where: str) -> Quantisation:
    """AWQ, GPTQ and their relatives."""
    bits = found.bits if found.bits is not None else found.w_bit if found.w_bit is not None else 4
    if bits not in (4, 8):
        raise InputError(f"{where}.bits = {bits}: weight-only checkpoints of 4 or 8 bits are known")
    zeros = found.zero_point if found.zero_point is not None else not (True if found.sym is None else found.sym)
    group = next((g for g in (found.group_size, found.q_group_size) if g is not None), 128)
    return Quantisation("int4_wo" if bits == 4 else "int8_wo", max(group, 0), zeros, ignored, head)


def _compiles(patterns: Sequence[str], where: str) -> None:
    """Raise InputError for a pattern that is no regular expression."""
    for pattern in patterns:
        if pattern.startswith("re:"):
            try:
                re.compile(pattern[3:])
            except (re.error, RecursionError, OverflowError) as error:
                raise InputError(f"{where}: pattern {shown(pattern)} is no regular expression ({error})") from None


def _compressed(config: QuantizationConfig, ignored: tuple[str, ...], where: str) -> Quantisation:
    if not config.config_groups:
        raise InputError(f"{where}.config_groups is missing: compressed-tensors says there what is quantised")
    first = next(iter(config.config_groups.values()))
    weights = first.weights or Weights()
    group = max(weights.group_size or 0, 0)
    names = {
        ("float", 8): "fp8_block" if weights.strategy == "block" else "fp8",
        ("int", 8): "int8" if first.input_activations else "int8_wo",
        ("int", 4): "int4_wo",
        ("float", 4): "mxfp4" if group == 32 else "nvfp4",
    }
    found = names.get((weights.type or "", weights.num_bits or 0))
    if found is None:
        raise InputError(
            f"{where}: weights of type {shown(weights.type)} with {weights.num_bits} bits: known are float 8 and 4, int 8 and 4"
        )
    if found == "fp8_block":
        group = weights.block_structure[0] if weights.block_structure else BLOCK
    return Quantisation(found, group, weights.symmetric is False, ignored)


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
