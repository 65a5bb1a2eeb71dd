"""Prefill and decode on engines of their own: how many of each, and what handing the KV cache over costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perfmodel.hw.node import node
from perfmodel.plan.candidates import Candidate
from perfmodel.plan.goal import MOST_GPUS, Goal
from perfmodel.plan.handover import hand_over_s
from perfmodel.plan.operating import Curve
from perfmodel.plan.prices import Price
from perfmodel.plan.queue_wait import waiting_s

PREFILL_BUSY = 0.7  # prompts wait 1.2 service times on average at this load of one engine: more would only lengthen the queue
PREFILL_ENGINES = 4  # the best of each kind of GPU, by prompts a second and GPU
MOST_EACH = 8  # engines of either side in one group
Engines = Sequence[tuple[Candidate, Curve]]


def split_rows(
    engines: Sequence[Candidate], curves: Sequence[Curve], wanted: Goal, cost: Mapping[str, Price], stack: str
) -> list[dict[str, Any]]:
    """Rows of deployments whose prefill and decode are apart, both on GPUs of one kind and one quantisation."""
    groups: dict[tuple[str, str | None], list[tuple[Candidate, Curve]]] = {}
    for engine, curve in zip(engines, curves, strict=True):
        if engine.parallel.pp == 1:  # no stack hands over caches between pipelines
            groups.setdefault((engine.gpu.name, engine.quantization), []).append((engine, curve))
    return [row for group in groups.values() for row in _group(group, wanted, cost, stack)]


def _group(group: Engines, wanted: Goal, cost: Mapping[str, Price], stack: str) -> Iterator[dict[str, Any]]:
    fast = sorted(group, key=lambda pair: pair[1].prefill_s * pair[0].parallel.gpus)[:PREFILL_ENGINES]
    limit = wanted.total_gpus or (4 * max(e.parallel.gpus for e, _ in group))
    host = node("auto", group[0][0].gpu)
    host_gpus = None if host.nic_bytes_per_s > 0 else host.gpus
    for prefill, prompt in fast:
        for decode, curve in group:
            if not can_hand_over(prefill, decode, stack):
                continue
            handed_s = hand_over_s(prefill.model, wanted.isl, prefill.parallel, decode.parallel, prefill.ledger.kv_dtype, prefill.gpu)
            for i in range(len(curve.concurrency)):
                row = _row(prefill, prompt, decode, curve, i, handed_s, wanted, cost, limit, host_gpus)
                if row is not None:
                    yield row


def can_hand_over(prefill: Candidate, decode: Candidate, stack: str) -> bool:
    """Whether the stack can: SGLang wants equal TP, vLLM a decode TP that is a multiple of the prefill TP."""
    if stack == "sglang":
        return prefill.parallel.tp == decode.parallel.tp
    return decode.parallel.tp % prefill.parallel.tp == 0


def _row(
    prefill: Candidate,
    prompt: Curve,
    decode: Candidate,
    curve: Curve,
    i: int,
    handed_s: float,
    wanted: Goal,
    cost: Mapping[str, Price],
    limit: int,
    host_gpus: int | None,
) -> dict[str, Any] | None:
    from perfmodel.plan.search import finish

    b, decoded_s = float(curve.concurrency[i]), float(curve.decode_s[i]) * wanted.request.steps
    tpot = decoded_s / max(wanted.osl - 1, 1)
    made = b / decoded_s  # requests a second of one decode engine
    taken = PREFILL_BUSY / prompt.prefill_s
    counts = _counts(wanted, made, taken, b, prefill.parallel.gpus, decode.parallel.gpus, limit, host_gpus)
    if counts is None:
        return None
    x, y, replicas = counts
    rate = min(made * y, taken * x)
    if wanted.request_rate is not None:
        rate = min(rate, wanted.request_rate / replicas)
    busy = rate / x * prompt.prefill_s
    ttft = prompt.prefill_s + waiting_s(prompt.prefill_s, busy, x) + handed_s
    unit = x * prefill.parallel.gpus + y * decode.parallel.gpus
    low, high = float(min(prompt.low[0], curve.low[i])), float(max(prompt.high[0], curve.high[i]))
    p = decode.parallel
    return finish(
        {
            "gpu": decode.gpu.name,
            "mode": "disagg",
            "replicas": replicas,
            "gpus": replicas * unit,
            "parallel": f"{x} x {prefill.parallel} prefill, {y} x {p} decode",
            "tp": p.tp,
            "pp": p.pp,
            "ep": p.ep,
            "dp": p.dp,
            "quantization": decode.quantization or decode.model.weight_dtype,
            "kv_cache_dtype": decode.ledger.kv_dtype,
            "concurrency_per_engine": b,
            "decode_engines": y,
            "prefill_engines": x,
            "prefill_shape": prefill.parallel,
            "ttft_ms": ttft * 1e3,
            "tpot_ms": tpot * 1e3,
            "requests_per_s": rate * replicas,
            "kv_used_percent": 100.0 * b / decode.held,
            "kv_tokens_per_engine": decode.ledger.kv_tokens * p.dp,
            "bound": curve.bound[i],
            "tier": min(prompt.tier, curve.tier, key=("spec", "calibrated", "measured").index),
            "in_domain": bool(curve.in_domain[i] > 0.5),
        },
        wanted,
        cost,
        decode.gpu,
        x * prefill.parallel.gpus / unit,
        (low, high),
    )


def _counts(
    wanted: Goal, made: float, taken: float, b: float, prefill_gpus: int, decode_gpus: int, limit: int, host_gpus: int | None
) -> tuple[int, int, int] | None:
    """(prefill engines, decode engines, groups): pools as large as the traffic needs, else groups that waste least.

    made, taken: requests a second of a decode and a prefill engine; host_gpus: of a host without a network, which no group can leave.
    """
    per_group = min(limit, host_gpus or limit)
    if wanted.request_rate is None and wanted.concurrency is None:
        found = _group_of(made, taken, prefill_gpus, decode_gpus, per_group)
        if found is None:
            return None
        return *found, max(1, limit // (found[0] * prefill_gpus + found[1] * decode_gpus)) if wanted.total_gpus else 1
    rate = wanted.request_rate if wanted.request_rate is not None else (wanted.concurrency or 1) / b * made
    if host_gpus is None:
        x, y, groups = math.ceil(rate / taken), math.ceil(rate / made), 1
    else:
        found = _group_of(made, taken, prefill_gpus, decode_gpus, per_group)
        if found is None:
            return None
        x, y = found
        groups = math.ceil(rate / min(made * y, taken * x))
    fits = groups * (x * prefill_gpus + y * decode_gpus) <= (wanted.total_gpus or MOST_GPUS)
    return (x, y, groups) if fits else None


def _group_of(made: float, taken: float, prefill_gpus: int, decode_gpus: int, limit: int) -> tuple[int, int] | None:
    """Prefill and decode engines, up to MOST_EACH a side and `limit` GPUs, with the most requests a second and GPU."""
    best: tuple[float, int, int] | None = None
    for y in range(1, MOST_EACH + 1):
        even = max(1, math.ceil(y * made / taken))
        for x in dict.fromkeys((even, max(1, even - 1))):
            unit = x * prefill_gpus + y * decode_gpus
            if unit > limit or x > MOST_EACH:
                continue
            worth = min(made * y, taken * x) / unit
            if best is None or worth > best[0]:
                best = (worth, x, y)
    return best[1:] if best else None
