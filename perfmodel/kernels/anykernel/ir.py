"""Reads Triton's target-independent representation (TTIR) as text into a tree of operations. Pure; needs no Triton.

TTIR is MLIR in static single assignment form: every value has one definition, loops and branches are nested regions, and tensors carry
their shape in their type. Source of the grammar: MLIR Language Reference, https://mlir.llvm.org/docs/LangRef/, and the Triton dialect.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_LOCATION = re.compile(r"\s*loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_VALUE = re.compile(r"%[\w.\-]+(?:#\d+)?")
_RESULTS = re.compile(r"^((?:%[\w.\-]+(?::\d+)?(?:, )?)+) = (.*)$")
_NAME = re.compile(r'^"?([a-z_]+\.[\w.]+)"?')
_FUNCTION = re.compile(r"tt\.func public @([\w.]+)\((.*)\)")
_ARGUMENT = re.compile(r"(%[\w.\-]+): ([^,%{]+(?:<[^>]*>)?[^,%{]*)")
_FOR = re.compile(r"scf\.for (?:unsigned )?(%\S+) = (%\S+) to (%\S+) step (%\S+)(?: iter_args\((.*?)\))?[ :]")
_BITS = {"i1": 8, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "index": 64}


@dataclass(frozen=True, slots=True)
class Type:
    """Shape of a tensor (empty for a scalar) and its element: `f32`, `bf16`, or `ptr` with the pointee in `to`."""

    shape: tuple[int, ...]
    element: str
    to: str = ""

    @property
    def count(self) -> int:
        """Elements of the tensor; 1 for a scalar."""
        total = 1
        for side in self.shape:
            total *= side
        return total

    @property
    def bytes(self) -> float:
        """Bytes of one element, or of what one pointer points at."""
        name = self.to or self.element
        return _BITS.get(name, 8 if name.startswith("f8") else 32) / 8.0

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.element.startswith(("f", "bf"))


@dataclass(slots=True)
class Op:
    """One operation: result names, operand names, its text after the name, its result type, and the regions under it."""

    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    text: str
    type: Type
    operand_types: tuple[Type, ...] = ()
    regions: list[Region] = field(default_factory=list)

    def attribute(self, name: str) -> int | None:
        """A whole-number attribute like `{axis = 1 : i32}`."""
        found = re.search(rf"\b{name} = (-?\d+)", self.text)
        return int(found[1]) if found else None


@dataclass(slots=True)
class Region:
    """Operations in order, and the names of the region's arguments."""

    ops: list[Op] = field(default_factory=list)
    arguments: tuple[str, ...] = ()

    def walk(self) -> Iterator[Op]:
        """Every operation of the region and of those under it, except the bodies of reductions and scans."""
        for op in self.ops:
            yield op
            if op.name.startswith("scf."):
                for region in op.regions:
                    yield from region.walk()


@dataclass(frozen=True, slots=True)
class Loop:
    """The parts of an scf.for: induction variable, bounds, carried names with their initial values, and what each iteration yields."""

    variable: str
    low: str
    high: str
    step: str
    carried: tuple[str, ...]
    initial: tuple[str, ...]
    yielded: tuple[str, ...]
    body: Region


@dataclass(slots=True)
class Kernel:
    """A parsed kernel: its name, its arguments in order (name without %, type text), and its body."""

    name: str
    arguments: tuple[tuple[str, str], ...]
    body: Region
    exits: list[tuple[str, bool]] = field(default_factory=list)


def strip_locations(text: str) -> str:
    """The same representation without source locations, which change with every edit of the file."""
    lines = (line for line in text.splitlines() if not line.startswith("#loc"))
    return "\n".join(_LOCATION.sub("", line).rstrip() for line in lines) + "\n"


def parse_type(text: str) -> Type:
    """`tensor<128x64x!tt.ptr<bf16>>`, `!tt.ptr<f32>`, `i32`, `!tt.tensordesc<tensor<64x64xbf16>>` as a Type."""
    text = text.strip()
    if text.startswith("!tt.tensordesc<"):
        inner = parse_type(text[len("!tt.tensordesc<") : -1])
        return Type(inner.shape, "desc", inner.element)
    if text.startswith("tensor<"):
        inside = text[len("tensor<") : text.rindex(">")]
        sides: list[int] = []
        while (found := re.match(r"(\d+)x", inside)) is not None:
            sides.append(int(found[1]))
            inside = inside[found.end() :]
        element = parse_type(inside.split(", #")[0])
        return Type(tuple(sides), element.element, element.to)
    if text.startswith("!tt.ptr<"):
        return Type((), "ptr", text[len("!tt.ptr<") : -1].split(",")[0])
    return Type((), text)


def loop_of(op: Op) -> Loop | None:
    """The parts of an scf.for operation; None for a loop of another kind."""
    found = _FOR.search("scf.for " + op.text) if op.name == "scf.for" else None
    if found is None:
        return None
    pairs = re.findall(r"(%[\w.\-]+) = (%[\w.\-]+(?:#\d+)?)", found[5] or "")
    body = op.regions[0]
    yields = body.ops[-1].operands if body.ops and body.ops[-1].name == "scf.yield" else ()
    return Loop(found[1], found[2], found[3], found[4], tuple(p[0] for p in pairs), tuple(p[1] for p in pairs), yields, body)


def parse(text: str) -> Kernel:
    """Read one kernel; raises ValueError where the text is not TTIR."""
    lines = strip_locations(text).splitlines()
    name = ""
    arguments: tuple[tuple[str, str], ...] = ()
    stack: list[Region] = []
    owners: list[Op | None] = []
    exits: list[tuple[str, bool]] = []
    returning = _returning_blocks(lines)
    for raw in lines:
        line = raw.strip()
        header = _FUNCTION.search(line)
        if header:
            if name:
                raise ValueError("more than one public function")
            name = header[1]
            arguments = tuple((a[0][1:], a[1].strip()) for a in _ARGUMENT.findall(header[2]))
            stack, owners = [Region()], [None]
            body = stack[0]
            continue
        if not stack or not line or line.startswith("//"):
            continue
        if line.startswith("^"):
            if len(stack) > 1:
                stack[-1].arguments = tuple(_VALUE.findall(line))
            continue
        if line.startswith("}"):
            _close(line, stack, owners)
            if not stack:
                break
            continue
        if line.startswith("cf.cond_br"):
            exits += _exit(line, returning)
            continue
        op = _operation(line)
        if op is None:
            continue
        stack[-1].ops.append(op)
        if line.endswith("{"):
            op.regions.append(Region())
            stack.append(op.regions[0])
            owners.append(op)
    if not name:
        raise ValueError("no tt.func in it")
    return Kernel(name, arguments, body, exits)


def _close(line: str, stack: list[Region], owners: list[Op | None]) -> None:
    """A line that ends a region, and perhaps starts the next of the same operation."""
    stack.pop()
    owner = owners.pop()
    if owner is None:
        return
    if line.endswith("{"):  # else, or the `do` of a while
        owner.regions.append(Region())
        stack.append(owner.regions[-1])
        owners.append(owner)
    elif "->" in line:  # `}) : (tensor<..>) -> tensor<..>`
        inputs, _, output = line.rpartition("->")
        owner.type = parse_type(output)
        owner.operand_types = tuple(parse_type(t) for t in re.findall(r"tensor<[^()]*?>(?=[,)])", inputs))[:1]


def _returning_blocks(lines: list[str]) -> set[str]:
    """Labels of blocks that do nothing but return."""
    found = set()
    for line, after in itertools.pairwise(lines):
        if line.strip().startswith("^") and after.strip().startswith("tt.return"):
            found.add(line.strip().split(":")[0].split("(")[0])
    return found


def _exit(line: str, returning: set[str]) -> list[tuple[str, bool]]:
    """(condition, value of it under which the program leaves at once) of a branch to a block that only returns."""
    condition = _VALUE.findall(line)[0]
    targets = re.findall(r"\^bb\d+", line)
    if len(targets) == 2 and (targets[0] in returning) != (targets[1] in returning):
        return [(condition, targets[0] in returning)]
    return []


def _operation(line: str) -> Op | None:
    found = _RESULTS.match(line)
    results: list[str] = []
    rest = line
    if found:
        rest = found[2]
        for part in found[1].split(", "):
            base, _, count = part.partition(":")
            results += [f"{base}#{i}" for i in range(int(count))] if count else [base]
    named = _NAME.match(rest)
    if named is None:
        return None
    text = rest[named.end() :].strip()
    head, _, types = text.rpartition(" : ")
    source, _, target = types.rpartition(" -> ")
    if " to " in types and not source:  # casts: `i32 to i64`
        source, _, target = types.rpartition(" to ")
    operand_types = tuple(parse_type(t) for t in re.split(r" \* |, (?=tensor|!tt|[a-z]+\d+$)", source or types) if t.strip())
    result = parse_type(target.rstrip(" {")) if not named[1].startswith("scf.") else Type((), "")
    if named[1] == "arith.cmpi" or named[1] == "arith.cmpf":
        result = Type(result.shape, "i1")
    elif named[1] in ("tt.load", "tt.store") and operand_types:
        result = Type(operand_types[0].shape, operand_types[0].to)
    elif named[1] == "tt.addptr" and operand_types:
        result = operand_types[0]
    elif named[1] == "arith.select":
        result = operand_types[-1]
    return Op(named[1], tuple(results), tuple(_VALUE.findall(head or text)), text, result, operand_types)
