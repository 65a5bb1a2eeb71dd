"""What the machine code of one binary says: registers, shared memory, spills, and what each of its loops executes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Code:
    """Instructions of one loop body (or of everything outside loops), per warp and pass through it.

    multiplies: tensor-core instructions; multiply_flops: operations of all of them, for one warp; warpgroup: whether they are warp-group
    multiplies (their operations are then the four warps' together); rate: the tensor rate they run at; serialised: how many wait for
    the one before; special: MUFU; float_: FADD, FMUL, FFMA; alu: compare, select, minimum, convert, integer; shuffles; ldsm, lds, sts:
    shared-memory accesses; barriers; load_bytes, store_bytes: global memory, bytes a thread; tma: loads by the tensor-memory accelerator.
    """

    instructions: float = 0.0
    multiplies: float = 0.0
    multiply_flops: float = 0.0
    warpgroup: bool = False
    rate: str = ""
    serialised: float = 0.0
    special: float = 0.0
    float_: float = 0.0
    alu: float = 0.0
    shuffles: float = 0.0
    ldsm: float = 0.0
    lds: float = 0.0
    sts: float = 0.0
    barriers: float = 0.0
    load_bytes: float = 0.0
    store_bytes: float = 0.0
    tma: float = 0.0


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """How the compiler scheduled one loop of the source: copies that run ahead (asynchronous), loads that the warps wait for, multiplies

    whose left operand comes from registers, and buffers of the ring that the copies fill.
    """

    copies: int = 0
    waiting_loads: int = 0
    dots: int = 0
    register_dots: int = 0
    buffers: int = 1


@dataclass(frozen=True, slots=True)
class Binary:
    """One compiled config: bytes of shared memory a block, registers and spilled bytes a thread, warps, and its code.

    loops, plans: machine loops that do the work, in order of address, and the source's loops in order; outside: all other instructions.
    """

    shared_bytes: int
    regs: int
    spill_bytes: int
    num_warps: int
    num_stages: int
    outside: Code
    loops: tuple[Code, ...]
    plans: tuple[LoopPlan, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Binary:
        """From what `to_dict` gave; raises TypeError or KeyError for other data."""
        values = {f.name: data[f.name] for f in fields(cls)}
        values |= {"outside": Code(**data["outside"]), "loops": tuple(Code(**c) for c in data["loops"])}
        return cls(**values | {"plans": tuple(LoopPlan(**p) for p in data["plans"])})
