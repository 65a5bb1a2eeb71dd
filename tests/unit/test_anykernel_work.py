"""What a kernel has to do, read from its TTIR: trip counts, tiles, sharing, against figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.anykernel import ir
from perfmodel.kernels.anykernel.values import Unknown, Values
from perfmodel.kernels.anykernel.work import analyse

# rows of 8 elements at x + program * 8, added up over `count` steps of 4 programs' rows; the last program has no work
SUMS = """
module {
  tt.func public @sums(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("x"(#loc)), %y: !tt.ptr<f32> loc("y"(#loc)), %count: i32) {
    %zero = arith.constant dense<0.000000e+00> : tensor<8xf32> loc(#loc1)
    %c0 = arith.constant 0 : i32 loc(#loc1)
    %c1 = arith.constant 1 : i32 loc(#loc1)
    %c8 = arith.constant 8 : i32 loc(#loc1)
    %stride = arith.constant dense<32> : tensor<8xi32> loc(#loc1)
    %pid = tt.get_program_id x : i32 loc(#loc2)
    %start = arith.muli %pid, %c8 : i32 loc(#loc3)
    %lanes = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32> loc(#loc4)
    %first = tt.splat %start : i32 -> tensor<8xi32> loc(#loc5)
    %at = arith.addi %first, %lanes : tensor<8xi32> loc(#loc5)
    %base = tt.splat %x : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>> loc(#loc6)
    %p = tt.addptr %base, %at : tensor<8x!tt.ptr<f32>>, tensor<8xi32> loc(#loc6)
    %steps = arith.subi %count, %pid : i32 loc(#loc7)
    %all:2 = scf.for %i = %c0 to %steps step %c1 iter_args(%sum = %zero, %q = %p) -> (tensor<8xf32>, tensor<8x!tt.ptr<f32>>)  : i32 {
      %v = tt.load %q : tensor<8x!tt.ptr<f32>> loc(#loc8)
      %e = math.exp2 %v : tensor<8xf32> loc(#loc8)
      %next = arith.addf %sum, %e : tensor<8xf32> loc(#loc8)
      %moved = tt.addptr %q, %stride : tensor<8x!tt.ptr<f32>>, tensor<8xi32> loc(#loc9)
      scf.yield %next, %moved : tensor<8xf32>, tensor<8x!tt.ptr<f32>> loc(#loc9)
    } loc(#loc10)
    %one = "tt.reduce"(%all#0) <{axis = 0 : i32}> ({
    ^bb0(%a: f32 loc(callsite(#loc1 at #loc2)), %b: f32 loc(callsite(#loc1 at #loc2))):
      %ab = arith.addf %a, %b : f32 loc(#loc2)
      tt.reduce.return %ab : f32 loc(#loc2)
    }) : (tensor<8xf32>) -> f32 loc(#loc2)
    %out = tt.addptr %y, %pid : !tt.ptr<f32>, i32 loc(#loc3)
    tt.store %out, %one : !tt.ptr<f32> loc(#loc3)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc1 = loc("file.py":1:1)
"""

# one program in four leaves at once; the others load a tile whose row comes from a table, masked to 5 of 8 columns
TABLE = """
module {
  tt.func public @gather(%x: !tt.ptr<bf16>, %rows: !tt.ptr<i32>, %n: i32) attributes {noinline = false} {
    %c3 = arith.constant 3 : i32
    %c4 = arith.constant 4 : i32
    %pid = tt.get_program_id x : i32
    %r = arith.remsi %pid, %c4 : i32
    %leave = arith.cmpi eq, %r, %c3 : i32
    cf.cond_br %leave, ^bb1, ^bb2
  ^bb1:  // pred: ^bb0
    tt.return
  ^bb2:  // pred: ^bb0
    %where = tt.addptr %rows, %pid : !tt.ptr<i32>, i32
    %row = tt.load %where : !tt.ptr<i32>
    %off = arith.muli %row, %n : i32
    %lanes = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
    %limit = tt.splat %n : i32 -> tensor<8xi32>
    %mask = arith.cmpi slt, %lanes, %limit : tensor<8xi32>
    %start = tt.addptr %x, %off : !tt.ptr<bf16>, i32
    %base = tt.splat %start : !tt.ptr<bf16> -> tensor<8x!tt.ptr<bf16>>
    %p = tt.addptr %base, %lanes : tensor<8x!tt.ptr<bf16>>, tensor<8xi32>
    %v = tt.load %p, %mask : tensor<8x!tt.ptr<bf16>>
    tt.return
  }
}
"""


def test_parses_types_and_arguments():
    assert ir.parse_type("tensor<128x64x!tt.ptr<bf16>>") == ir.Type((128, 64), "ptr", "bf16")
    assert ir.parse_type("tensor<128x64xf32, #mma>") == ir.Type((128, 64), "f32")
    assert ir.parse_type("!tt.tensordesc<tensor<64x32xf8E4M3FN>>").bytes == 1
    kernel = ir.parse(SUMS)
    assert kernel.name == "sums" and kernel.arguments == (("x", "!tt.ptr<f32>"), ("y", "!tt.ptr<f32>"), ("count", "i32"))
    assert "loc" not in ir.strip_locations(SUMS)
    with pytest.raises(ValueError, match="no tt"):
        ir.parse("module {}")


def test_trip_counts_tiles_and_strides_by_hand():
    work = analyse(ir.parse(SUMS), {"count": 3}, (4, 1, 1))
    outside, loop = work.segments
    assert loop.steps.tolist() == [3, 2, 1, 0]
    (load,) = loop.loads
    assert (load.base, load.tile_bytes, load.request_bytes, load.run_bytes, load.lines) == ("x", 32, 32, 32, 1)
    assert load.moving and load.steps == 1.5 and load.origin.tolist() == [0, 8, 16, 24]
    assert load.stream_bytes == 48 and load.longest_bytes == 96
    assert (loop.special, loop.plain) == (8, 8) and outside.reductions == 1 and outside.reduced == 8
    assert outside.stores[0].base == "y" and outside.stores[0].tile_bytes == 4
    assert work.unique_bytes({}) == (4 * 48, 16)
    assert work.unique_bytes({"x": 100}) == (100, 16)
    assert work.window_bytes(4) == 4 * 48


def test_carried_addresses_and_values_after_a_loop():
    kernel = ir.parse(SUMS)
    values = Values(kernel, {"count": 3}, (4, 1, 1), np.arange(4))
    lane = (np.array([[5]]),)
    assert values.value("%q", lane).tolist() == [[5, 13, 21, 29]]
    second = values.at_iteration(i=np.ones((1, 1), dtype=int))
    assert second.value("%q", lane).tolist() == [[37, 45, 53, 61]]
    assert values.value("%all#1", lane).tolist() == [[5 + 3 * 32, 13 + 2 * 32, 21 + 32, 29]]
    assert values.base("%q") == "x"
    with pytest.raises(Unknown, match="what x holds"):
        values.value("%v", lane)


def test_early_exit_masks_and_given_contents():
    kernel = ir.parse(TABLE)
    assert len(kernel.exits) == 1
    table = np.array([7, 7, 2, 0, 7, 1, 2, 0])
    known = analyse(kernel, {"n": 5}, (8, 1, 1), {"rows": table})
    assert known.active.tolist() == [1, 1, 1, 0, 1, 1, 1, 0]
    tile = next(a for a in known.segments[0].loads if a.base == "x")
    assert tile.tile_bytes == 10 and tile.run_bytes == 10
    assert len(np.unique(tile.origin)) == 4 and known.notes == ()
    blind = analyse(kernel, {"n": 5}, (8, 1, 1))
    assert any("x depends on what rows holds" in note for note in blind.notes)


def test_a_bound_that_depends_on_data_asks_for_the_trip_count():
    text = TABLE.replace(
        "    tt.return\n  }\n}",
        "    %c0 = arith.constant 0 : i32\n    %c1 = arith.constant 1 : i32\n"
        "    scf.for %i = %c0 to %row step %c1  : i32 {\n      %w = tt.load %p, %mask : tensor<8x!tt.ptr<bf16>>\n    }\n"
        "    tt.return\n  }\n}",
    )
    with pytest.raises(Unknown, match="give trip_count"):
        analyse(ir.parse(text), {"n": 5}, (8, 1, 1))
    work = analyse(ir.parse(text), {"n": 5}, (8, 1, 1), trip_count=6)
    assert np.mean(work.loops[0].steps) == pytest.approx(6 * 0.75)
    exact = analyse(ir.parse(text), {"n": 5}, (4, 1, 1), {"rows": np.array([3, 1, 2, 9])})
    assert exact.loops[0].steps.tolist() == [3, 1, 2, 0]


def test_a_large_launch_is_sampled_evenly():
    work = analyse(ir.parse(SUMS), {"count": 1 << 20}, (1 << 20, 1, 1))
    assert work.looked_at <= 1 << 16
    loaded, _ = work.unique_bytes({})
    assert loaded == pytest.approx((1 << 20) * 32 * (1 << 19), rel=0.01)
