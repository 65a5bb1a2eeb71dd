"""Time of any kernel from its work, its machine code and the GPU's datasheet.

The laws and constants are those of the tiled GEMM (analytic/tile.py, calibration/physics/gemm.toml): an iteration of a loop costs a soft
maximum of what it asks of each unit, and never less than the latency it leaves exposed; programs fill the GPU in waves; DRAM, fills,
epilogues and launch come on top. What GEMM lacks (special functions, chains of multiplies, reductions, programs of unequal length) is
added here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfmodel.analytic import tile as law
from perfmodel.analytic.bound import least_seconds
from perfmodel.analytic.constants import constant_values
from perfmodel.analytic.occupancy import LIMITERS, blocks_per_sm
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels.anykernel.facts import Binary, Code, LoopPlan
from perfmodel.kernels.anykernel.work import Access, Segment, Work
from perfmodel.ops.work import Work as Compulsory

Floats = npt.NDArray[np.float64]
PARTITIONS = 4.0  # warp schedulers of an SM (CUDA programming guide, "Hardware Multithreading")


@dataclass(frozen=True, slots=True)
class Estimate:
    """Time of one config: latency, and the seconds that each resource alone needs."""

    latency_s: float
    seconds: Mapping[str, float]
    waves: float
    blocks_per_sm: int
    limiter: str

    @property
    def bound(self) -> str:
        """The largest of `seconds`."""
        return max(self.seconds, key=lambda name: self.seconds[name])


@dataclass(frozen=True, slots=True)
class _Step:
    """One pass of one block through a segment, in cycles: what it asks of each unit, and how long it takes alone."""

    units: Mapping[str, float]
    alone: float
    fill: float

    @property
    def throughput(self) -> float:
        return float(law.smooth_max4(*self.units.values()))


def _array(value: float) -> Floats:
    return np.asarray(value, dtype=np.float64)


def constants() -> dict[str, float]:
    """The constants of the law: those of the tiled GEMM and those of calibration/physics/anykernel.toml."""
    return constant_values("gemm") | constant_values("anykernel")


def reasons(gpu: GpuSpec, binary: Binary) -> str | None:
    """Why a binary cannot be launched on `gpu`; None where it can."""
    threads = 32 * binary.num_warps
    if binary.shared_bytes > gpu.smem_per_block_bytes:
        return f"needs {binary.shared_bytes} bytes of shared memory, a block of {gpu.name} may have {gpu.smem_per_block_bytes}"
    if threads > gpu.max_threads_per_block:
        return f"more than {gpu.max_threads_per_block} threads a block"
    if (binary.regs + 7) // 8 * 8 * threads > gpu.regs_per_sm:
        return "needs more registers than an SM has: the launch fails"
    return None


def least_s(gpu: GpuSpec, work: Work, sizes: Mapping[str, float] | None = None) -> float:
    """Seconds below which no GPU like `gpu` runs this launch: its products at the fastest rate that any of them may have, its distinct
    bytes (analytic/bound.py); 0 where something of the work is a guess, which its notes say."""
    if work.notes:
        return 0.0
    loaded, stored = work.unique_bytes(sizes or {})
    flops = work.programs * sum(float(np.mean(s.steps)) * sum(d.flops for d in s.dots) for s in work.segments)
    rates = [_fastest_rate(gpu, d.operand_bytes) for s in work.segments for d in s.dots]
    return float(least_seconds(gpu, Compulsory(flops, loaded, stored), max(rates, default=gpu.fp32_flops)))


def _fastest_rate(gpu: GpuSpec, operand_bytes: float) -> float:
    """The fastest rate of products of elements that wide: of 16 bits, or narrower ones where the operands are."""
    names = ("fp16", "bf16") if operand_bytes >= 2 else tuple(gpu.tensor_flops)
    return max(gpu.fp32_flops, *(gpu.tensor_flops.get(name, 0.0) for name in names))


def estimate(gpu: GpuSpec, work: Work, binary: Binary, c: Mapping[str, float], sizes: Mapping[str, float] | None = None) -> Estimate:
    """Latency in seconds of one launch, cold L2, event to event on the device.

        latency = launch + soft-max2( sum over segments (passes x pass) + edges, bytes / DRAM rate + ramp )

    sizes: bytes of a pointer argument's tensor where known. Valid for sm_80 to sm_120 and kernels without thread-block clusters.
    Evidence: `perfmodel evaluate anykernel` (README).
    """
    threads = 32.0 * binary.num_warps
    occupancy = blocks_per_sm(gpu, int(threads), binary.regs, binary.shared_bytes)
    resident = float(max(1, int(occupancy.blocks_per_sm)))
    clock = gpu.max_clock_hz * c["clock_share"]
    mean, busiest = (float(v) for v in law.waves(_array(work.programs), gpu.sms))
    loaded, stored = work.unique_bytes(sizes or {})
    window = int(min(work.programs, gpu.sms * resident))
    once = max(loaded, 1.0)
    surplus = max(work.window_bytes(window) - loaded, 0.0) * max(1.0 - gpu.l2_bytes / once, 0.0)

    uneven = _unevenness(work, int(gpu.sms * resident))
    machine = _Machine(gpu, c, binary, work, clock, loaded)
    totals: dict[str, float] = dict.fromkeys((*_UNITS, "latency"), 0.0)
    core = edges = 0.0

    def wave_cycles(throughput: float, alone: float) -> float:
        """Cycles that one pass of every program takes on the busiest SM."""
        places = (_array(busiest), _array(mean), _array(resident), _array(throughput), _array(alone))
        return float(law.core_cycles(*places, c["tail_weight"])[0])

    for segment, code, plan in zip(work.loops, machine_loops(work, binary), _plans(work, binary), strict=True):
        step = machine.step(segment, code, plan)
        cycles = wave_cycles(step.throughput, step.alone) * float(np.mean(segment.steps)) * uneven
        share = cycles / max(step.throughput, 1.0)
        for name, value in step.units.items():
            totals[name] += value * share
        if step.alone > min(resident, busiest) * step.throughput:
            totals["latency"] += cycles
        core += cycles * (1.0 + binary.spill_bytes / 64.0 * c["spill_share_per_64_bytes"])
        edges += step.fill * float(np.mean(_entries(work, segment)))
    outside = machine.outside(work.segments[0], binary.outside)
    rounds = np.ceil(busiest / min(resident, busiest))
    hidden = 1.0 + c["round_overlap"] * (rounds - 1.0) if min(resident, busiest) > 1.0 else rounds
    around = float(max((edges + outside.alone) * hidden, wave_cycles(outside.throughput, outside.alone)))
    core_s = (core + around) / clock
    dram_s = float(law.dram_seconds(_array(loaded + surplus + stored), gpu.dram_bytes_per_s * c["dram_efficiency"], c["dram_ramp_s"]))
    latency = c["launch_s"] + float(law.smooth_max2(core_s, dram_s))
    seconds = {name: value / clock for name, value in totals.items()}
    seconds |= {"DRAM": dram_s, "fill and epilogue": around / clock, "launch": c["launch_s"]}
    return Estimate(latency, seconds, mean, int(occupancy.blocks_per_sm), str(np.array(LIMITERS)[occupancy.limiter]))


_UNITS = ("compute", "L2", "shared memory", "issue", "special functions", "arithmetic")


def machine_loops(work: Work, binary: Binary) -> list[Code]:
    """The machine loop of each loop of the source, per pass of the source's loop.

    Loops that multiply are matched in order with those that multiply, the others likewise; where the compiler unrolled one, its counts are
    divided. A source loop without a machine loop (unrolled away) gets counts estimated from its work.
    """
    left = {True: [c for c in binary.loops if c.multiplies], False: [c for c in binary.loops if not c.multiplies]}
    wanted = {kind: sum(bool(s.dots) == kind for s in work.loops if not s.nested or s.dots) for kind in (True, False)}
    found = []
    for segment in work.loops:
        kind = bool(segment.dots)
        pool = left[kind]
        if segment.nested and not kind:
            found.append(Code())
        elif pool:
            code = pool[0] if len(pool) == 1 and wanted[kind] > 1 else pool.pop(0)
            found.append(_per_pass(code, segment, binary.num_warps))
        else:
            found.append(_guessed(segment, binary.num_warps))
    return found


def _per_pass(code: Code, segment: Segment, warps: int) -> Code:
    """Counts of one pass of the source's loop: divided by how often the compiler unrolled it."""
    ratio = 1.0
    if segment.dots and code.multiply_flops:
        one = sum(d.flops for d in segment.dots)
        ratio = code.multiply_flops * (warps / 4.0 if code.warpgroup else warps) / one
        ratio = ratio if ratio >= 1.9 and not _replicated(code, segment, warps) else 1.0
    elif not segment.dots and (code.load_bytes or code.store_bytes):
        moved = sum(a.request_bytes for a in segment.loads) + sum(a.request_bytes for a in segment.stores)
        ratio = (code.load_bytes + code.store_bytes) * 32.0 * warps / max(moved, 1.0)
    unroll = max(1.0, round(ratio))
    if unroll == 1.0:
        return code
    names = [n for n in Code.__slots__ if n not in ("warpgroup", "rate")]
    return Code(**{n: getattr(code, n) / unroll for n in names}, warpgroup=code.warpgroup, rate=code.rate)


def _replicated(code: Code, segment: Segment, warps: int) -> bool:
    """Whether warps compute the same rows and columns twice, so that more operations run than the source asks for: tiles of 16 rows."""
    return not code.warpgroup and min(d.rows * d.cols for d in segment.dots) < 16 * 8 * warps


def _guessed(segment: Segment, warps: int) -> Code:
    """Counts from the work alone, one instruction an element and warp."""
    per_warp = 32.0 * warps
    floats = (segment.plain + segment.reduced) / per_warp
    moved = sum(a.request_bytes for a in (*segment.loads, *segment.stores)) / per_warp
    special = segment.special / per_warp
    return Code(instructions=20.0 + floats + special + moved / 4.0, special=special, float_=floats, load_bytes=moved)


def _plans(work: Work, binary: Binary) -> list[LoopPlan]:
    plans = list(binary.plans)
    if len(plans) == len(work.loops):
        return plans
    working = [p for p in plans if p.dots or p.copies or p.waiting_loads] or [LoopPlan()]
    return [working[min(i, len(working) - 1)] for i in range(len(work.loops))]


def _entries(work: Work, segment: Segment) -> Floats:
    """How often a loop is entered: the passes of the loop around it, once outside all loops."""
    if len(segment.path) < 2:
        return np.ones(1)
    around = next((s for s in work.loops if s.path == segment.path[:-1]), None)
    return around.steps if around is not None else np.ones(1)


def _unevenness(work: Work, slots: int) -> float:
    """Time of the busiest slot with programs as long as they are, over the time with all of mean length; 1 where they are equal.

    Programs go, in order, to the slot that is free first. (Each round hands one program to every slot, the earliest first.)
    """
    lengths = sum((np.broadcast_to(s.steps, (work.looked_at,)) for s in work.loops if not s.nested), np.zeros(work.looked_at))
    if not lengths.size or lengths.max() == lengths.min():
        return 1.0
    scale = work.looked_at / work.programs
    width = max(1, round(slots * scale))
    even = np.ceil(len(lengths) / width) * lengths.mean()
    finish = np.zeros(width)
    for start in range(0, len(lengths), width):
        part = lengths[start : start + width]
        finish.sort()
        finish[: len(part)] += part
    return float(finish.max() / even)


class _Machine:
    """Costs of passes on one GPU."""

    def __init__(self, gpu: GpuSpec, c: Mapping[str, float], binary: Binary, work: Work, clock: float, loaded: float) -> None:
        self.gpu, self.c, self.binary, self.work, self.clock = gpu, c, binary, work, clock
        self.warps = float(binary.num_warps)
        self.parts = min(self.warps, PARTITIONS) / PARTITIONS  # share of the SM that one block can use
        self.active = float(min(work.programs, gpu.sms))
        requested = sum(a.tile_bytes * a.steps for s in work.segments for a in s.loads) * work.programs
        self.miss = min(1.0, c["miss_weight"] * loaded / max(requested, 1.0))
        self.near = gpu.l2_latency_s * c["l2_latency_factor"] * clock
        self.far = gpu.dram_latency_s * c["dram_latency_factor"] * clock

    def load_cycles(self, loads: list[Access]) -> float:
        """Round trip of one pass's loads, issued together."""
        if not loads:
            return 0.0
        transfer = sum(a.tile_bytes for a in loads) / self.c["request_bytes_per_cycle"]
        return self.near + max(self.far - self.near, 0.0) * self.miss + transfer

    def port_cycles(self, loads: list[Access], tma: bool) -> float:
        """L2 to SM, with what short rows and lines that everybody wants cost."""
        gpu, c = self.gpu, self.c
        request = 0.0
        for a in loads:
            if tma:
                request += a.tile_bytes
                continue
            everywhere = a.lines * (1.0 if a.origin is None or a.origin.size == 1 else self.work.distinct_in_window(a, int(self.active)))
            hot = float(law.shared_line_efficiency(_array(everywhere), c["hot_lines"]))
            request += a.request_bytes / float(law.segment_efficiency(_array(a.run_bytes), c["line_share_64"], c["line_share_32"])) / hot
        width = c["port_bytes_per_cycle"] * (c["tma_port_gain"] if tma else 1.0)
        per_cycle = gpu.l2_bytes_per_s * c["l2_rate_factor"] / gpu.max_clock_hz
        return float(law.port_cycles(_array(request), _array(self.active), width, per_cycle))

    def tensor_cycles(self, segment: Segment, code: Code) -> float:
        """Tensor cores of the whole SM for one pass of one block."""
        if not segment.dots and not code.multiply_flops:
            return 0.0
        native = code.rate or ("fp8" if any(d.element.startswith("f8") for d in segment.dots) else "bf16")
        rate = native if native in self.gpu.tensor_flops else "fp16" if "fp16" in self.gpu.tensor_flops else "fp32"
        per_cycle = self.gpu.tensor_rate(rate) / (self.gpu.sms * self.gpu.boost_clock_hz)
        flops = code.multiply_flops * (self.warps / 4.0 if code.warpgroup else self.warps) or sum(d.flops for d in segment.dots)
        if not code.warpgroup and self.gpu.capability[0] in (9, 10):
            per_cycle *= self.c["mma_sync_share"]
        return flops / per_cycle

    def units(self, segment: Segment, code: Code, plan: LoopPlan) -> dict[str, float]:
        """Cycles of each unit of the SM for one pass of one block."""
        c, warps = self.c, self.warps
        lanes = self.gpu.fp32_flops / (2.0 * self.gpu.sms * self.gpu.max_clock_hz)
        arithmetic = 32.0 * warps * max(code.float_ / lanes, code.alu / c["alu_lanes"], code.shuffles / c["shuffle_lanes"])
        if code.warpgroup:
            in_registers = plan.register_dots
            operands = 0.0
            for place, d in enumerate(segment.dots):
                own_rows = 0.0 if place >= len(segment.dots) - in_registers else 1.0  # the last ones take what the first computed
                operands += float(law.warpgroup_operand_bytes(_array(d.rows), _array(d.cols), _array(d.depth * d.operand_bytes)))
                operands -= (1.0 - own_rows) * d.rows * d.depth * d.operand_bytes
        else:
            operands = (code.ldsm * 512.0 + code.lds * 128.0) * warps
        written = sum(a.request_bytes for a in segment.loads) if plan.copies or segment.dots else 0.0
        written += code.sts * 128.0 * warps * (0.0 if code.warpgroup else 1.0)
        return {
            "compute": self.tensor_cycles(segment, code),
            "L2": self.port_cycles(segment.loads, bool(code.tma))
            + sum(a.request_bytes for a in segment.stores) / c["epilogue_bytes_per_cycle"],
            "shared memory": (operands + written) / c["smem_bytes_per_cycle"],
            "issue": code.instructions * warps / PARTITIONS,
            "special functions": code.special * 32.0 * warps / self.gpu.sfu_per_clock_per_sm,
            "arithmetic": arithmetic,
        }

    def step(self, segment: Segment, code: Code, plan: LoopPlan) -> _Step:
        """One pass through a loop's body."""
        c = self.c
        units = self.units(segment, code, plan)
        load = self.load_cycles(segment.loads)
        chain = self.chain(segment, code, units)
        sync = 0.5 * c["sync_cycles"] * max(2.0, code.barriers) * self.warps / PARTITIONS + self.fragments(segment, code)
        tensor = units["compute"]
        if plan.copies:
            alone = float(
                law.exposed_latency_cycles(
                    _array(load + c["load_wait_share"] * tensor), _array(self.binary.num_stages), _array(chain), sync
                )
            )
            return _Step(units, alone, load)
        waits = max(1.0, float(len(segment.dots))) if plan.waiting_loads > 1 and len(segment.dots) > 1 else 1.0
        return _Step(units, load * waits + chain + sync, 0.0)

    def fragments(self, segment: Segment, code: Code) -> float:
        """Reading the fragments of every mma.sync product from shared memory: hides under nothing (kernels/tiled.py)."""
        return 0.0 if code.warpgroup else len(segment.dots) * self.c["fragment_latency_cycles"]

    def chain(self, segment: Segment, code: Code, units: Mapping[str, float]) -> float:
        """The serial path of one pass of one block: multiplies one after the other, and what must be computed between them."""
        c = self.c
        total = 0.0
        promoted = 0.5 if code.rate == "bf16" and any(d.operand_bytes == 1 for d in segment.dots) else 1.0
        for d in segment.dots:
            if code.warpgroup:
                total += c["warpgroup_latency_cycles"]
            else:
                total += d.depth * d.operand_bytes / 32.0 / promoted * c["multiply_latency_cycles"]
        if code.warpgroup:
            total += units["compute"] + code.serialised * c["serial_multiply_cycles"]
        elif segment.dots:
            total = max(total, units["compute"] / self.parts)
        between = segment.special + segment.reduced
        if between or not segment.dots:
            waves_ = max(1.0, self.warps / PARTITIONS)
            computed = code.special + code.shuffles + code.float_ + code.alu
            total += max(computed * waves_, units["special functions"] / self.parts)
            total += segment.reductions * 2.0 * c["shuffle_latency_cycles"] + (c["special_latency_cycles"] if segment.special else 0.0)
            total += max(code.barriers - 2.0, 0.0) / 2.0 * c["shared_latency_cycles"]
        return total

    def outside(self, segment: Segment, code: Code) -> _Step:
        """What stands outside all loops: loads before, the epilogue, and the start of the block."""
        c = self.c
        stored = sum(a.request_bytes for a in segment.stores)
        units = {
            "L2": self.port_cycles(segment.loads, False) + stored / c["epilogue_bytes_per_cycle"],
            "special functions": code.special * 32.0 * self.warps / self.gpu.sfu_per_clock_per_sm,
            "issue": code.instructions * self.warps / PARTITIONS if not self.work.loops else 0.0,
        }
        alone = self.load_cycles(segment.loads) + stored / c["epilogue_bytes_per_cycle"] + c["block_start_cycles"]
        if not self.work.loops:
            alone += self.chain(segment, code, units | {"compute": 0.0}) + self.fragments(segment, code)
        return _Step(units, alone, 0.0)
