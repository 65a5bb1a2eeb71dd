"""The law of any kernel by hand: what one pass of a block asks of each unit, its latency alone, and the launch around it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from fictional import US, card, close

from perfmodel.analytic.constants import physics
from perfmodel.kernels.anykernel import law
from perfmodel.kernels.anykernel.facts import Binary, Code, LoopPlan
from perfmodel.kernels.anykernel.work import Access, Dot, Segment, Work, _even_sample

ORIGIN = np.zeros(1, dtype=np.int64)  # all programs read the same tile


def access(**changes: Any) -> Access:
    """A tile of 4096 bytes in 32 lines, 6400 asked for, read ten times by each program."""
    base = Access("a", 4096.0, 6400.0, 128.0, 32.0, 10.0, True, 40960.0, 40960.0, ORIGIN)
    return dataclasses.replace(base, **changes)


def loop(**changes: Any) -> Segment:
    return dataclasses.replace(Segment(("k",), np.array([10.0]), loads=[access()]), **changes)


def machine(
    arch: str = "sm_89", warps: int = 8, stages: int = 3, segment: Segment | None = None, loaded: float = 2_048_000.0, **c: float
) -> Any:
    values = {**dict.fromkeys([*physics("gemm"), *physics("anykernel")], 1.0), **c}
    binary = Binary(0, 32, 0, warps, stages, Code(), (), ())
    segments = [Segment((), np.ones(1)), segment or loop()]
    work = Work(200, 200, segments, np.ones(200))
    return law._Machine(card(arch), values, binary, work, 2e9, loaded)


def test_round_trip_of_a_pass() -> None:
    # 0.5 us to L2 and 1 us to DRAM at 2 GHz; 200 x 10 x 4096 bytes asked for, a quarter of them new; 64 bytes a cycle
    m = machine(request_bytes_per_cycle=64.0)
    assert m.miss == close(0.25)
    assert m.load_cycles([access()]) == close(1000 + 1000 * 0.25 + 64)
    assert m.load_cycles([access(), access()]) == close(1250 + 128)
    assert m.load_cycles([]) == 0
    assert machine(miss_weight=2.0).miss == close(0.5) and machine(miss_weight=99.0).miss == 1
    slow = machine(dram_latency_factor=2.0, l2_latency_factor=3.0, request_bytes_per_cycle=64.0)
    assert slow.load_cycles([access()]) == close(3000 + 1000 * 0.25 + 64)


def test_port() -> None:
    # all programs want the same 32 lines: half the rate where 32 lines are half hot; a port of 32 bytes, L2 of 5000 for 100 SMs
    m = machine(port_bytes_per_cycle=32.0, hot_lines=32.0, tma_port_gain=2.0)
    assert m.port_cycles([access()], False) == close(6400 * 2 / 32)
    assert m.port_cycles([access()], True) == close(4096 / 50)  # by the tensor-memory accelerator: distinct bytes, 64 a cycle but L2's 50
    assert machine(port_bytes_per_cycle=32.0, hot_lines=0.0, l2_rate_factor=0.5).port_cycles([access()], False) == close(6400 / 25)
    # runs of 64 bytes waste tag look-ups
    assert machine(port_bytes_per_cycle=32.0, hot_lines=0.0, line_share_64=0.5).port_cycles([access(run_bytes=64.0)], False) == close(400)
    # tiles of their own: 100 programs at once, 3200 lines
    own = access(origin=np.arange(200))
    assert m.port_cycles([own], False) == close(6400 * (3232 / 3200) / 32)


DOT = Dot(64, 64, 32, 2.0, "bf16")  # 262144 flop


def test_tensor_cores() -> None:
    assert machine().tensor_cycles(loop(dots=[DOT]), Code()) == close(262.144)
    assert machine().tensor_cycles(loop(dots=[DOT, DOT]), Code()) == close(2 * 262.144)
    # what the machine code says counts: 1000 flop of each of 8 warps; of two groups of four
    assert machine().tensor_cycles(loop(dots=[DOT]), Code(multiply_flops=1000.0, rate="bf16")) == close(8.0)
    assert machine("sm_90").tensor_cycles(loop(), Code(multiply_flops=1000.0, warpgroup=True, rate="bf16")) == close(0.5)
    assert machine("sm_90", mma_sync_share=0.5).tensor_cycles(loop(), Code(multiply_flops=1000.0, rate="bf16")) == close(4.0)
    assert machine().tensor_cycles(loop(dots=[dataclasses.replace(DOT, element="f8E4M3FN")]), Code()) == close(131.072)
    assert machine().tensor_cycles(loop(), Code()) == 0


def test_units_of_a_pass() -> None:
    m = machine(
        alu_lanes=16.0,
        shuffle_lanes=2.0,
        smem_bytes_per_cycle=128.0,
        epilogue_bytes_per_cycle=32.0,
        hot_lines=0.0,
        port_bytes_per_cycle=32.0,
    )
    code = Code(instructions=100.0, float_=50.0, alu=64.0, shuffles=6.0, special=5.0, ldsm=3.0, lds=2.0, sts=4.0)
    segment = loop(stores=[access(request_bytes=3200.0)])
    found = m.units(segment, code, LoopPlan())
    assert found == close({
        "compute": 0.0,
        "L2": 6400 / 32 + 3200 / 32,
        "shared memory": ((3 * 512 + 2 * 128) * 8 + 4 * 128 * 8) / 128,  # fragment loads, and stores of 8 warps
        "issue": 100 * 8 / 4,
        "special functions": 5 * 32 * 8 / 10,
        "arithmetic": 32 * 8 * 4.0,  # 64 / 16 lanes, against 50 / 25 of fp32 and 6 / 2 of shuffles
    })  # fmt: skip
    assert m.units(segment, dataclasses.replace(code, float_=200.0), LoopPlan())["arithmetic"] == close(32 * 8 * 8.0)
    assert m.units(segment, dataclasses.replace(code, shuffles=20.0), LoopPlan())["arithmetic"] == close(32 * 8 * 10.0)
    # what copies bring is written to shared memory
    copied = m.units(segment, code, LoopPlan(copies=1))
    assert copied["shared memory"] == close(found["shared memory"] + 6400 / 128)
    assert m.units(loop(dots=[DOT]), code, LoopPlan())["shared memory"] == close(((3 * 512 + 2 * 128) * 8 + 4 * 128 * 8 + 6400) / 128)


def test_warp_group_operands() -> None:
    # (64 + 64) x 32 x 2 bytes a multiply; the second takes its rows from registers
    m = machine("sm_90", smem_bytes_per_cycle=128.0)
    code = Code(warpgroup=True, multiply_flops=1.0, sts=4.0)
    segment = loop(dots=[DOT, DOT])
    assert m.units(segment, code, LoopPlan())["shared memory"] == close((2 * 8192 + 6400) / 128)
    assert m.units(segment, code, LoopPlan(register_dots=1))["shared memory"] == close((2 * 8192 - 4096 + 6400) / 128)


def test_the_serial_path() -> None:
    m = machine(multiply_latency_cycles=33.0, warpgroup_latency_cycles=60.0, serial_multiply_cycles=64.0)
    # two multiplies of 64 bytes of depth: two instructions of 33 cycles each; fp8 promoted to 16 bits: twice as many
    assert m.chain(loop(dots=[DOT, DOT]), Code(), {"compute": 0.0}) == close(2 * 2 * 33)
    promoted = dataclasses.replace(DOT, operand_bytes=1.0)
    assert m.chain(loop(dots=[promoted]), Code(rate="bf16"), {"compute": 0.0}) == close(2 * 33)
    assert m.chain(loop(dots=[DOT]), Code(), {"compute": 500.0}) == close(500.0)
    assert machine(warps=2).chain(loop(dots=[DOT]), Code(), {"compute": 500.0}) == close(1000.0)  # two of four partitions
    assert m.chain(loop(dots=[DOT]), Code(warpgroup=True, serialised=3.0), {"compute": 500.0}) == close(60 + 500 + 3 * 64)


def test_the_serial_path_between_multiplies() -> None:
    m = machine(shuffle_latency_cycles=24.0, special_latency_cycles=40.0, shared_latency_cycles=30.0)
    code = Code(special=10.0, shuffles=20.0, float_=30.0, alu=40.0, barriers=6.0)
    # 100 instructions for each of two warps of a scheduler, two reductions, an exponential, two pairs of barriers more
    segment = loop(special=1.0, reductions=2)
    assert m.chain(segment, code, {"compute": 0.0, "special functions": 0.0}) == close(200 + 2 * 2 * 24 + 40 + 2 * 30)
    assert m.chain(segment, code, {"compute": 0.0, "special functions": 999.0}) == close(999 + 96 + 40 + 60)
    plain = loop(reduced=1.0)
    assert m.chain(plain, code, {"compute": 0.0, "special functions": 0.0}) == close(200 + 60)


def test_a_pass_alone() -> None:
    # load 1250 + 64 cycles; two buffers ahead; barriers: half of 40 x 4 for two warps of a scheduler, and the fragments of a multiply
    c = {
        "request_bytes_per_cycle": 64.0,
        "sync_cycles": 40.0,
        "fragment_latency_cycles": 50.0,
        "load_wait_share": 0.5,
        "multiply_latency_cycles": 33.0,
    }
    m = machine(**c)
    segment, code = loop(dots=[DOT]), Code(barriers=4.0)
    sync = 0.5 * 40 * 4 * 8 / 4 + 50
    tensor = 262.144
    piped = m.step(segment, code, LoopPlan(copies=1))
    assert piped.alone == close(max((1314 + 0.5 * tensor) / 2, 262.144) + sync) and piped.fill == close(1314)
    waiting = m.step(segment, code, LoopPlan(waiting_loads=1))
    assert waiting.alone == close(1314 + 262.144 + sync) and waiting.fill == 0
    two = m.step(loop(dots=[DOT, DOT]), code, LoopPlan(waiting_loads=2))
    assert two.alone == close(2 * 1314 + 2 * 262.144 + sync + 50)
    fewest = m.step(segment, Code(barriers=1.0), LoopPlan(waiting_loads=1))
    assert fewest.alone == close(1314 + 262.144 + 0.5 * 40 * 2 * 2 + 50)


def test_what_stands_outside_all_loops() -> None:
    m = machine(
        request_bytes_per_cycle=64.0, epilogue_bytes_per_cycle=32.0, block_start_cycles=300.0, hot_lines=0.0, port_bytes_per_cycle=32.0
    )
    segment = Segment((), np.ones(1), loads=[access()], stores=[access(request_bytes=3200.0)])
    found = m.outside(segment, Code(instructions=100.0, special=5.0))
    assert found.alone == close(1314 + 100 + 300)
    assert found.units == close({"L2": 200 + 100, "special functions": 128.0, "issue": 0.0})
    m.work.segments[1:] = []  # a kernel without a loop
    found = m.outside(segment, Code(instructions=100.0, special=5.0))
    assert found.units["issue"] == close(200.0) and found.alone == close(1714 + 128)


def test_counts_guessed_from_the_work() -> None:
    # two warps: 640 + 320 operations, 64 exponentials, 1024 + 512 bytes over 64 threads
    segment = loop(plain=640.0, reduced=320.0, special=64.0, loads=[access(request_bytes=1024.0)], stores=[access(request_bytes=512.0)])
    assert law._guessed(segment, 2) == Code(instructions=20 + 15 + 1 + 6, special=1.0, float_=15.0, load_bytes=24.0)


def test_an_unrolled_loop_is_divided() -> None:
    # 8 warps x 3 x 32768 flop are three times 262144; bytes: (12 + 4) a thread x 256 threads against 2048
    code = Code(instructions=30.0, multiply_flops=3 * 32768.0, alu=6.0)
    assert law._per_pass(code, loop(dots=[DOT]), 8).instructions == close(10.0) and law._per_pass(code, loop(dots=[DOT]), 8).alu == close(
        2.0
    )
    moved = loop(loads=[access(request_bytes=1536.0)], stores=[access(request_bytes=512.0)])
    assert law._per_pass(Code(instructions=30.0, load_bytes=12.0, store_bytes=4.0), moved, 8).instructions == close(15.0)
    assert law._per_pass(Code(instructions=30.0, load_bytes=1.0), moved, 8).instructions == 30.0


def test_unequal_programs() -> None:
    # lengths 1 to 4 on two places: 1 and 2, then 3 to the first free, 4 to the other: 4 and 6; equal ones would take 2 x 2.5
    work = Work(4, 4, [Segment((), np.ones(1)), loop(steps=np.array([1.0, 2.0, 3.0, 4.0]))], np.ones(4))
    assert law._unevenness(work, 2) == close(6 / 5)
    equal = Work(4, 4, [Segment((), np.ones(1)), loop(steps=np.full(4, 3.0))], np.ones(4))
    assert law._unevenness(equal, 2) == 1


def test_what_cannot_be_launched() -> None:
    on = card()
    fits = Binary(on.smem_per_block_bytes, 64, 0, 32, 3, Code(), (), ())
    assert law.reasons(on, fits) is None
    assert "shared memory" in str(law.reasons(on, dataclasses.replace(fits, shared_bytes=on.smem_per_block_bytes + 1)))
    assert "threads" in str(law.reasons(on, dataclasses.replace(fits, num_warps=33)))
    # 65 registers are handed out as 72: 72 x 1024 of 65536
    assert "registers" in str(law.reasons(on, dataclasses.replace(fits, regs=65)))


def test_a_launch() -> None:
    """A loop of 10 passes, bound by issue: 200 programs on 100 SMs, one resident block, two rounds."""
    values = {
        **dict.fromkeys([*physics("gemm"), *physics("anykernel")], 1.0),
        "launch_s": 4 * US,
        "dram_ramp_s": 1 * US,
        "dram_efficiency": 0.5,
    }
    values |= {"block_start_cycles": 500.0, "sync_cycles": 0.0, "fragment_latency_cycles": 0.0, "l2_latency_factor": 0.0}
    values |= {
        "dram_latency_factor": 0.0,
        "request_bytes_per_cycle": 1e9,
        "port_bytes_per_cycle": 1e9,
        "hot_lines": 0.0,
        "epilogue_bytes_per_cycle": 1e9,
    }
    values |= {"alu_lanes": 1e9, "shuffle_lanes": 1e9, "shuffle_latency_cycles": 0.0, "special_latency_cycles": 0.0, "l2_rate_factor": 1e9}
    code = Code(instructions=1000.0)
    binary = Binary(90_000, 32, 64, 4, 3, Code(), (code,), (LoopPlan(waiting_loads=1),))
    segments = [Segment((), np.ones(1)), loop(loads=[access(origin=np.arange(200))])]
    found = law.estimate(card(smem_per_sm_bytes=100_000), Work(200, 200, segments, np.ones(200)), binary, values)
    assert found.blocks_per_sm == 1 and found.limiter == "shared memory" and found.waves == close(2.0)
    # 10 passes x 1000 x 4 / 4 issue cycles x 2 tiles an SM, spilled 64 bytes a thread: twice; around it 500 cycles a round. At 2 GHz
    core = (10 * 1000 * 2 * 2 + 500 * 2) / 2e9
    # 200 programs' own 40960 bytes at half of 1e12 B/s and a ramp of 1 us; none is read again: L2 holds them
    dram = 200 * 40960 / 0.5e12 + 1 * US
    assert found.latency_s == pytest.approx(4 * US + (core**2 + dram**2) ** 0.5, rel=1e-6)
    assert found.seconds["issue"] == pytest.approx(10 * 1000 * 2 / 2e9, rel=1e-6) and found.seconds["DRAM"] == close(dram)
    assert found.seconds["fill and epilogue"] == pytest.approx(1000 / 2e9, rel=1e-6) and found.seconds["launch"] == close(4 * US)


def test_a_sample_of_programs_shares_no_period_with_their_order() -> None:
    # one of each 25, at the golden ratio's multiples: 0, 1.618, 2.236 and 3.854 times 25
    assert _even_sample(100, 4).tolist() == [0, 40, 55, 96]
