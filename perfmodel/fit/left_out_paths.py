"""What an interval must be on an architecture whose kernels nobody has seen: errors of architectures left out whole.

    python -m perfmodel.fit.left_out_paths

fits each operator without the GPUs of one tensor path (a sample of rows: minutes on one core) and asks it about them, two ways:

forward: the law answers for Hopper as if nobody had written down that it multiplies by warp groups, as it must for any architecture
whose kernels came after the law. The margin of the shipped models, which somebody asks about the next architecture, is from these.
back: models of Hopper alone about the GPUs before it, whose kernels the law knows. The margin of the models that leave out the only
Hopper they know is from these, so that no interval was chosen on the rows that it is judged on.

A margin is how many times as wide as a new architecture's widths (`with_widths`) an interval must be for NOMINAL of the rows to lie within
it, on average over operators and GPUs. calibration/left_out_architectures.json keeps both with every line;
fits write them into cards (fit/margins).
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel._resources import shipped
from perfmodel.calibrate.operator_rows import Rows, sample
from perfmodel.fit.margins import FILE
from perfmodel.fit.operator_models import load
from perfmodel.fit.trees import LEARNT_LOG, fit_shared
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.intervals import NOMINAL
from perfmodel.learn.model import FittedModel, left_out_model
from perfmodel.learn.operators import interval_group, non_roofline_share, operator_terms, uncertainty_factor
from perfmodel.learn.transfer import NEW_ARCH_GROUP, NEW_PATH_SHARE, blank, tensor_path
from perfmodel.library.registry import MODELS
from perfmodel.units import US_PER_S

Floats = npt.NDArray[np.float64]
FORWARD, BACK = "forward", "back"
BEFORE = "sm_80"  # what the law takes Hopper for, where its kernels are left out too
TAUGHT, JUDGED = 8000, 6000  # rows a GPU
STEP = 0.05


def main() -> int:
    """Fit, judge, write the file and print its lines."""
    lines = [line for model_key in MODELS if model_key != "memory" for way in (FORWARD, BACK) for line in judge(model_key, way)]
    found: dict[str, Any] = {
        "nominal": NOMINAL,
        "forward_margin": margin(lines, FORWARD),
        "back_margin": margin(lines, BACK),
        "lines": [{key: value for key, value in line.items() if key != "ratio"} for line in lines],
    }
    for line in found["lines"]:
        print(line, file=sys.stderr)
    (shipped("calibration") / FILE).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"forward {found['forward_margin']}, back {found['back_margin']}", file=sys.stderr)
    return 0


def judge(model_key: str, way: str) -> list[dict[str, Any]]:
    """One line for each GPU of the path that is left out: error, coverage by margin, and |error| over the width of each row (`ratio`)."""
    rows = load(model_key)
    new = np.array([tensor_path(find_gpu(name).arch) == "wgmma" for name in rows.gpu.tolist()])
    asked, taught = (rows.take(new), rows.take(~new)) if way == FORWARD else (rows.take(~new), rows.take(new))
    if not len(asked) or not len(taught):
        return []
    model, lines = fit_shared(sample(taught, TAUGHT)), []
    for name in asked.gpus:
        own = sample(asked.take(asked.gpu == name), JUDGED)
        own = own.take(np.isin(own.columns["dtype"], np.unique(taught.columns["dtype"])))
        shipped_one = left_out_model(name, model_key)
        if not len(own) or shipped_one is None:
            continue
        spec = find_gpu(name)
        ratio, error = ratios(dataclasses.replace(spec, arch=BEFORE) if way == FORWARD else spec, own, model, shipped_one.card)
        covered = {f"{m:g}": round(float(np.mean(ratio <= m)), 3) for m in (1.0, 1.25, 1.5, 2.0, 2.5)}
        lines.append(
            {"way": way, "operator": model_key, "gpu": name, "rows": len(own), "error": round(error, 3), "covered": covered, "ratio": ratio}
        )
    return lines


def ratios(spec: GpuSpec, rows: Rows, model: FittedModel, card: Mapping[str, Any]) -> tuple[Floats, float]:
    """(|log error| over a new architecture's half-width in `card`, mean |predicted / measured - 1|) of rows of a path `model` never saw."""
    terms = operator_terms(spec, rows.model_key, rows.columns, model.constants)
    learnt = np.zeros(len(rows))
    if model.residual is not None:
        learnt = NEW_PATH_SHARE * model.residual.log_ratio(blank(terms.features), len(rows))
    log_latency = np.log(terms.latency_s) + learnt
    error = rows.log_latency - log_latency
    group = interval_group(np.exp(log_latency) * US_PER_S, rows.columns["stack"])
    width = np.asarray(card["half_widths"][NEW_ARCH_GROUP])[group] * uncertainty_factor(
        learnt, non_roofline_share(terms.features), rows.columns["stack"], LEARNT_LOG
    )
    return np.abs(error) / width, float(np.mean(np.abs(np.expm1(-error))))


def margin(lines: Sequence[Mapping[str, Any]], way: str) -> float:
    """The smallest multiple of STEP, 1 at least, that covers NOMINAL of the rows on average over the lines of one way."""
    mine = [line["ratio"] for line in lines if line["way"] == way]
    found = 1.0
    while np.mean([np.mean(ratio <= found) for ratio in mine]) < NOMINAL:
        found = round(found + STEP, 2)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
