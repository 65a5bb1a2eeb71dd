"""The steady state of one engine in closed form: what `simulate` finds for equal requests, without simulating."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfmodel.analytic.constants import constant_values
from perfmodel.plan.scheduler import Scheduler
from perfmodel.plan.serving_step import ServingStep
from perfmodel.plan.traffic import Request

OWN_SHARE = 0.5
"""Of a step that is under way when a prompt arrives, what is left on average."""


@dataclass(frozen=True, slots=True)
class Steady:
    """One engine with a fixed number of requests in flight: means, seconds and requests a second.

    prefill_share: of the engine's time that goes into prompts.
    """

    ttft_s: float
    tpot_s: float
    rate_s: float
    prefill_share: float


def closed_loop(step: ServingStep, scheduler: Scheduler, request: Request, requests: int) -> Steady:
    """The engine with `requests` such requests always in flight, all of them in its cache.

    In one cycle every request is brought in and makes its tokens: request.steps decode steps, and for each of the prompts its chunks.
    Stacks that mix let the chunks ride on decode steps; the others stop decoding for them, and equal requests then go in waves. Prompts
    that arrive during one step share the next; equal requests partly keep together, so a prompt waits wave_wait x (share of prompts) x
    log2(requests) times its own step, as fitted to the simulation. TPOT leaves out the first token; no token takes less than a decode step.
    Valid: below saturation. Evidence: tests/unit/test_plan_serving.py holds it against the simulation.
    """
    d, host = step.table.deployment, step.host
    front = host.request_s + host.delay_s
    steps, kv_len, new, old, after = request.steps, request.kv_len, request.new, request.cached, max(request.osl - 1, 1)
    prompts = requests / d.dp  # each attention replica brings in its own, at the same time as the others
    decode = step([], requests, kv_len)
    if not scheduler.mixed:
        together = max(int(scheduler.token_budget // new), 1)
        alone = prompt_s(step, scheduler.token_budget, request, 0, 0.0)
        batch = step([(new, old)] * together, 0, 0.0) / together if together > 1 else alone
        wave = max(prompts * batch, alone)
        cycle = steps * decode + wave
        ttft = (wave + alone) / 2.0 + (requests - 1) / requests * decode * OWN_SHARE
        return Steady(ttft + front, (cycle - ttft) / after, requests / (cycle + front), wave / cycle)
    room: float = max(scheduler.token_budget - prompts, scheduler.token_budget / 8.0)
    room = room if scheduler.chunked else max(room, float(new))
    count = math.ceil(new / room)
    passes = min(d.pp, max(requests // d.dp, 1))  # a pipeline's step is what one stage takes of it; a prompt must pass them all
    own = prompt_s(step, room, request, requests - 1, kv_len)
    shared = 1  # prompts in one step: those that arrive while another is under way
    for _ in range(4):
        cycle = steps * decode + prompts / shared * max(own - count * decode, 0.0)
        arriving = round(min(max(prompts / cycle * own, 1.0), max(room / new, 1.0), max(prompts, 1.0)))
        if arriving <= shared or count > 1:
            break
        shared = arriving
        own = step([(new, old)] * shared, requests, kv_len)
    groups = prompts / shared
    if groups * count <= steps + count:
        mixed = groups * own  # seconds of all mixed steps of a cycle
        cycle = mixed + (steps + count - groups * count) * decode + (passes - 1) * own
        alone = mixed - groups * count * decode
        share = min(max(alone, 0.0) / cycle, 1.0)
        ttft = passes * own + (requests - 1) / requests * cycle / (steps + count) * OWN_SHARE
        ttft += constant_values("serving")["wave_wait"] * share * math.log2(max(prompts, 1.0)) * own
    else:  # more chunks than steps: several prompts share one, up to the token budget
        needed = max(steps + count, prompts * new / room)
        tokens = prompts * new / needed
        each = step([(max(1, round(min(tokens, new))), old)] * max(1, round(tokens / new)), requests, kv_len)
        cycle = needed * each
        ttft = (needed - steps + passes - 1) * each + each * OWN_SHARE
        share = max(needed * (each - decode), 0.0) / cycle
    ttft = min(ttft, cycle)
    decoded = max(cycle - ttft, steps * decode)  # saturated, a prompt may take the whole cycle: its decode steps come on top
    return Steady(ttft + front, decoded / after, requests / (cycle + front), share)


def prompt_s(step: ServingStep, room: float, request: Request, sequences: int, kv_len: float) -> float:
    """Seconds of all steps that bring one prompt in, `room` tokens at a time beside decoding sequences."""
    new, count = request.new, math.ceil(request.new / room)
    return sum(step([(round(new / count), request.cached + round(i * new / count))], sequences, kv_len) for i in range(count))
