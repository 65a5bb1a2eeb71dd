"""Where an engine runs in the steady state: latency and throughput at each number of requests in flight, in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfmodel.learn.calibration import CalibrationLike
from perfmodel.plan.candidates import Candidate
from perfmodel.plan.closed_form import closed_loop, prompt_s
from perfmodel.plan.deployment import Deployment
from perfmodel.plan.overhead import Overhead, overhead
from perfmodel.plan.queue_wait import waiting_s
from perfmodel.plan.scheduler import Scheduler, default_scheduler
from perfmodel.plan.serving_step import ServingStep
from perfmodel.plan.step_table import StepTable, build_tables
from perfmodel.plan.traffic import Request

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """One engine over rising numbers of requests in flight: arrays of one length, seconds and tokens a second of the whole engine.

    rate_s: requests finished a second; decode_s: a step of decode alone; prefill_s: one prompt alone; prefill_share: of the engine's time;
    low and high: factors of the 80 % interval of the step time; bound: the operator group that takes most of a decode step;
    in_domain: share of its time within what the operator models were fitted on.
    """

    concurrency: Floats
    ttft_s: Floats
    tpot_s: Floats
    rate_s: Floats
    prefill_share: Floats
    low: Floats
    high: Floats
    bound: tuple[str, ...]
    decode_s: Floats
    prefill_s: float
    tier: str
    in_domain: Floats

    def at_rate(self, rate_s: float) -> tuple[float, float, float] | None:
        """(requests in flight, mean TTFT, TPOT) where the engine finishes `rate_s` requests a second; None beyond its last point.

        Interpolated in the logarithm of the requests in flight. A prompt that arrives at random takes its own time (that of an empty
        engine, and what the others' decoding adds to its step), half a step that is under way, and waits for prompts that came just before
        it (waiting_s). Evidence: within 15 % of the
        simulation for five models on A100, H100 and L20; tests/unit/test_plan_search.py.
        """
        busy = rate_s * self.prefill_s
        if rate_s > self.rate_s.max() or busy >= 1.0:
            return None
        rising = np.maximum.accumulate(self.rate_s)
        logs = np.log(self.concurrency)
        at = float(np.exp(np.interp(rate_s, rising, logs)))
        tpot, decode = (float(np.interp(np.log(at), logs, values)) for values in (self.tpot_s, self.decode_s))
        ttft = float(self.ttft_s[0]) + decode - float(self.decode_s[0]) + tpot / 2.0 + waiting_s(self.prefill_s, busy)
        return at, ttft, tpot


def curves(
    engines: Sequence[Candidate],
    *,
    request: Request,
    batches: Sequence[Sequence[int]],
    stack: str,
    calibration: CalibrationLike,
) -> list[Curve]:
    """The curve of each engine at its `batches`; every distinct operator of all of them is predicted once, in one table a kind."""
    deployments = [deployment(engine, stack) for engine in engines]
    tables = build_tables(deployments, calibration)
    host = overhead(stack)
    return [
        _curve(table, host, default_scheduler(stack, engine.gpu), request, sizes)
        for table, engine, sizes in zip(tables, engines, batches, strict=True)
    ]


def deployment(engine: Candidate, stack: str) -> Deployment:
    """The engine as the step model takes it."""
    p = engine.parallel
    return Deployment(
        model=engine.model,
        gpu=engine.gpu,
        tp=p.tp,
        pp=p.pp,
        ep=p.ep,
        dp=p.dp,
        nodes=engine.nodes,
        stack=stack,
        dtype="fp16" if engine.model.activation_dtype == "fp16" else "bf16",
        kv_dtype=engine.ledger.kv_dtype,
    )


def _curve(table: StepTable, host: Overhead, scheduler: Scheduler, request: Request, sizes: Sequence[int]) -> Curve:
    step = ServingStep(table, host)
    points = [closed_loop(step, scheduler, request, b) for b in sizes]
    ttft, tpot, rate, share = (np.array([getattr(p, name) for p in points]) for name in ("ttft_s", "tpot_s", "rate_s", "prefill_share"))
    kv_len = request.kv_len
    spread = [table.width(b, kv_len) for b in sizes]
    return Curve(
        np.array(sizes, dtype=np.float64),
        ttft,
        tpot,
        rate,
        share,
        np.array([s[0] for s in spread]),
        np.array([s[1] for s in spread]),
        tuple(max(table.terms_s(b, kv_len).items(), key=lambda item: item[1])[0] for b in sizes),
        np.array([step([], b, kv_len) for b in sizes]),
        prompt_s(step, scheduler.token_budget, request, 0, 0.0),
        table.tier,
        np.array([table.inside(b, kv_len) for b in sizes]),
    )
