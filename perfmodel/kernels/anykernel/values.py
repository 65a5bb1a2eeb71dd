"""Values of a kernel's integer part: what TTIR computes from arguments and program numbers, for many programs at once.

A tensor is never built: its value is asked at a few positions. Everything that depends on data raises Unknown, unless the data is given.
Shapes: positions are columns (p, 1), programs are rows (1, g); every value broadcasts to (p, g).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.kernels.anykernel.ir import Kernel, Loop, Op, Region, loop_of

Array = npt.NDArray[Any]
At = tuple[Array, ...]
_PREDICATES: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def _divide(a: Array, b: Array) -> Array:
    """Division that truncates towards zero, as the machine's does."""
    _nonzero(b)
    quotient: Array = np.floor_divide(np.abs(a), np.abs(b))
    return np.where((a < 0) != (b < 0), -quotient, quotient)


def _nonzero(b: Array) -> None:
    if np.any(b == 0):
        raise Unknown("a division by zero")


_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply, "arith.divsi": _divide, "arith.divui": _divide,
    "arith.remsi": lambda a, b: a - _divide(a, b) * b, "arith.remui": lambda a, b: a - _divide(a, b) * b,
    "arith.ceildivsi": lambda a, b: -_divide(-a, b), "arith.floordivsi": np.floor_divide,
    "arith.minsi": np.minimum, "arith.maxsi": np.maximum, "arith.minui": np.minimum, "arith.maxui": np.maximum,
    "arith.andi": np.bitwise_and, "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor,
    "arith.shli": np.left_shift, "arith.shrsi": np.right_shift, "arith.shrui": np.right_shift,
    "arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": np.multiply, "arith.divf": np.divide,
    "tt.addptr": np.add,
}  # fmt: skip
_SAME = {
    "arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "arith.sitofp", "arith.uitofp", "arith.extf", "arith.truncf",
    "tt.splat", "tt.bitcast", "arith.bitcast", "tt.int_to_ptr", "tt.ptr_to_int",
}  # fmt: skip
_POINTERS = {"tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "tt.bitcast", "arith.select"}


class Unknown(Exception):
    """A value that cannot be told without running the kernel; the text says which."""


class Values:
    """Answers for one kernel, one set of arguments and a set of programs, each given by its three numbers.

    arguments: scalar arguments by name. contents: what a pointer argument points at, flat, where the kernel's course depends on it.
    """

    def __init__(
        self,
        kernel: Kernel,
        arguments: Mapping[str, float],
        grid: tuple[int, int, int],
        programs: Array,
        contents: Mapping[str, Array] | None = None,
    ) -> None:
        self.kernel = kernel
        self.arguments = {f"%{name}": np.array([[value]]) for name, value in arguments.items()}
        self.grid = grid
        self.contents = contents or {}
        x, y, _ = grid
        self.numbers = (programs[None, :] % x, programs[None, :] // x % y, programs[None, :] // (x * y))
        self.pointers = {f"%{name}" for name, kind in kernel.arguments if kind.startswith("!tt")}
        self.definitions: dict[str, Op] = {}
        self.loops: dict[str, tuple[Loop, int]] = {}  # carried or induction name -> loop and place (-1: induction)
        self.results: dict[str, tuple[Op, int]] = {}
        self.iteration: dict[str, Array] = {}  # induction variable -> iteration number
        self._memo: dict[Any, Array] = {}
        self._keep: list[At] = []
        self._index(kernel.body)

    def _index(self, region: Region) -> None:
        for op in region.ops:
            for place, result in enumerate(op.results):
                self.definitions[result] = op
                self.results[result] = (op, place)
            loop = loop_of(op)
            if loop is not None:
                self.loops[loop.variable] = (loop, -1)
                self.loops |= {name: (loop, place) for place, name in enumerate(loop.carried)}
            if op.name.startswith("scf."):
                for inner in op.regions:
                    self._index(inner)

    def at_iteration(self, **numbers: Any) -> Values:
        """The same kernel with these loops (by induction variable, without %) at these iterations; others stay at their first."""
        other = object.__new__(Values)
        other.__dict__.update(self.__dict__)
        other.iteration = {**self.iteration, **{f"%{k}": np.asarray(v) for k, v in numbers.items()}}
        other._memo = {}
        return other

    def base(self, name: str) -> str:
        """The pointer argument (without %) that an address is counted from; raises Unknown for a pointer that was loaded."""
        for _ in range(10_000):
            if name in self.pointers:
                return name[1:]
            if name in self.loops:
                loop, place = self.loops[name]
                name = loop.initial[place]
                continue
            op, place = self.results.get(name, (None, 0))
            if op is None:
                break
            if op.name == "scf.if":
                name = op.regions[0].ops[-1].operands[place]
            elif (loop_ := loop_of(op)) is not None:
                name = loop_.initial[place]
            elif op.name in _POINTERS:
                name = op.operands[1 if op.name == "arith.select" else 0]
            else:
                break
        raise Unknown(f"where {name[1:]} points")

    def scalar(self, name: str) -> Array:
        """Value of a scalar for each program, (1, g) or (1, 1)."""
        return self.value(name, ())

    def value(self, name: str, at: At) -> Array:
        """Value of `name` at these positions: an element for a tensor (`at` has one column a dimension), an offset for a pointer."""
        key = (name, tuple(id(a) for a in at))
        if key not in self._memo:
            self._keep.append(at)
            self._memo[key] = self._find(name, at)
        return self._memo[key]

    def _find(self, name: str, at: At) -> Array:
        if name in self.arguments:
            return self.arguments[name]
        if name in self.pointers:
            return np.zeros((1, 1), dtype=np.int64)
        if name in self.loops:
            return self._carried(name, at)
        if name not in self.results:
            raise Unknown(name[1:])
        op, place = self.results[name]
        if op.name == "scf.for":
            return self._after(op, place, at)
        if op.name == "scf.if":
            condition = self.scalar(op.operands[0])
            branches = [self.value(region.ops[-1].operands[place], at) for region in op.regions]
            return np.where(condition, branches[0], branches[1])
        return self._operation(op, at)

    def _carried(self, name: str, at: At) -> Array:
        loop, place = self.loops[name]
        number = self.iteration.get(loop.variable, np.zeros((1, 1), dtype=np.int64))
        if place < 0:
            now: Array = self.scalar(loop.low) + number * self.scalar(loop.step)
            return now
        first = self.value(loop.initial[place], at)
        if not np.any(number):
            return first
        start = self.at_iteration(**{loop.variable[1:]: np.zeros((1, 1), dtype=np.int64)})
        grown: Array = first + number * (start.value(loop.yielded[place], at) - first)  # what a loop carries to its addresses grows evenly
        return grown

    def _after(self, op: Op, place: int, at: At) -> Array:
        loop = loop_of(op)
        if loop is None:
            raise Unknown("the result of a loop without bounds")
        first = self.value(loop.initial[place], at)
        start = self.at_iteration(**{loop.variable[1:]: np.zeros((1, 1), dtype=np.int64)})
        grown: Array = first + self.trips(loop) * (start.value(loop.yielded[place], at) - first)
        return grown

    def trips(self, loop: Loop) -> Array:
        """Iterations of a loop for each program: max(0, ceil((high - low) / step))."""
        low, high, step = (self.scalar(n) for n in (loop.low, loop.high, loop.step))
        if np.any(step <= 0):
            raise Unknown("a loop with a step of zero or less")
        count: Array = np.maximum(-np.floor_divide(low - high, step), 0)
        return count

    def _operation(self, op: Op, at: At) -> Array:
        name = op.name
        if name == "arith.constant":
            return _constant(op)
        if name == "tt.get_program_id":
            return self.numbers["xyz".index(op.text[0])]
        if name == "tt.get_num_programs":
            return np.array([[self.grid["xyz".index(op.text[0])]]])
        if name == "tt.make_range":
            place: Array = at[0] + (op.attribute("start") or 0)
            return place
        if name in _BINARY:
            return _BINARY[name](self.value(op.operands[0], at), self.value(op.operands[1], at))
        if name in _SAME:
            return self.value(op.operands[0], () if name == "tt.splat" else at)
        if name in ("arith.cmpi", "arith.cmpf"):
            compare = _PREDICATES[op.text.split(",")[0].strip().lstrip("suo")]
            return compare(self.value(op.operands[0], at), self.value(op.operands[1], at))
        if name == "arith.select":
            condition, yes, no = [self.value(o, at) for o in op.operands]
            return np.where(condition, yes, no)
        if name == "tt.load":
            return self._loaded(op, at)
        return self._moved(op, at)

    def _moved(self, op: Op, at: At) -> Array:
        """Operations that only move elements."""
        if op.name == "tt.expand_dims":
            axis = op.attribute("axis") or 0
            return self.value(op.operands[0], at[:axis] + at[axis + 1 :])
        if op.name == "tt.broadcast":
            zero = np.zeros((1, 1), dtype=np.int64)
            sides = op.operand_types[0].shape
            return self.value(op.operands[0], tuple(zero if side == 1 else a for side, a in zip(sides, at, strict=True)))
        if op.name == "tt.trans":
            order = [int(n) for n in re.findall(r"\d+", op.text.split("order = array<i32")[1].split(">")[0])]
            return self.value(op.operands[0], tuple(at[order.index(d)] for d in range(len(order))))
        if op.name == "tt.reshape":
            flat = np.ravel_multi_index(tuple(np.broadcast_arrays(*at)), op.type.shape) if at else np.zeros((1, 1), dtype=np.int64)
            return self.value(op.operands[0], tuple(np.unravel_index(flat, op.operand_types[0].shape)))
        raise Unknown(f"the result of {op.name}")

    def _loaded(self, op: Op, at: At) -> Array:
        base = self.base(op.operands[0])
        if base not in self.contents:
            raise Unknown(f"what {base} holds")
        data = self.contents[base]
        offset = np.clip(self.value(op.operands[0], at), 0, len(data) - 1)
        found: Array = data[offset]
        return found


def _constant(op: Op) -> Array:
    text = op.text
    found = re.search(r"dense<([^>]*)>", text) or re.match(r"(\S+)", text)
    raw = found[1] if found else text
    if raw in ("true", "false"):
        return np.array([[raw == "true"]])
    try:
        return np.array([[int(raw)]])
    except ValueError:
        pass
    try:
        return np.array([[float(raw)]])
    except ValueError:
        raise Unknown(f"the constant {raw}") from None
