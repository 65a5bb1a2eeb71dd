"""The law of any kernel: facts from listings, and properties that must hold whatever the kernel."""

from __future__ import annotations

import dataclasses

import pytest

from perfmodel.hw import gpu
from perfmodel.kernels.anykernel import ir, law
from perfmodel.kernels.anykernel.facts import Binary, Code, LoopPlan
from perfmodel.kernels.anykernel.work import analyse
from perfmodel.measure import machine_code

LISTING = """
.L_x_0:
        /*0000*/                   LDGSTS.E.BYPASS.128 [R1], [R2.64] ;
        /*0010*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0020*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0030*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0040*/              @!P0 MUFU.EX2 R3, R3 ;
        /*0050*/                   NOP ;
        /*0060*/               @P0 BRA `(.L_x_0) ;
        /*0070*/                   STG.E.64 [R2.64], R4 ;
        /*0080*/                   EXIT ;
"""
DOT = """
module {
  tt.func public @dots(%a: !tt.ptr<bf16>, %b: !tt.ptr<bf16>, %k: i32, %n: i32) {
    %c0_i32 = arith.constant 0 : i32
    %c64_i32 = arith.constant 64 : i32
    %cst = arith.constant dense<0.000000e+00> : tensor<64x64xf32>
    %c4096_i32 = arith.constant 4096 : i32
    %pid = tt.get_program_id x : i32
    %o = arith.muli %pid, %c4096_i32 : i32
    %r = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %row = tt.expand_dims %r {axis = 1 : i32} : tensor<64xi32> -> tensor<64x1xi32>
    %col = tt.expand_dims %r {axis = 0 : i32} : tensor<64xi32> -> tensor<1x64xi32>
    %w = tt.splat %c64_i32 : i32 -> tensor<64x1xi32>
    %rw = arith.muli %row, %w : tensor<64x1xi32>
    %rb = tt.broadcast %rw : tensor<64x1xi32> -> tensor<64x64xi32>
    %cb = tt.broadcast %col : tensor<1x64xi32> -> tensor<64x64xi32>
    %off = arith.addi %rb, %cb : tensor<64x64xi32>
    %ap = tt.addptr %a, %o : !tt.ptr<bf16>, i32
    %as = tt.splat %ap : !tt.ptr<bf16> -> tensor<64x64x!tt.ptr<bf16>>
    %at = tt.addptr %as, %off : tensor<64x64x!tt.ptr<bf16>>, tensor<64x64xi32>
    %all:1 = scf.for %i = %c0_i32 to %k step %c64_i32 iter_args(%acc = %cst) -> (tensor<64x64xf32>)  : i32 {
      %x = tt.load %at : tensor<64x64x!tt.ptr<bf16>>
      %d = tt.dot %x, %x, %acc, inputPrecision = tf32 : tensor<64x64xbf16> * tensor<64x64xbf16> -> tensor<64x64xf32>
      scf.yield %d : tensor<64x64xf32>
    }
    tt.return
  }
}
"""
BODY = Code(instructions=80, multiplies=64, multiply_flops=64 * 4096.0, rate="bf16", ldsm=16, barriers=2, load_bytes=64)
BINARY = Binary(32768, 96, 0, 4, 3, Code(instructions=200), (BODY,), (LoopPlan(copies=2, dots=1, buffers=2),))


def latency(name="h100_sxm", programs=1056, k=4096, binary=BINARY, **changes):
    spec = gpu(name)
    spec = dataclasses.replace(spec, **changes) if changes else spec
    work = analyse(ir.parse(DOT), {"k": k, "n": 64}, (programs, 1, 1))
    return law.estimate(spec, work, binary, law.constants()).latency_s


# a card whose arithmetic can be done by hand: 1e15 flop/s at boost, a tenth more at the highest clock, 1e12 B/s, 1e6 bytes of L2
CARD = dataclasses.replace(
    gpu("h100_sxm"), boost_clock_hz=1e9, max_clock_hz=1.1e9, dram_bytes_per_s=1e12, l2_bytes=10**6,
    tensor_flops={"bf16": 1e15, "fp16": 1e15, "fp8": 2e15, "int8": 2e15},
)  # fmt: skip


def test_the_bound_of_a_kernel_is_of_the_products_and_bytes_in_its_code():
    # 64 passes of 2 x 64^3 flops in each program
    work = analyse(ir.parse(DOT), {"k": 4096, "n": 64}, (10_560, 1, 1))
    assert law.least_s(CARD, work) == pytest.approx(10_560 * 64 * 2 * 64**3 / 1.1e15, rel=1e-9)
    # one pass: its tile of 8,192 bytes a program outlasts the product
    work = analyse(ir.parse(DOT), {"k": 64, "n": 64}, (10_560, 1, 1))
    assert law.least_s(CARD, work) == pytest.approx((10_560 * 64 * 64 * 2 - 1e6) / 1e12, rel=1e-9)
    # no more bytes than the tensor holds: the products are the longer
    assert law.least_s(CARD, work, {"a": 2e6}) == pytest.approx(10_560 * 2 * 64**3 / 1.1e15, rel=1e-9)


def test_a_kernel_whose_work_is_a_guess_has_no_bound():
    work = analyse(ir.parse(DOT), {"k": 4096, "n": 64}, (10_560, 1, 1))
    assert law.least_s(CARD, dataclasses.replace(work, notes=("a branch depends on data: each side is counted half",))) == 0.0


def test_an_estimate_never_beats_the_bound_of_its_own_work():
    for programs, k in ((1, 64), (132, 4096), (10_560, 64), (10_560, 8192)):
        work = analyse(ir.parse(DOT), {"k": k, "n": 64}, (programs, 1, 1))
        for name in ("a100_sxm4_80gb", "h100_sxm", "l20", "b200_sxm"):
            assert law.estimate(gpu(name), work, BINARY, law.constants()).latency_s > law.least_s(gpu(name), work) > -1.0


def test_counts_of_a_listing_by_hand():
    binary = machine_code.read(
        "module { tt.func public @f() { tt.return } }", LISTING, shared_bytes=1, regs=2, stack_bytes=3, num_warps=4, num_stages=5
    )
    (body,) = binary.loops
    assert (body.instructions, body.multiplies, body.multiply_flops, body.rate) == (6, 2, 2 * 4096, "bf16")
    assert (body.special, body.barriers, body.load_bytes, body.warpgroup) == (1, 1, 16, False)
    assert binary.outside.store_bytes == 8 and binary.outside.multiplies == 0
    assert Binary.from_dict(binary.to_dict()) == binary


def test_warpgroup_multiplies_and_their_fences():
    lines = [f"        /*{16 * i:04x}*/ HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4] ;" for i in range(4)]
    fences = [f"        /*{256 + 16 * i:04x}*/ WARPGROUP.ARRIVE ;" for i in range(8)]
    from perfmodel.measure import sass

    plain = machine_code.count(sass.parse("\n".join(lines)).instructions)
    assert plain.warpgroup and plain.multiply_flops == 4 * 2 * 64 * 128 * 16 and plain.serialised == 0
    assert machine_code.count(sass.parse("\n".join(lines + fences)).instructions).serialised == 4


def test_an_unrolled_loop_counts_once():
    doubled = Code(**{n: 2 * getattr(BODY, n) for n in Code.__slots__ if n not in ("warpgroup", "rate")}, rate="bf16")
    binary = dataclasses.replace(BINARY, loops=(doubled,))
    assert latency(binary=binary) == pytest.approx(latency())


def test_latency_grows_with_work_and_not_with_bandwidth():
    assert latency(k=8192) > latency(k=4096)
    assert latency(programs=4 * 1056) > latency()
    spec = gpu("h100_sxm")
    faster = latency(dram_bytes_per_s=2 * spec.dram_bytes_per_s, l2_bytes_per_s=2 * spec.l2_bytes_per_s)
    assert faster <= latency()
    assert latency(dram_latency_s=4 * spec.dram_latency_s) >= latency()


def test_never_faster_than_the_tensor_cores():
    spec = gpu("h100_sxm")
    flops = 1056 * 64 * 2.0 * 64 * 64 * 64
    assert latency() > flops / spec.tensor_rate("bf16")


def test_spills_cost_and_what_cannot_launch_says_why():
    spilled = dataclasses.replace(BINARY, spill_bytes=256)
    assert latency(binary=spilled) > 1.5 * latency()
    spec = gpu("l20")
    assert law.reasons(spec, BINARY) is None
    assert "shared memory" in law.reasons(spec, dataclasses.replace(BINARY, shared_bytes=120_000))
    assert "registers" in law.reasons(spec, dataclasses.replace(BINARY, regs=255, num_warps=16))


def test_programs_of_unequal_length_wait_for_the_longest():
    doubled = ("%c2 = arith.constant 2 : i32", "%p2 = arith.muli %pid, %c2 : i32", "%h = arith.muli %p2, %c64_i32 : i32")
    uneven = DOT.replace("to %k step", "to %h step").replace("    %all:1", "".join(f"    {line}\n" for line in doubled) + "    %all:1")
    spec = gpu("h100_sxm")
    work = analyse(ir.parse(uneven), {"k": 0, "n": 64}, (100, 1, 1))
    equal = analyse(ir.parse(DOT), {"k": 99 * 64, "n": 64}, (100, 1, 1))
    assert work.loops[0].steps.mean() == equal.loops[0].steps.mean() == 99
    assert law.estimate(spec, work, BINARY, law.constants()).latency_s > 1.5 * law.estimate(spec, equal, BINARY, law.constants()).latency_s
