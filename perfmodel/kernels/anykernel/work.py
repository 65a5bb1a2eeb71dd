"""What one launch of a kernel has to do: trip counts, multiplies, bytes, and how programs share what they load.

Read from TTIR and the arguments of the launch alone; it does not depend on warps, stages or the GPU.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from perfmodel.kernels.anykernel.ir import Kernel, Loop, Op, Region, loop_of
from perfmodel.kernels.anykernel.values import Array, At, Unknown, Values

Floats = npt.NDArray[np.float64]
MOST_PROGRAMS = 1 << 14  # programs looked at one by one; of a larger launch an even sample, and some runs of neighbours
_RUN = 4096  # programs of one run
_GOLDEN = 0.6180339887498949  # its multiples spread evenly over the unit interval
_GEOMETRY = 16  # programs whose tiles are looked at element by element
_WINDOWS = 6
_SPECIAL = ("math.exp", "math.exp2", "math.log", "math.log2", "math.sin", "math.cos", "math.rsqrt", "math.sqrt", "math.tanh", "arith.divf")
LINE_BYTES = 128

_DEPTH = 50_000  # frames: a value's chain of definitions is walked by calls, and unrolled kernels have chains of thousands


@contextlib.contextmanager
def _deep() -> Iterator[None]:
    """Let calls nest as deep as chains of definitions are long; Python's own limit is for programs that run away."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _DEPTH))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store of a tile: what one execution of it touches, and how often programs execute it.

    tile_bytes: distinct bytes; request_bytes: bytes asked for, repetitions counted; run_bytes: longest contiguous piece; lines:
    distinct cache lines; steps: executions a program (mean); moving: whether each iteration touches another tile;
    stream_bytes, longest_bytes: distinct bytes of all executions of a program (mean, and of the longest program); origin: first address for
    each program looked at, None where it cannot be told (then nothing is shared); neighbours: the same for runs of consecutive programs,
    of a launch too large to look at all.
    """

    base: str
    tile_bytes: float
    request_bytes: float
    run_bytes: float
    lines: float
    steps: float
    moving: bool
    stream_bytes: float
    longest_bytes: float
    origin: Array | None
    neighbours: Array | None = None

    def shared_bytes(self, distinct: float, programs: float) -> float:
        """Distinct bytes of `programs` programs that start at `distinct` addresses: sharers are done when the longest of them is."""
        return distinct * (self.stream_bytes if distinct > 0.75 * programs else self.longest_bytes)


@dataclass(frozen=True, slots=True)
class Dot:
    """One matrix multiply of a tile: rows x cols x depth, bytes of an operand element, its element type."""

    rows: int
    cols: int
    depth: int
    operand_bytes: float
    element: str

    @property
    def flops(self) -> float:
        """2 rows cols depth."""
        return 2.0 * self.rows * self.cols * self.depth


@dataclass(slots=True)
class Segment:
    """The straight code of one region: a loop's body without the loops in it, or what stands outside all loops.

    steps: executions for each program looked at, (g,) or (1,); nested: loops inside; path: induction variables, outermost first.
    Elements: `special` transcendental functions and divisions, `plain` other floating-point operations, `reduced` inputs of reductions.
    """

    path: tuple[str, ...]
    steps: Floats
    loads: list[Access] = field(default_factory=list)
    stores: list[Access] = field(default_factory=list)
    dots: list[Dot] = field(default_factory=list)
    special: float = 0.0
    plain: float = 0.0
    reduced: float = 0.0
    reductions: int = 0
    nested: int = 0


@dataclass(slots=True)
class Work:
    """One launch: number of programs, its segments in the order of the code (the outside first), the share of programs that do anything."""

    programs: int
    looked_at: int
    segments: list[Segment]
    active: Floats
    notes: tuple[str, ...] = ()

    @property
    def loops(self) -> list[Segment]:
        """The segments that are loop bodies."""
        return self.segments[1:]

    def unique_bytes(self, sizes: Mapping[str, float]) -> tuple[float, float]:
        """(loaded, stored) distinct bytes of the launch; `sizes` caps a pointer argument's share where its tensor's size is known."""
        totals = [0.0, 0.0]
        for store in (False, True):
            for base, groups in self._streams(store).items():
                total = sum(a.shared_bytes(self._distinct(a.origin), self.programs) for a in groups)
                totals[store] += min(total, sizes.get(base, np.inf))
        return totals[0], totals[1]

    def window_bytes(self, window: int) -> float:
        """Distinct bytes that each `window` consecutive programs load, summed over the launch's windows."""
        total = 0.0
        count = max(1.0, self.programs / window)
        for groups in self._streams(False).values():
            for access in groups:
                width = min(window, self.programs)
                total += count * access.shared_bytes(self._in_window(access, width), width)
        return total

    def distinct_in_window(self, access: Access, window: int) -> float:
        """Addresses at which `window` consecutive programs start."""
        return self._in_window(access, min(window, self.programs))

    def _streams(self, store: bool) -> dict[str, list[Access]]:
        """Accesses by pointer argument, those that touch the same tiles counted once."""
        found: dict[str, list[Access]] = {}
        for segment in self.segments:
            for access in segment.stores if store else segment.loads:
                groups = found.setdefault(access.base, [])
                twin = next((i for i, g in enumerate(groups) if _same(g.origin, access.origin)), None)
                if twin is None:
                    groups.append(access)
                elif access.stream_bytes > groups[twin].stream_bytes:
                    groups[twin] = access
        return found

    def _distinct(self, origin: Array | None) -> float:
        if origin is None:
            return float(self.programs)
        if origin.size == 1:
            return 1.0
        count = len(np.unique(origin))
        return float(count if count < 0.5 * origin.size else count * self.programs / origin.size)

    def _in_window(self, access: Access, window: int) -> float:
        """Mean number of different first addresses among `window` consecutive programs."""
        if access.origin is None:
            return float(window)
        if access.origin.size == 1:
            return 1.0
        runs = [access.origin] if access.neighbours is None else np.split(access.neighbours, max(1, access.neighbours.size // _RUN))
        width = min(window, runs[0].size)
        each = max(1, _WINDOWS // len(runs))
        counts = [len(np.unique(r[s : s + width])) for r in runs for s in np.unique(np.linspace(0, r.size - width, each).astype(int))]
        mean = float(np.mean(counts))
        return mean if mean < 0.5 * width else mean * window / width


def _same(a: Array | None, b: Array | None) -> bool:
    return a is not None and b is not None and np.array_equal(a, b)


def analyse(
    kernel: Kernel,
    arguments: Mapping[str, float],
    grid: tuple[int, int, int],
    contents: Mapping[str, Array] | None = None,
    trip_count: float | None = None,
) -> Work:
    """Work of one launch.

    arguments: values of the scalar arguments; grid: programs along x, y and z; contents: see Values; trip_count answers for loops
    whose bounds cannot be told. Raises Unknown, naming what is missing, where a bound depends on data and no trip_count is given.
    """
    with _deep():
        return _analyse(kernel, arguments, grid, contents, trip_count)


def _analyse(
    kernel: Kernel,
    arguments: Mapping[str, float],
    grid: tuple[int, int, int],
    contents: Mapping[str, Array] | None,
    trip_count: float | None,
) -> Work:
    total = grid[0] * grid[1] * grid[2]
    count = min(total, MOST_PROGRAMS)
    numbers = np.arange(total, dtype=np.int64) if count == total else _even_sample(total, count)
    values = Values(kernel, arguments, grid, numbers, contents)
    starts = np.linspace(0, total - _RUN, _WINDOWS).astype(np.int64)
    runs = None if count == total else Values(kernel, arguments, grid, (starts[:, None] + np.arange(_RUN)).reshape(-1), contents)
    places = np.unique(np.linspace(0, len(numbers) - 1, _GEOMETRY).astype(int))
    few = Values(kernel, arguments, grid, numbers[places], contents)
    active = np.ones((1, 1))
    for condition, leaves in kernel.exits:
        active = active * (values.scalar(condition) != leaves)
    walker = _Walker(values, few, places, runs, trip_count)
    walker.region(kernel.body, (), active.reshape(-1), {})
    return Work(total, len(numbers), walker.segments, active.reshape(-1), tuple(dict.fromkeys(walker.notes)))


def _even_sample(total: int, count: int) -> Array:
    """About `count` of `total` program numbers, one from each stretch, at places that share no period with the order of tiles."""
    place = np.arange(count)
    return np.unique(((place + place * _GOLDEN % 1.0) * (total / count)).astype(np.int64).clip(0, total - 1))


class _Walker:
    def __init__(self, values: Values, few: Values, places: Array, runs: Values | None, trip_count: float | None) -> None:
        self.values, self.few, self.places, self.runs, self.trip_count = values, few, places, runs, trip_count
        self.segments: list[Segment] = []
        self.notes: list[str] = []

    def region(self, region: Region, path: tuple[str, ...], steps: Floats, middle: dict[str, Array]) -> None:
        segment = Segment(path, steps)
        self.segments.append(segment)
        for op, share in self._straight(region):
            loop = loop_of(op)
            if op.name == "scf.while" or (op.name == "scf.for" and loop is None):
                self._unbounded(op, path, steps, middle)
                segment.nested += 1
            elif loop is not None:
                segment.nested += 1
                trips = self._trips(loop, middle)
                inner = {**middle, loop.variable[1:]: np.maximum((trips - 1) // 2, 0)}
                self.region(loop.body, (*path, loop.variable[1:]), steps * share * trips.reshape(-1), inner)
            else:
                self._count(op, segment, share, path)

    def _straight(self, region: Region) -> Iterator[tuple[Op, float]]:
        """Operations of a region and of the branches in it, each with the share of programs that execute it."""
        for op in region.ops:
            if op.name != "scf.if":
                yield op, 1.0
                continue
            try:
                taken = float(np.mean(self.values.scalar(op.operands[0]) != 0))
            except Unknown:
                taken = 0.5
                self.notes.append("a branch depends on data: each side is counted half")
            for inner, share in zip(op.regions, (taken, 1.0 - taken), strict=False):
                for one, part in self._straight(inner):
                    yield one, share * part

    def _trips(self, loop: Loop, middle: Mapping[str, Array]) -> Array:
        try:
            return self.values.at_iteration(**middle).trips(loop)
        except Unknown as what:
            if self.trip_count is None:
                raise Unknown(f"the bounds of a loop depend on {what}: give trip_count") from None
            return np.array([[self.trip_count]])

    def _unbounded(self, op: Op, path: tuple[str, ...], steps: Floats, middle: dict[str, Array]) -> None:
        if self.trip_count is None:
            raise Unknown("a while loop has no bounds to read: give trip_count")
        self.region(op.regions[-1], (*path, "while"), steps * self.trip_count, middle)

    def _count(self, op: Op, segment: Segment, share: float, path: tuple[str, ...]) -> None:
        if op.name in ("tt.load", "tt.descriptor_load"):
            segment.loads.append(self._access(op, segment, share, path))
        elif op.name in ("tt.store", "tt.descriptor_store", "tt.atomic_rmw", "tt.atomic_cas"):
            segment.stores.append(self._access(op, segment, share, path))
        elif op.name in ("tt.dot", "tt.dot_scaled") and len(op.operand_types) >= 2:
            a, b = op.operand_types[0], op.operand_types[1]
            segment.dots.append(Dot(a.shape[-2], b.shape[-1], a.shape[-1], a.bytes, a.element))
        elif op.name in _SPECIAL and op.type.shape:
            segment.special += share * op.type.count
        elif op.name in ("tt.reduce", "tt.scan") and op.operand_types:
            segment.reduced += share * op.operand_types[0].count
            segment.reductions += 1
        elif op.name.startswith(("arith.", "math.")) and op.type.shape and op.type.is_float and op.name != "arith.constant":
            segment.plain += share * op.type.count

    def _access(self, op: Op, segment: Segment, share: float, path: tuple[str, ...]) -> Access:
        try:
            base = self.values.base(op.operands[0])
        except Unknown:
            base = "?"
        steps = float(np.mean(segment.steps)) * share
        try:
            longest = float(np.max(segment.steps)) * share
            if "descriptor" in op.name:
                return self._box(op, base, steps, longest, path)
            often = np.broadcast_to(segment.steps, (self.values.numbers[0].size,))[self.places]
            return self._tile(op, base, steps, longest, path, often if often.any() else np.ones(len(often)))
        except Unknown as what:
            self.notes.append(f"the address of {base} depends on {what}: counted as never shared")
            size = op.type.count * op.type.bytes
            run = (op.type.shape[-1] if op.type.shape else 1) * op.type.bytes
            return Access(base, size, size, run, size / LINE_BYTES, steps, True, size * steps, size * steps, None)

    def _tile(self, op: Op, base: str, steps: float, longest: float, path: tuple[str, ...], often: Floats) -> Access:
        """A tile of pointers, looked at along one side after the other; `often` weighs the few programs by how often they execute it."""
        shape, size = op.type.shape, op.type.bytes
        pointer, mask = op.operands[0], _mask_of(op)
        zero = np.zeros((1, 1), dtype=np.int64)
        corner: At = (zero,) * len(shape)
        distinct, asked, run, single = 1.0, 1.0, 1, 1.0
        for axis, side in enumerate(shape):
            along = tuple(np.arange(side, dtype=np.int64)[:, None] if d == axis else zero for d in range(len(shape)))
            offset = np.broadcast_to(self.few.value(pointer, along), (side, self.few.numbers[0].size))
            inside = self._inside(mask, along, offset.shape)
            used = np.array([len(np.unique(o[i])) for o, i in zip(offset.T, inside.T, strict=True)])
            distinct_here, asked_here = (float(np.average(v, weights=often)) for v in (used, inside.sum(axis=0)))
            distinct, asked = distinct * distinct_here, asked * asked_here
            if side > 1 and np.all(np.diff(offset[:, 0])[: max(1, side // 4)] == 1):
                run, single = max(run, round(distinct_here)), distinct_here
        lines = distinct / single * np.ceil(max(single, 1.0) * size / LINE_BYTES) if distinct else 0.0
        first = self.values.value(pointer, corner)
        moving = bool(path) and self._moves(pointer, corner, first, path[-1])
        origin = self._origins(pointer, corner, path, first)
        near = None
        if self.runs is not None:
            near = np.broadcast_to(self.runs.value(pointer, corner), (1, self.runs.numbers[0].size)).reshape(-1)
        times = (steps, longest) if moving else (min(steps, 1.0), min(longest, 1.0))
        tile = distinct * size
        return Access(base, tile, asked * size, run * size, float(lines), steps, moving, tile * times[0], tile * times[1], origin, near)

    def _inside(self, mask: str | None, along: At, shape: tuple[int, ...]) -> Array:
        if mask is None:
            return np.ones(shape, dtype=bool)
        try:
            return np.broadcast_to(self.few.value(mask, along), shape).astype(bool)
        except Unknown:
            return np.ones(shape, dtype=bool)

    def _moves(self, pointer: str, corner: At, first: Array, variable: str) -> bool:
        if variable == "while":
            return True
        second = self.values.at_iteration(**{variable: np.ones((1, 1), dtype=np.int64)}).value(pointer, corner)
        return bool(np.any(second != first))

    def _origins(self, pointer: str, corner: At, path: tuple[str, ...], first: Array) -> Array:
        """First addresses; a loop around the innermost one (a persistent kernel's) adds its iterations, one after the other."""
        if len(path) < 2 or path[0] == "while":
            return first.reshape(-1)
        loop = self.values.loops[f"%{path[0]}"][0]
        trips = int(np.max(self.values.trips(loop)))
        rows = [
            np.broadcast_to(
                self.values.at_iteration(**{path[0]: np.full((1, 1), t)}).value(pointer, corner), (1, self.values.numbers[0].size)
            )
            for t in range(min(max(trips, 1), 64))
        ]
        return np.concatenate(rows, axis=1).reshape(-1)

    def _box(self, op: Op, base: str, steps: float, longest: float, path: tuple[str, ...]) -> Access:
        """A tile moved by the tensor-memory accelerator: its corner is given by scalar operands."""
        descriptor = op.operand_types[0]
        shape, size = descriptor.shape, descriptor.bytes
        offsets = op.operands[1 : 1 + len(shape)]
        box = float(np.prod(shape)) * size
        first = self._corner(self.values, offsets)
        moving = bool(path) and bool(
            np.any(self._corner(self.values.at_iteration(**{path[-1]: np.ones((1, 1), dtype=np.int64)}), offsets) != first)
        )
        times = (steps, longest) if moving else (min(steps, 1.0), min(longest, 1.0))
        return Access(base, box, box, shape[-1] * size, box / LINE_BYTES, steps, moving, box * times[0], box * times[1], first.reshape(-1))

    def _corner(self, values: Values, offsets: tuple[str, ...]) -> Array:
        total: Array = np.zeros((1, 1), dtype=np.int64)
        for name in offsets:
            total = total * (1 << 20) + values.scalar(name)
        return total


def _mask_of(op: Op) -> str | None:
    place = 2 if op.name == "tt.store" else 1
    return op.operands[place] if op.name in ("tt.load", "tt.store") and len(op.operands) > place else None
