"""From the rows of a calibration run to a Calibration: every part corrected, and adopted only if it holds on other shapes.

What is corrected is the universal model that never saw the GPU. The figures of an outcome come from whole shapes held out of the entire
procedure, choices included; the model that is kept is then fitted to all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perfmodel.calibrate.ceilings import WHAT as CEILINGS
from perfmodel.calibrate.ceilings import fit_ceilings
from perfmodel.calibrate.collective import fit_collective
from perfmodel.calibrate.kernel import fit_kernel, law
from perfmodel.calibrate.kernel import read_rows as read_kernel_rows
from perfmodel.calibrate.kernel import take as take_kernel
from perfmodel.calibrate.operator_rows import Rows, law_of, possible, read_rows
from perfmodel.calibrate.operators import predict_log, shape_folds
from perfmodel.calibrate.recipe import OPERATORS
from perfmodel.calibrate.steps import Progress
from perfmodel.calibrate.table import MARGIN, MIN_ROWS, correct, refit_of
from perfmodel.calibrate.workers import Tasks, tasks
from perfmodel.errors import InputError
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.calibration import Calibration, prior_model
from perfmodel.learn.model import FittedModel
from perfmodel.learn.operators import predict_columns
from perfmodel.learn.transfer import CARD_KEY, pair_codes, tensor_path
from perfmodel.measure.session import KERNEL
from perfmodel.ops.names import STACKS
from perfmodel.predict.libraries import OTHER_STACKS_KEY, STACKS_KEY

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
FOLDS = 4
OTHER_STACKS = {"gemm": 0.5, "attention_prefill": 0.0, "attention_decode": 0.0}
"""How much of what one stack's rows teach holds for other stacks. Products: the others call the same library or a like one; half of the
correction lowered their error on each of four GPUs (200 to 2,000 rows of one stack, judged on the others), all of it raised it on one.
Attention: every stack brings its own kernels, and rows of one made the others worse.
"""
COLLECTIVE = "collective"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One part of a fit: rows and shapes, mean |predicted / measured - 1| before and after on shapes held out, and whether it was adopted.

    `rows` of the table behind it are in `points`: measured_us, before_us, after_us (out of fold), and the sizes.
    """

    what: str
    rows: int
    shapes: int
    failed: int
    before: float | None
    after: float | None
    adopted: bool
    reason: str
    coverage: float | None = None
    points: Any = None


def fit_run(
    gpu: GpuSpec,
    rows: Sequence[Mapping[str, Any]],
    *,
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    workers: int = 1,
) -> tuple[Calibration, list[Outcome]]:
    """Fit everything that `rows` have. A part with too few rows, or whose fit does not beat the universal model, is left out.

    `workers` processes fit the parts and folds side by side, with the same result. `progress` hears which part and fold is being
    fitted, and how many are done. Raises InputError when the rows hold nothing that can be fitted.
    """
    models: dict[str, FittedModel] = {}
    outcomes: list[Outcome] = []
    if (ceilings := fit_ceilings(gpu, rows, provenance)) is not None:
        models[CEILINGS] = ceilings
    with tasks(workers, progress) as work:
        finish = [_part(gpu, what, mine, provenance, work) for what, mine in _by_part(rows).items()]
        for result in finish:
            outcome, model = result()
            outcomes.append(outcome)
            if model is not None:
                models[outcome.what] = model
    if not models and not outcomes:
        raise InputError("the rows hold no ceiling, operator, kernel or collective with status ok: nothing to fit")
    return Calibration(gpu.name, models), outcomes


def _by_part(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        what = str(row.get("what", ""))
        if what == "attention":
            what = f"attention_{row.get('phase')}"
        if what in OPERATORS or what.startswith(KERNEL) or what == COLLECTIVE:
            parts.setdefault(what, []).append(row)
    return dict(sorted(parts.items()))


Fit = tuple[Outcome, FittedModel | None]


def _part(
    gpu: GpuSpec, what: str, rows: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any] | None, work: Tasks
) -> Callable[[], Fit]:
    if what in OPERATORS:
        return _operator(gpu, what, rows, provenance, work)
    if what == COLLECTIVE:
        return work.submit(what, _collective, gpu, rows, provenance)
    return work.submit(what, _kernel, gpu, what.removeprefix(KERNEL), rows, provenance)


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    good = pd.DataFrame([dict(r) for r in rows if r.get("status") == "ok"])
    return good.dropna(axis=1, how="all")  # columns of other parts, where the rows come from one table


def _operator(
    gpu: GpuSpec, what: str, rows: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any] | None, work: Tasks
) -> Callable[[], Fit]:
    frame = _frame(rows)
    failed = len(rows) - len(frame)
    if len(frame) < MIN_ROWS:
        few = Outcome(what, len(frame), 0, failed, None, None, False, f"{len(frame)} rows: a correction needs {MIN_ROWS}")
        return lambda: (few, None)
    table = read_rows(what, frame.assign(gpu=gpu.name))
    if not (kept := possible(what, table.columns, frame.assign(gpu=gpu.name))).all():
        table, frame, failed = table.take(kept), frame[kept], failed + int((~kept).sum())
    prior = prior_model(gpu, what)
    folds = [(train, held) for train, held in shape_folds(table, FOLDS) if held.any() and train.sum() >= MIN_ROWS]
    judged = [
        (held, work.submit(f"{what}, shapes held out, {i} of {len(folds)}", _held_out, gpu, table.take(train), table.take(held), prior))
        for i, (train, held) in enumerate(folds, 1)
    ]
    whole = work.submit(f"{what}, all rows", _best, gpu, table, prior)

    def finish() -> Fit:
        before = predict_log(prior, table)
        after, inside = np.array(before), np.zeros(len(table), dtype=bool)
        for held, result in judged:
            after[held], inside[held] = result()
        scores = _score(before - table.log_latency), _score(after - table.log_latency)
        covered, shapes = float(inside.mean()), len(np.unique(table.shape))
        points = frame.assign(measured_us=frame["latency_us"], before_us=np.exp(before) * 1e6, after_us=np.exp(after) * 1e6)
        adopted = scores[1] < MARGIN * scores[0]
        figures = f"{100 * scores[0]:.1f} % before, {100 * scores[1]:.1f} % after on shapes held out"
        reason = "" if adopted else f"refused: the fit does not beat {prior.model_id} ({figures})"
        outcome = Outcome(what, len(table), shapes, failed, *scores, adopted, reason, covered, points)
        if not adopted:
            return outcome, None
        model = whole()
        facts = {**(provenance or {}), **model.card, "held_out_error": {"prior": scores[0], "corrected": scores[1]}}
        facts["held_out_coverage"] = covered
        if what in OTHER_STACKS:
            facts[STACKS_KEY] = sorted({STACKS[int(code)] for code in np.unique(table.columns["stack"])})
            facts[OTHER_STACKS_KEY] = OTHER_STACKS[what]
        return outcome, replace(model, card=facts)

    return finish


def _held_out(gpu: GpuSpec, train: Rows, held: Rows, prior: FittedModel) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Log seconds of held-out rows by a correction that did not see them, and whether its interval covers each."""
    model = _best(gpu, train, prior)
    return predict_log(model, held), _covered(gpu, model, held)


def _best(gpu: GpuSpec, table: Rows, prior: FittedModel) -> FittedModel:
    """The correction of the prior, or of the prior that sees the names of these rows' stacks and kernels; whichever holds out better."""
    refit = refit_of(table, prior)
    found = [correct(gpu, table, prior, refit)]
    if CARD_KEY in prior.card:
        path = tensor_path(gpu.arch)
        pairs = set(pair_codes(law_of(table, prior.constants)[1]).tolist())
        known = prior.card[CARD_KEY]
        if not pairs <= set(known.get(path, ())):
            shown = {**known, path: sorted(pairs | set(known.get(path, ())))}
            found.append(correct(gpu, table, replace(prior, card={**prior.card, CARD_KEY: shown}), refit))
    return min(found, key=lambda model: float(model.card["held_out_error"]["corrected"]))


def _covered(gpu: GpuSpec, model: FittedModel, table: Any) -> npt.NDArray[np.bool_]:
    found = predict_columns(gpu, table.model_key, table.columns, model)
    measured = np.exp(table.log_latency) * 1e6
    inside: npt.NDArray[np.bool_] = (found.low_us <= measured) & (measured <= found.high_us)
    return inside


def _kernel(gpu: GpuSpec, family: str, rows: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any] | None) -> Fit:
    configs = [r for r in rows if not r.get("baseline")]
    frame = _frame(configs)
    what, failed = f"kernel_{family}", len(configs) - len(frame)
    if len(frame) == 0:
        return Outcome(what, 0, 0, failed, None, None, False, "no config ran"), None
    keep = [c for c in frame.columns if c not in ("regs", "spills", "shared", "kernel", "baseline")]
    try:
        model = fit_kernel(family, gpu, frame[keep], provenance=provenance)
    except InputError as error:
        return Outcome(what, len(frame), 0, failed, None, None, False, f"refused: {error}"), None
    scores = model.card["held_out_error"]
    return Outcome(
        what, model.card["rows"], model.card["shapes"], failed, scores["spec"], scores[model.card["chosen"]], True, "", None,
        _kernel_points(gpu, family, frame[keep], model),
    ), model  # fmt: skip


def _kernel_points(gpu: GpuSpec, family: str, frame: pd.DataFrame, model: FittedModel) -> pd.DataFrame:
    """Rows with what the spec tier and the fitted model say of them; the latter saw these rows."""
    table = read_kernel_rows(family, gpu, frame)
    before = law(family, gpu, table, prior_model(gpu, f"kernel_{family}").constants).latency_s * 1e6
    terms = law(family, gpu, take_kernel(table, np.ones(len(table), dtype=bool)), model.constants)
    after = terms.latency_s * 1e6 * model.correction(terms.features, len(table))
    return frame.assign(measured_us=frame["latency_us"], before_us=before, after_us=after)


def _collective(gpu: GpuSpec, rows: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any] | None) -> Fit:
    frame = _frame(rows)
    try:
        model = fit_collective(gpu, frame, priors=[prior_model(gpu, "collective").constants], provenance=provenance)
    except InputError as error:
        return Outcome(COLLECTIVE, len(frame), 0, len(rows) - len(frame), None, None, False, f"refused: {error}"), None
    before, after = float(model.card["prior_error"]), float(model.card["held_out_error"]["mean"])
    adopted = bool(model.card["corrected"])
    reason = "" if adopted else f"refused: the fit does not beat the spec tier ({100 * before:.1f} % on sizes held out)"
    outcome = Outcome(COLLECTIVE, len(frame), int(model.card["sizes"]), len(rows) - len(frame), before, after, adopted, reason)
    return outcome, model if adopted else None


def _score(error: Floats) -> float:
    """Mean |predicted / measured - 1| of log(predicted / measured)."""
    return float(np.mean(np.abs(np.expm1(error))))
