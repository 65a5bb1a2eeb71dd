"""Reads a compiled kernel of anybody's: TTIR for the work, TTGIR for the schedule, machine code for what runs. Needs no GPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from perfmodel.kernels.anykernel import ir
from perfmodel.kernels.anykernel.facts import Binary, Code, LoopPlan
from perfmodel.measure import sass

_SPECIAL = ("MUFU",)
_FLOAT = ("FADD", "FMUL", "FFMA", "HADD2", "HMUL2", "HFMA2", "IMAD", "FADD2", "FMUL2", "FFMA2")
_ALU = (
    "FMNMX", "FSEL", "FSETP", "F2FP", "F2F", "I2F", "I2FP", "F2I", "ISETP", "IADD3", "VIADD", "LOP3", "SEL", "PRMT", "LEA", "SHF", "PLOP3",
    "IMNMX", "VIMNMX", "HMNMX2", "FMNMX3", "IABS", "MOV", "SGXT", "POPC",
)  # fmt: skip
_GLOBAL_LOADS = ("LDG", "LDGSTS", "LD")
_GLOBAL_STORES = ("STG", "ST", "RED", "ATOMG")
_WARPGROUP = ("HGMMA", "QGMMA", "IGMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA")
_RATES = {"H": "bf16", "Q": "fp8", "I": "int8", "D": "fp64"}


def read(ttgir: str, listing: str, *, shared_bytes: int, regs: int, stack_bytes: int, num_warps: int, num_stages: int) -> Binary:
    """Facts of one binary from its TTGIR, nvdisasm's listing and the compiler's own figures."""
    code = sass.parse(listing)
    bodies = _working_loops(code)
    inside = {i.address for body in bodies for i in body}
    outside = [i for i in code.instructions if i.address not in inside]
    return Binary(
        shared_bytes=shared_bytes,
        regs=regs,
        spill_bytes=stack_bytes,
        num_warps=num_warps,
        num_stages=num_stages,
        outside=count(outside),
        loops=tuple(count(body) for body in bodies),
        plans=plans(ttgir),
    )


def _working_loops(code: sass.Code) -> list[tuple[sass.Instruction, ...]]:
    """Innermost loops that multiply or touch global memory, in order of address; overlaps go to the shorter, spins are left out."""
    kept: list[tuple[sass.Instruction, ...]] = []
    for body in sass.loops(code):
        works = any(i.base in (*_GLOBAL_LOADS, *_GLOBAL_STORES, "UTMALDG", "MUFU") or "MMA" in i.base for i in body)
        if works and all(body[-1].address < k[0].address or k[-1].address < body[0].address for k in kept):
            kept.append(body)
    return sorted(kept, key=lambda body: body[0].address)


def count(body: Sequence[sass.Instruction]) -> Code:
    """Instruction counts of one body; see Code."""
    bases = Counter(i.base for i in body)
    multiplies = [i for i in body if "MMA" in i.base and not i.base.startswith("WARP")]
    first = multiplies[0].base if multiplies else ""
    warpgroup = first in _WARPGROUP
    fences = bases["WARPGROUP"]
    rate = "tf32" if multiplies and "TF32" in multiplies[0].opcode else _RATES.get(first.removeprefix("UTC")[:1], "")
    return Code(
        instructions=float(len(body) - bases["NOP"]),
        multiplies=float(len(multiplies)),
        multiply_flops=sum(_flops(i.opcode) for i in multiplies),
        warpgroup=warpgroup,
        rate=rate,
        serialised=float(len(multiplies)) if warpgroup and fences >= 2 * len(multiplies) else 0.0,
        special=_sum(bases, _SPECIAL),
        float_=_sum(bases, _FLOAT),
        alu=_sum(bases, _ALU),
        shuffles=float(bases["SHFL"]),
        ldsm=float(bases["LDSM"]),
        lds=float(bases["LDS"]),
        sts=float(bases["STS"] + bases["STSM"]),
        barriers=float(bases["BAR"] + bases["SYNCS"]),
        load_bytes=sum(_width(i.opcode) for i in body if i.base in _GLOBAL_LOADS),
        store_bytes=sum(_width(i.opcode) for i in body if i.base in _GLOBAL_STORES),
        tma=float(bases["UTMALDG"]),
    )


def _sum(bases: Counter[str], names: Sequence[str]) -> float:
    return float(sum(bases[name] for name in names))


def _flops(opcode: str) -> float:
    """Operations of one multiply: `HMMA.16816` is 16 x 8 x 16 for a warp, `HGMMA.64x128x16` for a warp group; 0 where it does not say."""
    for part in opcode.split("."):
        shape = re.fullmatch(r"(\d+)x(\d+)x(\d+)", part) or re.fullmatch(r"(16|8)(8|16)(4|8|16|32|64|128)", part)
        if shape:
            return 2.0 * int(shape[1]) * int(shape[2]) * int(shape[3])
    return 0.0


def _width(opcode: str) -> float:
    """Bytes that one thread moves: `.128` is 16, `.64` 8, `.U16` 2, `.U8` 1, 4 without a mark."""
    parts = opcode.split(".")
    for mark, size in (("128", 16.0), ("64", 8.0), ("U16", 2.0), ("S16", 2.0), ("U8", 1.0), ("S8", 1.0)):
        if mark in parts:
            return size
    return 4.0


def plans(ttgir: str) -> tuple[LoopPlan, ...]:
    """How each source loop was scheduled, in the order of the code (outer before inner)."""
    kernel = ir.parse(ttgir)
    rings = [int(n) for n in re.findall(r"local_alloc\s*:\s*\(\)\s*->\s*!ttg\.memdesc<(\d+)x\d+x", ttgir)]
    found: list[LoopPlan] = []
    for op in kernel.body.walk():
        if op.name not in ("scf.for", "scf.while"):
            continue
        own = [o for region in op.regions for o in _own(region)]
        dots = [o for o in own if o.name in ("tt.dot", "tt.dot_scaled") or o.name.endswith(("warp_group_dot", "tc_gen5_mma"))]
        found.append(
            LoopPlan(
                copies=sum("async_copy" in o.name or "async_tma_copy" in o.name for o in own),
                waiting_loads=sum(o.name in ("tt.load", "tt.descriptor_load") and len(o.type.shape) > 0 for o in own),
                dots=len(dots),
                register_dots=sum(o.name.endswith("warp_group_dot") and bool(re.search(r": tensor<", o.text)) for o in dots),
                buffers=max(rings, default=1),
            )
        )
    return tuple(found)


def _own(region: ir.Region) -> list[ir.Op]:
    """Operations of a loop's body without those of loops inside it."""
    kept: list[ir.Op] = []
    for op in region.ops:
        kept.append(op)
        if op.name == "scf.if":
            kept += [o for inner in op.regions for o in _own(inner)]
    return kept
