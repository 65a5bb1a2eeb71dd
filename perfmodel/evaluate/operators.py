"""How good the operator models are, split by whole GPUs and whole shapes, beside two baselines. `perfmodel evaluate operators` prints it.

left-out: the shipped model that never saw the GPU. shapes: a model of the GPU's own rows, scored on a fifth of its shapes, unseen.
table: the left-out model corrected with N rows of half of the shapes, scored on the other half; stack-table: the same for each stack
alone, as somebody corrects the one that is in use. interpolated: no model, but all rows of that half, on the rows that stack-table scores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from perfmodel.calibrate.operator_rows import Rows, sample
from perfmodel.calibrate.operators import shape_folds
from perfmodel.calibrate.table import correct
from perfmodel.errors import InputError, unknown_name
from perfmodel.evaluate import interpolation_baseline as floor
from perfmodel.fit.operator_models import CALIBRATED, OWN_MIN_ROWS, load
from perfmodel.fit.trees import OWN_ROWS, fit_tree
from perfmodel.hw import gpu as find_gpu
from perfmodel.learn.calibration import resolve
from perfmodel.learn.operators import predict_columns
from perfmodel.ops import OperatorTable, names
from perfmodel.units import US_PER_S

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.learn.model import FittedModel

Floats = npt.NDArray[np.float64]
TABLE, STACK_TABLE, INTERPOLATED = "table", "stack-table", "interpolated"
MODES = ("left-out", "shapes", TABLE, STACK_TABLE, INTERPOLATED)
BY = ("operator", "gpu", "stack", "dtype", "regime")
SMALL_M = 64  # rows of a GEMM up to which a decode step is one: a regime of its own beside the ones by latency
REGIMES = ((0.0, 10.0, "under 10 us"), (10.0, 100.0, "10 to 100 us"), (100.0, np.inf, "over 100 us"))


def baselines(name: str, columns: OperatorTable) -> tuple[Floats, Floats]:
    """Microseconds of the bare roofline, and of max(flops / peak, bytes / (0.8 bandwidth)) + 3 us."""
    spec = find_gpu(name)
    needed = columns.work()
    flops, moved = np.asarray(needed.flops), np.asarray(needed.bytes)
    rate = names.tensor_rates(spec, columns["dtype"].astype(np.intp))
    roof = np.maximum(flops / rate, moved / spec.dram_bytes_per_s)
    two = np.maximum(flops / rate, moved / (0.8 * spec.dram_bytes_per_s)) + 3e-6
    return roof * 1e6, two * 1e6


def evaluate(
    model_key: str,
    mode: str = "left-out",
    rows_given: int = 200,
    per_gpu: int = 8000,
    only: str | None = None,
    progress: Callable[[str, int, int], None] = lambda model_key, done, total: None,
) -> pd.DataFrame:
    """One row a measured row: operator, GPU, stack, dtype, regime, |predicted / measured - 1|, whether covered, the baselines' errors.

    Mode interpolated has no interval but, beside its error, that of the rows inside of the table, the roughness of the table (error of
    each row by its neighbours) and how far another stack is from it.
    Raises InputError for an unknown mode, a GPU without rows of `what`, or a mode that no GPU has enough rows for.
    """
    import pandas as pd

    if mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    rows = load(model_key)
    if only is not None and only not in rows.gpus:
        raise InputError(f"no measured {model_key} rows of {only}: there are some of {', '.join(rows.gpus)}")
    wanted = rows.gpus if only is None else [only]
    if mode == "shapes":
        wanted = [name for name in wanted if name in CALIBRATED and (rows.gpu == name).sum() >= OWN_MIN_ROWS]
    if not wanted:
        raise InputError(f"mode shapes needs a GPU calibrated on {OWN_MIN_ROWS} rows or more: {only or 'none'} is not for {model_key}")
    pieces = []
    for i, name in enumerate(wanted):
        progress(f"{model_key}, {mode}, {name}", i, len(wanted))
        of_gpu = rows.take(rows.gpu == name)
        stack = of_gpu.columns["stack"] if mode in (STACK_TABLE, INTERPOLATED) else np.zeros(len(of_gpu))
        parts = [of_gpu.take(stack == code) for code in np.unique(stack)]
        for part in parts:
            if mode == INTERPOLATED:
                train, held = shape_folds(part, 2)[0]
                pieces.append(_interpolated(name, of_gpu, part.take(train), sample(part.take(held), per_gpu // len(parts))))
                continue
            model, own = _model_and_rows(name, part, mode, rows_given)
            pieces.append(_scored(name, sample(own, per_gpu // len(parts)), model))
    return pd.concat(pieces, ignore_index=True)


def _model_and_rows(name: str, own: Rows, mode: str, rows_given: int) -> tuple[FittedModel, Rows]:
    """The model to judge and rows that it has not seen."""
    spec = find_gpu(name)
    if mode == "shapes":
        shipped, (train, held) = resolve(spec, own.model_key, "auto"), shape_folds(own, 5)[0]
        fitted = fit_tree(sample(own.take(train), OWN_ROWS))
        return dataclasses.replace(fitted, card={**fitted.card, "half_widths": shipped.card["half_widths"]}), own.take(held)
    model = resolve(spec, own.model_key, None)
    if mode in (TABLE, STACK_TABLE):
        train, held = shape_folds(own, 2)[0]
        return correct(spec, sample(own.take(train), rows_given), model), own.take(held)
    return model, own


def _scored(name: str, rows: Rows, model: FittedModel) -> pd.DataFrame:
    found = predict_columns(find_gpu(name), rows.model_key, rows.columns, model)
    measured = np.exp(rows.log_latency) * US_PER_S
    return _facts(name, rows).assign(
        error=np.abs(found.latency_us / measured - 1),
        covered=(measured >= found.low_us) & (measured <= found.high_us),
        answered=np.isfinite(found.latency_us) & (found.latency_us > 0),
    )


def _interpolated(name: str, of_gpu: Rows, table: Rows, rows: Rows) -> pd.DataFrame:
    found, outside = floor.interpolated(table, rows)
    error = np.abs(np.expm1(found - rows.log_latency))
    return _facts(name, rows).assign(
        error=error,
        inside=np.where(outside, np.nan, error),
        outside=outside,
        neighbours=floor.between_neighbours(of_gpu, rows),
        other_stack=floor.other_stacks(of_gpu, rows),
        answered=np.isfinite(found),
    )


def _facts(name: str, rows: Rows) -> pd.DataFrame:
    """What a row is, and the baselines' errors."""
    import pandas as pd

    columns = rows.columns
    measured = np.exp(rows.log_latency) * US_PER_S
    roof, two = baselines(name, columns)
    regime = np.select([measured < high for _, high, _ in REGIMES[:-1]], [label for *_, label in REGIMES[:-1]], REGIMES[-1][2])
    return pd.DataFrame(
        {
            "operator": rows.model_key,
            "gpu": name,
            "stack": np.array(names.STACKS)[columns["stack"].astype(np.intp)],
            "dtype": np.array(names.DTYPES)[columns["dtype"].astype(np.intp)],
            "regime": regime,
            "roofline": np.abs(roof / measured - 1),
            "two_constants": np.abs(two / measured - 1),
            "small_m": columns["m"] <= SMALL_M if "m" in columns else False,
        }
    )


def summary(scored: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Percent, by the columns named (of BY); with regime also GEMMs of at most SMALL_M rows, which the regimes by latency count too."""
    import pandas as pd

    unknown = [name for name in by if name not in BY]
    if unknown or not by:
        raise unknown_name("column", unknown[0] if unknown else "", BY)
    if "regime" in by:
        scored = pd.concat([scored, scored[scored["small_m"]].assign(regime=f"m <= {SMALL_M}")])
    grouped = scored.groupby(list(by), observed=True)
    error = grouped["error"]
    table = pd.DataFrame({"rows": error.size(), "mean": error.mean(), "median": error.median(), "p90": error.quantile(0.9)})
    for column in ("inside", "outside", "neighbours", "other_stack", "covered", "answered", "roofline", "two_constants"):
        if column in scored:
            table[column] = grouped[column].mean()
    percent = [column for column in table.columns if column != "rows"]
    table[percent] = (100 * table[percent]).round(1)
    return table.reset_index()
