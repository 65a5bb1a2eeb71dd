"""What a kernel's machine code says: registers, stack, and the instructions of its main loop.

Uses the disassemblers that come with Triton, so no GPU and no CUDA toolkit are needed.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_MMA = ("HGMMA", "QGMMA", "IGMMA", "HMMA", "IMMA", "QMMA", "DMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA")
_LOOKED_FOR = {
    "ldsm": ("LDSM",),
    "ldgsts": ("LDGSTS",),
    "utmaldg": ("UTMALDG",),
    "lds": ("LDS",),
    "sts": ("STS", "STSM"),
    "ldg": ("LDG",),
    "stg": ("STG",),
    "bar": ("BAR", "SYNCS", "WARPSYNC"),
    "warpgroup": ("WARPGROUP",),
    "special": ("MUFU",),
}
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*)$")
_LABEL = re.compile(r"^\s*(\.L_x_\d+|\.L_\d+):")
_TARGET = re.compile(r"(\.L_x_\d+|\.L_\d+)")
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction: byte address, opcode with modifiers, and the label it branches to if any."""

    address: int
    opcode: str
    target: str | None

    @property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.split(".", 1)[0]


@dataclass(frozen=True, slots=True)
class Code:
    """A disassembled kernel."""

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]


def _tool(name: str) -> str:
    import triton

    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers a thread and stack bytes a thread (spills live there) of the kernel in a cubin."""
    text = _run("cuobjdump", ["-res-usage"], cubin)
    found = _RESOURCES.search(text)
    if found is None:
        raise ValueError(f"no register figure in cuobjdump's answer: {text[-200:]!r}")
    return int(found[1]), int(found[2])


def _run(tool: str, options: list[str], cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([_tool(tool), *options, file.name], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def listing(cubin: bytes) -> str:
    """Nvdisasm's listing of the kernel in a cubin."""
    return _run("nvdisasm", ["-c", "-ndf"], cubin)


def disassemble(cubin: bytes) -> Code:
    """Disassemble the kernel in a cubin."""
    return parse(listing(cubin))


def parse(text: str) -> Code:
    """Read nvdisasm's listing."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label:
            waiting.append(label[1])
            continue
        found = _INSTRUCTION.match(line)
        if not found:
            continue
        address, opcode, rest = int(found[1], 16), found[2], found[3]
        labels.update(dict.fromkeys(waiting, address))
        waiting = []
        target = _TARGET.search(rest) if opcode.startswith("BRA") else None
        instructions.append(Instruction(address, opcode, target[1] if target else None))
    return Code(tuple(instructions), labels)


def loops(code: Code) -> list[tuple[Instruction, ...]]:
    """The bodies closed by a backward branch, smallest first."""
    bodies: dict[tuple[int, int], None] = {}
    for instruction in code.instructions:
        start = code.labels.get(instruction.target) if instruction.target else None
        if start is not None and start < instruction.address:
            bodies[(start, instruction.address)] = None
    return sorted((tuple(i for i in code.instructions if a <= i.address <= b) for a, b in bodies), key=len)


def _mma_count(body: tuple[Instruction, ...]) -> int:
    return sum(i.base in _MMA for i in body)


def mma_loops(code: Code) -> list[tuple[Instruction, ...]]:
    """The innermost loops that multiply: one, or one a warp group when the warps are specialised.

    Waiting code placed behind a loop jumps back into its middle and looks like a second, longer loop; overlaps go to the shorter.
    """
    kept: list[tuple[Instruction, ...]] = []
    for body in loops(code):
        if _mma_count(body) and all(body[-1].address < k[0].address or k[-1].address < body[0].address for k in kept):
            kept.append(body)
    return kept


def loop_facts(code: Code) -> dict[str, int | str]:
    """Instruction counts of the main loop (see the module's table of names), per warp and iteration.

    A kernel whose warps are specialised loads in a loop of its own: its loads are counted from there. `mma_loops` counts
    the innermost loops that multiply; `loop_instructions` is the body's length; `mma_kind` and `mma_shape` name the multiply.
    """
    multiplying = mma_loops(code)
    body = max(multiplying, key=_mma_count, default=())
    everywhere = Counter(i.opcode for i in code.instructions if i.base in _MMA)
    in_loop = Counter(i.opcode for i in body if i.base in _MMA)
    opcode = max(in_loop or everywhere, key=(in_loop or everywhere).__getitem__, default="")
    counts = Counter(i.base for i in body)
    facts: dict[str, int | str] = {
        "mma_kind": opcode.split(".", 1)[0].lower(),
        "mma_shape": next((part for part in opcode.split(".") if part[:1].isdigit()), ""),
        "mma": _mma_count(body),
        "mma_total": sum(everywhere.values()),
        "loop_instructions": len(body),
    }
    for name, opcodes in _LOOKED_FOR.items():
        facts[name] = sum(counts[o] for o in opcodes)
    facts["mma_loops"] = len(multiplying)
    if body and not facts["utmaldg"] and not facts["ldgsts"]:
        fetching = [b for b in loops(code) if any(i.base == "UTMALDG" for i in b)]
        facts["utmaldg"] = sum(i.base == "UTMALDG" for i in fetching[0]) if fetching else 0
    return facts
