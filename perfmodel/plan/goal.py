"""What a plan must reach: traffic, limits on latency, GPUs and money; checked once, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfmodel.errors import InputError, shown
from perfmodel.ops.check import size
from perfmodel.plan.prices import Price
from perfmodel.plan.traffic import MOST_REQUESTS, MOST_TOKENS, Request, accepted_tokens, hit_rate, positive

MOST_GPUS = 1024
"""Of each kind of GPU, where only traffic bounds them."""
LARGEST_LIMIT = 1e12
"""On milliseconds, requests a second, and on US dollars an hour."""
LARGEST_FLEET = 100_000
"""Largest total_gpus."""
PERCENTILES = ("mean", "p50", "p90", "p99")
OBJECTIVES = ("auto", "gpus", "cost", "throughput")


@dataclass(frozen=True, slots=True)
class Goal:
    """Traffic and limits on TTFT and TPOT: on their means, or on a percentile over requests; TPOT leaves out the first token.

    request_rate: requests a second of all engines together (Poisson); concurrency: requests in flight of all engines together; with
    neither, every engine is filled. prefix_cache_hit_rate: share of each prompt in the cache; accepted_tokens_per_step: of speculative
    decoding. total_gpus bounds the GPUs of one kind; budget_usd_per_hour needs a price.
    """

    isl: int
    osl: int
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    request_rate: float | None = None
    concurrency: int | None = None
    total_gpus: int | None = None
    budget_usd_per_hour: float | None = None
    objective: str = "auto"
    prefix_cache_hit_rate: float = 0.0
    accepted_tokens_per_step: float = 1.0
    percentile: str = "mean"

    @property
    def request(self) -> Request:
        """One request, as an engine meets it; the last token of a prompt is always computed."""
        return Request(self.isl, self.osl, min(int(self.isl * self.prefix_cache_hit_rate), self.isl - 1), self.accepted_tokens_per_step)

    def misses(self, ttft_ms: float, tpot_ms: float) -> dict[str, float]:
        """Each limit on latency and by which factor it is used: over 1 is missed."""
        pairs = (("ttft", ttft_ms, self.ttft_ms), ("tpot", tpot_ms, self.tpot_ms))
        return {name: value / limit for name, value, limit in pairs if limit is not None}


def goal(
    isl: object,
    osl: object,
    *,
    ttft_ms: object = None,
    tpot_ms: object = None,
    request_rate: object = None,
    concurrency: object = None,
    total_gpus: object = None,
    budget_usd_per_hour: object = None,
    objective: str = "auto",
    prefix_cache_hit_rate: object = 0.0,
    accepted_tokens_per_step: object = 1.0,
    percentile: str = "mean",
    prices: Mapping[str, Price] | None = None,
) -> Goal:
    """Check every value; raises InputError naming the first that cannot be."""
    if request_rate is not None and concurrency is not None:
        raise InputError("request_rate and concurrency: give one; a rate makes its own concurrency, and the other way round")
    if not isinstance(percentile, str) or percentile not in PERCENTILES:
        raise InputError(f"percentile {shown(percentile)}: use one of {', '.join(PERCENTILES)}")
    if not isinstance(objective, str) or objective not in OBJECTIVES:
        raise InputError(f"objective {shown(objective)}: use one of {', '.join(OBJECTIVES)}")
    if (budget_usd_per_hour is not None or objective == "cost") and not prices:
        raise InputError(
            "a budget or the objective cost needs prices: none of these GPUs has one; write them in prices.toml or pass prices (--prices)"
        )
    return Goal(
        size("isl", isl, high=MOST_TOKENS),
        size("osl", osl, high=MOST_TOKENS),
        positive("ttft_ms", ttft_ms, LARGEST_LIMIT),
        positive("tpot_ms", tpot_ms, LARGEST_LIMIT),
        positive("request_rate", request_rate, LARGEST_LIMIT),
        None if concurrency is None else size("concurrency", concurrency, high=MOST_REQUESTS),
        None if total_gpus is None else size("total_gpus", total_gpus, high=LARGEST_FLEET),
        positive("budget_usd_per_hour", budget_usd_per_hour, LARGEST_LIMIT),
        objective,
        hit_rate(prefix_cache_hit_rate),
        accepted_tokens(accepted_tokens_per_step),
        percentile,
    )
