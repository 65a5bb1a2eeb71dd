"""Prefill and decode on engines of their own: prompts are computed on some, handed over, and answered on others."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError, NoAnswerError, shown
from perfmodel.hw import gpu as find_gpu
from perfmodel.learn.calibration import CalibrationLike
from perfmodel.ops.check import size
from perfmodel.plan.deployment import Deployment
from perfmodel.plan.estimate import ENOUGH, FEWEST, ROUNDS, Spread, cache_tokens, spread_of
from perfmodel.plan.handover import hand_over_s
from perfmodel.plan.memory import MemoryLedger, memory_ledger
from perfmodel.plan.model import load_model
from perfmodel.plan.overhead import overhead
from perfmodel.plan.parallel import Parallel
from perfmodel.plan.scheduler import default_scheduler
from perfmodel.plan.serving_step import ServingStep
from perfmodel.plan.simulate import MOST_STEPS, Trace, check_length, simulate, steps_each
from perfmodel.plan.step_table import build_tables
from perfmodel.plan.traffic import FASTEST_RATE, MOST_REQUESTS, MOST_TOKENS, accepted_tokens, arrivals, hit_rate, number

Floats = npt.NDArray[np.float64]
BUSY = 0.9  # share of time from which on a pool of prefill engines is what binds
HALVINGS = 14  # of the interval in which the rate of a closed loop is looked for


@dataclass(frozen=True, slots=True)
class Pool:
    """Engines of one shape that do one of the two jobs of a disaggregated deployment.

    Parameters
    ----------
    engines : int
        How many.
    parallel : Parallel
        The sizes of each.

    Examples
    --------
    >>> import perfmodel as pm
    >>> pm.Pool(2, pm.Parallel(tp=4)).engines
    2
    """

    engines: int = 1
    parallel: Parallel = dataclasses.field(default_factory=Parallel)


@dataclass(frozen=True, slots=True)
class SplitEstimate:
    """How prefill and decode apart serve the traffic asked about, milliseconds and tokens a second.

    ttft counts queueing, the prompt and its hand-over; tpot leaves out the first token. prefill_busy and decode_running: share of time
    that a prefill engine works, and requests a decode engine holds on average. hand_over_ms: of one prompt's cache.
    """

    ttft_ms: float
    tpot_ms: float
    throughput_tok_s: float
    requests_per_s: float
    ttft: Spread
    tpot: Spread
    hand_over_ms: float
    prefill_busy: float
    decode_running: float
    gpus: int
    tier: str
    bound: str
    memory: MemoryLedger


@dataclass(frozen=True, slots=True)
class _Side:
    """One pool, ready to be simulated."""

    pool: Pool
    step: ServingStep
    ledger: MemoryLedger


def estimate_split(
    model: Any,
    gpu: Any,
    *,
    prefill: Pool,
    decode: Pool,
    isl: int,
    osl: int,
    concurrency: int | None = None,
    request_rate: float | None = None,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    stack: str = "vllm",
    link_gb_per_s: float | None = None,
    prefix_cache_hit_rate: float = 0.0,
    accepted_tokens_per_step: float = 1.0,
    calibration: CalibrationLike = "auto",
    requests: int | None = None,
    seed: int = 0,
) -> SplitEstimate:
    """Estimate prefill and decode on pools of their own.

    Parameters
    ----------
    model : str, Path, mapping or ModelSpec
        A bundled name or alias, a Hugging Face config (file, folder, dict, or hub id in the local cache), or a ModelSpec.
    gpu : str or GpuSpec
        See `gpu`.
    prefill, decode : Pool
        The two pools.
    isl, osl : int
        Tokens in and out of a request.
    concurrency : int, optional
        Requests always in flight, of the whole deployment.
    request_rate : float, optional
        Poisson arrivals a second.
    quantization : str, optional
        bf16, fp16, fp8, fp8_block, int8, int8_wo, int4_wo (AWQ, GPTQ), nvfp4, mxfp4 or a usual alias; None: as published.
    kv_cache_dtype : str, optional
        Element type of the KV cache; None: as the model's activations.
    stack : {"vllm", "sglang", "trtllm"}
        The serving engine.
    link_gb_per_s : float, optional
        GB/s an engine at which a prompt's cache moves before the second token; None: the network cards of the smaller engine's GPUs.
    prefix_cache_hit_rate : float
        Share of each prompt that the cache has, 0 to 1.
    accepted_tokens_per_step : float
        Mean tokens that a decode step adds with speculative decoding (the draft's own time is not counted).
    calibration : "auto", None, str, Path or Calibration
        As in `predict`.
    requests : int, optional
        How many are simulated; None: enough for steady state.
    seed : int
        Of arrivals.

    Returns
    -------
    SplitEstimate
        Milliseconds and tokens a second; closed loops are solved for the rate at which Little's law holds.

    Raises
    ------
    InputError
        For impossible input.
    NoAnswerError
        Where the model does not fit, or the pools cannot keep up with the rate.

    Examples
    --------
    >>> import perfmodel as pm
    >>> pool = pm.Pool(1, pm.Parallel(tp=1))
    >>> found = pm.estimate_split("llama-3.1-8b", "h100_sxm", prefill=pool, decode=pool, isl=1024, osl=128, concurrency=8)
    >>> found.ttft_ms > 0
    True
    """
    isl, osl = size("isl", isl, high=MOST_TOKENS), size("osl", osl, high=MOST_TOKENS)
    if osl < 2:
        raise InputError("osl must be 2 or more: an answer of one token needs no decode engine")
    if (concurrency is None) == (request_rate is None):
        raise InputError("which traffic? give one of concurrency and request_rate")
    spec, card = load_model(model, quantization), find_gpu(gpu)
    sides = [_side(spec, card, pool, kv_cache_dtype, stack, calibration) for pool in (prefill, decode)]
    link = None if link_gb_per_s is None else number("link_gb_per_s", link_gb_per_s, low=0.0, high=1e6, above=True) * 1e9
    handed_s = hand_over_s(spec, isl, prefill.parallel, decode.parallel, sides[0].ledger.kv_dtype, card, link)
    hit, accepted = hit_rate(prefix_cache_hit_rate), accepted_tokens(accepted_tokens_per_step)
    enough = max(FEWEST, min(ENOUGH, int(MOST_STEPS / steps_each(0.0, osl, 1))))
    count = size("requests", requests, high=MOST_REQUESTS) if requests is not None else enough

    def run(rate: float, spacing: Floats, n: int) -> tuple[Trace, Trace, Floats]:
        return _chain(sides[0], sides[1], isl, osl, spacing[:n] / rate, handed_s, hit, accepted)

    seed = size("seed", seed, low=0)
    if request_rate is not None:
        check_length(count, 0.0, osl, 1, None)
        rate = number("request_rate", request_rate, low=0.0, high=FASTEST_RATE, above=True)
        first, second, start = run(rate, arrivals(1.0, count, np.random.default_rng(seed)), count)
    else:
        flight = size("concurrency", concurrency, high=MOST_REQUESTS)
        n = max(FEWEST, min(ROUNDS * flight, max(ENOUGH // 2, 3 * flight)))
        check_length(n, 0.0, osl, 1, flight, MOST_STEPS / 10)
        even = np.arange(1.0, n + 1.0)
        low, high = 1e-4, 1e4
        for _ in range(HALVINGS * 2):
            rate = float(np.sqrt(low * high))
            first, second, start = run(rate, even, n)
            held = rate * float(np.mean(second.finish_s - start))
            low, high = (rate, high) if held < flight else (low, rate)
            if high / low < 1.01:
                break
    ttft, tpot = first.first_token_s - start + handed_s, (second.finish_s - first.first_token_s - handed_s) / (osl - 1)
    span = float(np.max(second.finish_s) - start[0])
    done = len(start) / span if request_rate is not None else rate
    busy = first.busy_s / span
    if request_rate is not None and done < 0.9 * rate and busy > 0.95:
        raise NoAnswerError(f"{prefill.engines} prefill engines finish {done:.3g} requests/s of {rate:g}: add prefill engines")
    return SplitEstimate(
        ttft_ms=float(np.mean(ttft)) * 1e3,
        tpot_ms=float(np.mean(tpot)) * 1e3,
        throughput_tok_s=done * osl,
        requests_per_s=done,
        ttft=spread_of(ttft * 1e3),
        tpot=spread_of(tpot * 1e3),
        hand_over_ms=handed_s * 1e3,
        prefill_busy=busy,
        decode_running=float(np.sum(second.e2e_s) / span),
        gpus=prefill.engines * prefill.parallel.gpus + decode.engines * decode.parallel.gpus,
        tier=min((side.step.table.tier for side in sides), key=("spec", "calibrated", "measured").index),
        bound="prefill" if busy > BUSY else "decode",
        memory=sides[1].ledger,
    )


def _side(spec: Any, card: Any, pool: Pool, kv_cache_dtype: str | None, stack: str, calibration: CalibrationLike) -> _Side:
    if not isinstance(pool, Pool):
        raise InputError(f"a pool of engines is {shown(pool)}: expected a Pool, as Pool(2, Parallel(tp=4))")
    size("engines", pool.engines, high=4096)
    p = pool.parallel
    if not isinstance(p, Parallel):
        raise InputError(f"parallel of a Pool is {shown(p)}: expected a Parallel, as Parallel(tp=4)")
    ledger = memory_ledger(
        spec, card, tensor_parallel_size=p.tp, pipeline_parallel_size=p.pp, expert_parallel_size=p.ep, data_parallel_size=p.dp,
        kv_cache_dtype=kv_cache_dtype, stack=stack,
    )  # fmt: skip
    if not ledger.fits:
        raise NoAnswerError(f"{spec.name} does not fit on {p.gpus} x {card.name} as {p}: raise tensor parallel or quantise")
    deployment = Deployment(model=spec, gpu=card, tp=p.tp, pp=p.pp, ep=p.ep, dp=p.dp, stack=stack, kv_dtype=ledger.kv_dtype)
    return _Side(pool, ServingStep(build_tables([deployment], calibration)[0], overhead(deployment.stack)), ledger)


def _chain(
    prefill: _Side, decode: _Side, isl: int, osl: int, at: Floats, hand_over_s: float, hit: float, accepted: float
) -> tuple[Trace, Trace, Floats]:
    """(prefill trace, decode trace, when each request came): requests dealt out in turn to the engines of both pools."""
    ones, host = np.ones(len(at), dtype=np.intp), prefill.step.host
    first = _pooled(prefill, at, ones * isl, ones, host.request_s, host.delay_s, hit, 1.0)
    second = _pooled(decode, first.first_token_s + hand_over_s, ones * isl, ones * osl, 0.0, 0.0, (isl - 1) / isl, accepted)
    return first, second, at


def _pooled(side: _Side, at: Floats, isl: Any, osl: Any, front_s: float, delay_s: float, cached: float, accepted: float) -> Trace:
    """One trace of a pool, its requests in the order of `at`; times of all engines on one clock, busy time of the mean engine."""
    p, count = side.ledger.parallel, side.pool.engines
    rules = default_scheduler(side.step.table.deployment.stack, side.step.table.deployment.gpu).times(p.dp)
    order = np.argsort(at, kind="stable")
    arrival, first, finish = (np.empty(len(at)) for _ in range(3))
    traces = []
    for engine in range(min(count, len(at))):
        mine = order[engine::count]
        held = cache_tokens(side.ledger, float(np.mean(isl + osl)))
        trace = simulate(
            side.step, rules, isl[mine], osl[mine], kv_tokens=held, arrival_s=at[mine], front_s=front_s, delay_s=delay_s,
            cached_share=cached, tokens_per_step=accepted,
        )  # fmt: skip
        arrival[mine], first[mine], finish[mine] = trace.arrival_s, trace.first_token_s, trace.finish_s
        traces.append(trace)
    return dataclasses.replace(
        traces[0],
        arrival_s=arrival,
        first_token_s=first,
        finish_s=finish,
        isl=isl,
        osl=osl,
        busy_s=sum(t.busy_s for t in traces) / count,
        steps=sum(t.steps for t in traces),
        preemptions=sum(t.preemptions for t in traces),
    )
