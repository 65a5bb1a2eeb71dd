"""Whether measured rows say more than the calibration that answers today: the better on held-out shapes is kept, and why is written down.

A correction is chosen among many, so its own held-out error flatters it: here shapes are held out from all of that choosing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from perfmodel.learn import scope
from perfmodel.learn.calibration import KEPT_KEY, Calibration
from perfmodel.learn.model import FittedModel
from perfmodel.library.registry import MODELS
from perfmodel.ops.names import STACKS
from perfmodel.predict.libraries import OTHER_STACKS_KEY, STACKS_KEY
from perfmodel.predict.route import predict_frame

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.hw.spec import GpuSpec

Floats = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
LEAST_GAIN = 0.02  # share of its error by which a correction must beat what answers today
SURE = 0.98  # and how sure that gain must be, by Student's t over shapes
MIN_SHAPES = 4  # with fewer nothing can be held out
FOLDS = 4
NESTED_ROWS = 3000  # with more the choice among corrections no longer flatters
FEW_FOLDS_ROWS = 600  # from here on one fold in four says enough
NARROWING_ROWS = 100  # rows that count half where an interval becomes narrower: of 16 rows alone it covered 74 %, not 80
WELL_FOUNDED = 0.7  # share of the rows that an 80 % interval must cover to be the widest that is given


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was kept for one part, and the errors, mean |predicted / measured - 1|, that decided."""

    model_key: str
    kept: str  # "shipped", "stored" (the user's own) or "corrected"
    rows: int
    shapes: int
    today: float
    corrected: float | None
    covered: float | None
    reason: str

    def card(self) -> dict[str, Any]:
        """The entry of a model's card."""
        return {
            "model": self.kept,
            "rows": self.rows,
            "shapes": self.shapes,
            "today_error": self.today,
            "corrected_error": self.corrected,
            "today_coverage": self.covered,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Today:
    """What answers today for the rows of a table: its error and the share of the rows within its interval."""

    model: FittedModel
    name: str
    error: Floats
    covered: float


def today(gpu: GpuSpec, model_key: str, frame: pd.DataFrame, model: FittedModel, name: str) -> Today:
    """The answers of `model` to a table of measured rows, as a question gets them."""
    asked = frame.drop(columns=[column for column in ("gpu", "latency_us") if column in frame.columns])
    found = predict_frame(MODELS[model_key].kind, asked, gpu, calibration=Calibration(gpu.name, {model_key: model}))
    measured = frame["latency_us"].to_numpy(dtype=np.float64)
    error = np.abs(found["latency_us"].to_numpy() / measured - 1.0)
    inside = (found["low_us"].to_numpy() <= measured) & (measured <= found["high_us"].to_numpy())
    return Today(model, name, error, float(inside.mean()))


def verdict(model_key: str, shape: npt.NDArray[np.int64], now: Today, judged: Index, corrected: Floats) -> Verdict:
    """Compare errors of the rows `judged` (of `now`) with those of a correction that did not see their shapes."""
    gain = now.error[judged] - corrected
    group = np.unique(shape[judged], return_inverse=True)[1].reshape(-1)
    shapes = int(group.max()) + 1
    before, after = float(now.error[judged].mean()), float(corrected.mean())
    sums = np.bincount(group, weights=gain - gain.mean())
    deviation = float(np.sqrt((sums**2).sum() * shapes / max(shapes - 1, 1))) / len(gain)
    figures = f"on held-out shapes {100 * after:.1f} % with these rows, {100 * before:.1f} % with the {now.name} calibration"
    if after > (1.0 - LEAST_GAIN) * before:
        kept, reason = now.name, f"{figures}: it stays"
    elif before - after < float(stdtrit(shapes - 1, SURE)) * deviation:
        kept, reason = now.name, f"{figures}, which {len(judged)} rows of {shapes} shapes do not make sure: it stays"
    else:
        kept, reason = "corrected", f"{figures}: corrected"
    return Verdict(model_key, kept, len(shape), len(np.unique(shape)), before, after, now.covered, reason)


def too_few(model_key: str, shape: npt.NDArray[np.int64], now: Today) -> Verdict:
    """The verdict where nothing can be held out."""
    shapes = len(np.unique(shape))
    reason = f"rows of {shapes} shapes cannot be judged on others: the {now.name} calibration stays"
    return Verdict(model_key, now.name, len(shape), shapes, float(now.error.mean()), None, now.covered, reason)


def held_out(
    shape: npt.NDArray[np.int64], fit_predict: Callable[[npt.NDArray[np.bool_], npt.NDArray[np.bool_]], Floats]
) -> tuple[Index, Floats]:
    """(rows judged, what `fit_predict(train, held)` gives for them), by whole shapes; of many rows one fold alone."""
    unique = np.unique(shape)
    folds = np.array_split(np.random.default_rng(0).permutation(unique), min(FOLDS, len(unique)))
    rows, found = [], []
    for fold in folds[:1] if len(shape) >= FEW_FOLDS_ROWS else folds:
        held = np.isin(shape, fold)
        rows.append(np.flatnonzero(held))
        found.append(fit_predict(~held, held))
    return np.concatenate(rows), np.concatenate(found)


def kept_model(decision: Verdict, now: Today, corrected: FittedModel, shipped: FittedModel, columns: Mapping[str, Any]) -> FittedModel:
    """The model that a verdict keeps: what answers today as it is, or the correction for the stacks and types of its rows."""
    if decision.kept != "corrected":
        return replace(now.model, card={**now.model.card, KEPT_KEY: decision.card()})
    pairs = scope.pairs_of(columns)
    earlier = scope.scope_of(now.model.card)
    known_stacks, known_dtypes = shipped.card.get(STACKS_KEY), shipped.card.get("dtype_codes")
    seen = [
        pair
        for pair in pairs
        if (known_stacks is None or STACKS[pair[0]] in known_stacks) and (known_dtypes is None or pair[1] in known_dtypes)
    ]
    capped = tuple(seen) if now.covered >= WELL_FOUNDED else ()
    holds = scope.Scope(
        tuple(sorted({*pairs, *(earlier.holds_for if earlier else ())})),
        tuple(sorted({*capped, *(pair for pair in (earlier.no_wider_for if earlier else ()) if pair not in pairs)})),
        decision.rows / (decision.rows + NARROWING_ROWS),
    )
    facts: dict[str, Any] = {**corrected.card, **holds.card(), KEPT_KEY: decision.card()}
    if known_stacks is not None and all(pair[0] for pair in holds.holds_for):
        facts[STACKS_KEY] = sorted({*known_stacks, *(STACKS[pair[0]] for pair in holds.holds_for)})
        facts[OTHER_STACKS_KEY] = shipped.card.get(OTHER_STACKS_KEY, 0.0)
    return replace(corrected, card=facts)


def better_whole(model_key: str, fitted: FittedModel, current: FittedModel | None, shipped: FittedModel | None) -> FittedModel:
    """The fit of a whole law to a table, or what answers today where that is no worse on the table's held-out rows and one is shipped.

    The card of the fit has both errors: "held_out_error", and "prior_error" of what answered before.
    """
    if current is None or shipped is None or "prior_error" not in fitted.card:
        return fitted
    name = "shipped" if current.model_id == shipped.model_id else "stored"
    errors = fitted.card["held_out_error"]
    before, after = float(fitted.card["prior_error"]), float(errors[fitted.card.get("chosen", "mean")])
    stays = after > (1.0 - LEAST_GAIN) * before
    figures = f"on held-out rows {100 * after:.1f} % with these rows, {100 * before:.1f} % before"
    reason = f"{figures}: the {name} calibration stays" if stays else f"{figures}: corrected"
    counts = int(fitted.card["rows"]), int(fitted.card.get("shapes", fitted.card.get("sizes", 0)))
    decision = Verdict(model_key, name if stays else "corrected", *counts, before, after, None, reason)
    kept = current if stays else fitted
    return replace(kept, card={**kept.card, KEPT_KEY: decision.card()})
