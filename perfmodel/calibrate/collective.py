"""Calibrations of collectives: one GPU's own, and those of several GPUs for GPUs that were never measured."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.card import BEYOND_KEY, COUNTS_KEY, MEASURED_KEY
from perfmodel.learn.collective_fit import MACHINES, MIN_ROWS, Rows, fit_constants, held_out_errors, read_rows, sigmas
from perfmodel.learn.intervals import conformal_bounds
from perfmodel.learn.model import FittedModel
from perfmodel.learn.plausible import usable
from perfmodel.library.collective import LAW
from perfmodel.library.collective_stacks import DEFAULT_STACK, parse_stack
from perfmodel.ops.collective import collective_kind

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
MIN_SIZES = 4
AGREEMENT = 0.1  # least rank correlation with the law: calls of small messages wait for the host, which no law of the link knows


def fit_collective(
    gpu: GpuSpec,
    frame: pd.DataFrame,
    *,
    priors: Sequence[Mapping[str, float]] = (),
    provenance: Mapping[str, Any] | None = None,
    folds: int = 5,
    seed: int = 0,
) -> FittedModel:
    """Calibrate one GPU. The interval and the reported error come from message sizes that the fold's fit did not see.

    priors: constants to draw on (the spec tier's, another calibration's); the rows choose one, and it stays as it is where a fit from it
    is no better on sizes left out. For more GPUs than were measured the card keeps constants of their own (see fit_constants).

    Raises InputError for bad rows and for fewer than 12 rows or 4 sizes.
    """
    rows = read_rows(gpu, frame)
    if len(rows):
        labels = list(frame.index[frame["status"] == "ok"] if "status" in frame.columns else frame.index)
        log_law = np.log(rows.terms({}).latency_s)
        good = usable(LAW, labels, rows.log_latency, log_law, log_law, None, AGREEMENT)
        rows = rows if good.all() else rows.take(good)
    if len(rows) < MIN_ROWS or len(np.unique(rows.sizes)) < MIN_SIZES:
        raise InputError(
            f"{len(rows)} rows over {len(np.unique(rows.sizes))} sizes: a fit of collectives needs {MIN_ROWS} over {MIN_SIZES}"
        )
    prior = min(priors, key=lambda constants: _summary(rows.errors(constants))[0], default=None)
    errors, before = held_out_errors(rows, prior, folds, seed), rows.errors(prior or {})
    corrected = prior is None or _summary(errors)[0] < _summary(before)[0]
    if not corrected:
        errors = before
    constants = {**(fit_constants([rows], prior) if corrected else prior or {}), **sigmas(rows, errors)}
    facts = dict(provenance or {})
    if prior is not None:
        facts |= {"prior_error": _summary(before)[0], "corrected": corrected}
        most = int(rows.columns["n_gpus"].max())
        if corrected and most < MACHINES[-1]:
            facts[BEYOND_KEY] = {"gpus": most, "constants": {**fit_constants([rows], prior, beyond=True), **sigmas(rows, errors)}}
    return finish(gpu.name, [rows], errors, constants, "calibrated", facts)


def fit_universal(
    name: str, tables: Sequence[Rows], *, provenance: Mapping[str, Any] | None = None, prior: Mapping[str, float] | None = None
) -> FittedModel:
    """One model of several GPUs for GPUs that were never measured; each table's errors come from a fit without it, where there are two."""
    if len(tables) > 1:
        left_out = [t.errors(fit_constants([u for u in tables if u is not t], prior)) for t in tables]
    else:
        left_out = [held_out_errors(tables[0], prior, 5, 0)]
    errors = np.concatenate(left_out)
    width = [sigmas(t, e) for t, e in zip(tables, left_out, strict=True)]
    constants = {**fit_constants(tables, prior), **{n: float(np.mean([w[n] for w in width])) for n in width[0]}}
    return finish(name, tables, errors, constants, "spec", provenance)


def finish(
    name: str, tables: Sequence[Rows], errors: Floats, constants: Mapping[str, float], tier: str, provenance: Mapping[str, Any] | None
) -> FittedModel:
    """Card and model of a fit."""
    logs = np.concatenate([t.log_latency for t in tables])
    digest = hashlib.sha256(np.ascontiguousarray(np.round(logs, 9)).tobytes()).hexdigest()[:16]
    features = [t.terms(constants).features for t in tables]
    envelope = {n: (min(float(f[n].min()) for f in features), max(float(f[n].max()) for f in features)) for n in features[0]}
    card = {
        **(provenance or {}),
        "gpus": [t.gpu.name for t in tables],
        "gpu": tables[0].gpu.name if len(tables) == 1 and tier == "calibrated" else "",
        "kind": LAW,
        "archs": sorted({t.gpu.arch for t in tables}),
        MEASURED_KEY: measured(tables),
        "rows": len(logs),
        COUNTS_KEY: sorted({int(n) for t in tables for n in np.unique(t.columns["n_gpus"])}),
        "sizes": int(max(len(np.unique(t.sizes)) for t in tables)),
        "data_hash": digest,
        "held_out": "whole message sizes" if len(tables) == 1 else "whole GPUs",
        "held_out_error": {q: float(v) for q, v in zip(("mean", "median", "p90"), _summary(errors), strict=True)},
    }
    return FittedModel(f"{name}:{LAW}:{digest[:8]}", tier, dict(constants), conformal_bounds(errors), None, envelope, card)


def measured(tables: Sequence[Rows]) -> dict[str, Any]:
    """Card entry: the rows of each GPU by stack, and the kinds of collective they are of."""
    rows = {}
    for table in tables:
        stack = table.columns.get("stack", np.full(len(table), DEFAULT_STACK, dtype=object))
        names, counts = np.unique([parse_stack(str(name))[0] for name in stack], return_counts=True)
        rows[table.gpu.name] = dict(zip(names.tolist(), counts.tolist(), strict=True))
    return {"rows": rows, "kinds": sorted({collective_kind(str(kind)) for table in tables for kind in np.unique(table.columns["kind"])})}


def _summary(errors: Floats) -> tuple[float, float, float]:
    """Mean, median and p90 of |predicted / measured - 1| of log errors."""
    relative = np.abs(np.expm1(-errors))
    return float(relative.mean()), float(np.median(relative)), float(np.quantile(relative, 0.9))
