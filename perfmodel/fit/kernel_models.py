"""Fit every shipped model from the rows in data/: `python -m perfmodel.fit.kernel_models` (`make models`). Same rows in, same files out."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable
from pathlib import Path

from perfmodel._resources import measured_data, shipped
from perfmodel.boundary import parquet
from perfmodel.calibrate.kernel import fit_kernel
from perfmodel.hw import gpu as find_gpu
from perfmodel.kernels import kernel_family
from perfmodel.learn.calibration import PRIOR_CONFIG_INTERVAL
from perfmodel.learn.model import FittedModel

CODES = 4
OWN_GPU_ONLY = ("fused_moe",)
"""Families whose fit to one GPU ranks another of its architecture worse than the law with its round constants does: how weights stream
differs with the memory (`perfmodel evaluate published-moe`: an H20 with what an H200 says of it, and without)."""


def kernel_models(data: Path) -> dict[str, FittedModel]:
    """Folder -> model of every GPU with a calibration set of a kernel family; and, from each, the spec-tier model of its architecture.

    The spec-tier model answers for other GPUs of that architecture only (none for OWN_GPU_ONLY); its interval is no narrower than the
    stated prior. Nor is that of the law alone, which answers for other people's code, where fewer than CODES kernels of one's own show how
    it carries from code to code.
    """
    import pandas as pd

    models = {}
    for path in sorted(data.glob("*/calibration_*.parquet")):
        family, name = path.parent.name, path.stem.removeprefix("calibration_")
        spec = find_gpu(name)
        with parquet():
            frame = pd.read_parquet(path)
        rows = frame[frame["variant"].isin(kernel_family(family).VARIANTS)].drop(columns=["regs", "spills", "shared"])
        provenance = {"data": f"data/{family}/{path.name}", **{name: _only(rows[name]) for name in ("torch", "triton", "driver")}}
        model = fit_kernel(family, spec, rows, provenance=provenance)
        if len(model.card["variants"]) < CODES:
            model = dataclasses.replace(model, law_interval=_no_narrower(model.law_interval or model.interval))
        models[f"{name}/kernel_{family}"] = model
        if family in OWN_GPU_ONLY:
            continue
        models[f"universal/kernel_{family}_{spec.arch}"] = dataclasses.replace(
            model,
            model_id=f"universal:kernel_{family}_{spec.arch}",
            tier="spec",
            interval=_no_narrower(model.interval),
            law_interval=_no_narrower(model.law_interval or model.interval),
        )
    return models


def _no_narrower(interval: tuple[float, float]) -> tuple[float, float]:
    return min(interval[0], PRIOR_CONFIG_INTERVAL[0]), max(interval[1], PRIOR_CONFIG_INTERVAL[1])


def _only(values: Iterable[object]) -> str:
    return ", ".join(sorted({str(v) for v in values}))


def main() -> None:
    """Fit the models and write them under calibration/ (or --out)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=shipped("calibration"))
    arguments = parser.parse_args()
    for folder, model in kernel_models(measured_data(".")).items():
        model.save(arguments.out / folder)
        errors = ", ".join(f"{k} {100 * v:.1f} %" for k, v in model.card["held_out_error"].items())
        print(f"{folder}: {model.card['rows']} rows, {model.card['shapes']} shapes; error on held-out shapes: {errors}")


if __name__ == "__main__":
    main()
