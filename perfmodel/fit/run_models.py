"""Fit the shipped calibrations from the runs in data/runs: `python -m perfmodel.fit.run_models`; same rows in, same files out.

A run's Triton configs are fitted and reported, but the shipped kernel models come from the larger sets of fit/kernel_models.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from perfmodel._resources import shipped
from perfmodel.calibrate.fit import fit_run
from perfmodel.calibrate.report import markdown, provenance_of, summarise
from perfmodel.calibrate.run import read_states
from perfmodel.hw import gpu as find_gpu
from perfmodel.learn.calibration import Calibration
from perfmodel.measure.rows import read


def build(rows_path: Path, folder: Path, workers: int = 1) -> Path:
    """Fit one run and write its models, report.json and report.md under `folder`/<gpu>."""
    rows = read(rows_path)
    spec = find_gpu(rows_path.stem)
    calibration, outcomes = fit_run(spec, rows, provenance={"data": f"data/runs/{rows_path.name}", **provenance_of(rows)}, workers=workers)
    own = Calibration(spec.name, {what: model for what, model in calibration.models.items() if not what.startswith("kernel_")})
    target = own.save(folder / spec.name)
    summary = summarise(spec, rows, outcomes, states=read_states(rows_path), budget_s=120.0)
    (target / "report.json").write_text(json.dumps(summary, allow_nan=False) + "\n", encoding="utf-8")
    (target / "report.md").write_text(markdown(summary), encoding="utf-8")
    return target


def main() -> None:
    """Fit every run and write under calibration/ (or --out)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=shipped("calibration"))
    parser.add_argument("--workers", type=int, default=1, help="processes; the files are the same")
    arguments = parser.parse_args()
    for path in sorted((shipped("data") / "runs").glob("*.parquet")):
        if not path.stem.endswith(".state"):
            print(build(path, arguments.out, arguments.workers))


if __name__ == "__main__":
    main()
