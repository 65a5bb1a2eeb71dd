"""Requests: lengths and arrivals, from numbers, distributions or a trace. The same seed gives the same requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError, shown
from perfmodel.ops.check import is_flag, size

Ints = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]
MOST_TOKENS = 2**24
MOST_REQUESTS = 1_000_000
LATEST_S = 1e12
FASTEST_RATE = 1e6  # requests a second


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lengths of log-normal distribution.

    Parameters
    ----------
    mean : float
        Tokens.
    cv : float
        Standard deviation over the mean.

    Raises
    ------
    InputError
        For a mean below 1 or a cv that is negative or too large.

    Examples
    --------
    >>> import perfmodel as pm
    >>> pm.Lognormal(mean=1000, cv=0.5).mean
    1000
    """

    mean: float
    cv: float

    def __post_init__(self) -> None:
        number("mean length", self.mean, low=1.0, high=MOST_TOKENS)
        number("cv of a length", self.cv, low=0.0, high=10.0)


Length = int | Lognormal | Sequence[int]


@dataclass(frozen=True, slots=True)
class Request:
    """One of many equal requests: tokens in and out, those of the prompt that the prefix cache has, tokens a decode step adds (mean)."""

    isl: int
    osl: int
    cached: int = 0
    tokens_per_step: float = 1.0

    @property
    def new(self) -> int:
        """Tokens of the prompt that must be computed."""
        return self.isl - self.cached

    @property
    def steps(self) -> int:
        """Decode steps after the first token, one at least."""
        return max(math.ceil((self.osl - 1) / self.tokens_per_step), 1)

    @property
    def kv_len(self) -> float:
        """Mean context of its decode steps, tokens."""
        return self.isl + self.osl / 2


def lengths(name: str, length: Any, count: int, spread: float, rng: np.random.Generator) -> Ints:
    """`count` lengths in tokens: a number (give or take `spread` of it), a Lognormal, or a trace that is repeated as needed.

    Raises InputError for lengths below 1.
    """
    if isinstance(length, Lognormal):
        sigma = math.sqrt(math.log1p(length.cv**2))
        drawn = rng.lognormal(math.log(length.mean) - sigma**2 / 2.0, sigma, count)
        return np.clip(np.rint(drawn), 1, MOST_TOKENS).astype(np.intp)
    if _is_trace(length):
        if not len(length):
            raise InputError(f"{name} is an empty trace: give one length a request")
        if len(length) > MOST_REQUESTS:
            raise InputError(f"{name} is a trace of {len(length)} lengths: give {MOST_REQUESTS} at most, one a request")
        trace = np.array([size(name, value, high=MOST_TOKENS) for value in length], dtype=np.intp)
        return np.resize(trace, count)
    whole = size(name, length, high=MOST_TOKENS)
    if not spread:
        return np.full(count, whole, dtype=np.intp)
    return np.maximum(np.rint(whole * rng.uniform(1.0 - spread, 1.0 + spread, count)), 1).astype(np.intp)


def mean_length(name: str, length: Any) -> float:
    """Mean of a length as `lengths` takes it."""
    if isinstance(length, Lognormal):
        return length.mean
    if _is_trace(length):
        return float(np.mean(lengths(name, length, len(length), 0.0, np.random.default_rng(0))))
    return float(size(name, length, high=MOST_TOKENS))


def _is_trace(length: Any) -> bool:
    """Whether a length is a list of them; an array of no dimension is a number."""
    return (isinstance(length, Sequence) and not isinstance(length, str | bytes)) or (isinstance(length, np.ndarray) and length.ndim > 0)


def arrivals(request_rate: float, count: int, rng: np.random.Generator) -> Floats:
    """Poisson arrivals, seconds."""
    return np.asarray(np.cumsum(rng.exponential(1.0 / request_rate, count)), dtype=np.float64)


def arrival_trace(times_s: Sequence[float]) -> Floats:
    """Arrivals of a trace, from its first request on; raises InputError for times that fall or are no numbers."""
    try:
        found = np.asarray(times_s, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        found = np.empty(0)
    if found.ndim != 1 or not 0 < len(found) <= MOST_REQUESTS or not (np.abs(found) <= LATEST_S).all() or (np.diff(found) < 0).any():
        raise InputError(
            f"arrival_times_s must be a list of 1 to {MOST_REQUESTS} rising times in seconds, one a request, got {shown(times_s)}"
        )
    return np.asarray(found - found[0])


def hit_rate(value: object) -> float:
    """Share of a prompt that is in the prefix cache, checked."""
    return number("prefix_cache_hit_rate", value, low=0.0, high=1.0)


def accepted_tokens(value: object) -> float:
    """Mean tokens that a decode step adds with speculative decoding, checked; 1 without."""
    return number("accepted_tokens_per_step", value, low=1.0, high=64.0)


def positive(name: str, value: object, high: float) -> float | None:
    """A number over 0 and at most `high`, or None; raises InputError naming it."""
    return None if value is None else number(name, value, low=0.0, high=high, above=True)


def number(name: str, value: object, *, low: float, high: float = math.inf, above: bool = False) -> float:
    """A finite number from `low` (itself left out if `above`) to `high`; raises InputError naming it."""
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if is_flag(value) or not math.isfinite(found) or found < low or found > high or (above and found <= low):
        words = f"over {low:g}" if above else f"{low:g} or more"
        limit = f" and at most {high:.12g}" if math.isfinite(high) else ""
        raise InputError(f"{name} must be a number {words}{limit}, got {shown(value)}")
    return found
