"""What every operator has: a kind and an element type."""

from __future__ import annotations

from typing import Protocol

from perfmodel.errors import InputError, shown


class Operator(Protocol):
    """Anything with a kind and a dtype: Gemm, Attention, MoE, Collective, MemoryBound."""

    @property
    def kind(self) -> str:
        """`gemm`, `attention`, `moe`, `collective` or `memory`."""
        ...

    @property
    def dtype(self) -> str:
        """Element type."""
        ...


def check_operator(op: object) -> None:
    """Raise InputError for what is no operator, such as its name."""
    if not hasattr(op, "kind") or not hasattr(op, "dtype"):
        raise InputError(f"op is {shown(op)}: expected an operator such as Gemm(4096, 14336, 4096)")


def operator_kind(op: Operator) -> str:
    """Kind of the tables that an operator is a row of: gemm, attention, mla, moe, collective, memory ..."""
    return str(getattr(op, "operator", None) or op.kind)
