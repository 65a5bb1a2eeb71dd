"""A user's own table of measured operators: checked, then used to correct the model of that GPU, never to make it worse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perfmodel.calibrate import keep
from perfmodel.calibrate.operator_rows import Rows, card, digest, envelope, read_rows, with_prior
from perfmodel.calibrate.operators import group_widths, predict_log, shape_folds
from perfmodel.calibrate.outliers import steady_rows
from perfmodel.calibrate.refit import Refit
from perfmodel.calibrate.steps import step
from perfmodel.errors import InputError, shown
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels.configs import TILE, canonical_field
from perfmodel.learn import kriging, scope
from perfmodel.learn.boost import CORRECTION, DEEP_CORRECTION, OWN, OWN_DRAWS, boost, sliced
from perfmodel.learn.calibration import Calibration, resolve
from perfmodel.learn.intervals import NOMINAL, upper_bound
from perfmodel.learn.model import FittedModel, shipped_model
from perfmodel.learn.operators import (
    COVARIATES,
    covariate_digests,
    covariate_models,
    interval_group,
    operator_terms,
    place,
    universal_model,
    width_table,
)
from perfmodel.learn.plausible import check_microseconds, check_repeats, latencies_us, usable
from perfmodel.learn.residual import Residual
from perfmodel.learn.transfer import CARD_KEY, NEW_ARCH_GROUP, SCALED_TREE, TREE_NAMES, visible, with_scaled_tree
from perfmodel.library import registry
from perfmodel.library.least import faster_than_physics
from perfmodel.library.registry import parts
from perfmodel.ops import OperatorTable, kinds
from perfmodel.ops.reader import column_of

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
MIN_ROWS = 16
ROUNDS = (0, 20, 60, 120, 200)
MANY_ROWS = 3000  # from here on the correction may be as deep as a GPU's own tree
DEEP_ROWS = 600  # and from here on deeper than with a few dozen
FOLDS = 5
FEW_FOLDS = 2  # that judge MANY_ROWS, and that tell which ways with trees are worth trying on all
WORTH = 1.03  # ways whose error there is this many times the least may still be the best
MIN_REFIT_ROWS = 60  # rows from which the law's own constants may move
REFIT_EVALUATIONS, REFIT_PULL = 10, 10.0  # and how strongly the prior's values hold them, in units of the first fit's prior
KEPT, REFITTED, LAW_ALONE = "kept", "refitted", "refitted, law alone"
SHARES = (1.0, 0.75, 0.5)  # of an interpolation that may be kept
Folds = list[tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]]
Way = tuple[str, int, float, float]
"""What becomes of the prior's constants, rounds that its tree gets, share of interpolation between the rows, how far stacks are apart."""
MARGIN = 0.98  # a correction must lower the held-out error by 2 % of itself, else the prior stays
TIE = 1.02  # scores this near say nothing: then the prior's constants stay
SLOW_MARGIN = 0.95  # leaving them out must lower the error by that much: it does where tactics go wrong, elsewhere 0 to 3 % either way
FEW_SHAPES = 0.5
"""Between 0, as if rows were drawn one by one, and 1, as if a shape's rows said the same (Lee, Barber, Willett, arXiv 2306.06342, 2023).
Evidence, 11 tables of 4 to 13 shapes: 79, 85 and 92 % of held-out rows are covered with 0, 0.5 and 1."""
LEAST_WIDTH = 0.01  # no interval of log latency is narrower than a measurement repeats
US = 1e6


def check_table(kind: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The usable rows of a table: duplicates become their median. Raises InputError in one line naming the rows for anything wrong."""
    if kind not in registry.kinds():
        raise InputError(f"unknown table {shown(kind)}: expected {', '.join(registry.kinds())} or kernel:gemm")
    if config := [str(name) for name in frame.columns if canonical_field(name) in TILE]:
        raise InputError(f"the {kind} table has column {config[0]}, a Triton config: its rows are kernel:gemm, not a library's {kind}")
    missing = [f.name for f in kinds.KINDS[kind].fields if f.default is None and column_of(frame, f) is None]
    missing += [] if "latency_us" in frame.columns else ["latency_us"]
    if missing:
        raise InputError(f"the {kind} table lacks column {', '.join(missing)}; it has {', '.join(map(str, frame.columns))}")
    latency = latencies_us(kind, frame)
    frame = frame.assign(latency_us=latency)
    columns = OperatorTable.read(kind, frame)
    if len(frame):
        check_repeats(kind, list(frame.index), np.stack(list(columns.values()), axis=1), np.log(latency))
    keys = [name for name in frame.columns if name != "latency_us"]
    try:
        unique = frame.drop_duplicates(subset=keys)
    except (TypeError, UnicodeEncodeError):
        raise InputError(f"the {kind} table has a cell that is neither a number nor a name, such as a list") from None
    if len(unique) == len(frame):
        return frame
    median = frame.groupby(keys, dropna=False, observed=True, sort=False)["latency_us"].transform("median")
    return (
        frame.assign(latency_us=median).loc[unique.index]
        if frame.index.is_unique
        else frame.assign(latency_us=median).drop_duplicates(keys)
    )


def fit_table(kind: str, gpu: GpuSpec, frame: pd.DataFrame, *, prior: str | Calibration | None = "auto") -> dict[str, FittedModel]:
    """Models of `gpu` by name ("gemm", "attention_decode" ...), corrected with measured rows.

    prior: what is corrected: "auto" the user's or the shipped calibration where there is one, None the spec tier. The number of correction
    rounds, none included, is the one with the least error on shapes held out in turn. Where a calibration of this GPU is shipped, it stays
    unless the rows beat it on held-out shapes, and for all that the rows do not show. A part with fewer than 16 rows keeps its prior.
    Raises InputError for unusable rows and when no part has enough.
    """
    frame = check_table(kind, frame)
    if "gpu" in frame.columns:
        frame = frame.drop(columns="gpu")
    models: dict[str, FittedModel] = {}
    few: list[str] = []
    for model_key, piece in parts(OperatorTable.read(kind, frame)):
        part = frame.iloc[piece]
        if not len(part):
            continue
        if len(part) < MIN_ROWS:
            few.append(f"{len(part)} usable rows for {model_key}")
            continue
        models[model_key] = _fit_part(model_key, gpu, part, prior)
    if not models:
        raise InputError(f"the {kind} table has {', '.join(few) or 'no rows'}: a correction needs {MIN_ROWS}")
    return models


def _fit_part(model_key: str, gpu: GpuSpec, frame: pd.DataFrame, prior: str | Calibration | None) -> FittedModel:
    """The corrected model of one part, or what answers today where that is better."""
    rows = read_rows(model_key, frame.assign(gpu=gpu.name))
    current = resolve(gpu, model_key, prior)
    law = np.log(operator_terms(gpu, model_key, rows.columns, current.constants).latency_s)
    model = predict_log(scope.unscoped(current), rows)
    fast = faster_than_physics(gpu, rows.columns, frame["latency_us"].to_numpy(dtype=np.float64))
    good = usable(model_key, list(frame.index), rows.log_latency, model, law, fast)
    rows, frame = rows.take(good), frame[good]
    if len(rows) < MIN_ROWS:
        raise InputError(f"the {model_key} table has {len(rows)} usable rows: a correction needs {MIN_ROWS}")
    shipped = shipped_model(gpu.name, model_key) if prior == "auto" else None
    priors = [scope.unscoped(current)]
    if prior == "auto" and scope.scope_of(current.card) is None and (everything := universal_model(model_key)) is not None:
        priors.append(everything)  # on a GPU whose rows are in the universal model it may know more than a model without them
    errors = [float(np.mean(np.abs(np.expm1(predict_log(model, rows) - rows.log_latency)))) for model in priors]
    start = priors[int(np.argmin(errors))]
    fitted = correct(gpu, rows, start)
    if shipped is None:
        return fitted
    now = keep.today(gpu, model_key, frame, current, "shipped" if current.model_id == shipped.model_id else "stored")
    if len(np.unique(rows.shape)) < keep.MIN_SHAPES:
        decision = keep.too_few(model_key, rows.shape, now)
    elif float(fitted.card["held_out_error"]["corrected"]) > (1.0 - keep.LEAST_GAIN) * float(now.error.mean()):
        judged, error = np.arange(len(rows)), np.full(len(rows), float(fitted.card["held_out_error"]["corrected"]))
        decision = keep.verdict(model_key, rows.shape, now, judged, error)
    else:
        judged, found = _out_of_sample(gpu, rows, start, fitted)
        decision = keep.verdict(model_key, rows.shape, now, judged, found)
    return keep.kept_model(decision, now, fitted, shipped, rows.columns)


def _out_of_sample(gpu: GpuSpec, rows: Rows, start: FittedModel, fitted: FittedModel) -> tuple[npt.NDArray[np.intp], Floats]:
    """(rows judged, |predicted / measured - 1| of each by a correction whose choice and fit saw none of its shape)."""
    if len(rows) >= keep.NESTED_ROWS:
        return np.arange(len(rows)), np.full(len(rows), float(fitted.card["held_out_error"]["corrected"]))

    def fit_predict(train: npt.NDArray[np.bool_], held: npt.NDArray[np.bool_]) -> Floats:
        unseen = rows.take(held)
        return np.abs(np.expm1(predict_log(correct(gpu, rows.take(train), start), unseen) - unseen.log_latency))

    return keep.held_out(rows.shape, fit_predict)


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
        return boost(seen, target, None, rounds=rounds, params={**params, **OWN_DRAWS}, robust=False, start=self.model.residual)

    def grown(self, train: npt.NDArray[np.bool_], held: npt.NDArray[np.bool_]) -> dict[int, Floats]:
        """What ROUNDS more rounds by the rows of `train` say of those of `held`."""
        trial = self.grow(train, ROUNDS[-1])
        unseen = {name: values[held] for name, values in self.shown.items()}
        already = 0 if self.model.residual is None else self.model.residual.booster.num_boosted_rounds()
        return {n: sliced(trial, already + n).log_ratio(unseen, int(held.sum())) - self.tree[held] for n in ROUNDS[1:]}


def refit_of(rows: Rows, prior: FittedModel) -> Refit | None:
    """Fits of the prior's constants to rows of its table, where there are enough, and not so many that a tree tells all."""
    if not prior.constants or not MIN_REFIT_ROWS <= len(rows) < MANY_ROWS:
        return None
    return Refit(rows, prior.constants, REFIT_EVALUATIONS, REFIT_PULL)


def _base(gpu: GpuSpec, rows: Rows, model: FittedModel, near: bool) -> _Base:
    terms = operator_terms(gpu, rows.model_key, rows.columns, model.constants)
    shown: Mapping[str, Floats] = terms.features if len(rows) >= MANY_ROWS else visible(model.card, gpu.arch, terms.features)
    tree = np.zeros(len(rows)) if model.residual is None else model.residual.log_ratio(shown, len(rows))
    where = (
        place(gpu, rows.model_key, rows.columns, model, terms, tree, list(covariate_models(gpu, rows.model_key).values())) if near else None
    )
    return _Base(model, terms.features, shown, tree, rows.log_latency - predict_log(model, rows), where)


def _refitted(prior: FittedModel, constants: Mapping[str, float]) -> FittedModel:
    """The prior with constants drawn towards the rows; what was interpolated for the old ones is dropped."""
    return replace(prior, constants=constants, card={key: value for key, value in prior.card.items() if key != kriging.CARD_KEY})


@dataclass(frozen=True, slots=True)
class _Trial:
    """Ways to correct a prior, tried on shapes held out: `errors` of a kind of constants, on some folds; only `steady` rows teach."""

    gpu: GpuSpec
    rows: Rows
    prior: FittedModel
    near: bool
    refit: Refit | None

    def start(self, kind: str, train: npt.NDArray[np.bool_]) -> FittedModel:
        """The model that a correction by these rows starts from."""
        if kind == KEPT or self.refit is None:
            return self.prior
        moved = _refitted(self.prior, self.refit.constants(train))
        return replace(moved, residual=None) if kind == LAW_ALONE else moved

    def errors(self, kind: str, steady: npt.NDArray[np.bool_], folds: Folds) -> dict[Way, Floats]:
        """Log errors of every way with that kind of constants; 0 for rows that these folds do not hold out."""
        stacks = kriging.APARTS if len(np.unique(self.rows.columns["stack"])) > 1 else kriging.APARTS[:1]
        more = [(0, share, apart) for apart in stacks for share in SHARES] if self.near else [(n, 0.0, 1.0) for n in ROUNDS[1:]]
        errors = {way: np.zeros(len(self.rows)) for way in [(0, 0.0, 1.0), *more]}
        base: _Base | None = None
        between: dict[float, Floats] = {}
        for i, (others, held) in enumerate(folds):
            step(f"{self.rows.model_key}, constants {kind}, shapes held out", i, len(folds))
            train = others & steady
            if base is None or kind != KEPT:
                base = _base(self.gpu, self.rows, self.start(kind, train), self.near)
                between = {} if base.where is None else {apart: kriging.within(base.where, apart) for apart in stacks}
            errors[0, 0.0, 1.0][held] = base.before[held]
            for apart, table in between.items():
                weights = kriging.weigh(table[np.ix_(train, train)], base.before[train])
                learnt = table[np.ix_(held, train)] @ weights
                for share in SHARES:
                    errors[0, share, apart][held] = base.before[held] - share * learnt
            if not between:
                for rounds, learnt in base.grown(train, held).items():
                    errors[rounds, 0.0, 1.0][held] = base.before[held] - learnt
        return {(kind, *way): error for way, error in errors.items()}

    def choose(self, steady: npt.NDArray[np.bool_], folds: Folds) -> tuple[npt.NDArray[np.bool_], dict[Way, Floats]]:
        """(rows that teach, log errors of the ways that are worth trying on all folds).

        Trees are dear: whether slow runs teach and which constants to start from is told by the first folds, where one is clearly better.
        """
        first = folds if self.near else folds[:FEW_FOLDS]
        seen = _held(first)
        tried = {KEPT: self.errors(KEPT, steady, first)}
        if not steady.all():
            everything = np.ones(len(self.rows), dtype=bool)
            other = self.errors(KEPT, everything, first)
            if _least(tried[KEPT], seen) > SLOW_MARGIN * _least(other, seen):
                steady, tried = everything, {KEPT: other}
        if self.refit is not None:
            tried |= {kind: self.errors(kind, steady, first) for kind in ((REFITTED,) if self.near else (REFITTED, LAW_ALONE))}
        rest = folds[len(first) :]
        worth = WORTH * min(_least(errors, seen) for errors in tried.values())
        found: dict[Way, Floats] = {}
        for kind, errors in tried.items():
            if not rest:
                found |= errors
            elif _least(errors, seen) <= worth:
                found |= {way: errors[way] + error for way, error in self.errors(kind, steady, rest).items()}
        return steady, found


def _held(folds: Folds) -> npt.NDArray[np.bool_]:
    """Rows that one of these folds holds out."""
    result: npt.NDArray[np.bool_] = np.any([held for _, held in folds], axis=0)
    return result


def _least(errors: Mapping[Way, Floats], judged: npt.NDArray[np.bool_]) -> float:
    return min(_score(error[judged]) for error in errors.values())


def correct(gpu: GpuSpec, rows: Rows, prior: FittedModel, refit: Refit | None = None) -> FittedModel:
    """Correct `prior` with rows of one GPU.

    Ways: the prior, or the prior with constants drawn towards the rows; on top nothing or interpolation between the rows. Where there are
    more rows than interpolation is for: nothing or more tree rounds, also on the law alone. Whichever is best on shapes held out in turn
    (of MANY_ROWS those of FEW_FOLDS of FOLDS); the prior stays unless that lowers its error by MARGIN. Slow runs do not teach, where that
    lowers the error by SLOW_MARGIN. refit: `refit_of` the same rows and prior, where it is at hand.
    """
    terms = operator_terms(gpu, rows.model_key, rows.columns, prior.constants)
    prior = with_scaled_tree(prior, gpu.arch, terms.features)
    residual = rows.log_latency - predict_log(prior, rows)
    check_microseconds(rows.model_key, residual)
    steady = steady_rows(kriging.names_of(rows.columns, terms.variant), residual)
    near = len(rows) <= kriging.MAX_POINTS and kriging.CARD_KEY not in prior.card
    folds = _folds(rows)[: FEW_FOLDS if len(rows) >= MANY_ROWS else None]
    trial = _Trial(gpu, rows, prior, near, refit or refit_of(rows, prior))
    steady, ways = trial.choose(steady, folds)
    judged = _held(folds)
    nothing: Way = (KEPT, 0, 0.0, 1.0)
    ways[nothing] = residual
    scores = {way: _score(error[judged]) for way, error in ways.items()}
    best = min(scores, key=lambda way: scores[way] * (1.0 if way[0] == KEPT else TIE))
    if scores[best] > MARGIN * scores[nothing]:
        best = nothing
    kind, rounds, share, apart = best
    step(f"{rows.model_key}, all rows", len(folds), len(folds))
    taught = rows.take(steady)
    start = trial.start(kind, steady)
    base = _base(gpu, taught, start, share > 0)
    tree = base.grow(slice(None), rounds) if rounds else base.model.residual
    widths, typical = _widths(trial, steady, start, best, ways[best], judged)
    kept = (
        "archs",
        *(() if len(rows) >= MANY_ROWS else (CARD_KEY, SCALED_TREE, TREE_NAMES)),
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
        facts[kriging.CARD_KEY] = {**entry, kriging.SPREAD: typical, COVARIATES: covariate_digests(covariate_models(gpu, rows.model_key))}
    facts |= with_prior(facts, prior)
    mine = envelope(taught, base.features)
    span = {name: (min(low, mine[name][0]), max(high, mine[name][1])) for name, (low, high) in prior.envelope.items()} or mine
    name = f"{gpu.name}:{rows.model_key}:table:{digest(rows)}"
    return FittedModel(name, "calibrated", base.model.constants, (-max(widths), max(widths)), tree, span, facts)


def _score(error: Floats) -> float:
    """Mean |predicted / measured - 1| of log errors."""
    return float(np.mean(np.abs(np.expm1(-error))))


def _folds(rows: Rows) -> Folds:
    """Folds by whole shapes; by rows where there are hardly any shapes to hold out."""
    if len(np.unique(rows.shape)) >= 2 * FOLDS:
        return _whole_shapes(rows)
    part = np.random.default_rng(0).permutation(len(rows)) % FOLDS
    return [(part != i, part == i) for i in range(FOLDS)]


def _whole_shapes(rows: Rows) -> Folds:
    return [(train, held) for train, held in shape_folds(rows, FOLDS) if held.any() and train.any()]


def _widths(
    trial: _Trial, steady: npt.NDArray[np.bool_], start: FittedModel, way: Way, error: Floats, judged: npt.NDArray[np.bool_]
) -> tuple[list[float], float]:
    """(half-widths, spread of an interpolation that they are for): the prior's widths, scaled by how held-out errors compare with them.

    From the rows alone when they are many. Else the scale is the conformal quantile of |error| over (width x spread of the interpolation),
    of whole shapes held out even where they are too few to choose by: the next question is of another shape. Of K shapes it is the quantile
    at NOMINAL (1 + FEW_SHAPES / K). One scale for all regimes: one session's rows make a regime look surer than the next finds it.
    """
    gpu, rows, prior = trial.gpu, trial.rows, trial.prior
    if len(rows) >= MANY_ROWS:
        return group_widths([np.stack([error, rows.log_latency, rows.columns["stack"]])[:, judged]]), 0.0
    kind, _, share, apart = way
    folds = _whole_shapes(rows)
    if len(folds) < 2:
        folds = _folds(rows)
    elif len(np.unique(rows.shape)) < 2 * FOLDS:
        error = trial.errors(kind, steady, folds)[way]
    far = np.ones(len(rows))
    if share > 0 and (where := _base(gpu, rows, start, True).where) is not None:
        for train, held in folds:
            far[held] = kriging.spread(where.take(train & steady), where.take(held), apart)
    table = width_table(prior.card, gpu.arch, prior.interval)
    ratio = np.abs(error) / (table[interval_group(np.exp(rows.log_latency - error) * US, rows.columns["stack"])] * far)
    scale = upper_bound(ratio, min(NOMINAL * (1.0 + FEW_SHAPES / len(np.unique(rows.shape))), 1.0))
    typical = round(float(np.median(far)), 6)
    return [round(float(max(width * scale * typical, LEAST_WIDTH)), 4) for width in table], typical
