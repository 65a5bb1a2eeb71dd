"""Fit every shipped operator model from data/operators; the same rows give the same files.

    python -m perfmodel.fit.operator_models [--own] [model ...]

With --own only the calibrations of single GPUs are fitted again.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfmodel._resources import measured_table, shipped
from perfmodel.calibrate.operator_rows import Rows, read_possible
from perfmodel.errors import InputError
from perfmodel.fit.trees import FEWEST_JUDGES, SHARES, fit_own, fit_shared, left_out_errors, mean_error, with_widths
from perfmodel.hw import gpu as find_gpu
from perfmodel.learn.model import LEFT_OUT, FittedModel
from perfmodel.learn.transfer import tree_share
from perfmodel.library.registry import MODELS

Floats = npt.NDArray[np.float64]
OWN_MIN_ROWS = 400
CALIBRATED = ("a100_sxm4_80gb", "h100_sxm", "l40s", "rtx_pro_6000")


def load(model_key: str) -> Rows:
    """The committed rows of a model, without those that are faster than their GPU can be."""
    name = f"operators/{MODELS[model_key].data}.parquet"
    try:
        return read_possible(model_key, measured_table(name))
    except OSError as error:
        raise InputError(f"cannot read {name}: {error}") from None


def build(model_key: str, folder: Path) -> None:
    """Fit and write the universal model, one without each GPU, and one of an architecture's GPUs alone where that predicts them better."""
    rows = load(model_key)
    archs = {name: find_gpu(name).arch for name in rows.gpus}
    models, errors = _left_out(rows, [rows.gpu != name for name in rows.gpus])
    kindred, kindred_errors = _left_out(rows, [_of_arch(rows, archs, archs[name]) & (rows.gpu != name) for name in rows.gpus])
    for name, model in models.items():
        final, found = with_widths(model, errors, archs, name), errors[name]
        if better := _better_alone(archs, archs[name], name, errors, kindred_errors):
            final, found = with_widths(kindred[name], {**errors, **better}, archs, name), kindred_errors[name]
        final.save(shipped("data") / LEFT_OUT / f"{model_key}_without_{name}")
        share = tree_share(final.card, archs[name])
        gpus = ", ".join(final.card["gpus"])
        print(f"{model_key} without {name}: {100 * mean_error([found], share):.1f} %, tree share {share}, from {gpus}", file=sys.stderr)
    with_widths(fit_shared(rows), errors, archs, None).save(folder / "universal" / model_key)
    for arch in sorted(set(archs.values())):
        own = folder / "universal" / f"{model_key}_{arch}"
        shutil.rmtree(own, ignore_errors=True)
        if better := _better_alone(archs, arch, None, errors, kindred_errors):
            with_widths(fit_shared(rows.take(_of_arch(rows, archs, arch))), {**errors, **better}, archs, None).save(own)


def _left_out(rows: Rows, kept: Sequence[npt.NDArray[np.bool_]]) -> tuple[dict[str, FittedModel], dict[str, Floats]]:
    """For each GPU the model of the rows that are kept for it, none of its own, and its errors; nothing where hardly a row is kept."""
    models, errors = {}, {}
    for name, mask in zip(rows.gpus, kept, strict=True):
        if mask.sum() >= OWN_MIN_ROWS:
            models[name] = fit_shared(rows.take(mask))
            errors[name] = left_out_errors(models[name], rows.take(rows.gpu == name))
    return models, errors


def _of_arch(rows: Rows, archs: Mapping[str, str], arch: str) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = np.isin(rows.gpu, [name for name in archs if archs[name] == arch])
    return mask


def _better_alone(
    archs: Mapping[str, str], arch: str, left_out: str | None, errors: Mapping[str, Floats], alone: Mapping[str, Floats]
) -> dict[str, Floats]:
    """The errors of an architecture's GPUs by models of their own architecture alone, where those are less than by models of all GPUs.

    Judged on GPUs left out in turn, FEWEST_JUDGES at least; `left_out` has no say. Empty where all GPUs together are better.
    """
    mine = {name: error for name, error in alone.items() if archs[name] == arch}
    judged = [name for name in mine if name != left_out]
    if len(judged) < FEWEST_JUDGES:
        return {}
    own, shared = ([table[name] for name in judged] for table in (mine, errors))
    return mine if min(mean_error(own, s) for s in SHARES) < min(mean_error(shared, s) for s in SHARES) else {}


def build_own(model_key: str, folder: Path) -> None:
    """Fit and write the calibrations of single GPUs."""
    rows = load(model_key)
    for name in rows.gpus:
        own = rows.take(rows.gpu == name)
        if name in CALIBRATED and len(own) >= OWN_MIN_ROWS:
            model = fit_own(own)
            model.save(folder / name / model_key)
            print(f"{model_key} of {name}: {100 * model.card['held_out_error']:.1f} % on held-out shapes", file=sys.stderr)


def main(arguments: Sequence[str]) -> int:
    """Fit the models named, or all."""
    own_only = "--own" in arguments
    wanted = [name for name in arguments if name != "--own"] or list(MODELS)
    unknown = [name for name in wanted if name not in MODELS]
    if unknown:
        print(f"unknown model {', '.join(unknown)}: known: {', '.join(MODELS)}", file=sys.stderr)
        return 2
    for model_key in wanted:
        if not own_only:
            build(model_key, shipped("calibration"))
        build_own(model_key, shipped("calibration"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
