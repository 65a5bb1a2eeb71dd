"""pm.estimate: how one deployment serves given traffic: latency with percentiles, throughput, memory, what binds, how sure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.constants import constant_values
from perfmodel.errors import InputError, NoAnswerError, shown
from perfmodel.html import summary
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.node import node
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.calibration import CalibrationLike
from perfmodel.ops.check import size
from perfmodel.plan.deployment import Deployment
from perfmodel.plan.memory import MemoryLedger, kv_bytes_per_request, memory_ledger
from perfmodel.plan.model import ModelSpec, load_model
from perfmodel.plan.operators import widened
from perfmodel.plan.overhead import Overhead, checked_version, overhead
from perfmodel.plan.scheduler import default_scheduler
from perfmodel.plan.serving_step import ServingStep
from perfmodel.plan.simulate import MOST_STEPS, Trace, check_length, simulate, steps_each
from perfmodel.plan.spread import QUANTITIES, factors
from perfmodel.plan.step_table import StepTable, build_tables
from perfmodel.plan.traffic import (
    FASTEST_RATE,
    MOST_REQUESTS,
    accepted_tokens,
    arrival_trace,
    arrivals,
    hit_rate,
    lengths,
    mean_length,
    number,
)

Floats = npt.NDArray[np.float64]
ROUNDS = 10  # requests a client slot makes, as public benchmarks do: their start, when all come at once, is in the mean
FEWEST, ENOUGH = 64, 2000  # requests of one simulation
Z80 = 1.2816


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution over requests (or, for gaps, over tokens), milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class ServingEstimate:
    """How a deployment serves the traffic asked about.

    Attributes
    ----------
    ttft_ms, tpot_ms : float
        Mean time to first token, the client's queueing included, and per output token after it.
    throughput_tok_s, user_tok_s, requests_per_s : float
        Output tokens a second of the whole deployment and of one request, and finished requests a second.
    ttft, tpot, itl, e2e : Spread
        Distributions over requests, milliseconds.
    low, high : float
        Factors that bound tpot and throughput at 80 %.
    terms, prefill_terms : mapping of str to float
        Milliseconds of a decode step and of one prompt, by operator group.
    bound : str
        The largest term of whichever takes most of the time.
    tier : str
        The weakest of the operators' tiers.
    in_domain : float
        Share of the time within what they were fitted on.
    memory : MemoryLedger
        Of the fullest GPU.
    """

    ttft_ms: float
    tpot_ms: float
    throughput_tok_s: float
    requests_per_s: float
    user_tok_s: float
    itl_ms: float
    ttft: Spread
    tpot: Spread
    itl: Spread
    e2e: Spread
    intervals: Mapping[str, tuple[float, float]]
    terms: Mapping[str, float]
    prefill_terms: Mapping[str, float]
    bound: str
    tier: str
    in_domain: float
    memory: MemoryLedger = field(repr=False)
    gpus: int
    concurrency: float
    queued: float
    preemptions: int
    notes: tuple[str, ...]

    def _repr_html_(self) -> str:
        """What a notebook shows: latencies over requests, and what the deployment gives."""
        spreads = {"TTFT": self.ttft, "TPOT": self.tpot, "end to end": self.e2e}
        rows = [{"ms": name, **{p: getattr(s, p) for p in ("mean", "p50", "p90", "p99")}} for name, s in spreads.items()]
        given = f"{self.throughput_tok_s:.4g} tokens/s on {self.gpus} GPUs, {self.user_tok_s:.3g} of one request"
        return summary(f"{given}; bound by {self.bound} ({self.tier} tier)", rows)

    @property
    def throughput_per_gpu(self) -> float:
        """Output tokens a second and GPU."""
        return self.throughput_tok_s / self.gpus


def estimate(
    model: str | ModelSpec | Mapping[str, Any] | Path,
    gpu: str | GpuSpec,
    *,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    expert_parallel_size: int = 1,
    data_parallel_size: int = 1,
    isl: Any,
    osl: Any,
    concurrency: int | None = None,
    request_rate: float | None = None,
    arrival_times_s: Sequence[float] | None = None,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    stack: str = "vllm",
    framework_version: str = "",
    calibration: CalibrationLike = "auto",
    max_num_batched_tokens: int | None = None,
    max_num_seqs: int | None = None,
    memory_fraction: float | None = None,
    prefix_cache_hit_rate: float = 0.0,
    accepted_tokens_per_step: float = 1.0,
    requests: int | None = None,
    topology: str = "auto",
    host: Overhead | None = None,
    seed: int = 0,
) -> ServingEstimate:
    """Estimate how a model on a GPU serves prompts of `isl` and answers of `osl` tokens.

    Parameters
    ----------
    model : str, Path, mapping or ModelSpec
        A bundled name or alias, a Hugging Face config (file, folder, dict, or hub id in the local cache), or a ModelSpec.
    gpu : str or GpuSpec
        See `gpu`.
    tensor_parallel_size, pipeline_parallel_size, expert_parallel_size, data_parallel_size : int
        Sizes of the deployment. Data parallel: attention replicas that share their experts; for a model without experts, separate engines.
    isl, osl : int, Lognormal or sequence of int
        Tokens in and out of a request, or their distribution, or a trace.
    concurrency : int, optional
        Requests always in flight, of the whole deployment.
    request_rate : float, optional
        Poisson arrivals a second.
    arrival_times_s : sequence of float, optional
        When requests arrive, seconds. Give one of the three.
    quantization : str, optional
        bf16, fp16, fp8, fp8_block, int8, int8_wo, int4_wo (AWQ, GPTQ), nvfp4, mxfp4 or a usual alias; None: as published.
    kv_cache_dtype : str, optional
        Element type of the KV cache; None: as the model's activations.
    stack : {"vllm", "sglang", "trtllm"}
        The serving engine.
    framework_version : str
        Its release, as it writes it (0.11.2, 1.0.0rc3); "": the newest known.
    calibration : "auto", None, str, Path or Calibration
        As in `predict`.
    max_num_batched_tokens, max_num_seqs : int, optional
        Limits of a step; None: the engine's defaults.
    memory_fraction : float, optional
        As in `memory_ledger`.
    prefix_cache_hit_rate : float
        Share of each prompt that the cache has, 0 to 1.
    accepted_tokens_per_step : float
        Mean tokens that a decode step adds with speculative decoding (the draft's own time is not counted).
    requests : int, optional
        How many are simulated; None: enough for steady state.
    topology : str
        Machine or path of hwdb/nodes; "auto": the usual one of the GPU.
    host : Overhead, optional
        Host overheads of your own, seconds.
    seed : int
        Of lengths and arrivals.

    Returns
    -------
    ServingEstimate
        Milliseconds, tokens a second and memory, with 80 % intervals.

    Raises
    ------
    InputError
        For impossible input.
    NoAnswerError
        Where the model or one request does not fit.

    Examples
    --------
    >>> import perfmodel as pm
    >>> found = pm.estimate("llama-3.1-8b", "h100_sxm", isl=1024, osl=128, concurrency=8)
    >>> found.ttft_ms > 0 and found.tpot_ms > 0
    True
    """
    card = find_gpu(gpu)
    node(topology, card)  # raises for an unknown one, also where no message crosses it
    spec = load_model(model, quantization)
    version = checked_version(framework_version)
    if host is not None and not isinstance(host, Overhead):
        raise InputError(f"host is {shown(host)}: expected an Overhead, or nothing for those of the stack")
    isl_mean, osl_mean = mean_length("isl", isl), mean_length("osl", osl)
    if sum(given is not None for given in (concurrency, request_rate, arrival_times_s)) != 1:
        raise InputError("which traffic? give one of concurrency, request_rate and arrival_times_s")
    hit, accepted = hit_rate(prefix_cache_hit_rate), accepted_tokens(accepted_tokens_per_step)
    in_flight = None if concurrency is None else size("concurrency", concurrency, high=MOST_REQUESTS)
    rate = None if request_rate is None else number("request_rate", request_rate, low=0.0, high=FASTEST_RATE, above=True)
    moe = any(layer.mlp == "moe" for layer in spec.layers)
    copies = 1 if moe else size("data_parallel_size", data_parallel_size, high=4096)
    dp = data_parallel_size if moe else 1
    ledger = memory_ledger(
        spec, card, tensor_parallel_size=tensor_parallel_size, pipeline_parallel_size=pipeline_parallel_size,
        expert_parallel_size=expert_parallel_size, data_parallel_size=dp, kv_cache_dtype=kv_cache_dtype, stack=stack,
        memory_fraction=memory_fraction, max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs,
    )  # fmt: skip
    shape = ledger.parallel
    deployment = Deployment(
        model=spec, gpu=card, tp=shape.tp, pp=shape.pp, ep=shape.ep, dp=shape.dp, nodes=_nodes(card, shape.gpus), stack=stack,
        version=version, dtype=spec.activation_dtype if spec.activation_dtype == "fp16" else "bf16",
        kv_dtype=ledger.kv_dtype, topology=topology,
    )  # fmt: skip
    if not ledger.fits:
        raise NoAnswerError(
            f"{spec.name} does not fit on {shape.gpus} x {card.name}: weights take {ledger.weights_bytes / 1e9:.1f} GB of each GPU; "
            "raise tensor_parallel_size or quantise"
        )
    table = build_tables([deployment], calibration)[0]
    host = host or overhead(deployment.stack, version)
    scheduler = default_scheduler(deployment.stack, card).limited(max_num_batched_tokens, max_num_seqs).times(shape.dp)
    mine = max(math.ceil(in_flight / copies), 1) if in_flight is not None else None
    times = None if arrival_times_s is None else arrival_trace(arrival_times_s)
    budget = scheduler.token_budget
    count = _count(requests, mine, times, steps_each(isl_mean * (1.0 - hit), osl_mean, budget))
    check_length(count, isl_mean * (1.0 - hit), osl_mean, budget, mine)
    rng = np.random.default_rng(size("seed", seed, low=0))
    spread = constant_values("serving")["length_spread"] if scheduler.mixed and mine is not None else 0.0
    tokens_in, tokens_out = lengths("isl", isl, count, spread, rng), lengths("osl", osl, count, spread, rng)
    at = arrivals(rate / copies, count, rng) if rate is not None else None
    if times is not None:
        at = times[::copies]
        tokens_in, tokens_out = tokens_in[::copies], tokens_out[::copies]
    step = ServingStep(table, host)
    trace = simulate(
        step, scheduler, tokens_in, tokens_out, kv_tokens=cache_tokens(ledger, isl_mean + osl_mean), arrival_s=at, front_s=host.request_s,
        delay_s=host.delay_s, concurrency=mine, cached_share=hit, tokens_per_step=accepted,
    )  # fmt: skip
    return _answer(trace, step, ledger, isl_mean * (1.0 - hit), isl_mean, osl_mean, copies, in_flight, rate)


def cache_tokens(ledger: MemoryLedger, context: float) -> float:
    """Tokens that the engine's pools hold, all replicas together, of requests of `context` tokens: windows and states keep less of each."""
    each = float(kv_bytes_per_request(ledger.model, context, ledger.parallel, ledger.kv_dtype, ledger.chunk_tokens))
    return ledger.kv_bytes / each * context * ledger.parallel.dp


def _nodes(gpu: GpuSpec, gpus: int) -> int:
    return max(math.ceil(gpus / node("auto", gpu).gpus), 1)


def _count(requests: int | None, in_flight: int | None, times: Floats | None, steps: float) -> int:
    """Requests to simulate, of `steps` steps each: as said, as the trace holds, or ROUNDS for each in flight within what time allows."""
    if requests is not None:
        return size("requests", requests, high=MOST_REQUESTS)
    if times is not None:
        return len(times)
    if in_flight is None:
        return max(FEWEST, min(ENOUGH, int(MOST_STEPS / steps)))
    return max(FEWEST, min(ROUNDS * in_flight, max(ENOUGH, 3 * in_flight)))


def _answer(
    trace: Trace,
    step: ServingStep,
    ledger: MemoryLedger,
    new_tokens: float,
    isl: float,
    osl: float,
    copies: int,
    in_flight: int | None,
    rate: float | None,
) -> ServingEstimate:
    ttft, tpot, e2e = (spread_of(x * 1e3) for x in (trace.ttft_s, trace.tpot_s, trace.e2e_s))
    itl = _weighted(trace.gaps_s * 1e3, trace.gap_tokens)
    span = float(np.max(trace.finish_s) - np.min(trace.arrival_s))
    mean_running = float(np.sum(trace.e2e_s) / span)
    if in_flight is not None and len(trace.isl) > in_flight:  # steady state of a closed loop: Little's law without its start and end
        per_s = in_flight / float(np.mean(trace.e2e_s))
    else:
        per_s = copies * len(trace.isl) / span
    notes = []
    d = step.table.deployment
    if isl + osl > d.model.max_context:
        notes.append(f"isl + osl is more than {d.model.name}'s context of {d.model.max_context} tokens: an engine refuses such requests")
    if wide := sorted({t for layer in d.model.layers for t in (layer.attention_dtype, layer.mlp_dtype) if widened(t, d.gpu)}):
        notes.append(f"{d.gpu.name} has no tensor cores for {', '.join(wide)}: weights are widened on the way in, as Marlin kernels do")
    waited = float(np.mean(trace.ttft_s)) / max(float(np.mean(trace.e2e_s)), 1e-12)
    if rate is not None and per_s < 0.97 * rate:
        notes.append(
            f"arrivals at {rate:g}/s outrun the engine: it finishes {per_s:.3g}/s and its queue grows, so latency has no steady value"
        )
    if waited > 0.5 and mean_running > 1.5:
        notes.append("requests spend most of their time waiting: the KV cache, the batch limit or the token budget binds")
    if trace.preemptions:
        notes.append(f"{trace.preemptions} preemptions: the KV cache is full at times")
    running = max(round(float(np.sum(trace.finish_s - trace.first_token_s)) / span), 1)
    terms = _ms(step, running, isl + osl / 2.0)
    prefill = _prefill_ms(step.table, new_tokens)
    in_prefill = sum(prefill.values()) * len(trace.isl) / 1e3 > 0.5 * trace.busy_s
    return ServingEstimate(
        ttft_ms=ttft.mean,
        tpot_ms=tpot.mean,
        throughput_tok_s=per_s * float(np.mean(trace.osl)),
        requests_per_s=per_s,
        user_tok_s=1e3 / tpot.mean if tpot.mean > 0 else math.nan,
        itl_ms=itl.mean,
        ttft=ttft,
        tpot=tpot,
        itl=itl,
        e2e=e2e,
        intervals=_intervals(step.table, running, isl + osl / 2.0, ttft.mean, tpot.mean, per_s * float(np.mean(trace.osl))),
        terms=terms,
        prefill_terms={**prefill, "host": step.host.step_s * 1e3, "front end": (step.host.request_s + step.host.delay_s) * 1e3},
        bound=max((prefill if in_prefill else terms).items(), key=lambda item: item[1])[0],
        tier=step.table.tier,
        in_domain=step.table.inside(running, isl + osl / 2.0),
        memory=ledger,
        gpus=d.gpus * copies,
        concurrency=float(in_flight) if in_flight is not None else mean_running * copies,
        queued=waited,
        preemptions=trace.preemptions,
        notes=tuple(notes),
    )


def _ms(step: ServingStep, sequences: int, kv_len: float) -> dict[str, float]:
    """Terms of a decode step, ms, largest first; the host's part is its own term."""
    found = step.table.terms_s(sequences, kv_len)
    found["host"] = step.host.step_s + step.host.sequence_s * sequences
    return {name: value * 1e3 for name, value in sorted(found.items(), key=lambda item: -item[1])}


def _prefill_ms(table: StepTable, tokens: float) -> dict[str, float]:
    found = table.prompt_terms_s(tokens)
    return {name: value * 1e3 for name, value in sorted(found.items(), key=lambda item: -item[1])}


def _intervals(
    table: StepTable, sequences: int, kv_len: float, ttft_ms: float, tpot_ms: float, throughput: float
) -> dict[str, tuple[float, float]]:
    """80 % intervals: the operators' width at this batch, and what served runs leave unexplained, in quadrature (of logarithms)."""
    width = table.width(sequences, kv_len)
    out = {}
    for name, value in zip(QUANTITIES, (ttft_ms, tpot_ms, throughput), strict=True):
        down, up = factors(name, *width)
        out[name] = (value / down, value * up)
    return out


def spread_of(values: Floats) -> Spread:
    """Mean and percentiles, NaN left out."""
    known = values[np.isfinite(values)]
    if not len(known):
        return Spread(math.nan, math.nan, math.nan, math.nan)
    return Spread(float(np.mean(known)), *(float(q) for q in np.quantile(known, (0.5, 0.9, 0.99))))


def _weighted(values: Floats, weights: Floats) -> Spread:
    """Spread of values that each count `weights` times."""
    if not len(values):
        return Spread(math.nan, math.nan, math.nan, math.nan)
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / np.sum(weights)
    at = np.minimum(np.searchsorted(share, (0.5, 0.9, 0.99)), len(values) - 1)
    return Spread(float(np.average(values, weights=weights)), *(float(v) for v in values[order][at]))
