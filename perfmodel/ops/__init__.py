"""Operators: from shapes to Work, and tables of them. Pure, broadcasting, no hardware.

One file an operator: the class that is one call, its Work, and the kind that registers it for tables (kinds.py).
"""

import importlib
import pkgutil

from perfmodel.ops.attention import Attention
from perfmodel.ops.collective import Collective
from perfmodel.ops.gemm import Gemm, gemm_work
from perfmodel.ops.memory import MemoryBound
from perfmodel.ops.mla import MLA
from perfmodel.ops.moe import MoE
from perfmodel.ops.table import OperatorTable
from perfmodel.ops.work import Work

__all__ = ["MLA", "Attention", "Collective", "Gemm", "MemoryBound", "MoE", "OperatorTable", "Work", "gemm_work"]

for _module in pkgutil.iter_modules(__path__):  # each registers its kind
    importlib.import_module(f"{__name__}.{_module.name}")
