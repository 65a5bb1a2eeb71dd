"""Tunable kernel families: the configuration space, the rules with reasons and the physical terms of each, one file a family.

A family is a module of this package with a namesake in measure/kernels/. It says, in constants: NAME; SIZES of its problem, FLAGS
among them that may be 0, ALIASES of other people's columns, ARGUMENTS of their kernels, DEFAULTS; VARIANTS of its code (the first is
the ordinary kernel) and PLAIN, the name for somebody else's kernel of that form; config COLUMNS, the REQUIRED ones among them, and TWINS,
the columns whose equality makes two configs near twins; BINARY, what decides the machine code, and FIXED, what else the compiler is told.
In functions: computes, operator and sizes_of an operator, rate_of a dtype, space, portable_space and binaries, code_of (the BINARY
columns), formula (facts without compiling), rules, terms.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType
from typing import Any

from perfmodel.errors import InputError, unknown_name

_SHARED = ("anykernel", "attention", "configs", "facts", "terms", "tiled")
FAMILIES = tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _SHARED))


def kernel_family(name: str) -> ModuleType:
    """The module of a kernel family; raises InputError for an unknown one."""
    if name not in FAMILIES:
        raise unknown_name("kernel", name, FAMILIES)
    return importlib.import_module(f"perfmodel.kernels.{name}")


def family_for(op: Any) -> str:
    """The family that computes an operator, one of its own name first; raises InputError for one that none does."""
    for name in sorted(FAMILIES, key=lambda name: name != op.kind):
        if kernel_family(name).computes(op):
            return name
    raise InputError(f"no Triton kernel family for a {op.kind}: known are {', '.join(FAMILIES)}")


@functools.cache
def config_columns(name: str) -> tuple[str, ...]:
    """The variant and the config columns of a family, in the order they are shown."""
    return ("variant", *kernel_family(name).COLUMNS)
