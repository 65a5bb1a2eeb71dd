"""Step time, simulation, closed form and estimates of serving."""

import dataclasses
import json
import math

import numpy as np
import pytest

import perfmodel as pm
from perfmodel.analytic.constants import constant_values
from perfmodel.cli.main import run
from perfmodel.errors import InputError, NoAnswerError
from perfmodel.evaluate.serving import drawn_lengths, predict_row, rows
from perfmodel.plan.closed_form import closed_loop
from perfmodel.plan.deployment import Deployment
from perfmodel.plan.model import load_model
from perfmodel.plan.overhead import overhead
from perfmodel.plan.scheduler import Scheduler, default_scheduler
from perfmodel.plan.serving_step import ServingStep
from perfmodel.plan.simulate import simulate
from perfmodel.plan.step_table import build_tables
from perfmodel.plan.traffic import Request

H100 = pm.gpu("h100_sxm")
VLLM = default_scheduler("vllm", H100)


def deployment(model="Llama-3.1-8B", stack="vllm", quantization=None, gpu=H100, **shape):
    return Deployment(model=load_model(model, quantization), gpu=gpu, stack=stack, **shape)


def served(d):
    return ServingStep(build_tables([d])[0], overhead(d.stack))


@pytest.fixture(scope="module")
def llama():
    return served(deployment())


def flat(chunks, sequences, kv_len):
    """Every step takes 10 ms."""
    return 0.01


def fixed(count, isl, osl):
    return np.full(count, isl), np.full(count, osl)


# Simulation


def test_one_request_by_hand():
    trace = simulate(flat, VLLM, *fixed(1, 100, 5), kv_tokens=1000, concurrency=1, front_s=0.002, delay_s=0.003)
    assert trace.ttft_s[0] == pytest.approx(0.015)  # front end, then one step
    assert trace.tpot_s[0] == pytest.approx(0.01)
    assert trace.e2e_s[0] == pytest.approx(0.055)
    assert trace.steps == 5


def test_a_prompt_over_the_budget_takes_several_steps():
    trace = simulate(flat, VLLM, *fixed(1, 20000, 1), kv_tokens=30000, concurrency=1)
    assert trace.steps == math.ceil(20000 / VLLM.token_budget) == 3
    whole = dataclasses.replace(VLLM, chunked=False)
    assert simulate(flat, whole, *fixed(1, 20000, 1), kv_tokens=30000, concurrency=1).steps == 1


def test_the_batch_limit_makes_the_others_wait():
    trace = simulate(flat, VLLM.limited(None, 1), *fixed(3, 10, 10), kv_tokens=1e6, concurrency=3)
    np.testing.assert_allclose(np.sort(trace.ttft_s), [0.01, 0.11, 0.21])
    np.testing.assert_allclose(trace.tpot_s, 0.01)


def test_a_front_end_takes_requests_one_at_a_time():
    trace = simulate(flat, VLLM, *fixed(4, 10, 1), kv_tokens=1e6, concurrency=4, front_s=0.05)
    np.testing.assert_allclose(trace.ttft_s, [0.06, 0.11, 0.16, 0.21])


def test_prompts_first_engines_stop_decoding_and_the_gap_shows_it():
    rules = dataclasses.replace(default_scheduler("sglang", H100), reserve=0.0)
    trace = simulate(flat, rules, *fixed(2, 10, 20), kv_tokens=1e6, arrival_s=np.array([0.0, 0.055]))
    assert trace.gaps_s.max() == pytest.approx(0.02)  # its own step, and the other's prompt before it
    assert trace.tpot_s[0] == pytest.approx((0.2 + 0.01 - 0.01) / 19)
    assert trace.gap_tokens.sum() == 2 * 19


@pytest.mark.parametrize("reserve", [0.0, 0.5, 1.0])
def test_a_small_cache_is_never_overrun_and_everything_finishes(reserve):
    rules = Scheduler(2048, 64, True, True, reserve)
    trace = simulate(flat, rules, *fixed(200, 300, 200), kv_tokens=4000, concurrency=40)
    assert np.isfinite(trace.finish_s).all()
    assert trace.peak_kv_tokens <= 4000
    assert (trace.preemptions > 0) == (reserve < 1.0)
    assert (trace.first_token_s >= trace.arrival_s).all() and (trace.finish_s > trace.first_token_s).all()


def test_a_closed_loop_keeps_its_number_in_flight(llama):
    trace = simulate(llama, VLLM, *fixed(800, 500, 100), kv_tokens=1e6, concurrency=16)
    middle = (trace.arrival_s[100] + trace.arrival_s[-100]) / 2
    assert int(((trace.arrival_s <= middle) & (trace.finish_s > middle)).sum()) == 16


def test_the_same_question_has_the_same_answer():
    first, second = (pm.estimate("Llama-3.1-8B", "h100_sxm", isl=pm.Lognormal(800, 0.6), osl=200, request_rate=4) for _ in range(2))
    assert first.ttft == second.ttft and first.itl == second.itl
    other = pm.estimate("Llama-3.1-8B", "h100_sxm", isl=pm.Lognormal(800, 0.6), osl=200, request_rate=4, seed=1)
    assert other.ttft != first.ttft


def test_ten_thousand_requests_are_simulated_in_jumps(llama):
    rng = np.random.default_rng(0)
    isl, osl = rng.integers(200, 2000, 10000), rng.integers(50, 350, 10000)
    trace = simulate(llama, VLLM, isl, osl, kv_tokens=4e5, arrival_s=np.cumsum(rng.exponential(0.1, 10000)))
    assert len(trace.ttft_s) == 10_000 and np.isfinite(trace.ttft_s).all()
    assert trace.steps < osl.sum() / 20  # whole stretches of decode at once, not a step a token


def test_a_prefix_cache_shortens_the_first_token_and_speculation_the_others(llama):
    plain, cached, drafted = (
        simulate(llama, VLLM, *fixed(20, 4000, 200), kv_tokens=1e6, concurrency=1, **options)
        for options in ({}, {"cached_share": 0.8}, {"tokens_per_step": 2.0})
    )
    assert cached.ttft_s.mean() < 0.5 * plain.ttft_s.mean()
    assert drafted.tpot_s.mean() < 0.6 * plain.tpot_s.mean()


# Closed form


@pytest.mark.parametrize(
    ("model", "stack", "shape"),
    [
        ("Llama-3.1-8B", "vllm", {}),
        ("Llama-3.1-8B", "sglang", {}),
        ("Qwen3-32B", "vllm", {"tp": 4}),
        ("Qwen3-32B", "trtllm", {"tp": 4}),
        ("Qwen3-30B-A3B", "vllm", {"tp": 2, "ep": 2}),
    ],
)
def test_closed_form_agrees_with_the_simulation(model, stack, shape):
    step, rules = served(deployment(model, stack, **shape)), default_scheduler(stack, H100)
    rng = np.random.default_rng(0)
    for isl, osl in ((500, 500), (2000, 400), (6000, 800)):
        for requests in (1, 8, 32):
            spread = constant_values("serving")["length_spread"] if rules.mixed else 0.0
            tokens = [np.rint(n * rng.uniform(1 - spread, 1 + spread, 12 * requests + 20)).astype(int) for n in (isl, osl)]
            host = step.host
            trace = simulate(step, rules, *tokens, kv_tokens=1e7, concurrency=requests, front_s=host.request_s, delay_s=host.delay_s)
            steady = closed_loop(step, rules, Request(isl, osl), requests)
            if steady.prefill_share < 0.8:
                assert steady.tpot_s == pytest.approx(np.mean(trace.tpot_s), rel=0.1), (isl, osl, requests)
                assert steady.rate_s == pytest.approx(requests / np.mean(trace.e2e_s), rel=0.1), (isl, osl, requests)


@pytest.mark.parametrize(("hit", "accepted"), [(0.8, 1.0), (0.0, 2.5), (0.5, 1.8)])
@pytest.mark.parametrize("stack", ["vllm", "sglang"])
def test_closed_form_agrees_with_a_prefix_cache_and_speculation(stack, hit, accepted):
    step, rules, host = served(deployment(stack=stack)), default_scheduler(stack, H100), overhead(stack)
    rng = np.random.default_rng(0)
    for requests in (1, 8, 32):
        spread = constant_values("serving")["length_spread"] if rules.mixed else 0.0
        tokens = [np.rint(n * rng.uniform(1 - spread, 1 + spread, 12 * requests + 20)).astype(int) for n in (4000, 400)]
        options = {"cached_share": hit, "tokens_per_step": accepted, "front_s": host.request_s, "delay_s": host.delay_s}
        trace = simulate(step, rules, *tokens, kv_tokens=1e7, concurrency=requests, **options)
        steady = closed_loop(step, rules, Request(4000, 400, int(4000 * hit), accepted), requests)
        assert steady.tpot_s == pytest.approx(np.mean(trace.tpot_s), rel=0.12), requests
        assert steady.rate_s == pytest.approx(requests / np.mean(trace.e2e_s), rel=0.12), requests


# Step time


def test_step_time_grows_with_tokens_sequences_and_context():
    table = build_tables([deployment("Qwen3-32B", tp=4)])[0]
    for values in (
        [table.tokens_s(n) for n in (64, 256, 1024, 4096, 16384, 32768)],
        [table.decode_s(32, n) for n in (128, 1000, 8000, 64000)],
        [table.prefill_s(1, n, 0) for n in (512, 4096, 30000)],
        [table.prefill_s(1, 2048, n) for n in (0, 10000, 100000)],
    ):
        assert (np.diff(values) > 0).all()


def test_a_step_is_never_faster_than_reading_its_weights():
    d = deployment("Llama-3.1-70B", quantization="fp8", tp=4)
    table = build_tables([d])[0]
    weights = 80 * (8192 * 128 * (2 * 64 + 2 * 8) + 3 * 8192 * 28672) / 4  # fp8 bytes of one GPU by hand
    assert weights / 3.35e12 < table.tokens_s(1) < 3 * weights / 3.35e12


def test_terms_add_up_and_the_interval_holds_the_value():
    for cost in build_tables([deployment("Qwen3-30B-A3B", tp=2, ep=2)])[0].costs.values():
        np.testing.assert_allclose(sum(cost.terms.values()), cost.seconds, rtol=1e-9)
        assert (cost.low_s <= cost.seconds).all() and (cost.seconds <= cost.high_s).all()
        assert cost.tier == "calibrated"


def test_a_gpu_that_was_never_measured_says_so():
    assert build_tables([deployment(gpu=pm.gpu("l20"))])[0].tier == "spec"
    assert build_tables([deployment()], calibration=None)[0].tier == "spec"


def test_tables_priced_together_equal_tables_priced_alone():
    shapes = [deployment(tp=1), deployment(tp=2), deployment("Qwen3-30B-A3B", tp=2)]
    for together, d in zip(build_tables(shapes), shapes, strict=True):
        alone = build_tables([d])[0]
        assert together.tokens_s(100) == pytest.approx(alone.tokens_s(100), rel=1e-12)
        assert together.decode_s(7, 999) == pytest.approx(alone.decode_s(7, 999), rel=1e-12)


@pytest.mark.parametrize("model", ["DeepSeek-V3", "Qwen3-Next-80B-A3B", "gpt-oss-120b", "Gemma-3-27B", "Llama-4-Scout-17B-16E"])
def test_every_kind_of_layer_has_a_step_time(model):
    table = build_tables([deployment(model, tp=8)])[0]
    assert 1e-3 < table.tokens_s(16) + table.decode_s(16, 2000) < 0.1


def test_a_public_run_of_a_whole_model_on_a_gpu_that_was_never_measured():
    """Qwen2.5-14B, bf16, one L20: eight prompts of 27,966 tokens in all, then a decode step of the eight (PipeWeave, arXiv 2601.14910)."""
    table = build_tables([deployment("Qwen2.5-14B", gpu=pm.gpu("l20"))])[0]
    prefill = table.tokens_s(27966) + table.prefill_s(8, 27966 / 8, 0) + table.output_s(8)
    assert prefill == pytest.approx(7.617, rel=0.08)
    decode = table.tokens_s(8) + table.decode_s(8, 27966 / 8) + table.output_s(8)
    assert decode == pytest.approx(50.97e-3, rel=0.08)


def test_what_depends_on_the_version_of_a_stack():
    assert overhead("trtllm", "0.17").eager_layer_s < 0.2 * overhead("trtllm").eager_layer_s
    assert overhead("trtllm", "1.2.0rc6") == overhead("trtllm")
    early, late = (build_tables([deployment("Qwen3-32B", "trtllm", "fp8", version=version)])[0] for version in ("1.0.0rc3", "1.0"))
    assert early.tokens_s(16) > late.tokens_s(16)  # quantisation is a kernel of its own


def test_default_rules_by_card():
    assert (VLLM.token_budget, VLLM.max_sequences) == (8192, 1024)
    small = default_scheduler("vllm", pm.gpu("l20"))
    assert (small.token_budget, small.max_sequences) == (2048, 256)
    with pytest.raises(InputError, match="max_num_batched_tokens"):
        VLLM.limited(-1, None)


# Estimates

ASK = {"isl": 1000, "osl": 200, "concurrency": 16}


def test_an_estimate_is_consistent():
    found = pm.estimate("Qwen3-32B", "h100_sxm", tensor_parallel_size=4, **ASK)
    assert found.ttft.mean == found.ttft_ms and found.ttft.p50 <= found.ttft.p90 <= found.ttft.p99
    assert found.user_tok_s == pytest.approx(1000 / found.tpot_ms)
    assert found.throughput_tok_s == pytest.approx(16 * 200 / found.e2e.mean * 1e3, rel=0.02)
    for name, (low, high) in found.intervals.items():
        assert low < getattr(found, name) < high
    assert found.bound == max(found.terms, key=found.terms.get) == "mlp"
    assert found.memory.fits and found.gpus == 4 and found.tier == "calibrated"
    assert "memory" not in repr(found)


def test_separate_engines_of_a_dense_model_share_the_load():
    two = pm.estimate("Llama-3.1-8B", "h100_sxm", data_parallel_size=2, isl=1000, osl=200, concurrency=32)
    one = pm.estimate("Llama-3.1-8B", "h100_sxm", **ASK)
    assert two.gpus == 2
    assert two.throughput_tok_s == pytest.approx(2 * one.throughput_tok_s, rel=0.02)


def test_a_trace_of_arrivals_and_lengths_is_followed():
    trace = {"isl": [100, 4000, 100], "osl": [10, 20, 30], "arrival_times_s": [5.0, 15.0, 25.0]}
    found = pm.estimate("Llama-3.1-8B", "h100_sxm", **trace)
    assert found.e2e.p99 == pytest.approx(max(found.e2e.p50, found.e2e.p99))
    alone = pm.estimate("Llama-3.1-8B", "h100_sxm", isl=4000, osl=20, arrival_times_s=[0.0])
    assert found.ttft.p99 == pytest.approx(alone.ttft_ms, rel=0.05)
    halves = pm.estimate("Llama-3.1-8B", "h100_sxm", data_parallel_size=2, isl=[100, 4000], osl=10, arrival_times_s=[0.0, 0.0, 9.0, 9.0])
    assert halves.ttft_ms < 0.5 * alone.ttft_ms  # the first engine has the short prompts


def test_a_rate_that_outruns_the_engine_is_said():
    found = pm.estimate("Llama-3.1-70B", "h100_sxm", tensor_parallel_size=4, isl=4000, osl=500, request_rate=50, requests=400)
    assert any("outrun" in note for note in found.notes)
    assert found.requests_per_s < 10


def test_a_full_cache_is_said():
    found = pm.estimate("Llama-3.1-70B", "h100_sxm", tensor_parallel_size=4, isl=8000, osl=500, concurrency=128, requests=256)
    assert found.notes and found.queued > 0.1


def test_weights_narrower_than_the_tensor_cores_are_widened_and_said():
    found = pm.estimate("Llama-3.1-8B", "a100", quantization="fp8", **ASK)
    assert any("no tensor cores for fp8" in note for note in found.notes)
    assert 0.4 < found.tpot_ms / pm.estimate("Llama-3.1-8B", "a100", **ASK).tpot_ms < 1.0
    assert pm.estimate("gpt-oss-120b", "h100", tensor_parallel_size=2, quantization="nvfp4", **ASK).tpot_ms > 0


def test_prefill_and_decode_apart():
    pools = {"prefill": pm.Pool(2, pm.Parallel(tp=4)), "decode": pm.Pool(1, pm.Parallel(tp=8))}
    common = {"isl": 4000, "osl": 300, "quantization": "fp8", "requests": 300}
    open_loop = pm.estimate_split("Llama-3.1-70B", "h100_sxm", request_rate=4, **pools, **common)
    assert open_loop.gpus == 16 and 0.2 < open_loop.prefill_busy < 0.9
    assert open_loop.hand_over_ms == pytest.approx(4000 * 80 * 2 * 8 * 128 * 2 / (4 * 50e9) * 1e3)
    slow = pm.estimate_split("Llama-3.1-70B", "h100_sxm", request_rate=4, link_gb_per_s=1, **pools, **common)
    assert slow.ttft_ms - open_loop.ttft_ms == pytest.approx(slow.hand_over_ms - open_loop.hand_over_ms, rel=0.05)
    closed = pm.estimate_split("Llama-3.1-70B", "h100_sxm", concurrency=32, **pools, **common)
    held = closed.requests_per_s * (closed.ttft_ms + 299 * closed.tpot_ms) / 1e3
    assert held == pytest.approx(32, rel=0.1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"isl": 0}, "isl must be a whole number"),
        ({"osl": -3}, "osl must be a whole number"),
        ({"isl": float("nan")}, "isl must be a whole number"),
        ({"isl": []}, "isl is an empty trace"),
        ({"concurrency": 0}, "concurrency must be a whole number"),
        ({"concurrency": None}, "which traffic"),
        ({"request_rate": 3.0}, "which traffic"),
        ({"concurrency": None, "request_rate": float("nan")}, "request_rate must be a number over 0"),
        ({"concurrency": None, "arrival_times_s": [2.0, 1.0]}, "rising times"),
        ({"tensor_parallel_size": 3}, "TP 3 must divide"),
        ({"expert_parallel_size": 2}, "no experts"),
        ({"stack": "tgi"}, "tgi"),
        ({"prefix_cache_hit_rate": 1.5}, "prefix_cache_hit_rate must be"),
        ({"accepted_tokens_per_step": 0.5}, "accepted_tokens_per_step must be"),
        ({"max_num_seqs": 0}, "max_num_seqs must be"),
        ({"quantization": "fp7"}, "fp7"),
        ({"requests": -1}, "requests must be"),
    ],
)
def test_bad_input_is_one_clear_line(change, words):
    with pytest.raises(InputError) as caught:
        pm.estimate("Llama-3.1-70B", "h100_sxm", **{"tensor_parallel_size": 4, **ASK, **change})
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_what_does_not_fit_is_no_answer():
    with pytest.raises(NoAnswerError, match="does not fit on 1 x h100_sxm"):
        pm.estimate("Llama-3.1-70B", "h100_sxm", **ASK)
    with pytest.raises(NoAnswerError, match="does not fit into a KV cache"):
        pm.estimate("Qwen3-32B", "h100_sxm", isl=100000, osl=10, concurrency=1)


def test_pipeline_stages_add_throughput_and_not_speed():
    one, two = (
        [pm.estimate("Llama-3.1-8B", "h100_sxm", pipeline_parallel_size=pp, isl=500, osl=200, concurrency=c) for c in (1, 128)]
        for pp in (1, 2)
    )
    assert two[0].tpot_ms == pytest.approx(one[0].tpot_ms, rel=0.05)
    assert 1.1 < two[1].throughput_tok_s / one[1].throughput_tok_s < 2.0


def test_attention_replicas_share_their_experts():
    wide = pm.estimate("Qwen3-30B-A3B", "h100_sxm", data_parallel_size=4, expert_parallel_size=4, isl=1000, osl=200, concurrency=64)
    narrow = pm.estimate("Qwen3-30B-A3B", "h100_sxm", tensor_parallel_size=4, expert_parallel_size=4, isl=1000, osl=200, concurrency=64)
    assert wide.gpus == narrow.gpus == 4
    assert wide.memory.weights_bytes > narrow.memory.weights_bytes  # attention is there four times
    assert wide.memory.kv_tokens * 4 < 1.3 * narrow.memory.kv_tokens * 4
    assert 0.5 < wide.tpot_ms / narrow.tpot_ms < 2.0


# Command line


def test_evaluate_serving_prints_figures_beside_the_baseline(capsys):
    assert run(["evaluate", "serving", "--kind", "first_token", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["rows"] == 8 and row["unanswered"] == 0
    assert row["median_error"] < 0.15 < row["roofline_median_error"]
    assert run(["evaluate", "serving", "--kind", "first_token", "--per-run", "--csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 9


def test_an_unknown_kind_of_run_is_one_line(capsys):
    assert run(["evaluate", "serving", "--kind", "tomorrow"]) == 2
    assert "choose from served" in capsys.readouterr().err


# Published runs


def test_clients_that_draw_lengths_are_asked_about_as_they_do():
    drawn = drawn_lengths({"isl": 1000, "osl": 100}, 0.8, 1.0)
    assert min(drawn["isl"]) >= 800 and max(drawn["isl"]) <= 1000 and np.mean(drawn["isl"]) == pytest.approx(900, rel=0.01)
    assert min(drawn["osl"]) >= 80 and max(drawn["osl"]) <= 100 and set(drawn["isl"]) != set(drawn["osl"])
    table = rows()
    row = table[(table["run"] == "inferencex") & (table["concurrency"] == 4)].iloc[0]
    known, nominal, even = (predict_row(row), predict_row(row, known=False), predict_row(row, known=False, spread=0.0))
    assert known.ttft_ms < min(nominal.ttft_ms, even.ttft_ms) and known.throughput_tok_s != nominal.throughput_tok_s


def test_static_batches_have_the_lengths_of_their_row():
    table = rows()
    row = table[table["kind"] == "first_token"].iloc[0]
    asked = pm.estimate(
        row["model"], row["gpu"], tensor_parallel_size=row["tp"], isl=[int(row["isl"])], osl=[1], concurrency=1, requests=1,
        quantization=row["quantization"], kv_cache_dtype=row["kv_cache_dtype"] or None, stack="trtllm", framework_version=row["version"],
    )  # fmt: skip
    assert predict_row(row).ttft_ms == asked.ttft_ms
