"""Prediction: the answer to every question about one operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long one thing takes, how sure that is and what it rests on.

    Times are microseconds; low and high bound the nominal 80 % interval. `tier` is spec, calibrated or measured; `in_domain` is
    False where the model extrapolates; `terms` holds what each resource alone would take.
    """

    latency_us: float
    low_us: float
    high_us: float
    bound: str
    terms: Mapping[str, float]
    tier: str
    in_domain: bool
    model_id: str
    detail: Mapping[str, Any] = field(default_factory=dict)
