"""Prediction: the answer to every question about one operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfmodel.errors import NoAnswerError

if TYPE_CHECKING:
    from perfmodel.predict.explain import Explanation


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long one thing takes, how sure that is and what it rests on.

    Times are microseconds; low and high bound the nominal 80 % interval. `tier` is spec, calibrated or measured; `in_domain` is
    False where the model extrapolates, and `outside` then says in words what no row behind it shows; `terms` holds what each resource
    alone would take.
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
    outside: tuple[str, ...] = ()
    explainer: Callable[[Prediction], Explanation] | None = field(default=None, repr=False, compare=False)

    def explain(self) -> Explanation:
        """What binds this latency, what would have to change, and what it rests on. Raises NoAnswerError for one not made by predict."""
        if self.explainer is None:
            raise NoAnswerError("this prediction cannot be explained: it was not made by perfmodel.predict")
        return self.explainer(self)
