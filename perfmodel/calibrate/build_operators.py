"""Fit every shipped operator model from data/operators; the same rows give the same files.

    python -m perfmodel.calibrate.build_operators [--own] [model ...]

With --own only the calibrations of single GPUs are fitted again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perfmodel._resources import shipped
from perfmodel.calibrate.operators import Rows, fit_own, fit_shared, left_out_errors, read_rows, with_widths
from perfmodel.errors import InputError
from perfmodel.hw import gpu as find_gpu
from perfmodel.library.registry import MODELS

OWN_MIN_ROWS = 400
CALIBRATED = ("a100_sxm4_80gb", "h100_sxm", "l40s", "rtx_pro_6000")


def load(what: str) -> Rows:
    """The committed rows of a model."""
    import pandas as pd

    path = shipped("data") / "operators" / f"{MODELS[what].data}.parquet"
    try:
        return read_rows(what, pd.read_parquet(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error}") from None


def build(what: str, folder: Path) -> None:
    """Fit and write the universal model and one without each GPU."""
    rows = load(what)
    archs = {name: find_gpu(name).arch for name in rows.gpus}
    models, errors = {}, {}
    for name in rows.gpus:
        models[name] = fit_shared(rows.take(rows.gpu != name))
        errors[name] = left_out_errors(models[name], rows.take(rows.gpu == name))
    for name, model in models.items():
        final = with_widths(model, errors, archs, name)
        final.save(folder / "universal" / f"{what}_without_{name}")
        share = final.card.get("tree_share", 1.0)
        error, _, stack, tree = errors[name]
        named = (error + (1.0 - share) * tree)[stack > 0]
        print(f"{what} without {name}: {100 * np.mean(np.abs(np.expm1(-named))):.1f} %, tree share {share}", file=sys.stderr)
    with_widths(fit_shared(rows), errors, archs, None).save(folder / "universal" / what)


def build_own(what: str, folder: Path) -> None:
    """Fit and write the calibrations of single GPUs."""
    rows = load(what)
    for name in rows.gpus:
        own = rows.take(rows.gpu == name)
        if name in CALIBRATED and len(own) >= OWN_MIN_ROWS:
            model = fit_own(own)
            model.save(folder / name / what)
            print(f"{what} of {name}: {100 * model.card['held_out_error']:.1f} % on held-out shapes", file=sys.stderr)


def main(arguments: Sequence[str]) -> int:
    """Fit the models named, or all."""
    own_only = "--own" in arguments
    wanted = [name for name in arguments if name != "--own"] or list(MODELS)
    unknown = [name for name in wanted if name not in MODELS]
    if unknown:
        print(f"unknown model {', '.join(unknown)}: known: {', '.join(MODELS)}", file=sys.stderr)
        return 2
    for what in wanted:
        if not own_only:
            build(what, shipped("calibration"))
        build_own(what, shipped("calibration"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
