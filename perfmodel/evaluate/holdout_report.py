"""How good a shipped calibration is on rows measured apart from its run, of whole shapes that the run does not have.

    python -m perfmodel.evaluate.holdout_report h200_sxm
    python -m perfmodel.evaluate.holdout_report h200_sxm --rows data/runs/again/h200_sxm.parquet

The rows are those of data/operators for that GPU and the run's stack: another session's, by another script; or those of another run. Before
is the spec tier: the universal model that never saw the GPU. `apart` is the mean difference of points that are in both sets: no model gets
below. Below that, how the run's own Triton configs rank the exhaustive sweeps of data/gemm, none of whose shapes is in a run: regret@k as
`perfmodel evaluate ranking` has it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from perfmodel._resources import measured_data, measured_table, shipped
from perfmodel.calibrate.kernel import fit_kernel
from perfmodel.calibrate.operator_rows import Rows, read_possible
from perfmodel.calibrate.recipe import KIND, OPERATORS
from perfmodel.calibrate.report import REGIMES
from perfmodel.errors import InputError
from perfmodel.evaluate.cross_validate import predictor
from perfmodel.evaluate.ranking import evaluate_ranking, read_sweeps
from perfmodel.fit.operator_models import load
from perfmodel.hw import gpu as find_gpu
from perfmodel.learn.calibration import resolve
from perfmodel.learn.operators import predict_columns
from perfmodel.library.registry import MODELS
from perfmodel.measure.kernels.gemm import CONFIG_KEYS
from perfmodel.measure.rows import read
from perfmodel.units import US_PER_S

if TYPE_CHECKING:
    import pandas as pd

Keys = npt.NDArray[np.str_]
RANKING = ["sweep", "dtype", "model", "shapes", "@1", "@3", "@8", "@3 max", "error mean", "coverage"]


def keys(rows: Rows, names: tuple[str, ...]) -> Keys:
    """One text a row of the columns named."""
    table = np.stack([rows.columns[name] for name in names], axis=1).astype(np.int64)
    return np.array(["|".join(map(str, row)) for row in table.tolist()])


def prove(name: str, other: Path | None = None) -> pd.DataFrame:
    """One row a part and regime (and one for all): rows, mean error before and after, coverage after, and `apart` for the part.

    `other`: rows of another run to judge on, instead of data/operators.
    """
    import pandas as pd

    spec = find_gpu(name)
    run = read_run(measured_data(f"runs/{spec.name}.parquet"))
    again = None if other is None else read_run(other)
    found = []
    for model_key in OPERATORS:
        mine, judged = of_part(run, model_key, spec.name), load(model_key) if again is None else of_part(again, model_key, spec.name)
        judged = judged.take((judged.gpu == spec.name) & np.isin(judged.columns["stack"], mine.columns["stack"]))
        found += [
            {"part": model_key, "apart": _apart(mine, judged), **row} for row in _scores(name, model_key, of_other_shapes(judged, mine))
        ]
    return pd.DataFrame(found)


def of_other_shapes(judged: Rows, fitted: Rows) -> Rows:
    """The rows of `judged` whose shape no row of `fitted` has."""
    shape = MODELS[judged.model_key].shape
    return judged.take(~np.isin(keys(judged, shape), keys(fitted, shape)))


def without_shapes_of(run: pd.DataFrame, judged: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """The rows of a run whose m, n, k no judged sweep has."""
    sides = ["m", "n", "k"]
    held = {shape for sweep in judged for shape in map(tuple, sweep[sides].drop_duplicates().to_numpy().tolist())}
    return run[[shape not in held for shape in map(tuple, run[sides].to_numpy().tolist())]]


def prove_ranking(name: str) -> pd.DataFrame:
    """One row a sweep, dtype and model (spec tier; fitted to the run's Triton configs): shapes, regret@1, @3, @8, worst @3, mean error.

    Last, all shapes together.
    """
    import pandas as pd

    spec = find_gpu(name)
    run = read_run(measured_data(f"runs/{spec.name}.parquet"))
    ran = run[(run["what"] == "kernel:gemm") & (run["variant"] != "cublas")]
    sweeps = {
        sweep: measured_table(f"gemm/{sweep}_{spec.name}.parquet").drop(columns=["regs", "spills", "shared"])
        for sweep in ("evaluation", "plain")
    }
    ran = without_shapes_of(ran, sweeps.values())
    fitted = fit_kernel("gemm", spec, ran[["m", "n", "k", "dtype", "status", "latency_us", *CONFIG_KEYS]])
    methods = {when: predictor("gemm", spec, model) for when, model in (("before", resolve(spec, "kernel_gemm", None)), ("after", fitted))}
    found = []
    for sweep, rows in sweeps.items():
        for dtype in sorted(rows["dtype"].unique()):
            table = evaluate_ranking(read_sweeps("gemm", rows, str(dtype)), spec, methods)[0]
            ours = table[table["method"].isin(list(methods))].rename(columns={"method": "model"})
            found.append(ours.assign(sweep=sweep, dtype=dtype)[RANKING])
    table = pd.concat(found, ignore_index=True)
    whole = []
    for model, rows in table.groupby("model", sort=False):
        mean = {k: float(np.exp(np.average(np.log(rows[k]), weights=rows["shapes"]))) for k in ("@1", "@3", "@8")}
        whole.append({"sweep": "all", "dtype": "", "model": model, "shapes": rows["shapes"].sum(), **mean, "@3 max": rows["@3 max"].max()})
    return pd.concat([table, pd.DataFrame(whole)], ignore_index=True)


def read_run(path: Path) -> pd.DataFrame:
    """Rows of a run (parquet or JSON lines). Raises InputError for a file that is not there or has none."""
    import pandas as pd

    if not (rows := read(path)):
        raise InputError(f"{path}: there is no such file, or it has no rows")
    return pd.DataFrame(rows)


def of_part(run: pd.DataFrame, model_key: str, gpu: str) -> Rows:
    """The good rows that a run has of one operator."""
    own = run[(run["what"] == KIND[model_key]) & (run["status"] == "ok")].dropna(axis=1, how="all")
    if "phase" in own:
        own = own[own["phase"] == model_key.removeprefix("attention_")]
    return read_possible(model_key, own.assign(gpu=gpu))


def _scores(name: str, model_key: str, rows: Rows) -> list[dict[str, object]]:
    if len(rows) == 0:
        return [{"regime": "no shape is new", "rows": 0}]
    spec, measured = find_gpu(name), np.exp(rows.log_latency) * US_PER_S
    before, after = (predict_columns(spec, model_key, rows.columns, resolve(spec, model_key, c)) for c in (None, "auto"))
    inside = (after.low_us <= measured) & (measured <= after.high_us)
    table = []
    for low, high, label in ((0.0, np.inf, "all"), *REGIMES):
        at = (measured >= low) & (measured < high)
        if at.any():
            errors = [float(np.mean(np.abs(p.latency_us[at] / measured[at] - 1.0))) for p in (before, after)]
            row = {"regime": label, "rows": int(at.sum()), "before": errors[0], "after": errors[1], "covered": float(inside[at].mean())}
            table.append(row)
    return table


def _apart(one: Rows, other: Rows) -> float:
    """Mean |a / b - 1| of the same points in two sets of rows; NaN without any."""
    names = tuple(n for n in one.columns if n in other.columns and n not in ("skew", "stage"))
    known = dict(zip(keys(other, names).tolist(), other.log_latency.tolist(), strict=True))
    both = [(mine, known[key]) for key, mine in zip(keys(one, names).tolist(), one.log_latency.tolist(), strict=True) if key in known]
    return float(np.mean([abs(np.expm1(a - b)) for a, b in both])) if both else float("nan")


def main() -> None:
    """Print the table of one GPU, in percent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpu")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="rows of another run of that GPU")
    given = parser.parse_args()
    try:
        table = prove(given.gpu, given.rows)
    except InputError as error:
        parser.error(str(error))
    percent = ["apart", "before", "after", "covered"]
    table[percent] = (100 * table[percent]).round(1)
    print(table.to_string(index=False))
    if (shipped("data") / "gemm" / f"plain_{find_gpu(given.gpu).name}.parquet").exists():
        print(f"\n{prove_ranking(given.gpu).round(4).to_string(index=False)}")


if __name__ == "__main__":
    main()
