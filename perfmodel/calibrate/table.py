"""A user's own table of measured operators: checked, then used to correct the model of that GPU, never to make it worse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from perfmodel.calibrate.operators import Rows, card, digest, envelope, group_widths, law_of, predict_log, read_rows, shape_folds
from perfmodel.errors import InputError
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.boost import CORRECTION, OWN, boost, sliced
from perfmodel.learn.calibration import Calibration
from perfmodel.learn.intervals import NOMINAL
from perfmodel.learn.model import FittedModel
from perfmodel.learn.operators import NEW_ARCH_GROUP, interval_group, operator_model, universal_model, width_table
from perfmodel.learn.residual import Residual
from perfmodel.library.columns import NEEDED, find, read_frame
from perfmodel.library.registry import KINDS, parts

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
MIN_ROWS = 16
ROUNDS = (0, 20, 60, 120, 200)
MANY_ROWS = 3000  # from here on the correction may be as deep as a GPU's own tree
FOLDS = 5
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


def correct(gpu: GpuSpec, rows: Rows, prior: FittedModel) -> FittedModel:
    """Correct `prior` with rows of one GPU: the number of rounds, none included, that is best on shapes held out in turn."""
    before = rows.log_latency - predict_log(prior, rows)
    _plausible(rows, before)
    log_law, features = law_of(rows, prior.constants)
    target = rows.log_latency - log_law
    params = OWN if len(rows) >= MANY_ROWS else CORRECTION
    start = prior.residual
    held_out = {rounds: np.zeros(len(rows)) for rounds in ROUNDS}
    held_out[0] = before
    already = 0 if start is None else start.booster.num_boosted_rounds()
    for train, held in _folds(rows):
        seen = {name: values[train] for name, values in features.items()}
        unseen = {name: values[held] for name, values in features.items()}
        trial = boost(seen, target[train], None, rounds=ROUNDS[-1], params=params, robust=False, start=start)
        for rounds in ROUNDS[1:]:
            held_out[rounds][held] = target[held] - sliced(trial, already + rounds).log_ratio(unseen, int(held.sum()))
    scores = {rounds: float(np.mean(np.abs(np.expm1(-error)))) for rounds, error in held_out.items()}
    best = min(scores, key=lambda rounds: scores[rounds])
    if scores[best] > MARGIN * scores[0]:
        best = 0
    tree: Residual | None = start if best == 0 else boost(features, target, None, rounds=best, params=params, robust=False, start=start)
    widths = _widths(gpu, rows, prior, held_out[best])
    facts = {
        **{key: value for key, value in prior.card.items() if key in ("dtype_codes", "archs")},
        **card(rows),
        "gpu": gpu.name,
        "prior": prior.model_id,
        "correction_rounds": best,
        "held_out_error": {"prior": scores[0], "corrected": scores[best]},
        "half_widths": {NEW_ARCH_GROUP: widths},
        "archs": [],
    }
    facts["dtype_codes"] = sorted(set(facts["dtype_codes"]) | set(prior.card.get("dtype_codes", ())))
    mine = envelope(rows, features)
    span = {name: (min(low, mine[name][0]), max(high, mine[name][1])) for name, (low, high) in prior.envelope.items()} or mine
    name = f"{gpu.name}:{rows.what}:table:{digest(rows)}"
    return FittedModel(name, "calibrated", prior.constants, (-max(widths), max(widths)), tree, span, facts)


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
