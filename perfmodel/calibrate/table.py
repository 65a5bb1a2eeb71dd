"""A user's own table of measured operators: checked, then used to correct the model of that GPU, never to make it worse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perfmodel.calibrate.operators import (
    Rows,
    card,
    digest,
    envelope,
    fit_constants,
    group_widths,
    law_of,
    predict_log,
    read_rows,
    shape_folds,
)
from perfmodel.errors import InputError
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn import kriging
from perfmodel.learn.boost import CORRECTION, DEEP_CORRECTION, OWN, boost, sliced
from perfmodel.learn.calibration import Calibration
from perfmodel.learn.intervals import NOMINAL
from perfmodel.learn.model import FittedModel
from perfmodel.learn.operators import NEW_ARCH_GROUP, interval_group, operator_model, universal_model, width_table
from perfmodel.learn.residual import Residual
from perfmodel.learn.transfer import CARD_KEY, visible
from perfmodel.library.columns import NEEDED, find, read_frame, take
from perfmodel.library.registry import KINDS, parts

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
MIN_ROWS = 16
ROUNDS = (0, 20, 60, 120, 200)
MANY_ROWS = 3000  # from here on the correction may be as deep as a GPU's own tree
DEEP_ROWS = 600  # and from here on deeper than with a few dozen
FOLDS = 5
MIN_REFIT_ROWS = 60  # rows from which the law's own constants may move
REFIT_EVALUATIONS, REFIT_PULL = 10, 10.0  # and how strongly the prior's values hold them, in units of the first fit's prior
Way = tuple[bool, float, float, int]  # constants refitted, share of a tree, share of interpolation, rounds
MARGIN = 0.98  # a correction must lower the held-out error by 2 % of itself, else the prior stays
US = 1e6


def check_table(kind: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The usable rows of a table: duplicates become their median. Raises InputError in one line naming the rows for anything wrong."""
    if kind not in KINDS:
        raise InputError(f"unknown table {kind!r}: expected {', '.join(KINDS)} or kernel:gemm")
    missing = [name for name in (*NEEDED[kind], "latency_us") if find(frame, name) is None]
    if missing:
        raise InputError(f"the {kind} table lacks column {', '.join(missing)}; it has {', '.join(map(str, frame.columns))}")
    try:
        latency = frame["latency_us"].to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError):
        raise InputError(f"the {kind} table: latency_us must be numbers in microseconds, it holds {frame['latency_us'].dtype}") from None
    bad = np.flatnonzero(~(np.isfinite(latency) & (latency > 0)))
    if len(bad):
        rows = ", ".join(str(frame.index[i]) for i in bad[:5])
        raise InputError(f"the {kind} table: latency_us must be a positive number of microseconds: rows {rows} are not ({len(bad)} in all)")
    keys = [name for name in frame.columns if name != "latency_us"]
    unique = frame.drop_duplicates(subset=keys)
    if len(unique) == len(frame):
        return frame.reset_index(drop=True)
    return frame.groupby(keys, dropna=False, observed=True, sort=False)["latency_us"].median().reset_index()


def fit_table(kind: str, gpu: GpuSpec, frame: pd.DataFrame, *, prior: str | Calibration | None = "auto") -> dict[str, FittedModel]:
    """Models of `gpu` by name ("gemm", "attention_decode" ...), corrected with measured rows.

    prior: what is corrected: "auto" the shipped calibration where there is one, None the spec tier. The number of correction rounds, none
    included, is the one with the least error on shapes held out in turn. A part with fewer than 16 rows keeps its prior.
    Raises InputError for unusable rows and when no part has enough.
    """
    frame = check_table(kind, frame)
    if "gpu" in frame.columns:
        frame = frame.drop(columns="gpu")
    models: dict[str, FittedModel] = {}
    few: list[str] = []
    for what, _ in parts(kind, read_frame(kind, frame)):
        rows = read_rows(what, frame.assign(gpu=gpu.name))
        if len(rows) < MIN_ROWS:
            few.append(f"{len(rows)} usable rows for {what}")
            continue
        priors = [operator_model(gpu, what, prior)]
        if prior == "auto" and (everything := universal_model(what)) is not None:
            priors.append(everything)  # on a GPU whose rows are in the universal model it may know more than a model without them
        errors = [float(np.mean(np.abs(np.expm1(predict_log(model, rows) - rows.log_latency)))) for model in priors]
        models[what] = correct(gpu, rows, priors[int(np.argmin(errors))])
    if not models:
        raise InputError(f"the {kind} table has {', '.join(few) or 'no rows'}: a correction needs {MIN_ROWS}")
    return models


@dataclass(frozen=True, slots=True)
class _Base:
    """What a correction starts from: a model, and its law, tree and error on all the rows of a table."""

    model: FittedModel
    log_law: Floats
    features: Mapping[str, Floats]
    shown: Mapping[str, Floats]
    tree: Floats
    before: Floats

    def grow(self, at: Any, share: float, rounds: int) -> Residual:
        """Add rounds to the model's tree that learn `share` of what it leaves of the rows `at`."""
        seen = {name: values[at] for name, values in self.shown.items()}
        target = self.tree[at] + share * self.before[at]
        count = len(self.before)
        params = OWN if count >= MANY_ROWS else DEEP_CORRECTION if count >= DEEP_ROWS else CORRECTION
        return boost(seen, target, None, rounds=rounds, params=params, robust=False, start=self.model.residual)


def _base(gpu: GpuSpec, rows: Rows, model: FittedModel) -> _Base:
    log_law, features = law_of(rows, model.constants)
    shown: Mapping[str, Floats] = features if len(rows) >= MANY_ROWS else visible(model.card, gpu.arch, features)
    tree = np.zeros(len(rows)) if model.residual is None else model.residual.log_ratio(shown, len(rows))
    return _Base(model, log_law, features, shown, tree, rows.log_latency - predict_log(model, rows))


def _refitted(rows: Rows, prior: FittedModel) -> FittedModel:
    """The law alone with its constants drawn from the prior's towards what the rows say."""
    constants = {**prior.constants, **fit_constants(rows, REFIT_EVALUATIONS, prior.constants, REFIT_PULL)}
    facts = {key: value for key, value in prior.card.items() if key != kriging.CARD_KEY}
    return replace(prior, constants=constants, residual=None, card=facts)


def _held_out(gpu: GpuSpec, rows: Rows, prior: FittedModel, refit: bool, near: bool) -> dict[Way, Floats]:
    """Log errors of every way to correct, on shapes held out in turn."""
    rounds_error = {rounds: np.zeros(len(rows)) for rounds in ROUNDS}
    between = np.zeros(len(rows))
    whole = None if refit else _base(gpu, rows, prior)
    for train, held in _folds(rows):
        base = whole or _base(gpu, rows, _refitted(rows.take(train), prior))
        unseen = {name: values[held] for name, values in base.shown.items()}
        trial = base.grow(train, 1.0, ROUNDS[-1])
        already = 0 if base.model.residual is None else base.model.residual.booster.num_boosted_rounds()
        rounds_error[0][held] = base.before[held]
        for rounds in ROUNDS[1:]:
            learnt = sliced(trial, already + rounds).log_ratio(unseen, int(held.sum())) - base.tree[held]
            rounds_error[rounds][held] = base.before[held] - learnt
        if near:
            entry = kriging.fit(take(rows.columns, train), base.log_law[train], base.before[train])
            between[held] = base.before[held] - kriging.log_ratio(entry, take(rows.columns, held), base.log_law[held])
    ways: dict[Way, Floats] = {(refit, 1.0, 0.0, rounds): error for rounds, error in rounds_error.items()}
    if near:
        deepest = min(ROUNDS[1:], key=lambda rounds: _score(rounds_error[rounds]))
        ways |= {(refit, 0.0, 1.0, 0): between, (refit, 0.5, 0.5, deepest): 0.5 * (rounds_error[deepest] + between)}
    return ways


def correct(gpu: GpuSpec, rows: Rows, prior: FittedModel) -> FittedModel:
    """Correct `prior` with rows of one GPU.

    Ways: the prior, or its law with constants drawn towards the rows; on top more tree rounds, interpolation between the rows, half of
    both, or nothing. Whichever is best on shapes held out in turn; the prior stays unless that lowers its error by MARGIN.
    """
    _plausible(rows, rows.log_latency - predict_log(prior, rows))
    near = len(rows) <= kriging.MAX_POINTS and kriging.CARD_KEY not in prior.card
    ways = _held_out(gpu, rows, prior, False, near)
    if MIN_REFIT_ROWS <= len(rows) < MANY_ROWS and prior.constants:
        ways |= _held_out(gpu, rows, prior, True, near)
    scores = {way: _score(error) for way, error in ways.items()}
    nothing: Way = (False, 1.0, 0.0, 0)
    best = min(scores, key=lambda way: scores[way])
    still = min((way for way in scores if not way[0]), key=lambda way: scores[way])
    if len(rows) >= DEEP_ROWS and scores[best] > MARGIN * scores[still]:
        best = still  # with many rows a tree learns what constants would; they move for a clear gain only
    if scores[best] > MARGIN * scores[nothing]:
        best = nothing
    refit, tree_share, near_share, rounds = best
    base = _base(gpu, rows, _refitted(rows, prior) if refit else prior)
    tree = base.model.residual if rounds == 0 else base.grow(slice(None), tree_share, rounds)
    widths = _widths(gpu, rows, prior, ways[best])
    kept = ("dtype_codes", "archs", *(() if len(rows) >= MANY_ROWS else (CARD_KEY,)), *(() if refit else (kriging.CARD_KEY,)))
    facts = {
        **{key: value for key, value in prior.card.items() if key in kept},
        **card(rows),
        "gpu": gpu.name,
        "prior": prior.model_id,
        "correction_rounds": rounds,
        "correction": {"constants": refit, "tree": tree_share if rounds else 0.0, "interpolation": near_share},
        "held_out_error": {"prior": scores[nothing], "corrected": scores[best]},
        "half_widths": {NEW_ARCH_GROUP: widths},
        "archs": [],
    }
    if near_share:
        facts[kriging.CARD_KEY] = kriging.fit(rows.columns, base.log_law, base.before, near_share)
    facts["dtype_codes"] = sorted(set(facts["dtype_codes"]) | set(prior.card.get("dtype_codes", ())))
    mine = envelope(rows, base.features)
    span = {name: (min(low, mine[name][0]), max(high, mine[name][1])) for name, (low, high) in prior.envelope.items()} or mine
    name = f"{gpu.name}:{rows.what}:table:{digest(rows)}"
    return FittedModel(name, "calibrated", base.model.constants, (-max(widths), max(widths)), tree, span, facts)


def _score(error: Floats) -> float:
    """Mean |predicted / measured - 1| of log errors."""
    return float(np.mean(np.abs(np.expm1(-error))))


def _folds(rows: Rows) -> list[tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]]:
    """Folds by whole shapes; by rows where there are hardly any shapes to hold out."""
    if len(np.unique(rows.shape)) >= 2 * FOLDS:
        return [(train, held) for train, held in shape_folds(rows, FOLDS) if held.any() and train.any()]
    part = np.random.default_rng(0).permutation(len(rows)) % FOLDS
    return [(part != i, part == i) for i in range(FOLDS)]


def _widths(gpu: GpuSpec, rows: Rows, prior: FittedModel, error: Floats) -> list[float]:
    """The prior's widths, scaled by how the held-out errors of these rows compare with them; from the rows alone when they are many."""
    if len(rows) >= MANY_ROWS:
        return group_widths([np.stack([error, rows.log_latency, rows.columns["stack"]])])
    table = width_table(prior.card, gpu.arch, prior.interval)
    expected = table[interval_group(np.exp(rows.log_latency - error) * US, rows.columns["stack"])]
    level = min(1.0, NOMINAL * (len(rows) + 1) / len(rows))
    scale = float(np.quantile(np.abs(error) / expected, level))
    return [round(float(width * scale), 4) for width in table]


def _plausible(rows: Rows, error: Floats) -> None:
    """Wrong units are caught by size: seconds, milliseconds or nanoseconds differ from the model by a thousand."""
    shift = float(np.median(error))
    if abs(shift) < np.log(30.0):
        return
    unit = {-2: "seconds", -1: "milliseconds", 1: "nanoseconds"}.get(round(shift / np.log(1000.0)), "another unit")
    raise InputError(
        f"latencies of the {rows.what} table are {np.exp(shift):.2g} times what the model says: "
        f"latency_us must be microseconds, these look like {unit}"
    )
