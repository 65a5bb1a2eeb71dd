"""The project's own Triton kernels, one module a family, behind one small interface.

A *problem* is a mapping with the sizes of the operator and its `dtype` ({"m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"});
a *config* is a mapping with the family's tunable keys. Nothing here imports torch or triton until a function is called.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.errors import unknown_name
from perfmodel.kernels import FAMILIES

Problem = Mapping[str, Any]
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CompileSpec:
    """What Triton needs to compile one binary without a GPU: the jitted function, argument types, constants, attributes, options."""

    function: Any
    signature: dict[str, str]
    constexprs: dict[str, Any]
    attrs: dict[tuple[int, ...], Any]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prepared:
    """One kernel ready to launch: `run` only launches; `output` is the tensor it writes."""

    run: Callable[[], object]
    output: Any


@dataclass(frozen=True, slots=True)
class KernelFamily:
    """One tunable kernel: how to make its inputs, check it, compile it and launch it.

    `illegal(problem, config, arch)` gives the reason why a config cannot run, or None. `binary_of(problem, config)` reduces a
    config to what decides its machine code, so that configs differing only in run-time arguments share one compilation.
    `compile_spec(binary, dtype, arch)` describes that compilation. `baselines` are library calls timed beside the kernel.
    """

    name: str
    config_keys: tuple[str, ...]
    problem_keys: tuple[str, ...]
    dtypes: tuple[str, ...]
    tolerance: Mapping[str, float]
    source_hash: Callable[[], str]
    illegal: Callable[[Problem, Config, int], str | None]
    binary_of: Callable[[Problem, Config], dict[str, Any]]
    compile_spec: Callable[[Mapping[str, Any], str, int], CompileSpec]
    make_inputs: Callable[[Problem, str, int], dict[str, Any]]
    reference: Callable[[Mapping[str, Any]], Any]
    prepare: Callable[[Mapping[str, Any], Config], Prepared]
    baselines: Mapping[str, Callable[[Mapping[str, Any]], Prepared]]


def family(name: str) -> KernelFamily:
    """The kernel family of that name; raises InputError for an unknown one."""
    if name not in FAMILIES:
        raise unknown_name("kernel", name, FAMILIES)
    found: KernelFamily = importlib.import_module(f"perfmodel.measure.kernels.{name}").FAMILY
    return found
