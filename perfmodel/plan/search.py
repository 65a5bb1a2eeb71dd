"""plan: every deployment of a model on some GPUs, those that meet the goal, the best of them and why not the others."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.errors import InputError, NoAnswerError, shown
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.calibration import CalibrationLike
from perfmodel.ops.check import size
from perfmodel.plan.candidates import Candidate, Rejected, candidates, context
from perfmodel.plan.confirm import confirmed
from perfmodel.plan.goal import LARGEST_FLEET, MOST_GPUS, Goal, goal
from perfmodel.plan.memory import known_stack
from perfmodel.plan.model import ModelSpec, load_model
from perfmodel.plan.operating import Curve, curves
from perfmodel.plan.prices import Price
from perfmodel.plan.prices import prices as read_prices
from perfmodel.plan.result import Plan
from perfmodel.plan.scheduler import default_scheduler
from perfmodel.plan.spread import QUANTITIES, factors

BATCHES = tuple(sorted({round(2 ** (i / 8)) for i in range(89)}))  # 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16 ... 2048
DEFAULT_GPUS = 8  # of each kind, where neither a number of GPUs nor traffic is given
MOST_KINDS = 100  # of GPUs, of quantisations
REPLICAS_LOOKED_AT = 12  # counts of engines from the fewest that carry the traffic on
HOUR_S = 3600.0


def plan(
    model: str | Path | Mapping[str, Any] | ModelSpec,
    gpus: str | GpuSpec | Sequence[str | GpuSpec],
    *,
    isl: int,
    osl: int,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    request_rate: float | None = None,
    concurrency: int | None = None,
    total_gpus: int | None = None,
    budget_usd_per_hour: float | None = None,
    objective: str = "auto",
    prefix_cache_hit_rate: float = 0.0,
    accepted_tokens_per_step: float = 1.0,
    percentile: str = "mean",
    quantization: str | Sequence[str | None] | None = None,
    kv_cache_dtype: str | None = None,
    stack: str = "vllm",
    memory_fraction: float | None = None,
    prices: str | Path | Mapping[str, float] | None = None,
    max_engine_gpus: int | None = None,
    disaggregated: bool = True,
    assume_dense: bool = False,
    calibration: CalibrationLike = "auto",
) -> Plan:
    """Look at every deployment of a model on each kind of GPU and choose.

    Parameters
    ----------
    model : str, Path, mapping or ModelSpec
        A bundled name or alias, a Hugging Face config (file, folder, dict, or hub id in the local cache), or a ModelSpec.
    gpus : str, GpuSpec or sequence of them
        The kinds of GPU to look at.
    isl, osl : int
        Tokens in and out of a request.
    ttft_ms, tpot_ms : float, optional
        Limits on time to first token and time per output token after it, milliseconds; on the means, or on `percentile`.
    concurrency : int, optional
        Requests always in flight, of the whole deployment.
    request_rate : float, optional
        Poisson arrivals a second.
        With neither, engines are filled, and the best has the most output tokens a second.
    total_gpus : int, optional
        At most so many of one kind.
    budget_usd_per_hour : float, optional
        At most so much.
    objective : {"auto", "gpus", "cost", "throughput"}
        The fewest, the cheapest, or the most tokens a second; auto: cost where prices were given, else gpus where traffic is given, else
        throughput.
    prefix_cache_hit_rate : float
        Share of each prompt that the cache has, 0 to 1.
    accepted_tokens_per_step : float
        Mean tokens that a decode step adds with speculative decoding (the draft's own time is not counted).
    percentile : {"mean", "p50", "p90", "p99"}
        What the limits are on; percentiles are found by simulating candidates in order.
    quantization : str or sequence, optional
        None as published, a name, a list, or "auto" (as published and fp8).
    kv_cache_dtype : str, optional
        Element type of the KV cache; None: as the model's activations.
    stack : {"vllm", "sglang", "trtllm"}
        The serving engine.
    memory_fraction : float, optional
        As in `memory_ledger`.
    prices : str, Path or mapping, optional
        A file, or US dollars an hour by GPU.
    max_engine_gpus : int, optional
        Largest engine; None: one node, or what the model needs.
    disaggregated : bool
        Whether prefill and decode on pools of their own are looked at too.
    assume_dense : bool
        As in `load_model`.
    calibration : "auto", None, str, Path or Calibration
        As in `predict`.

    Returns
    -------
    Plan
        Its `best` is None where no deployment meets the goal.

    Raises
    ------
    InputError
        For values that cannot be.
    NoAnswerError
        Where the model fits on none of the GPUs.

    Examples
    --------
    >>> import perfmodel as pm
    >>> found = pm.plan("llama-3.1-8b", ["h100_sxm", "l40s"], isl=1024, osl=256, tpot_ms=25, concurrency=32)
    >>> found.best is not None
    True
    """
    asked = dict(locals())
    specs, stack = find_gpus(gpus), known_stack(stack)
    cost = {name: price for name, price in read_prices(prices).items() if name in {s.name for s in specs}}
    wanted = goal(
        isl,
        osl,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        request_rate=request_rate,
        concurrency=concurrency,
        total_gpus=total_gpus,
        budget_usd_per_hour=budget_usd_per_hour,
        objective=objective,
        prefix_cache_hit_rate=prefix_cache_hit_rate,
        accepted_tokens_per_step=accepted_tokens_per_step,
        percentile=percentile,
        prices=cost,
    )
    if wanted.objective == "auto":
        given = prices is not None and len(cost) == len(specs)
        chosen = "cost" if given else "gpus" if wanted.request_rate or wanted.concurrency else "throughput"
        wanted = dataclasses.replace(wanted, objective=chosen)
    published = load_model(model, None, assume_dense)
    tokens = context(published, wanted.isl, wanted.osl)
    engines, out = _engines(
        model,
        specs,
        published,
        wanted.total_gpus or MOST_GPUS,
        max_engine_gpus,
        quantizations=_quantizations(quantization, published),
        stack=stack,
        kv_cache_dtype=kv_cache_dtype,
        context_tokens=tokens,
        memory_fraction=memory_fraction,
        assume_dense=assume_dense,
    )
    sizes = [_batches(engine, stack) for engine in engines]
    found = curves(engines, request=wanted.request, batches=sizes, stack=stack, calibration=calibration)
    rows = [row for engine, curve in zip(engines, found, strict=True) for row in _rows(engine, curve, wanted, cost)]
    if disaggregated:
        from perfmodel.plan.split import split_rows

        rows += split_rows(engines, found, wanted, cost, stack)
    found_plan = Plan.of(published, wanted, stack, rows, list(zip(engines, found, strict=True)), out, cost, asked)
    return found_plan if wanted.percentile == "mean" else confirmed(found_plan)


def find_gpus(gpus: Any) -> list[GpuSpec]:
    """The kinds of GPU that are asked about, each once."""
    if not isinstance(gpus, str | GpuSpec | Sequence) or isinstance(gpus, bytes):
        raise InputError(f"gpus is {shown(gpus)}: expected a name, or a list of names")
    names = [gpus] if isinstance(gpus, str | GpuSpec) else list(gpus)
    if not 0 < len(names) <= MOST_KINDS:
        raise InputError(f"gpus is a list of {len(names)}: name 1 to {MOST_KINDS} kinds of GPU")
    return list({spec.name: spec for spec in map(find_gpu, names)}.values())


def _engines(
    model: Any, specs: Sequence[GpuSpec], published: ModelSpec, limit: int, max_engine_gpus: int | None, **options: Any
) -> tuple[list[Candidate], list[Rejected]]:
    """Engines of at most `limit` GPUs; without max_engine_gpus the largest is a node, or what the model needs."""
    largest = None if max_engine_gpus is None else size("max_engine_gpus", max_engine_gpus, high=LARGEST_FLEET)
    for step in (8, 16, 32, 64):
        engines, out = candidates(model, specs, largest_engine=min(largest or step, limit), **options)
        if engines or largest is not None or step >= limit:
            break
    if not engines:
        reasons = [r.reason for r in sorted(out, key=lambda r: -r.parallel.gpus)] or ["no shape divides it"]
        raise NoAnswerError(
            f"{published.name} with {options['context_tokens']} tokens a request fits on none of {_few([s.name for s in specs])} within "
            f"{min(largest or 64, limit)} GPUs an engine: {reasons[0]}; try more GPUs, a quantization (--quantization) or a shorter context"
        )
    return engines, out


def _few(names: Sequence[str]) -> str:
    """Names in a line: all, or the first few of many."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _quantizations(quantization: str | Sequence[str | None] | None, published: ModelSpec) -> list[str | None]:
    if quantization is None:
        return [None]
    if not isinstance(quantization, str):
        if not isinstance(quantization, Sequence) or not 0 < len(quantization) <= MOST_KINDS:
            raise InputError(f"quantization is {shown(quantization)}: expected a name, 'auto', or a list of 1 to {MOST_KINDS} names")
        if not all(name is None or isinstance(name, str) for name in quantization):
            raise InputError(f"quantization is {shown(quantization)}: each entry must be a name, or None for as published")
        return list(dict.fromkeys(quantization))
    if quantization.lower() != "auto":
        return [quantization]
    return [None, "fp8"] if published.weight_dtype in ("bf16", "fp16") else [None]


def _batches(engine: Candidate, stack: str) -> list[int]:
    """Requests in flight to look at: up to what the KV cache holds at full length and the scheduler runs at once."""
    most = min(engine.held, default_scheduler(stack, engine.gpu).max_sequences * engine.parallel.dp)
    grid = [b for b in BATCHES if b < most]
    return [*grid, most]


def _rows(engine: Candidate, curve: Curve, wanted: Goal, cost: Mapping[str, Price]) -> Iterable[dict[str, Any]]:
    """One row a deployment of this engine: how many of it, and how many requests in flight in each."""
    each = engine.parallel.gpus
    limit = (wanted.total_gpus or (MOST_GPUS if wanted.request_rate or wanted.concurrency else max(DEFAULT_GPUS, each))) // each
    if wanted.request_rate is not None:
        fewest = max(1, math.ceil(wanted.request_rate / float(curve.rate_s.max())))
        for replicas in range(fewest, min(limit, fewest + REPLICAS_LOOKED_AT - 1) + 1):
            share = wanted.request_rate / replicas
            at = curve.at_rate(share)
            if at is not None:
                yield _row(engine, curve, wanted, cost, replicas, *at, share)
        return
    if wanted.concurrency is not None:
        fewest = max(1, math.ceil(wanted.concurrency / curve.concurrency[-1]))
        for replicas in range(fewest, min(limit, fewest + REPLICAS_LOOKED_AT - 1, wanted.concurrency) + 1):
            yield _at_concurrency(engine, curve, wanted, cost, replicas, wanted.concurrency / replicas)
        return
    for b in curve.concurrency:
        if limit >= 1:
            yield _at_concurrency(engine, curve, wanted, cost, limit, float(b))


def _at_concurrency(engine: Candidate, curve: Curve, wanted: Goal, cost: Mapping[str, Price], replicas: int, b: float) -> dict[str, Any]:
    ttft, tpot, rate = (float(np.interp(np.log(b), np.log(curve.concurrency), v)) for v in (curve.ttft_s, curve.tpot_s, curve.rate_s))
    return _row(engine, curve, wanted, cost, replicas, b, ttft, tpot, rate)


def _row(
    engine: Candidate,
    curve: Curve,
    wanted: Goal,
    cost: Mapping[str, Price],
    replicas: int,
    b: float,
    ttft_s: float,
    tpot_s: float,
    rate_s: float,
) -> dict[str, Any]:
    i = min(int(np.searchsorted(curve.concurrency, b)), len(curve.concurrency) - 1)
    low, high, share = float(curve.low[i]), float(curve.high[i]), float(curve.prefill_share[i])
    p, ledger = engine.parallel, engine.ledger
    return finish(
        {
            "gpu": engine.gpu.name,
            "mode": "agg",
            "replicas": replicas,
            "gpus": replicas * p.gpus,
            "parallel": str(p),
            "tp": p.tp,
            "pp": p.pp,
            "ep": p.ep,
            "dp": p.dp,
            "quantization": engine.quantization or engine.model.weight_dtype,
            "kv_cache_dtype": ledger.kv_dtype,
            "concurrency_per_engine": b,
            "ttft_ms": ttft_s * 1e3,
            "tpot_ms": tpot_s * 1e3,
            "requests_per_s": rate_s * replicas,
            "kv_used_percent": 100.0 * b / engine.held,
            "kv_tokens_per_engine": ledger.kv_tokens * p.dp,
            "bound": curve.bound[i],
            "tier": curve.tier,
            "in_domain": bool(curve.in_domain[i] > 0.5),
        },
        wanted,
        cost,
        engine.gpu,
        share,
        (low, high),
    )


def finish(
    row: dict[str, Any], wanted: Goal, cost: Mapping[str, Price], gpu: GpuSpec, prefill_share: float, spread: tuple[float, float]
) -> dict[str, Any]:
    """Add throughput, cost, power and whether the goal is met to a row that has its GPUs, rate and latencies.

    The cost of an hour is shared between input and output tokens as the engine's time is. Power is the boards' limit: an upper bound.
    """
    rate, gpus = row["requests_per_s"], row["gpus"]
    tokens_s = rate * wanted.osl
    price = cost.get(row["gpu"])
    hourly = price.usd_per_gpu_hour * gpus if price else math.nan
    used = wanted.misses(row["ttft_ms"], row["tpot_ms"])
    if wanted.budget_usd_per_hour is not None:
        used["budget"] = hourly / wanted.budget_usd_per_hour if price else math.inf
    width = {name: factors(name, *spread) for name in QUANTITIES}
    worst = max(used.items(), key=lambda item: item[1], default=("", 0.0))
    return {
        **row,
        "concurrency": row["concurrency_per_engine"] * row["replicas"] * row.get("decode_engines", 1),
        "throughput_tok_s": tokens_s,
        "throughput_low_tok_s": tokens_s / width["throughput_tok_s"][0],
        "throughput_high_tok_s": tokens_s * width["throughput_tok_s"][1],
        "ttft_low_ms": row["ttft_ms"] / width["ttft_ms"][0],
        "ttft_high_ms": row["ttft_ms"] * width["ttft_ms"][1],
        "tpot_low_ms": row["tpot_ms"] / width["tpot_ms"][0],
        "tpot_high_ms": row["tpot_ms"] * width["tpot_ms"][1],
        "tok_s_per_gpu": tokens_s / gpus,
        "tok_s_per_user": 1e3 / row["tpot_ms"],
        "usd_per_hour": hourly,
        "usd_per_m_input_tokens": hourly * prefill_share / (rate * wanted.isl * HOUR_S) * 1e6,
        "usd_per_m_output_tokens": hourly * (1.0 - prefill_share) / (tokens_s * HOUR_S) * 1e6,
        "power_limit_w": gpu.power_w * gpus,
        "joule_per_output_token": gpu.power_w * gpus / tokens_s,
        "meets": worst[1] <= 1.0,
        "sure": all(x * width.get(f"{name}_ms", (1.0, 1.0))[1] <= 1.0 for name, x in used.items()),
        "tightest": worst[0],
        "tightest_used": worst[1],
    }
