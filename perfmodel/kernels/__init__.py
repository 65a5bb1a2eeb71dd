"""Tunable kernel families: the configuration space, the rules with reasons and the physical terms of each, one file a family."""

from __future__ import annotations

import importlib
from types import ModuleType

from perfmodel.errors import unknown_name

FAMILIES = ("gemm",)


def kernel_family(name: str) -> ModuleType:
    """The module of a kernel family; raises InputError for an unknown one."""
    if name not in FAMILIES:
        raise unknown_name("kernel", name, FAMILIES)
    return importlib.import_module(f"perfmodel.kernels.{name}")
