"""The steady state of one engine in closed form: what `simulate` finds for equal requests, without simulating."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfmodel.analytic.constants import constant_values
from perfmodel.plan.scheduler import Scheduler
from perfmodel.plan.serving_step import ServingStep

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


def closed_loop(step: ServingStep, scheduler: Scheduler, isl: int, osl: int, requests: int) -> Steady:
    """The engine with `requests` of isl prompt and osl output tokens always in flight, all of them in its cache.

    In one cycle every request is brought in and makes its osl tokens: osl - 1 decode steps, and for each of the prompts its chunks.
    Stacks that mix let the chunks ride on decode steps; the others stop decoding for them, and equal requests then go in waves. Prompts
    that arrive during one step share the next; equal requests partly keep together, so a prompt waits wave_wait x (share of prompts) x
    log2(requests) times its own step, as fitted to the simulation. TPOT leaves out the first token.
    Valid: below saturation. Evidence: tests/unit/test_plan_serving.py holds it against the simulation.
    """
    d, host = step.table.deployment, step.host
    front = host.request_s + host.delay_s
    steps, kv_len = max(osl - 1, 1), isl + osl / 2
    prompts = requests / d.dp  # each attention replica brings in its own, at the same time as the others
    decode = step([], requests, kv_len)
    if not scheduler.mixed:
        together = max(int(scheduler.token_budget // isl), 1)
        alone = prompt_s(step, scheduler.token_budget, isl, 0, 0.0)
        batch = step([(isl, 0)] * together, 0, 0.0) / together if together > 1 else alone
        wave = max(prompts * batch, alone)
        cycle = steps * decode + wave
        ttft = (wave + alone) / 2.0 + (requests - 1) / requests * decode * OWN_SHARE
        return Steady(ttft + front, (cycle - ttft) / steps, requests / (cycle + front), wave / cycle)
    room: float = max(scheduler.token_budget - prompts, scheduler.token_budget / 8.0)
    room = room if scheduler.chunked else max(room, float(isl))
    count = math.ceil(isl / room)
    passes = min(d.pp, max(requests // d.dp, 1))  # a pipeline's step is what one stage takes of it; a prompt must pass them all
    own = prompt_s(step, room, isl, requests - 1, kv_len)
    shared = 1  # prompts in one step: those that arrive while another is under way
    for _ in range(4):
        cycle = steps * decode + prompts / shared * max(own - count * decode, 0.0)
        arriving = round(min(max(prompts / cycle * own, 1.0), max(room / isl, 1.0), max(prompts, 1.0)))
        if arriving <= shared or count > 1:
            break
        shared = arriving
        own = step([(isl, 0)] * shared, requests, kv_len)
    groups = prompts / shared
    if groups * count <= steps + count:
        mixed = groups * own  # seconds of all mixed steps of a cycle
        cycle = mixed + (steps + count - groups * count) * decode + (passes - 1) * own
        alone = mixed - groups * count * decode
        share = min(max(alone, 0.0) / cycle, 1.0)
        ttft = passes * own + (requests - 1) / requests * cycle / (steps + count) * OWN_SHARE
        ttft += constant_values("serving")["wave_wait"] * share * math.log2(max(prompts, 1.0)) * own
    else:  # more chunks than steps: several prompts share one, up to the token budget
        needed = max(steps + count, prompts * isl / room)
        tokens = prompts * isl / needed
        each = step([(max(1, round(min(tokens, isl))), 0)] * max(1, round(tokens / isl)), requests, kv_len)
        cycle = needed * each
        ttft = (needed - steps + passes - 1) * each + each * OWN_SHARE
        share = max(needed * (each - decode), 0.0) / cycle
    ttft = min(ttft, cycle)
    return Steady(ttft + front, (cycle - ttft) / steps, requests / (cycle + front), share)


def prompt_s(step: ServingStep, room: float, isl: int, sequences: int, kv_len: float) -> float:
    """Seconds of all steps that bring one prompt in, `room` tokens at a time beside decoding sequences."""
    count = math.ceil(isl / room)
    return sum(step([(round(isl / count), round(i * isl / count))], sequences, kv_len) for i in range(count))
