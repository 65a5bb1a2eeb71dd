"""Operators: from shapes to Work. Pure, broadcasting, no hardware."""

from perfmodel.ops.gemm import Gemm, gemm_work
from perfmodel.ops.work import Work

__all__ = ["Gemm", "Work", "gemm_work"]
