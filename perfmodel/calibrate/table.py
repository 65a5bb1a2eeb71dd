"""A user's own table of measured operators: checked, then used to correct the model of that GPU, never to make it worse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    predict_log,
    read_rows,
    shape_folds,
)
from perfmodel.errors import InputError
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels.configs import TILE, canonical_field
from perfmodel.learn import kriging
from perfmodel.learn.boost import CORRECTION, DEEP_CORRECTION, OWN, boost, sliced
from perfmodel.learn.calibration import Calibration
from perfmodel.learn.card import MEASURED_KEY
from perfmodel.learn.intervals import NOMINAL, upper_bound
from perfmodel.learn.model import FittedModel
from perfmodel.learn.operators import (
    KIN,
    interval_group,
    kin,
    kin_digests,
    operator_model,
    operator_terms,
    place,
    universal_model,
    width_table,
)
from perfmodel.learn.plausible import check_microseconds, latencies_us
from perfmodel.learn.residual import Residual
from perfmodel.learn.transfer import CARD_KEY, NEW_ARCH_GROUP, SETTLED, TREE_NAMES, settled, visible
from perfmodel.library.columns import NEEDED, find, read_frame
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
KEPT, REFITTED, LAW_ALONE = "kept", "refitted", "refitted, law alone"
SHARES = (1.0, 0.75, 0.5)  # of an interpolation that may be kept
Folds = list[tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]]
Way = tuple[str, int, float, float]
"""What becomes of the prior's constants, rounds that its tree gets, share of interpolation between the rows, how far stacks are apart."""
MARGIN = 0.98  # a correction must lower the held-out error by 2 % of itself, else the prior stays
TIE = 1.02  # scores this near say nothing: then the prior's constants stay
SLOW, SLOW_SPREADS = 0.5, 4.5  # a row is a slow run this far above its kind, in log latency and in median absolute deviations
SLOW_MARGIN = 0.95  # leaving them out must lower the error by that much: it does where tactics go wrong, elsewhere 0 to 3 % either way
SLOW_MOST, SLOW_KIND = 0.3, 8  # unless that many of its kind are, or the kind has fewer rows
FEW_SHAPES = 0.5
"""Between 0, as if rows were drawn one by one, and 1, as if a shape's rows said the same (Lee, Barber, Willett, arXiv 2306.06342, 2023).
Evidence, 11 tables of 4 to 13 shapes: 79, 85 and 92 % of held-out rows are covered with 0, 0.5 and 1."""
LEAST_WIDTH = 0.01  # no interval of log latency is narrower than a measurement repeats
US = 1e6


def check_table(kind: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The usable rows of a table: duplicates become their median. Raises InputError in one line naming the rows for anything wrong."""
    if kind not in KINDS:
        raise InputError(f"unknown table {kind!r}: expected {', '.join(KINDS)} or kernel:gemm")
    if config := [str(name) for name in frame.columns if canonical_field(name) in TILE]:
        raise InputError(f"the {kind} table has column {config[0]}, a Triton config: its rows are kernel:gemm, not a library's {kind}")
    missing = [name for name in (*NEEDED[kind], "latency_us") if find(frame, name) is None]
    if missing:
        raise InputError(f"the {kind} table lacks column {', '.join(missing)}; it has {', '.join(map(str, frame.columns))}")
    latencies_us(kind, frame)
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
    """What a correction starts from: a model, and features, tree, error and place of all the rows of a table."""

    model: FittedModel
    features: Mapping[str, Floats]
    shown: Mapping[str, Floats]
    tree: Floats
    before: Floats
    where: kriging.Place | None

    def grow(self, at: Any, rounds: int) -> Residual:
        """Add rounds to the model's tree that learn what it leaves of the rows `at`."""
        seen = {name: values[at] for name, values in self.shown.items()}
        target = self.tree[at] + self.before[at]
        count = len(self.before)
        params = OWN if count >= MANY_ROWS else DEEP_CORRECTION if count >= DEEP_ROWS else CORRECTION
        return boost(seen, target, None, rounds=rounds, params=params, robust=False, start=self.model.residual)


def _base(gpu: GpuSpec, rows: Rows, model: FittedModel, near: bool) -> _Base:
    terms = operator_terms(gpu, rows.what, rows.columns, model.constants)
    shown: Mapping[str, Floats] = terms.features if len(rows) >= MANY_ROWS else visible(model.card, gpu.arch, terms.features)
    tree = np.zeros(len(rows)) if model.residual is None else model.residual.log_ratio(shown, len(rows))
    where = place(gpu, rows.what, rows.columns, model, terms, tree, list(kin(gpu, rows.what).values())) if near else None
    return _Base(model, terms.features, shown, tree, rows.log_latency - predict_log(model, rows), where)


def _refitted(rows: Rows, prior: FittedModel) -> FittedModel:
    """The prior with its constants drawn towards what the rows say; what was interpolated for the old ones is dropped."""
    constants = {**prior.constants, **fit_constants(rows, REFIT_EVALUATIONS, prior.constants, REFIT_PULL)}
    facts = {key: value for key, value in prior.card.items() if key != kriging.CARD_KEY}
    return replace(prior, constants=constants, card=facts)


def _held_out(
    gpu: GpuSpec,
    rows: Rows,
    steady: npt.NDArray[np.bool_],
    priors: Sequence[FittedModel],
    kind: str,
    near: bool,
    folds: Folds | None = None,
) -> dict[Way, Floats]:
    """Log errors of every way to correct, on shapes held out in turn; `priors`: the model of each fold. Only `steady` rows teach."""
    stacks = kriging.APARTS if len(np.unique(rows.columns["stack"])) > 1 else kriging.APARTS[:1]
    more = [(0, share, apart) for apart in stacks for share in SHARES] if near else [(rounds, 0.0, 1.0) for rounds in ROUNDS[1:]]
    errors = {way: np.zeros(len(rows)) for way in [(0, 0.0, 1.0), *more]}
    whole = _base(gpu, rows, priors[0], near) if kind == KEPT else None
    for (others, held), prior in zip(folds or _folds(rows), priors, strict=True):
        train = others & steady
        base = whole or _base(gpu, rows, replace(prior, residual=None) if kind == LAW_ALONE else prior, near)
        errors[0, 0.0, 1.0][held] = base.before[held]
        if base.where is not None:
            for apart in stacks:
                entry = kriging.fit(base.where.take(train), base.before[train], apart=apart)
                between = kriging.log_ratio(entry, base.where.take(held))
                for share in SHARES:
                    errors[0, share, apart][held] = base.before[held] - share * between
            continue
        unseen = {name: values[held] for name, values in base.shown.items()}
        trial = base.grow(train, ROUNDS[-1])
        already = 0 if base.model.residual is None else base.model.residual.booster.num_boosted_rounds()
        for rounds in ROUNDS[1:]:
            learnt = sliced(trial, already + rounds).log_ratio(unseen, int(held.sum())) - base.tree[held]
            errors[rounds, 0.0, 1.0][held] = base.before[held] - learnt
    return {(kind, *way): error for way, error in errors.items()}


def correct(gpu: GpuSpec, rows: Rows, prior: FittedModel) -> FittedModel:
    """Correct `prior` with rows of one GPU.

    Ways: the prior, or the prior with constants drawn towards the rows; on top nothing or interpolation between the rows. Where there are
    more rows than interpolation is for: nothing or more tree rounds, also on the law alone. Whichever is best on shapes held out in turn;
    the prior stays unless that lowers its error by MARGIN. Slow runs do not teach, where that lowers the error by SLOW_MARGIN.
    """
    terms = operator_terms(gpu, rows.what, rows.columns, prior.constants)
    prior = settled(prior, gpu.arch, terms.features)
    residual = rows.log_latency - predict_log(prior, rows)
    check_microseconds(rows.what, residual)
    steady = _steady(kriging.names_of(rows.columns, terms.variant), residual)
    near = len(rows) <= kriging.MAX_POINTS and kriging.CARD_KEY not in prior.card
    folds = _folds(rows)
    ways = _held_out(gpu, rows, steady, [prior] * len(folds), KEPT, near)
    if not steady.all():
        everything = np.ones(len(rows), dtype=bool)
        other = _held_out(gpu, rows, everything, [prior] * len(folds), KEPT, near)
        if min(map(_score, ways.values())) > SLOW_MARGIN * min(map(_score, other.values())):
            steady, ways = everything, other
    if MIN_REFIT_ROWS <= len(rows) < MANY_ROWS and prior.constants:
        moved = [_refitted(rows.take(train & steady), prior) for train, _ in folds]
        for kind in (REFITTED,) if near else (REFITTED, LAW_ALONE):
            ways |= _held_out(gpu, rows, steady, moved, kind, near)
    scores = {way: _score(error) for way, error in ways.items()}
    nothing: Way = (KEPT, 0, 0.0, 1.0)
    best = min(scores, key=lambda way: scores[way] * (1.0 if way[0] == KEPT else TIE))
    if scores[best] > MARGIN * scores[nothing]:
        best = nothing
    kind, rounds, share, apart = best
    taught = rows.take(steady)
    start = prior if kind == KEPT else _refitted(taught, prior)
    base = _base(gpu, taught, replace(start, residual=None) if kind == LAW_ALONE else start, share > 0)
    tree = base.grow(slice(None), rounds) if rounds else base.model.residual
    widths, typical = _widths(gpu, rows, steady, prior, start, best, ways[best])
    kept = (
        "archs",
        *(() if len(rows) >= MANY_ROWS else (CARD_KEY, SETTLED, TREE_NAMES)),
        *((kriging.CARD_KEY,) if kind == KEPT else ()),
    )
    facts = {
        **{key: value for key, value in prior.card.items() if key in kept},
        **card(rows),
        "gpu": gpu.name,
        "prior": prior.model_id,
        "correction": {
            "constants": kind,
            "rounds": rounds,
            "interpolation": share,
            "stacks_apart": apart,
            "slow_runs": int((~steady).sum()),
        },
        "held_out_error": {"prior": scores[nothing], "corrected": scores[best]},
        "half_widths": {NEW_ARCH_GROUP: widths},
        "archs": [],
    }
    if kriging.CARD_KEY in facts:  # its widths were measured anew, on average over how far the rows are
        facts[kriging.CARD_KEY] = {key: value for key, value in facts[kriging.CARD_KEY].items() if key != kriging.SPREAD}
    if base.where is not None:
        entry = kriging.with_rows(kriging.fit(base.where, base.before, share, apart), taught.columns, taught.log_latency)
        facts[kriging.CARD_KEY] = {**entry, kriging.SPREAD: typical, KIN: kin_digests(kin(gpu, rows.what))}
    facts |= _with_prior(facts, prior)
    mine = envelope(taught, base.features)
    span = {name: (min(low, mine[name][0]), max(high, mine[name][1])) for name, (low, high) in prior.envelope.items()} or mine
    name = f"{gpu.name}:{rows.what}:table:{digest(rows)}"
    return FittedModel(name, "calibrated", base.model.constants, (-max(widths), max(widths)), tree, span, facts)


def _with_prior(facts: Mapping[str, Any], prior: FittedModel) -> dict[str, Any]:
    """Card entries of what rows and prior show together; of the GPU itself, what a prior shows that was measured on it too."""
    found = {
        key: sorted({*facts[key], *prior.card.get(key, ())}) for key in ("dtype_codes", "kv_dtype_codes", "kind_codes") if key in facts
    }
    before = prior.card.get(MEASURED_KEY, {})
    if prior.tier == "spec" or not before:
        return found
    mine = facts[MEASURED_KEY]
    both = {key: sorted({*codes, *before.get(key, ())}) for key, codes in mine.items() if key != "rows"}
    rows = {
        gpu: {name: before["rows"].get(gpu, {}).get(name, 0) + stacks.get(name, 0) for name in {**before["rows"].get(gpu, {}), **stacks}}
        for gpu, stacks in mine["rows"].items()
    }
    return {**found, MEASURED_KEY: {"rows": rows, **both}}


def _score(error: Floats) -> float:
    """Mean |predicted / measured - 1| of log errors."""
    return float(np.mean(np.abs(np.expm1(-error))))


def _steady(names: Floats, residual: Floats) -> npt.NDArray[np.bool_]:
    """Which rows teach: all but slow runs, which stand far above other rows of the same `names`, by the prior.

    A tuner that chose a bad tactic, a busy machine or a cold clock make a run several times slower than the next of the same kernel, never
    faster. Such rows still count where errors and widths are judged. Evidence: of the public TensorRT-LLM rows of H100 one in nine is a
    run of 2 to 6 times what the same layer takes beside it, at random.
    """
    kinds = np.unique(names, axis=0, return_inverse=True)[1].reshape(-1)
    slow = np.zeros(len(residual), dtype=bool)
    for kind in range(int(kinds.max()) + 1):
        at = np.flatnonzero(kinds == kind)
        above = residual[at] - np.median(residual[at])
        far = above > max(SLOW, SLOW_SPREADS * float(np.median(np.abs(above))))
        if len(at) >= SLOW_KIND and far.mean() <= SLOW_MOST:
            slow[at[far]] = True
    return ~slow


def _folds(rows: Rows) -> Folds:
    """Folds by whole shapes; by rows where there are hardly any shapes to hold out."""
    if len(np.unique(rows.shape)) >= 2 * FOLDS:
        return _whole_shapes(rows)
    part = np.random.default_rng(0).permutation(len(rows)) % FOLDS
    return [(part != i, part == i) for i in range(FOLDS)]


def _whole_shapes(rows: Rows) -> Folds:
    return [(train, held) for train, held in shape_folds(rows, FOLDS) if held.any() and train.any()]


def _widths(
    gpu: GpuSpec, rows: Rows, steady: npt.NDArray[np.bool_], prior: FittedModel, start: FittedModel, way: Way, error: Floats
) -> tuple[list[float], float]:
    """(half-widths, spread of an interpolation that they are for): the prior's widths, scaled by how held-out errors compare with them.

    From the rows alone when they are many. Else the scale is the conformal quantile of |error| over (width x spread of the interpolation),
    of whole shapes held out even where they are too few to choose by: the next question is of another shape. Of K shapes it is the quantile
    at NOMINAL (1 + FEW_SHAPES / K). One scale for all regimes: one session's rows make a regime look surer than the next finds it.
    """
    if len(rows) >= MANY_ROWS:
        return group_widths([np.stack([error, rows.log_latency, rows.columns["stack"]])]), 0.0
    kind, rounds, share, apart = way
    folds = _whole_shapes(rows)
    if len(folds) < 2:
        folds = _folds(rows)
    elif len(np.unique(rows.shape)) < 2 * FOLDS:
        starts = [prior if kind == KEPT else _refitted(rows.take(train & steady), prior) for train, _ in folds]
        error = _held_out(gpu, rows, steady, starts, kind, rounds == 0, folds)[way]
    far = np.ones(len(rows))
    if share > 0 and (where := _base(gpu, rows, start, True).where) is not None:
        for train, held in folds:
            far[held] = kriging.spread(where.take(train & steady), where.take(held), apart)
    table = width_table(prior.card, gpu.arch, prior.interval)
    ratio = np.abs(error) / (table[interval_group(np.exp(rows.log_latency - error) * US, rows.columns["stack"])] * far)
    scale = upper_bound(ratio, min(NOMINAL * (1.0 + FEW_SHAPES / len(np.unique(rows.shape))), 1.0))
    typical = round(float(np.median(far)), 6)
    return [round(float(max(width * scale * typical, LEAST_WIDTH)), 4) for width in table], typical
