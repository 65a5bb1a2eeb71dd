"""Tunable kernel families: the configuration space, the rules with reasons and the physical terms of each, one file a family.

A family is a module of this package that has every name of family.KernelFamily and registers itself; one that the project measures itself
has a namesake in measure/kernels/.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from perfmodel.errors import InputError, unknown_name

if TYPE_CHECKING:
    from perfmodel.kernels.family import KernelFamily

_SHARED = ("anykernel", "attention", "configs", "facts", "family", "terms", "tiled")
FAMILIES = tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _SHARED))
"""Those of this package; others may be registered beside them."""


def kernel_family(name: str) -> KernelFamily:
    """The family of that name; raises InputError for an unknown one."""
    from perfmodel.kernels.family import REGISTRY

    if name in FAMILIES and name not in REGISTRY:
        importlib.import_module(f"perfmodel.kernels.{name}")
    if name not in REGISTRY:
        raise unknown_name("kernel", name, families())
    return REGISTRY[name]


def families() -> tuple[str, ...]:
    """Names of all families."""
    from perfmodel.kernels.family import REGISTRY

    return (*FAMILIES, *(name for name in REGISTRY if name not in FAMILIES))


def family_for(op: Any) -> str:
    """The family that computes an operator, one of its own name first; raises InputError for one that none does."""
    for name in sorted(families(), key=lambda name: name != op.kind):
        if kernel_family(name).computes(op):
            return name
    raise InputError(f"no Triton kernel family for a {op.kind}: known are {', '.join(families())}")


@functools.cache
def config_columns(name: str) -> tuple[str, ...]:
    """The variant and the config columns of a family, in the order they are shown."""
    return ("variant", *kernel_family(name).COLUMNS)
