"""The Triton families by hand: a tiled K loop, the visits of attention, grouped projections of experts, on a GPU of round numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fictional import US, card, close

from perfmodel.analytic.constants import physics
from perfmodel.hw import gpu
from perfmodel.kernels import attention, attention_decode, attention_prefill, fused_moe, gemm, tiled
from perfmodel.kernels import facts as stored
from perfmodel.kernels.configs import Configs
from perfmodel.kernels.facts import Facts

NONE, ALL = np.array([False]), np.array([True])


def facts(**values: float) -> Facts:
    """One warp instruction mix: 100 instructions, 16 multiplies, 8192 bytes of fragments of a warp, 90,000 bytes of shared memory."""
    base = {
        "shared_bytes": 90_000, "regs": 64, "spill_bytes": 0.0, "loop_instructions": 100.0, "multiplies": 16.0, "warpgroup": 0.0,
        "rate_share": 1.0, "serialised": 0.0, "fragment_bytes": 8192.0, "special": 6.0,
    } | values  # fmt: skip
    whole = {"shared_bytes", "regs"}
    columns = {n: np.array([v], dtype=np.int64 if n in whole else np.float64) for n, v in base.items()}
    return Facts(**{**columns, "warpgroup": columns["warpgroup"] > 0, "exact": ALL})  # type: ignore[arg-type]


def configs(module: Any, variant: str = "plain", **columns: int) -> Configs:
    return Configs(
        {n: np.array([v]) for n, v in columns.items()}, np.array([module.VARIANTS.index(variant)], dtype=np.int8), module.VARIANTS
    )


def constants(family: str, **values: float) -> dict[str, float]:
    """Costs 0, factors 1, nothing that is not asked about: loads at once, ports without end."""
    zero = ("cycles", "_s", "miss_weight", "load_wait_share", "hot_lines", "latency_factor", "spill_share", "issue_share", "special_share")
    infinite = ("bytes_per_cycle", "l2_rate_factor")
    found = {n: 0.0 if n.endswith(zero) or "spill" in n else 1e9 if n.endswith(infinite) else 1.0 for n in physics(family)}
    assert not set(values) - set(found), set(values) - set(found)
    return {**found, **values}


ON = card(smem_per_sm_bytes=100_000)  # one block of 90,000 bytes an SM

# A tiled K loop: 128 x 128 x 64 of bf16, 8 warps, 3 stages; 10 x 10 tiles, k = 640: ten steps


def cost(
    on: Any = ON, code: Facts | None = None, flags: Any = (NONE, NONE, NONE), launch: dict[str, float] | None = None, **c: float
) -> Any:
    work = {
        "tiles_m": 10.0, "tiles_n": 10.0, "split": 1.0, "k": 640.0, "rows": 128.0, "cols": 128.0, "asked_rows": 128.0, "once_bytes": 1e6,
        "again_bytes": 0.0, "out_bytes": 0.0,
    } | (launch or {})  # fmt: skip
    one = configs(gemm, block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=3)
    tma, swap, persistent = flags
    arrays = tiled.Launch(**{n: np.array([v]) for n, v in work.items()})
    return tiled.cost(on, "bf16", 2.0, one, code or facts(), constants("gemm", **c), arrays, tma=tma, swap=swap, persistent=persistent)


def us(cycles: float) -> float:
    """At 2 GHz."""
    return cycles / 2e9


def test_compute() -> None:
    # 2 x 128 x 128 x 64 flop at 1000 a cycle, ten times
    assert cost().seconds["compute"][0] == close(us(10 * 2097.152))
    assert cost(code=facts(rate_share=0.5)).seconds["compute"][0] == close(us(20 * 2097.152))
    assert cost(launch={"k": 600.0}).seconds["compute"][0] == close(us(10 * 2097.152))
    assert cost(clock_share=0.5).seconds["compute"][0] == close(2 * us(10 * 2097.152))
    h = card("sm_90", smem_per_sm_bytes=100_000)
    assert cost(h, mma_sync_share=0.5).seconds["compute"][0] == close(us(20 * 524.288))
    # warp groups multiply four times as fast; a block alone waits for its own 524.288 cycles
    throughput = (524.288**4 + 200.0**4) ** 0.25
    found = cost(h, facts(warpgroup=1.0), mma_sync_share=0.5).seconds["compute"][0]
    assert found == close(us(10 * 524.288 * (throughput**4 + 524.288**4) ** 0.25 / throughput))


def test_shared_memory_and_issue() -> None:
    # fragments of 8 warps and 256 x 128 bytes written, at 32 a cycle; 100 instructions of 8 warps, four at a time
    found = cost(smem_bytes_per_cycle=32.0, code=facts(loop_instructions=1000.0))
    ratio = found.seconds["shared memory"][0] / found.seconds["issue"][0]
    assert ratio == close((8 * 8192 + 32768) / 32 / (1000 * 8 / 4))
    both = ((2097.152) ** 4 + 3072.0**4 + 2000.0**4) ** 0.25
    assert found.latency_s[0] == close((us(10 * both) ** 2 + (1e6 / 1e12) ** 2) ** 0.5)
    group = cost(card("sm_90", smem_per_sm_bytes=100_000), facts(warpgroup=1.0), smem_bytes_per_cycle=32.0)
    assert group.seconds["shared memory"][0] / group.seconds["compute"][0] == close(((128 + 2 * 128) * 128 + 32768) / 32 / 524.288)


def test_l2_port() -> None:
    # 256 rows of 128 bytes: 32 bytes a cycle; twice with the tensor-memory accelerator; 100 SMs share 5000
    assert cost(port_bytes_per_cycle=32.0, l2_rate_factor=1.0).seconds["L2"][0] / cost().seconds["compute"][0] == close(1024 / 2097.152)
    tma = (ALL, NONE, NONE)
    assert cost(port_bytes_per_cycle=16.0, tma_port_gain=2.0, flags=tma).seconds["L2"][0] / cost().seconds["compute"][0] == close(
        1024 / 2097.152
    )
    shared = cost(l2_rate_factor=0.5)
    assert shared.seconds["L2"][0] / shared.seconds["compute"][0] == close(32768 / 25 / 2097.152)


def test_latency_of_a_step() -> None:
    c = {"l2_latency_factor": 2.0, "dram_latency_factor": 4.0, "miss_weight": 0.5, "request_bytes_per_cycle": 64.0, "load_wait_share": 0.25}
    # near 2000 cycles, far 8000; half of 1e6 bytes over 100 x 10 x 32768: 1.5 %; 256 rows of 128 bytes at 64 a cycle: 512
    miss = 0.5 * 1e6 / (100 * 10 * 256 * 128)
    load = 2000 + 6000 * miss + 512
    throughput = (2097.152**4 + 200.0**4) ** 0.25
    found = cost(**c)
    assert found.miss[0] == close(miss)
    assert found.alone_over_throughput[0] * throughput == close(max((load + 0.25 * 2097.152) / 2, 0.0))


def test_dependent_multiplies_and_barriers() -> None:
    # 128 bytes of depth: four instructions of 600 cycles; barriers of 8 warps 40 x 2, fragments 50; one multiply serialised 16 times
    throughput = (2097.152**4 + 200.0**4) ** 0.25
    found = cost(multiply_latency_cycles=600.0, sync_cycles=40.0, fragment_latency_cycles=50.0)
    assert found.alone_over_throughput[0] * throughput == close(2400 + 80 + 50)
    slow = cost(code=facts(rate_share=0.5), multiply_latency_cycles=600.0)
    assert slow.alone_over_throughput[0] * ((2 * 2097.152) ** 4 + 200.0**4) ** 0.25 == close(4800)
    h = card("sm_90", smem_per_sm_bytes=100_000)
    group = cost(h, facts(warpgroup=1.0, serialised=16.0), warpgroup_latency_cycles=60.0, serial_multiply_cycles=64.0, sync_cycles=40.0)
    assert group.alone_over_throughput[0] * (524.288**4 + 200.0**4) ** 0.25 == close(524.288 + 60 + 16 * 64 + 80)


def test_waves_of_tiles() -> None:
    # 110 tiles on 100 SMs: two rounds; the tail counts 0.8: 0.8 + 0.2 x 1.1 / 2
    one = cost().latency_s[0]
    dram = 1e6 / 1e12
    core = (one**2 - dram**2) ** 0.5
    two = cost(launch={"tiles_n": 11.0}, tail_weight=0.8)
    assert (two.latency_s[0] ** 2 - dram**2) ** 0.5 == close(core * 2 * (0.8 + 0.2 * 1.1 / 2))
    assert two.mean_waves[0] == close(1.1) and two.busiest[0] == 2


def test_fill_and_epilogue() -> None:
    # a load of 1000 cycles, 128 x 128 x 2 bytes at 64 a cycle, 300 to start; two rounds; a persistent kernel starts and fills once
    c = {"l2_latency_factor": 1.0, "epilogue_bytes_per_cycle": 64.0, "block_start_cycles": 300.0}
    assert cost(**c).seconds["fill and epilogue"][0] == close(us(1000 + 512 + 300))
    assert cost(**c, launch={"tiles_n": 11.0}).seconds["fill and epilogue"][0] == close(us(2 * 1812))
    assert cost(**c, launch={"tiles_n": 11.0}, flags=(NONE, NONE, ALL)).seconds["fill and epilogue"][0] == close(us(1000 + 2 * 512))
    # two resident blocks hide half of the second round's
    both = card(smem_per_sm_bytes=200_000)
    assert cost(both, **c, launch={"tiles_n": 30.0}, round_overlap=0.5).seconds["fill and epilogue"][0] == close(us(1812 * 1.5))


def test_split_k() -> None:
    # four programs a tile of 25: ten steps are three each; 32-bit parts written and read: 2 x 4 x 25 x 128 x 128 x 4 bytes
    c = {"l2_latency_factor": 1.0, "dram_latency_factor": 1.0, "epilogue_bytes_per_cycle": 64.0}
    found = cost(**c, launch={"tiles_m": 5.0, "tiles_n": 5.0, "split": 4.0})
    assert found.k_steps[0] == 3
    assert found.seconds["DRAM"][0] == close((1e6 + 2 * 4 * 25 * 65536) / 1e12)
    # the reduction: two round trips to DRAM of 1 us and four to L2 of half a us, in cycles of seconds
    assert found.seconds["fill and epilogue"][0] == close(us(1000 + 2048) + 2 * 1 * US + 4 * 0.5 * US)


def test_dram() -> None:
    found = cost(launch={"again_bytes": 2e6, "out_bytes": 3e6, "dram_share": 0.5}, dram_efficiency=0.5, dram_ramp_s=7 * US)
    assert found.seconds["DRAM"][0] == close(6e6 / 0.25e12 + 7 * US)


def test_spills() -> None:
    # 128 bytes a thread: twice 0.5 more of every step
    plain, spilled = (cost(code=facts(spill_bytes=bytes_), spill_share_per_64_bytes=0.5).latency_s[0] for bytes_ in (0.0, 128.0))
    dram = 1e6 / 1e12
    assert (spilled**2 - dram**2) ** 0.5 == close(2 * (plain**2 - dram**2) ** 0.5)


# Attention: one visit of 64 queries to 128 keys of a head of 128, 4 warps, 3 stages


def visit(
    on: Any = ON, code: Facts | None = None, miss: float = 0.0, stages: int = 3, warps: int = 4, extra: float = 0.0, **c: float
) -> Any:
    one = configs(attention_prefill, block_m=64, block_n=128, num_warps=warps, num_stages=stages)
    return attention.visit(
        on, "bf16", one, code or facts(), constants("attention_prefill", **c), rows=np.array([64.0]), width=np.array(128.0), miss=miss,
        active_sms=np.array([100.0]), extra_instructions=extra,
    )  # fmt: skip


def test_demands_of_a_visit() -> None:
    # 4 x 64 x 128 x 128 flop at 1000 a cycle; 8192 bytes of fragments of 4 warps and keys and values of 128 x 128 x 2 bytes, 32 a cycle;
    # 100 instructions of 4 warps; 6 exponentials of 32 results each, 10 a cycle; 65536 bytes from L2 at 50 a cycle and SM
    found = visit(smem_bytes_per_cycle=32.0).demand
    wanted = {
        "compute": 4194.304,
        "shared memory": (4 * 8192 + 65536) / 32,
        "issue": 100.0,
        "exponentials": 6 * 4 * 32 / 10,
        "L2": 65536 / 50,
    }
    assert {n: float(np.ravel(v)[0]) for n, v in found.items()} == close(wanted)
    assert visit(extra=20.0).demand["issue"][0] == close(120.0)
    assert visit(port_bytes_per_cycle=16.0).demand["L2"][0] == close(4096.0)
    h = card("sm_90", smem_per_sm_bytes=100_000)
    assert visit(h, mma_sync_share=0.5).demand["compute"][0] == close(2 * 1048.576)
    group = visit(h, facts(warpgroup=1.0), smem_bytes_per_cycle=32.0).demand
    assert group["compute"][0] == close(1048.576) and group["shared memory"][0] == close((64 * 256 + 2 * 32768 + 65536) / 32)


def test_throughput_of_a_visit() -> None:
    # multiply, softmax and exponentials add; then against the port
    c = {"issue_share": 2.0, "special_share": 0.5, "port_bytes_per_cycle": 8.0}
    found = visit(**c)
    together = 4194.304 + 2 * 100 + 0.5 * 76.8
    assert found.throughput[0] == close((together**4 + 8192.0**4) ** 0.25)
    overlapped = visit(**{**c, "overlap_power": 2.0})
    together = (4194.304**2 + 200.0**2 + 38.4**2) ** 0.5
    assert overlapped.throughput[0] == close((together**4 + 8192.0**4) ** 0.25)


def test_a_visit_alone() -> None:
    c = {"l2_latency_factor": 2.0, "dram_latency_factor": 4.0, "request_bytes_per_cycle": 64.0, "load_wait_share": 0.5}
    # near 2000 cycles, far 8000, a quarter of the loads; 65536 bytes at 64 a cycle
    load = 2000 + 0.25 * 6000 + 1024
    found = visit(miss=0.25, **c)
    assert found.load_cycles[0] == close(load) and found.alone[0] == close(max((load + 0.5 * 4194.304) / 2, 4194.304 + 1 * 100))
    # what it waits for beside: 300 cycles and 0.5 an instruction; 16 multiplies one after the other
    wait = visit(sync_stall_cycles=300.0, stall_share=0.5, code=facts(serialised=16.0), serial_multiply_cycles=64.0)
    assert wait.alone[0] == close(4194.304 + 300 + 50 + 16 * 64)
    # a single stage: two round trips one after the other, and the bytes
    single = visit(miss=0.25, stages=1, **c)
    assert single.alone[0] == close(4194.304 + 100 + 2 * 3500 + 1024)
    # two warps leave half of the schedulers idle; 64 bytes spilled
    assert visit(warps=2, idle_scheduler_share=0.3, stall_share=0.0).alone[0] == close(4194.304 * 1.3)
    assert visit(code=facts(spill_bytes=64.0), spill_share_per_64_bytes=0.5, stall_share=0.0).alone[0] == close(4194.304 * 1.5)


def test_resident_blocks_share_an_sm() -> None:
    found = visit(card(smem_per_sm_bytes=200_000), stall_share=0.0, sync_stall_cycles=9000.0)
    assert found.resident[0] == 2
    t, a = float(found.throughput[0]), float(found.alone[0])
    assert found.each(np.array([5.0]))[0] == close(((2 * t) ** 4 + a**4) ** 0.25) and found.each(np.array([0.3]))[0] == close(
        (t**4 + a**4) ** 0.25
    )


def test_prefill() -> None:
    """100 heads of 64 queries, not causal: one program each, two visits of 128 keys."""
    sizes = {"batch": 1, "q_len": 64, "kv_len": 256, "q_heads": 100, "kv_heads": 100, "head_dim": 128, "causal": 0}
    one = configs(attention_prefill, block_m=64, block_n=128, num_warps=4, num_stages=3)
    c = constants(
        "attention_prefill", launch_s=4 * US, dram_ramp_s=1 * US, dram_efficiency=0.5, block_start_cycles=500.0,
        epilogue_bytes_per_cycle=16.0,
        stall_share=0.0, l2_latency_factor=1.0, request_bytes_per_cycle=64.0,
    )  # fmt: skip
    found = attention_prefill.terms(ON, "bf16", one, facts(), c, **sizes)
    each = ((4194.304**4 + (65536 / 50) ** 4) + 4194.304**4) ** 0.25
    once = (2 * 100 * 64 + 2 * 100 * 256) * 128 * 2.0
    edges = 1000 + 1024 + 64 * 128 * 2 / 16 + 500
    dram = once / 0.5e12 + 1 * US
    assert found.latency_s[0] == close(4 * US + ((us(2 * each + edges)) ** 2 + dram**2) ** 0.5)
    assert (
        found.seconds["DRAM"][0] == close(dram)
        and found.seconds["fill and epilogue"][0] == close(us(edges))
        and found.seconds["launch"][0] == close(4 * US)
    )
    share = 2 * each / (4194.304**4 + (65536 / 50) ** 4) ** 0.25
    assert found.seconds["compute"][0] == close(us(4194.304 * share)) and found.waves[0] == close(1.0)
    assert (
        found.features["fill_m"][0] == close(1.0)
        and found.features["log2_visits"][0] == close(1.0)
        and found.features["uneven"][0] == close(1.0)
    )


def test_decode() -> None:
    """10 requests of 10 key heads: 100 heads of 16 padded rows; two splits of 512 keys, four visits each; one kernel adds them."""
    sizes = {"batch": 10, "kv_len": 1024, "q_heads": 40, "kv_heads": 10, "head_dim": 128}
    c = constants(
        "attention_decode", launch_s=4 * US, combine_launch_s=2 * US, combine_loop_cycles=50.0, combine_programs_per_sm=2.0,
        stall_share=0.0,
        block_start_cycles=500.0, dram_efficiency=0.5, dram_ramp_s=1 * US, request_bytes_per_cycle=64.0,
    )  # fmt: skip
    one, two = (
        attention_decode.terms(
            ON, "bf16", configs(attention_decode, num_splits=s, block_n=128, num_warps=4, num_stages=3), facts(), c, **sizes
        )
        for s in (1, 2)
    )
    # 400 heads, 200 at once: two rounds of 50 cycles a split
    assert one.seconds["combine"][0] == close(2 * US + us(2 * 50)) and two.seconds["combine"][0] == close(2 * US + us(2 * 2 * 50))
    # a visit: 4 x 16 x 128 x 128 flop at 1000 a cycle, and 65536 bytes from L2 at 50; 200 programs of four visits on 100 SMs
    throughput = (1048.576**4 + 1310.72**4) ** 0.25
    each = (throughput**4 + 1048.576**4) ** 0.25
    edges = 2 * 1024 + 2 * 500
    moved = 2 * 100 * 1024 * 128 * 2 + 2 * 400 * 128 * 2 + 400 * 2 * 130 * 4
    dram = moved / 0.5e12 + 1 * US
    assert two.seconds["DRAM"][0] == close(dram) and two.seconds["fill and epilogue"][0] == close(us(edges))
    assert two.seconds["compute"][0] == close(us(1048.576 * 8 * each / throughput)) and two.waves[0] == close(2.0)
    assert two.latency_s[0] == close(4 * US + (us(8 * each + edges) ** 2 + dram**2) ** 0.5 + 2 * US + us(200))
    wanted = {"waves": 2, "uneven": 1, "log2_visits": 2, "log2_head_dim": 7, "log2_splits": 1, "empty_splits": 1, "log2_programs_per_sm": 1}
    assert {n: float(np.ravel(two.features[n])[0]) for n in wanted} == close(wanted)


def test_moe() -> None:
    """64 tokens, 2 of 8 experts dealt out in turn: 16 rows each, tiles of 16 x 64: 8 x 16 of both projections, two on the busiest SM."""
    sizes = {"tokens": 64, "hidden": 1024, "inter": 512, "num_experts": 8, "top_k": 2, "random": 0}
    one = configs(fused_moe, block_m=16, block_n=64, block_k=64, group_m=1, num_warps=4, num_stages=3)
    c = constants(
        "fused_moe", launch_s=4 * US, next_launch_s=1 * US, lost_bytes=128.0, stream_loss=0.0, band_loss=0.0, deep_loss=0.0,
        elementwise_l2_share=0.5, l2_rate_factor=1.0,
    )  # fmt: skip
    found = fused_moe.terms(ON, "bf16", one, facts(), c, **sizes)
    # a step: 2 x 16 x 64 x 64 flop at 1000 a cycle, 100 instructions of 4 warps, 80 rows of 128 bytes at 50
    step = (131.072**4 + 100.0**4 + 204.8**4) ** 0.25
    # tokens and experts' weights, read at two thirds of the rate (pieces of 256 bytes that lose 128), and what goes out
    read = (64 + 8 * 1024) * 1024 * 2, (128 + 8 * 1024) * 512 * 2
    dram = [(r + 128 * 1024 * 2) / (1e12 * 2 / 3) for r in read]
    core = [us(2 * step * k) for k in (16, 8)]
    # gate: 128 x 3 x 512, sum: (128 + 64) x 1024 elements of 2 bytes, from L2 at half of 1e13 B/s; two launches
    other = (128 * 3 * 512 + 192 * 1024) * 2 / 0.5e13 + 2 * US
    both = sum((a**2 + b**2) ** 0.5 for a, b in zip(core, dram, strict=True))
    assert found.latency_s[0] == pytest.approx(5 * US + both + other, rel=1e-6)
    s = {n: float(np.ravel(v)[0]) for n, v in found.seconds.items()}
    assert s["DRAM"] == close(sum(dram)) and s["gate and sum"] == close(other) and s["launch"] == close(5 * US)
    assert s["compute"] == pytest.approx(us(2 * 131.072 * 24), rel=1e-6) and s["L2"] == pytest.approx(us(2 * 204.8 * 24), rel=1e-6)
    f = {n: float(np.ravel(v)[0]) for n, v in found.features.items()}
    wanted = {
        "waves": 1.28,
        "tail": 0.64,
        "fill_m": 1,
        "log_rows_per_expert": np.log(16),
        "touched": 1,
        "log2_block_m": 4,
        "log2_block_n": 6,
    }
    assert {n: f[n] for n in wanted} == close(wanted)


def test_no_expert_fills_a_quarter_of_a_tile() -> None:
    # 128 tokens, all of them to each of 8 experts: no tile is too high; 16 tokens, one of 8: at most 8.5 rows or so, and 16 in all
    sizes = {"hidden": 1024, "inter": 512, "num_experts": 8, "random": 1}
    for tokens, top_k, pruned in ((128, 8, [False, False]), (16, 8, [True, True]), (40, 8, [False, True]), (200, 1, [False, True])):
        columns = {
            "block_m": [128, 256],
            "block_n": [64, 64],
            "block_k": [64, 64],
            "group_m": [1, 1],
            "num_warps": [8, 8],
            "num_stages": [3, 3],
        }
        two = Configs({n: np.array(v) for n, v in columns.items()}, np.zeros(2, dtype=np.int8), fused_moe.VARIANTS)
        code = facts().take(np.array([0, 0]))
        rules = fused_moe.rules(ON, dtype="bf16", configs=two, facts=code, tokens=tokens, top_k=top_k, **sizes)
        (found,) = (r.mask.tolist() for r in rules if "quarter" in r.reason)
        assert found == pruned, (tokens, top_k)


def test_a_table_of_facts_is_read_as_it_was_written(tmp_path: Path) -> None:
    # somebody else's plain kernel counts as the ordinary one
    row = {"arch": 90, "dtype": "bf16", "block_m": 64, "block_n": 128, "block_k": 64, "num_warps": 4, "num_stages": 3}
    values = dict(zip(stored.VALUES, range(1, 11), strict=True))
    path = tmp_path / "facts.npz"
    stored.write_table(path, [{**row, "variant": "plain", **values}, {**row, "variant": "tma", **{n: v + 20 for n, v in values.items()}}])
    table = stored.read_table(path)
    keys = [stored._pack(90, 1, 1 + at, {n: row[n] for n in gemm.BINARY}) for at in (0, 1)]
    assert table.keys.tolist() == [int(k) for k in keys]
    assert {n: v.tolist() for n, v in table.values.items()} == {n: [v, v + 20] for n, v in values.items()}


def test_everything_that_is_asked_about_is_compiled() -> None:
    # the pointer kernel's whole grid, which every GPU runs, and the kernels of the architecture itself
    for name in ("a100_sxm4_80gb", "h100_sxm"):
        on = gpu(name)
        made = {(b["variant"], *(b[n] for n in gemm.BINARY)) for b in gemm.binaries(int(on.arch.removeprefix("sm_")), "bf16")}
        for space in (gemm.space, gemm.portable_space):
            asked = space(on, "bf16", m=4096, n=4096, k=4096)
            rows = {(str(v), *(int(asked[n][i]) for n in gemm.BINARY)) for i, v in enumerate(asked.variant)}
            assert rows and rows <= made, name


def test_an_element_type_that_no_table_holds_has_no_compiled_facts() -> None:
    some = gemm.portable_space(gpu("h100_sxm"), "bf16", m=64, n=64, k=64)
    assert stored.facts_for("gemm", gpu("h100_sxm"), "bf16", some).exact.any()
    assert not stored.facts_for("gemm", gpu("h100_sxm"), "int8_wo", some).exact.any()
