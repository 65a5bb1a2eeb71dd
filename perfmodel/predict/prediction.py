"""Prediction: the answer to every question about one operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfmodel.errors import NoAnswerError
from perfmodel.html import summary

if TYPE_CHECKING:
    from perfmodel.predict.explain import Explanation


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long one thing takes, how sure that is and what it rests on.

    Attributes
    ----------
    latency_us, low_us, high_us : float
        Microseconds, and the ends of the nominal 80 % interval, neither of them faster than the card.
    bound : str
        The resource that takes longest.
    terms : mapping of str to float
        What each resource alone would take, microseconds.
    tier : {"spec", "calibrated", "measured"}
        Whether it rests on the datasheet, on rows of this GPU, or on this very thing having been timed.
    in_domain : bool
        False where the model extrapolates; `outside` then says in words what no row behind it shows.
    model_id : str
        The model that answered.
    detail : mapping
        What else there is to say: the law's own latency, stack, algorithm, waves ...
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

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, and what each resource alone would take."""
        title = f"{self.latency_us:.4g} us, 80 % within {self.low_us:.4g} .. {self.high_us:.4g}, bound by {self.bound} ({self.tier} tier)"
        terms = sorted(self.terms.items(), key=lambda item: -item[1])
        rows = [{"alone": name, "us": us} for name, us in terms if us > 0]
        return summary(title if self.in_domain else f"{title}; outside: {'; '.join(self.outside)}", rows)

    def explain(self) -> Explanation:
        """What binds this latency, what would have to change, and what it rests on. Raises NoAnswerError for one not made by predict."""
        if self.explainer is None:
            raise NoAnswerError("this prediction cannot be explained: it was not made by perfmodel.predict")
        return self.explainer(self)
