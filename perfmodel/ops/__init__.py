"""Operators: from shapes to Work. Pure, broadcasting, no hardware."""

from perfmodel.ops.attention import Attention
from perfmodel.ops.collective import Collective
from perfmodel.ops.gemm import Gemm, gemm_work
from perfmodel.ops.memory import MemoryBound
from perfmodel.ops.mla import MLA
from perfmodel.ops.moe import MoE
from perfmodel.ops.work import Work

__all__ = ["MLA", "Attention", "Collective", "Gemm", "MemoryBound", "MoE", "Work", "gemm_work"]
