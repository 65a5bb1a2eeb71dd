"""Event simulation of continuous batching: requests in, times of every token out. Deterministic; no clock, no GPU.

Between an arrival, a finish and a full cache the batch does not change, so whole runs of decode steps are taken in one jump.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError, NoAnswerError
from perfmodel.plan.scheduler import Scheduler

Floats = npt.NDArray[np.float64]
LONGEST_JUMP = 64
"""Decode steps priced at once at most: KV grows on the way, and an arrival may come meanwhile."""


MOST_STEPS = 1_000_000
"""Largest simulation that is begun: some twenty seconds."""


class StepTime(Protocol):
    """What a step costs: prompts' chunks as (tokens, earlier tokens), decoding sequences and their mean KV length; seconds."""

    def __call__(self, chunks: Sequence[tuple[int, int]], sequences: int, kv_len: float) -> float:
        """Seconds of the step."""
        ...


@dataclass(frozen=True, slots=True)
class Trace:
    """What happened: one entry a request (seconds), and the gaps between tokens as (gap, how many tokens saw it)."""

    arrival_s: Floats
    first_token_s: Floats
    finish_s: Floats
    isl: npt.NDArray[np.intp]
    osl: npt.NDArray[np.intp]
    gaps_s: Floats
    gap_tokens: Floats
    steps: int
    preemptions: int
    peak_kv_tokens: int
    busy_s: float

    @property
    def ttft_s(self) -> Floats:
        """Time to first token, queueing included."""
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> Floats:
        """Time per output token after the first; NaN for requests of one token."""
        steps = self.osl - 1
        return np.where(steps > 0, (self.finish_s - self.first_token_s) / np.maximum(steps, 1), np.nan)

    @property
    def e2e_s(self) -> Floats:
        """Arrival to last token."""
        return self.finish_s - self.arrival_s


def steps_each(isl: float, osl: float, token_budget: int, in_flight: int = 1) -> float:
    """Steps and jumps that one of many requests adds to a simulation, about: its own, its prompt's chunks, its share of decode."""
    return 1.0 + isl / token_budget + osl / LONGEST_JUMP / max(in_flight, 1)


def check_length(count: int, isl: float, osl: float, token_budget: int, in_flight: int | None, most: float = MOST_STEPS) -> None:
    """Raise InputError where `count` requests of isl new and osl output tokens on average would be simulated for minutes."""
    if count * steps_each(isl, osl, token_budget, in_flight or 1) > most:
        raise InputError(
            f"{count} requests of {isl:.6g} new and {osl:.6g} output tokens are too many to simulate: give fewer requests in flight, "
            "shorter ones, or more tokens a step"
        )


def simulate(
    step: StepTime,
    scheduler: Scheduler,
    isl: npt.NDArray[np.intp],
    osl: npt.NDArray[np.intp],
    *,
    kv_tokens: float,
    arrival_s: Floats | None = None,
    front_s: Floats | float = 0.0,
    delay_s: float = 0.0,
    concurrency: int | None = None,
    cached_share: float = 0.0,
    tokens_per_step: float = 1.0,
) -> Trace:
    """Run the requests through one engine: at given arrivals, or closed loop with `concurrency` of them always in flight.

    front_s: what the front end works on each request, one at a time; delay_s: the rest of the way from sending a request to the engine
    seeing it; kv_tokens: what the cache holds; cached_share: part of each prompt found in the prefix cache; tokens_per_step: accepted
    tokens of one decode step (1 without speculative decoding). Raises NoAnswerError where one request alone does not fit into the cache.
    """
    count = len(isl)
    longest = int(np.max(isl + osl))
    if longest > kv_tokens:
        raise NoAnswerError(
            f"a request of {longest} tokens does not fit into a KV cache of {int(kv_tokens)} tokens: take more GPUs or shorter requests"
        )
    run = _Run(step, scheduler, isl, osl, kv_tokens, arrival_s, front_s, delay_s, concurrency, cached_share, tokens_per_step)
    while run.done < count:
        run.advance()
    return Trace(
        run.arrived_s, run.first_s, run.finish_s, isl, osl, np.array(run.gaps_s), np.array(run.gap_tokens),
        run.steps, run.preemptions, int(run.peak_kv), run.busy_s,
    )  # fmt: skip


class _Run:
    """The state of one simulation. A request holds prompt + generated - 1 tokens of cache while it decodes."""

    def __init__(
        self,
        step: StepTime,
        scheduler: Scheduler,
        isl: npt.NDArray[np.intp],
        osl: npt.NDArray[np.intp],
        kv_tokens: float,
        arrival_s: Floats | None,
        front_s: Floats | float,
        delay_s: float,
        concurrency: int | None,
        cached_share: float,
        tokens_per_step: float,
    ) -> None:
        count = len(isl)
        self.step, self.rules, self.kv_tokens, self.tokens_per_step = step, scheduler, kv_tokens, tokens_per_step
        self.budget = scheduler.token_budget
        self.prompt, self.wanted = isl.tolist(), osl.tolist()
        self.cached = np.minimum((isl * cached_share).astype(np.intp), isl - 1).tolist()
        self.arrived_s = np.zeros(count) if arrival_s is None else np.array(arrival_s, dtype=np.float64)
        self.front = np.broadcast_to(np.asarray(front_s, dtype=np.float64), (count,)).tolist()
        self.delay_s, self.front_free_s = delay_s, 0.0
        self.ready = [0.0] * count  # when the engine sees it
        order = np.argsort(self.arrived_s, kind="stable").tolist()
        released = min(concurrency, count) if concurrency is not None else count
        self.future: deque[int] = deque()
        self.held_back = deque(order[released:])
        for request in order[:released]:
            self._send(request, float(self.arrived_s[request]))
        self.waiting: deque[int] = deque()
        self.partial: list[list[int]] = []  # [request, tokens done], oldest first
        self.decoding: dict[int, int] = {}  # request -> decode clock at which it started, oldest first
        self.ends: list[tuple[int, int]] = []  # heap of (decode clock, request)
        self.generated = [0] * count
        self.claims: dict[int, float] = {}  # request -> tokens of cache it was admitted for
        self.first_s, self.finish_s = np.full(count, np.nan), np.full(count, np.nan)
        self.gaps_s: list[float] = []
        self.gap_tokens: list[float] = []
        self.stopped: dict[int, float] = {}  # preempted request -> when
        self.kv = self.decode_kv = self.claimed = self.peak_kv = self.busy_s = self.now = self.stall_s = 0.0
        self.clock = self.steps = self.preemptions = self.done = 0

    def advance(self) -> None:
        """One step, or one jump over equal decode steps, or on to the next arrival."""
        while self.future and self.ready[self.future[0]] <= self.now:
            self.waiting.append(self.future.popleft())
        growth = len(self.decoding) * self.tokens_per_step
        if self.decoding and self.kv + growth > self.kv_tokens and len(self.decoding) + len(self.partial) > 1:
            self._preempt()
            return
        chunks, started = self._schedule(growth)
        running = len(self.decoding) if (self.rules.mixed or not chunks) else 0
        if not chunks and not running:
            self.now = max(self.now, self.ready[self.future[0]])
            return
        jump = 1
        if not chunks:
            jump = min(self.ends[0][0] - self.clock, LONGEST_JUMP)
            jump = max(min(jump, int((self.kv_tokens - self.kv) // growth)), 1)
        mean_kv = (self.decode_kv / running if running else 0.0) + 1.0 + (jump - 1) * 0.5 * self.tokens_per_step
        each = self.step(chunks, running, mean_kv)
        if jump > 1 and self.future:
            jump = max(1, min(jump, math.ceil((self.ready[self.future[0]] - self.now) / each)))
        self.now += each * jump
        self.busy_s += each * jump
        self.steps += jump
        if running:
            self._decoded(jump, running, each)
        elif self.decoding:
            self.stall_s += each
        self.peak_kv = max(self.peak_kv, self.kv)
        self._finish(started)

    def _schedule(self, growth: float) -> tuple[list[tuple[int, int]], list[int]]:
        """Chunks of this step as (tokens, earlier tokens), and the requests whose prompt is then complete; decode grows by `growth`."""
        left = self.budget - (len(self.decoding) if self.rules.mixed else 0)
        chunks: list[tuple[int, int]] = []
        started: list[int] = []
        for item in list(self.partial):
            request, have = item
            whole = self.prompt[request] + self.generated[request]
            take = min(whole - have, left)
            if take > 0:
                chunks.append((take, have))
                left -= take
                self.kv += take
                item[1] += take
            if item[1] >= whole:
                started.append(request)
                self.partial.remove(item)
        while self.waiting and left > 0 and len(self.decoding) + len(self.partial) + len(started) < self.rules.max_sequences:
            request = self.waiting[0]
            whole, have = self.prompt[request] + self.generated[request], self.cached[request]
            take = whole - have
            claim = whole + self.rules.reserve * (self.wanted[request] - self.generated[request])
            held_back = sum(self.prompt[r] + self.generated[r] - done for r, done in self.partial)  # of prompts not yet in
            used = self.claimed if self.rules.reserve >= 1.0 else max(self.kv + growth + held_back, self.claimed * (self.rules.reserve > 0))
            busy = self.decoding or self.partial or started
            if (take > left and not self.rules.chunked and chunks) or (used + claim > self.kv_tokens and busy):
                break
            self.waiting.popleft()
            self.claims[request] = claim
            self.claimed += claim
            part = min(take, left) if self.rules.chunked else take  # a whole prompt over the budget has a step of its own
            chunks.append((part, have))
            self.kv += have + part
            if part == take:
                started.append(request)
            else:
                self.partial.append([request, have + part])
            left -= part
        return chunks, started

    def _decoded(self, jump: int, running: int, each: float) -> None:
        self.gaps_s.append(each)
        self.gap_tokens.append(jump * running)
        if self.stall_s:
            self.gap_tokens[-1] -= running
            self.gaps_s.append(each + self.stall_s)
            self.gap_tokens.append(running)
            self.stall_s = 0.0
        self.clock += jump
        grown = jump * running * self.tokens_per_step
        self.kv += grown
        self.decode_kv += grown

    def _finish(self, started: list[int]) -> None:
        """Give the requests of `started` their token, and let go of everything that has all of its tokens."""
        over = []
        for request in started:
            if self.generated[request] == 0:
                self.first_s[request] = self.now
            else:
                self.gaps_s.append(self.now - self.stopped.pop(request))
                self.gap_tokens.append(1.0)
            self.generated[request] += 1
            rest = self.wanted[request] - self.generated[request]
            if rest > 0:
                self.decoding[request] = self.clock
                heapq.heappush(self.ends, (self.clock + math.ceil(rest / self.tokens_per_step), request))
                self.decode_kv += self.prompt[request] + self.generated[request] - 1
            else:
                over.append((request, self.prompt[request] + self.generated[request] - 1.0))
        while self.ends and self.ends[0][0] <= self.clock:
            request = heapq.heappop(self.ends)[1]
            over.append((request, self._leave(request)))
        for request, held in over:
            self.finish_s[request] = self.now
            self.done += 1
            self.kv -= held
            self.claimed -= self.claims.pop(request)
            if self.held_back:
                self._send(self.held_back.popleft(), self.now)

    def _send(self, request: int, at: float) -> None:
        """A client sends a request: the front end takes them one at a time, then the engine sees it."""
        self.arrived_s[request] = at
        self.front_free_s = max(self.front_free_s, at) + self.front[request]
        self.ready[request] = self.front_free_s + self.delay_s
        self.future.append(request)

    def _leave(self, request: int) -> float:
        """Take a request out of the decoding ones; the tokens it held."""
        start = self.decoding.pop(request)
        held = self.prompt[request] + self.generated[request] - 1 + (self.clock - start) * self.tokens_per_step
        self.decode_kv -= held
        return float(held)

    def _preempt(self) -> None:
        """The youngest gives its cache back and waits, to be computed again with what it has said so far."""
        victim = next(reversed(self.decoding))
        said = int((self.clock - self.decoding[victim]) * self.tokens_per_step)
        self.kv -= self._leave(victim)
        self.generated[victim] = min(self.generated[victim] + said, self.wanted[victim] - 1)
        self.ends = [end for end in self.ends if end[1] != victim]
        heapq.heapify(self.ends)
        self.claimed -= self.claims.pop(victim)
        self.waiting.appendleft(victim)
        self.stopped[victim] = self.now
        self.preemptions += 1
