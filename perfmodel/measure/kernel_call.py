"""One call of somebody's Triton kernel as plain data: argument types, constants, alignment, sizes, from arguments or descriptions of them.

An argument is described by its value (a number; a torch tensor, real, meta or numpy; a TensorDescriptor) or by its type: "*bf16" for a
pointer, "*bf16[4096, 1024]" with its shape, "tensordesc<bf16[BLOCK_M, BLOCK_K]>" for a descriptor whose sides may name constants.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.errors import InputError, shown

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Keywords of a config that are the compiler's, not the kernel's."""

_TYPES = {
    "bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
    "int8": "i8", "uint8": "u8", "int16": "i16", "int32": "i32", "int64": "i64", "bool": "i1", "half": "fp16", "float": "fp32",
    "fp8": "fp8e4nv",
}  # fmt: skip
_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8, "fp8e4nv": 1, "fp8e5": 1, "i8": 1, "u8": 1, "i16": 2, "i32": 4, "i64": 8, "i1": 1}
_POINTER = re.compile(r"\*\s*(\w+)\s*(?:\[([\d,\s]+)\])?$")
_DESCRIPTOR = re.compile(r"tensordesc<\s*(\w+)\s*\[([\w,\s]+)\]\s*>$")
_LONG = 2**31


@dataclass(frozen=True, slots=True)
class Call:
    """What Triton needs to compile one config for one call, and what the law needs of the call.

    signature: type of every argument ("constexpr" for constants); constants: their values; aligned: places of arguments that are
    multiples of 16; options: num_warps, num_stages ...; values: numbers passed at run time; sizes: bytes behind a pointer where known;
    contents: what integer tensors hold, flat.
    """

    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    aligned: tuple[int, ...]
    options: Mapping[str, Any]
    values: Mapping[str, float]
    sizes: Mapping[str, float] = field(default_factory=dict)
    contents: Mapping[str, Any] = field(default_factory=dict)

    @property
    def every_value(self) -> dict[str, Any]:
        """Run-time numbers and constants by name: what a grid is computed from."""
        return {**self.values, **self.constants}


def jit_function(kernel: Any) -> tuple[Any, Mapping[str, Any], Sequence[Any] | None]:
    """(the @triton.jit function, rules of its heuristics, configs of its autotuner) under any decorators; InputError for anything else."""
    heuristics: dict[str, Any] = {}
    configs: Sequence[Any] | None = None
    found = kernel
    for _ in range(16):
        if hasattr(found, "params") and hasattr(found, "arg_names") and hasattr(found, "cache_key"):
            return found, heuristics, configs
        if configs is None and hasattr(found, "configs"):
            configs = list(found.configs)
        if isinstance(getattr(found, "values", None), Mapping):
            heuristics = {**found.values, **heuristics}
        if not hasattr(found, "fn"):
            break
        found = found.fn
    raise InputError(f"kernel must be a function decorated with @triton.jit, not {type(kernel).__name__}")


def config_fields(config: Any, position: int = 0) -> dict[str, Any]:
    """A mapping or a triton.Config as one flat mapping of the kernel's keywords and the compiler's options."""
    if isinstance(config, Mapping):
        nested = config.get("kwargs")
        flat = {**nested, **{k: v for k, v in config.items() if k != "kwargs"}} if isinstance(nested, Mapping) else dict(config)
        return {str(k): v for k, v in flat.items()}
    keywords = getattr(config, "kwargs", None)
    if not isinstance(keywords, Mapping):
        raise InputError(f"config {position} is a {type(config).__name__}; expected a mapping or a triton.Config")
    own = {name: getattr(config, name, None) for name in OPTIONS}
    return {**keywords, **{k: v for k, v in own.items() if v is not None and not (k == "num_ctas" and v == 1)}}


def type_name(dtype: Any) -> str:
    """Triton's name of an element type under any spelling; raises InputError for an unknown one."""
    name = str(dtype).removeprefix("torch.").strip()
    name = _TYPES.get(name, name)
    if name not in _BYTES:
        raise InputError(f"unknown element type {dtype!s}: known: {', '.join(sorted({*_BYTES, *_TYPES}))}")
    return name


def describe(
    kernel: Any, heuristics: Mapping[str, Any], arguments: Mapping[str, Any], config: Mapping[str, Any], pointer_type: str | None = None
) -> Call:
    """The call of `kernel` with `arguments` under one config.

    Numbers are specialised on as Triton's launcher does: 1 becomes a constant, multiples of 16 are noted, unless the kernel forbids it.
    pointer_type: element type of pointers that no argument describes (names that end in ptr). Raises InputError naming what is missing.
    """
    options = {k: config[k] for k in OPTIONS if config.get(k) is not None}
    given = {**arguments, **{k: v for k, v in config.items() if k not in OPTIONS}}
    for name, rule in heuristics.items():
        if name not in given:
            given[name] = rule({**given, **options})
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    values: dict[str, float] = {}
    sizes: dict[str, float] = {}
    contents: dict[str, Any] = {}
    aligned: list[int] = []
    missing: list[str] = []
    for place, parameter in enumerate(kernel.params):
        name = parameter.name
        if name in given:
            value = given[name]
        elif parameter.has_default:
            value = parameter.default
        elif pointer_type is not None and not parameter.is_constexpr and re.search(r"ptr$|ptrs?$|_p$|_pointer$", name.lower()):
            value = f"*{pointer_type}"
        else:
            missing.append(name)
            continue
        if parameter.is_constexpr or value is None:
            signature[name], constants[name] = "constexpr", getattr(value, "value", value)
            continue
        kind, aligns = _kind(name, value, {**given})
        if kind in ("i32", "i64") and value == 1 and not parameter.do_not_specialize:
            signature[name], constants[name] = "constexpr", 1
            continue
        signature[name] = kind
        fixed = parameter.do_not_specialize or getattr(parameter, "do_not_specialize_on_alignment", False)
        if aligns and not (fixed and not kind.startswith("*")):
            aligned.append(place)
        if kind.startswith("*"):
            _tensor(name, value, kind, sizes, contents)
        elif not kind.startswith("tensordesc"):
            values[name] = value
    if missing:
        raise InputError(
            f"no value for argument{'s' * (len(missing) > 1)} {', '.join(missing)} of {_name(kernel)}: give a number, a tensor, or for a "
            "pointer its type, like '*bf16'"
        )
    unknown = sorted(set(config) - set(OPTIONS) - {p.name for p in kernel.params})
    if unknown:
        raise InputError(
            f"{_name(kernel)} has no argument {', '.join(unknown)}, which the config sets; it has {', '.join(kernel.arg_names)}"
        )
    return Call(signature, constants, tuple(aligned), options, values, sizes, contents)


def _name(kernel: Any) -> str:
    return str(getattr(kernel, "__name__", "the kernel"))


def _kind(name: str, value: Any, known: Mapping[str, Any]) -> tuple[str, bool]:
    """(Triton's type of a run-time argument, whether it is a multiple of 16)."""
    if isinstance(value, bool | np.bool_):
        return "i1", False
    if isinstance(value, int | np.integer):
        if not -(2**63) <= value < 2**64:
            raise InputError(f"{name} = {value} does not fit 64 bits")
        return "i32" if -_LONG <= value < _LONG else "i64", value % 16 == 0
    if isinstance(value, float | np.floating):
        return "fp32", False
    if isinstance(value, str):
        return _described(name, value, known)
    if hasattr(value, "block_shape") and hasattr(value, "base"):
        return f"tensordesc<{type_name(value.base.dtype)}[{', '.join(str(s) for s in value.block_shape)}]>", False
    if hasattr(value, "dtype"):
        address = value.data_ptr() if hasattr(value, "data_ptr") and not getattr(value, "is_meta", False) else 0
        return f"*{type_name(value.dtype)}", address % 16 == 0
    raise InputError(f"argument {name} is a {type(value).__name__}: give a number, a tensor, or a pointer's type like '*bf16'")


def _described(name: str, text: str, known: Mapping[str, Any]) -> tuple[str, bool]:
    pointer = _POINTER.match(text.strip())
    if pointer:
        return f"*{type_name(pointer[1])}", True
    descriptor = _DESCRIPTOR.match(text.strip())
    if descriptor:
        sides = [str(known.get(side.strip(), side.strip())) for side in descriptor[2].split(",")]
        if not all(side.isdigit() for side in sides):
            raise InputError(f"argument {name}: {shown(text)} names a side that is neither a number nor a constant of the config")
        return f"tensordesc<{type_name(descriptor[1])}[{', '.join(sides)}]>", False
    raise InputError(
        f"argument {name} = {shown(text)}: expected a number, a pointer's type like '*bf16' or '*bf16[4096, 1024]', or a descriptor's"
    )


def _tensor(name: str, value: Any, kind: str, sizes: dict[str, float], contents: dict[str, Any]) -> None:
    """What a pointer points at: its bytes, and where it holds few whole numbers on the host, those."""
    width = _BYTES[kind[1:]]
    if isinstance(value, str):
        shape = _POINTER.match(value.strip())
        if shape and shape[2]:
            sizes[name] = float(np.prod([int(s) for s in shape[2].split(",")], dtype=np.float64)) * width
        return
    shape_of = getattr(value, "shape", None)
    if shape_of is not None:
        sizes[name] = float(np.prod([int(s) for s in shape_of], dtype=np.float64)) * width
    on_host = isinstance(value, np.ndarray) or str(getattr(value, "device", "")) == "cpu"
    if on_host and kind[1:] in ("i32", "i64", "i16", "i8"):
        contents[name] = np.asarray(value).reshape(-1)
