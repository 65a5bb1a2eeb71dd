"""The serving arithmetic by hand: requests, waiting, the closed form, the simulation, operating points, spreads and hand-over."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fictional import close

import perfmodel as pm
from perfmodel.plan.closed_form import closed_loop, prompt_s
from perfmodel.plan.estimate import MOST_STEPS, _count, _weighted, cache_tokens, spread_of
from perfmodel.plan.goal import Goal
from perfmodel.plan.handover import hand_over_s
from perfmodel.plan.memory import memory_ledger
from perfmodel.plan.model import load_model
from perfmodel.plan.operating import Curve
from perfmodel.plan.overhead import Overhead
from perfmodel.plan.parallel import Parallel
from perfmodel.plan.queue_wait import waiting_s
from perfmodel.plan.scheduler import Scheduler
from perfmodel.plan.search import finish
from perfmodel.plan.simulate import simulate
from perfmodel.plan.split import _counts, _group_of, can_hand_over
from perfmodel.plan.spread import factors
from perfmodel.plan.traffic import Request, arrival_trace, arrivals, lengths

MS = 1e-3
MIXED = Scheduler(8192, 1024, True, True, 0.0)
PROMPTS_FIRST = Scheduler(8192, 1024, True, False, 0.0)


# Requests and waiting


def test_what_a_request_is() -> None:
    r = Request(1000, 201, 300, 2.5)
    assert (r.new, r.steps, r.kv_len) == (700, 80, 1100.5)
    assert Request(10, 1).steps == 1 and Request(10, 2).steps == 1 and Request(10, 12, 0, 5.0).steps == 3


def test_the_prefix_cache_never_has_the_last_token() -> None:
    assert Goal(1000, 10, prefix_cache_hit_rate=0.25).request == Request(1000, 10, 250, 1.0)
    assert Goal(1000, 10, prefix_cache_hit_rate=1.0).request.new == 1


def test_waiting() -> None:
    # s / 2 x rho^(sqrt(2 (c + 1)) - 1) / (c (1 - rho)): one server: 1 x 0.5 / 0.5; seven: 1 x 0.5^3 / 3.5
    assert waiting_s(2.0, 0.5) == close(1.0)
    assert waiting_s(2.0, 0.75) == close(3.0)
    assert waiting_s(2.0, 0.5, 7) == close(0.125 / 3.5)
    assert waiting_s(2.0, 1.0) == math.inf


def test_limits_are_used_by_their_share() -> None:
    assert Goal(10, 10, ttft_ms=200.0, tpot_ms=20.0).misses(300.0, 10.0) == {"ttft": 1.5, "tpot": 0.5}
    assert Goal(10, 10, tpot_ms=20.0).misses(300.0, 10.0) == {"tpot": 0.5}


def test_lengths_and_arrivals() -> None:
    rng = np.random.default_rng(0)
    assert lengths("isl", [1, 2, 3], 5, 0.5, rng).tolist() == [1, 2, 3, 1, 2]
    assert lengths("isl", 7, 3, 0.0, rng).tolist() == [7, 7, 7]
    drawn = lengths("isl", 10000, 4000, 0.02, rng)
    assert (
        drawn.min() >= 9800
        and drawn.max() <= 10200
        and drawn.mean() == pytest.approx(10000, abs=10)
        and drawn.std() == pytest.approx(115, rel=0.05)
    )
    wide = lengths("isl", pm.Lognormal(1000.0, 0.5), 40000, 0.0, rng)
    assert wide.mean() == pytest.approx(1000, rel=0.02) and wide.std() == pytest.approx(500, rel=0.04)
    assert np.diff(arrivals(4.0, 20000, rng)).mean() == pytest.approx(0.25, rel=0.03)
    assert arrival_trace([5.0, 6.5, 9.0]).tolist() == [0.0, 1.5, 4.0]


# Closed form: a step takes 1 ms and 10 us a prompt's token


def linear(dp: int = 1, pp: int = 1, front_s: float = 0.0) -> Any:
    def seconds(self: Any, chunks: Sequence[tuple[int, int]], sequences: int, kv_len: float) -> float:
        return 1e-3 + 1e-5 * sum(take for take, _ in chunks)

    host = Overhead(0.0, 0.0, 0.0, front_s / 4, front_s * 3 / 4)
    return type("Step", (), {"__call__": seconds, "table": SimpleNamespace(deployment=SimpleNamespace(dp=dp, pp=pp)), "host": host})()


def test_one_request_alone() -> None:
    # its prompt of 100 tokens takes 2 ms, ten more tokens 1 ms each
    found = closed_loop(linear(), MIXED, Request(100, 11), 1)
    assert found.ttft_s == close(2 * MS) and found.tpot_s == close(1 * MS) and found.rate_s == close(1 / (12 * MS))
    assert found.prefill_share == close(1 / 12)


def test_eight_requests_whose_prompts_ride_on_decode_steps() -> None:
    # 8 mixed steps of 2 ms and 11 - 8 of 1 ms; prompts take 8 of 19 ms. TTFT: its own step, 7/8 of half of a mean step that is under way,
    # and 0.8 x 8/19 x log2(8) steps of waiting
    found = closed_loop(linear(), MIXED, Request(100, 11), 8)
    ttft = 2.0 + 7 / 8 * (19 / 11) * 0.5 + 0.8 * (8 / 19) * 3 * 2.0
    assert found.ttft_s == close(ttft * MS)
    assert found.tpot_s == close((19 - ttft) / 10 * MS) and found.rate_s == close(8 / (19 * MS)) and found.prefill_share == close(8 / 19)
    # the front end and the way to the engine come on top
    slow = closed_loop(linear(front_s=0.04), MIXED, Request(100, 11), 8)
    assert slow.ttft_s == close(ttft * MS + 0.04) and slow.tpot_s == close(found.tpot_s) and slow.rate_s == close(8 / 0.059)


def test_two_replicas_bring_in_their_own_prompts() -> None:
    # 4 mixed steps of 2 ms, 7 of 1 ms
    found = closed_loop(linear(dp=2), MIXED, Request(100, 11), 8)
    ttft = 2.0 + 7 / 8 * (15 / 11) * 0.5 + 0.8 * (4 / 15) * 2 * 2.0
    assert found.ttft_s == close(ttft * MS) and found.rate_s == close(8 / (15 * MS))


def test_a_pipeline_passes_a_prompt_through_all_stages() -> None:
    # two stages: a prompt's step twice, once more in the cycle
    found = closed_loop(linear(pp=2), MIXED, Request(100, 11), 8)
    cycle = 16 + 3 + 2
    ttft = 2 * 2.0 + 7 / 8 * (cycle / 11) * 0.5 + 0.8 * (8 / cycle) * 3 * 2.0
    assert found.ttft_s == close(ttft * MS) and found.rate_s == close(8 / (cycle * MS)) and found.tpot_s == close((cycle - ttft) / 10 * MS)
    assert closed_loop(linear(pp=2), MIXED, Request(100, 11), 1).ttft_s == close(2 * MS)


def test_more_prompts_than_steps_share_them() -> None:
    # 32 prompts over 3 steps: 11 prompts of 100 in each, 12 ms; a prompt waits for (3 - 2) and half a step
    found = closed_loop(linear(), MIXED, Request(100, 3), 32)
    assert found.ttft_s == close(18 * MS) and found.tpot_s == close(9 * MS) and found.rate_s == close(32 / (36 * MS))
    assert found.prefill_share == close(33 / 36)


def test_a_long_prompt_takes_several_steps() -> None:
    # 20000 tokens in 3 steps of 6667 (rounded), 1 ms + 66.67 ms each
    assert prompt_s(linear(), 8192, Request(20000, 11), 0, 0.0) == close(3 * (1 + 66.67) * MS)
    # beside one sequence 8191 tokens are left: three chunks; decode 10 + 3 - 3 steps
    found = closed_loop(linear(), MIXED, Request(20000, 11), 1)
    assert found.ttft_s == close(3 * 67.67 * MS) and found.rate_s == close(1 / ((3 * 67.67 + 10) * MS))
    # engines that do not cut prompts take them whole
    whole = dataclasses.replace(MIXED, chunked=False)
    assert closed_loop(linear(), whole, Request(20000, 11), 1).ttft_s == close(201 * MS)


def test_chunks_follow_each_other() -> None:
    seen: list[tuple[int, int]] = []

    def seconds(self: Any, chunks: Sequence[tuple[int, int]], sequences: int, kv_len: float) -> float:
        seen.extend(chunks)
        return 1.0

    prompt_s(type("Step", (), {"__call__": seconds})(), 400.0, Request(1500, 11, 500), 3, 10.0)
    assert seen == [(333, 500), (333, 833), (333, 1167)]


def test_engines_that_bring_prompts_in_first_go_in_waves() -> None:
    # 81 prompts fit into one step, 82 ms: 82 / 81 each; eight of them, then ten decode steps
    found = closed_loop(linear(), PROMPTS_FIRST, Request(100, 11), 8)
    wave = 8 * 82 / 81
    ttft = (wave + 2) / 2 + 7 / 8 * 1 * 0.5
    assert found.ttft_s == close(ttft * MS) and found.tpot_s == close((10 + wave - ttft) / 10 * MS)
    assert found.rate_s == close(8 / ((10 + wave) * MS)) and found.prefill_share == close(wave / (10 + wave))
    # a prompt over half of the budget goes alone; never less than one prompt
    alone = closed_loop(linear(), PROMPTS_FIRST, Request(5000, 11), 4)
    assert alone.rate_s == close(4 / ((10 + 4 * 51) * MS))
    assert closed_loop(linear(), PROMPTS_FIRST, Request(100, 11), 1).ttft_s == close(2 * MS)


def test_a_prefix_cache_and_speculation_in_the_closed_form() -> None:
    # 40 new tokens: 1.4 ms; 10 tokens in 4 steps
    found = closed_loop(linear(), MIXED, Request(100, 11, 60, 2.5), 1)
    assert found.ttft_s == close(1.4 * MS) and found.rate_s == close(1 / (5.4 * MS)) and found.tpot_s == close(0.4 * MS)


# Operating points


def curve() -> Curve:
    b = np.array([1.0, 4.0, 16.0])
    return Curve(
        b, np.array([0.1, 0.2, 0.4]), np.array([0.010, 0.012, 0.020]), np.array([2.0, 6.0, 10.0]), b * 0, b * 0 + 0.9, b * 0 + 1.1,
        ("mlp",) * 3, np.array([0.008, 0.010, 0.016]), 0.05, "spec", b * 0 + 1,
    )  # fmt: skip


def test_where_an_engine_finishes_a_rate() -> None:
    # 4 requests/s lie half way from 1 to 4 in flight, in logarithms: 2; 0.05 s of prompt at 4/s: a fifth busy
    at, ttft, tpot = curve().at_rate(4.0)  # type: ignore[misc]
    assert at == close(2.0) and tpot == close(0.011)
    wait = 0.05 / 2 * 0.2 / 0.8
    assert ttft == close(0.1 + (0.009 - 0.008) + 0.011 / 2 + wait)
    assert curve().at_rate(10.5) is None
    assert dataclasses.replace(curve(), prefill_s=0.2).at_rate(5.0) is None
    busy = dataclasses.replace(curve(), prefill_s=0.15).at_rate(4.0)  # 60 % of the time
    assert busy is not None and busy[1] == close(0.1 + 0.001 + 0.0055 + 0.15 / 2 * 0.6 / 0.4)


# Simulation, where a step takes 1 ms and 1 us a key of each sequence


def keys(chunks: Sequence[tuple[int, int]], sequences: int, kv_len: float) -> float:
    return 1e-3 + 1e-6 * sequences * kv_len


def flat(chunks: Sequence[tuple[int, int]], sequences: int, kv_len: float) -> float:
    return 0.01


def run(step: Any, rules: Scheduler, isl: Sequence[int], osl: Sequence[int], **options: Any) -> Any:
    return simulate(step, rules, np.array(isl), np.array(osl), **{"kv_tokens": 1e9, **options})


def test_the_cache_grows_by_a_key_a_step() -> None:
    # after a prompt of 10: steps over 11, 12, 13 and 14 keys, priced together
    trace = run(keys, MIXED, [10], [5])
    assert trace.finish_s[0] == close(5 * MS + (11 + 12 + 13 + 14) * 1e-6) and trace.steps == 5
    assert trace.tpot_s[0] == close((4 * MS + 50e-6) / 4)
    assert trace.peak_kv_tokens == 14


def test_equal_steps_are_taken_together_and_cost_what_they_cost_one_by_one() -> None:
    # 200 decode steps over 1001, 1002 ... keys, at most 64 at a time
    trace = run(keys, MIXED, [1000], [201])
    assert trace.finish_s[0] == close(201 * MS + (200 * 1000 + 200 * 201 / 2) * 1e-6)
    assert trace.gap_tokens.tolist() == [64, 64, 64, 8]


def test_speculation_adds_several_keys_a_step() -> None:
    # 10 tokens in 4 steps of 2.5: mean keys 11, 13.5, 16, 18.5
    trace = run(keys, MIXED, [10], [11], tokens_per_step=2.5)
    assert trace.steps == 5 and trace.finish_s[0] == close(5 * MS + (11 + 13.5 + 16 + 18.5) * 1e-6)


def test_two_sequences_of_unlike_length() -> None:
    # steps over 11 + 21, 12 + 22 keys; then the longer one alone over 13, 14
    trace = run(keys, MIXED, [10, 20], [5, 3])
    assert trace.finish_s[1] == close(3 * MS + (32 + 34) * 1e-6)
    assert trace.finish_s[0] == close(5 * MS + (32 + 34 + 13 + 14) * 1e-6)


def test_an_arrival_ends_a_jump() -> None:
    # the second comes 25 ms after the first: three steps of 10 ms, then its prompt beside the fourth
    trace = run(flat, MIXED, [10, 10], [10, 2], arrival_s=np.array([0.0, 0.025]))
    assert trace.first_token_s.tolist() == close([0.01, 0.04]) and trace.finish_s.tolist() == close([0.10, 0.05])
    assert trace.busy_s == close(0.10)


def test_the_front_end_and_the_way() -> None:
    trace = run(flat, MIXED, [10, 10], [1, 1], front_s=0.003, delay_s=0.004)
    assert trace.ttft_s.tolist() == close([0.017, 0.027])  # seen at 7 and 10 ms: the second waits for the first's step


def test_chunks_share_the_budget_with_decode() -> None:
    # a budget of 50: a prompt of 30 decodes; one of 90 then has 49 tokens a step: 49, 41
    rules = dataclasses.replace(MIXED, token_budget=50)
    trace = run(flat, rules, [30, 90], [10, 2], arrival_s=np.array([0.0, 0.005]))
    assert trace.first_token_s.tolist() == close([0.01, 0.03])
    # a third prompt has what is left of the budget: 50 - 1 - 41 = 8 of its 20
    more = run(flat, rules, [30, 90, 20], [10, 2, 1], arrival_s=np.array([0.0, 0.005, 0.006]))
    assert more.first_token_s.tolist() == close([0.01, 0.03, 0.04])


def test_prompts_first_stops_decoding() -> None:
    rules = dataclasses.replace(PROMPTS_FIRST, token_budget=50)
    trace = run(flat, rules, [30, 90], [4, 2], arrival_s=np.array([0.0, 0.005]))
    # two steps for the second prompt, then three of decode
    assert trace.first_token_s.tolist() == close([0.01, 0.03]) and trace.finish_s.tolist() == close([0.06, 0.04])
    assert trace.gaps_s.max() == close(0.03)  # two steps of the other's prompt, and its own


def test_a_full_cache_sends_the_youngest_back() -> None:
    # two prompts of 10 in a cache of 24: after two decode steps each holds 12; the youngest leaves with 3 tokens said and comes back
    # when the
    # first is done: 13 tokens are computed again, and four are left to say
    trace = run(flat, MIXED, [10, 10], [6, 6], kv_tokens=24.0)
    assert trace.preemptions == 1 and trace.peak_kv_tokens <= 24
    assert trace.finish_s.tolist() == close([0.06, 0.09])
    assert trace.gaps_s.max() == close(0.04)  # from its third token to its fourth: three steps of the other, and its own prompt again


def test_reserved_output_keeps_a_request_out() -> None:
    # all 6 tokens are reserved: 16 + 16 do not fit into 24
    trace = run(flat, dataclasses.replace(MIXED, reserve=1.0), [10, 10], [6, 6], kv_tokens=24.0)
    assert trace.preemptions == 0 and trace.first_token_s.tolist() == close([0.01, 0.07])
    # half of them: 13 + 13 do not either; 11 tokens of cache more do
    half = dataclasses.replace(MIXED, reserve=0.5)
    assert run(flat, half, [10, 10], [6, 6], kv_tokens=25.0).first_token_s[1] == close(0.07)
    assert run(flat, half, [10, 10], [6, 6], kv_tokens=26.0).first_token_s[1] == close(0.01)


def test_time_per_token_leaves_out_the_first() -> None:
    trace = run(flat, MIXED, [10, 10], [11, 1])
    assert trace.tpot_s[0] == close((0.11 - 0.01) / 10) and math.isnan(trace.tpot_s[1])
    assert trace.e2e_s.tolist() == close([0.11, 0.01])


# Spreads and counts


def test_spreads() -> None:
    s = spread_of(np.array([*range(101), np.nan], dtype=float))
    assert (s.mean, s.p50, s.p90, s.p99) == close((50, 50, 90, 99))
    w = _weighted(np.array([3.0, 1.0, 2.0]), np.array([1.0, 6.0, 3.0]))
    assert (w.mean, w.p50, w.p90, w.p99) == close((1.5, 1.0, 2.0, 3.0))


def test_factors_add_in_quadrature_of_logarithms() -> None:
    # 0.12 of the model's own for TPOT: exp(hypot(ln 1.25, 0.12)), exp(hypot(ln 1.2, 0.12)); a throughput the other way round
    down, up = (math.exp(math.hypot(math.log(x), 0.12)) for x in (1.25, 1.2))
    assert factors("tpot_ms", 0.8, 1.2) == close((down, up))
    down, up = (math.exp(math.hypot(math.log(x), 0.11)) for x in (1.25, 1.2))
    assert factors("throughput_tok_s", 0.8, 1.2) == close((up, down))


def test_how_many_requests_are_simulated() -> None:
    assert [_count(None, n, None, 1.0) for n in (1, 10, 100, 500, 2000)] == [64, 100, 1000, 2000, 6000]
    assert _count(7, 10, None, 1.0) == 7 and _count(None, None, None, 1.0) == 2000 and _count(None, None, np.zeros(5), 1.0) == 5
    assert _count(None, None, None, MOST_STEPS / 100) == 100 and _count(None, None, None, MOST_STEPS) == 64  # long ones: fewer


def test_the_cache_of_a_request_in_tokens() -> None:
    ledger = memory_ledger("Llama-3.1-8B", "h100_sxm")
    assert cache_tokens(ledger, 3000.0) == close(ledger.kv_bytes / (32 * 2 * 8 * 128 * 2))


# Prefill and decode apart


def test_handing_a_cache_over() -> None:
    # 1000 tokens x 80 layers x 2 x 8 x 128 x 2 bytes over 50 GB/s for each GPU of the smaller engine
    model, h100 = load_model("Llama-3.1-70B"), pm.gpu("h100_sxm")
    sent = 1000 * 80 * 2 * 8 * 128 * 2
    assert hand_over_s(model, 1000, Parallel(4), Parallel(8), "bf16", h100) == close(sent / (4 * 50e9))
    assert hand_over_s(model, 1000, Parallel(8), Parallel(2), "fp8", h100) == close(sent / 2 / (2 * 50e9))
    assert hand_over_s(model, 1000, Parallel(4), Parallel(8), "bf16", h100, 1e9) == close(sent / 1e9)


def test_which_engines_hand_over() -> None:
    one, two, four = (SimpleNamespace(parallel=Parallel(n)) for n in (1, 2, 4))
    assert can_hand_over(two, four, "vllm") and not can_hand_over(four, two, "vllm") and can_hand_over(one, four, "vllm")
    assert can_hand_over(two, two, "sglang") and not can_hand_over(two, four, "sglang")


def test_engines_of_a_group() -> None:
    # decode 3/s on 1 GPU, prefill 2/s on 1: (3, 2) makes 6/s on 5 GPUs; with 3 GPUs at most 2/s on (1, 1) beat 3/s on (2, 1)
    assert _group_of(3.0, 2.0, 1, 1, 100) == (3, 2)
    assert _group_of(3.0, 2.0, 1, 1, 3) in ((1, 1), (2, 1)) and _group_of(3.0, 2.0, 4, 4, 7) is None
    assert _group_of(1.0, 4.0, 1, 1, 100) == (1, 4)


def test_pools_as_large_as_the_traffic_needs() -> None:
    # 10/s: four decode engines of 3/s, five prefill engines of 2/s, 4 and 2 GPUs each
    by_rate = Goal(10, 10, request_rate=10.0)
    assert _counts(by_rate, 3.0, 2.0, 16.0, 2, 4, 100, None) == (5, 4, 1)
    assert _counts(dataclasses.replace(by_rate, total_gpus=25), 3.0, 2.0, 16.0, 2, 4, 100, None) is None
    assert _counts(dataclasses.replace(by_rate, total_gpus=26), 3.0, 2.0, 16.0, 2, 4, 100, None) == (5, 4, 1)
    # 64 in flight, 16 a decode engine: 4 engines' rate, 12/s
    assert _counts(Goal(10, 10, concurrency=64), 3.0, 2.0, 16.0, 2, 4, 100, None) == (6, 4, 1)
    # a host of 8 without a network holds a group: 1 prefill and 1 decode make 2/s on 6 GPUs; five groups for 10/s
    assert _counts(by_rate, 3.0, 2.0, 16.0, 2, 4, 100, 8) == (2, 1, 4)


# Money


def test_what_a_deployment_costs() -> None:
    # 4 GPUs of 2.5 USD: 10 USD an hour for 5 requests/s of 1000 tokens in and 100 out, a fifth of the time in prompts
    wanted = Goal(1000, 100, ttft_ms=1000.0, tpot_ms=50.0, budget_usd_per_hour=20.0)
    row = {
        "gpu": "h100_sxm",
        "gpus": 4,
        "replicas": 2,
        "concurrency_per_engine": 8.0,
        "requests_per_s": 5.0,
        "ttft_ms": 500.0,
        "tpot_ms": 40.0,
    }
    price = SimpleNamespace(usd_per_gpu_hour=2.5)
    found = finish(dict(row), wanted, {"h100_sxm": price}, pm.gpu("h100_sxm"), 0.2, (0.8, 1.2))  # type: ignore[dict-item]
    wanted_figures = {
        "concurrency": 16.0, "throughput_tok_s": 500.0, "tok_s_per_gpu": 125.0, "tok_s_per_user": 25.0, "usd_per_hour": 10.0,
        "usd_per_m_input_tokens": 10.0 * 0.2 / (5 * 1000 * 3600) * 1e6, "usd_per_m_output_tokens": 10.0 * 0.8 / (500 * 3600) * 1e6,
        "power_limit_w": 2800.0, "joule_per_output_token": 5.6, "tightest_used": 0.8,
    }  # fmt: skip
    assert {name: found[name] for name in wanted_figures} == close(wanted_figures)
    assert found["meets"] and found["tightest"] == "tpot"
    down, up = factors("tpot_ms", 0.8, 1.2)
    assert (found["tpot_low_ms"], found["tpot_high_ms"]) == close((40 / down, 40 * up))
    down, up = factors("ttft_ms", 0.8, 1.2)
    assert (found["ttft_low_ms"], found["ttft_high_ms"]) == close((500 / down, 500 * up))
    down, up = factors("throughput_tok_s", 0.8, 1.2)
    assert (found["throughput_low_tok_s"], found["throughput_high_tok_s"]) == close((500 / down, 500 * up))
    assert not finish({**row, "tpot_ms": 49.0}, wanted, {"h100_sxm": price}, pm.gpu("h100_sxm"), 0.2, (0.8, 1.2))["sure"]  # type: ignore[dict-item]
    dear = dataclasses.replace(wanted, budget_usd_per_hour=8.0)
    over = finish(dict(row), dear, {"h100_sxm": price}, pm.gpu("h100_sxm"), 0.2, (0.8, 1.2))  # type: ignore[dict-item]
    assert not over["meets"] and over["tightest"] == "budget" and over["tightest_used"] == close(1.25)
