"""How far the collectives model is off on what its fit did not see: whole message sizes, four GPUs, whole GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from perfmodel._resources import measured_table
from perfmodel.analytic.constants import constant_values
from perfmodel.errors import InputError, NoAnswerError, unknown_name
from perfmodel.fit.collective_models import MEASURED, shipped_rows
from perfmodel.hw import gpu as find_gpu
from perfmodel.learn.calibration import resolve
from perfmodel.learn.collective_fit import Z80, Rows, fit_constants, held_out_errors, read_rows, sigmas
from perfmodel.learn.intervals import OUTSIDE, group_folds
from perfmodel.library.collective import LAW
from perfmodel.ops.collective import bus_factor

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
MODES = ("seen", "sizes", "counts", "gpus", "spec")
WAITING = ("vidur",)  # sources whose small rows are dominated by waiting for the slowest rank
STREAMING_BYTES = 2**22  # from here on waiting is a small part of them
REGIMES = ((0, "latency, up to 64 KiB"), (2**16 + 1, "middle, to 4 MiB"), (2**22 + 1, "bandwidth, above 4 MiB"))


def evaluate(
    tables: Mapping[str, Rows],
    mode: str,
    other: Mapping[str, Rows] | None = None,
    folds: int = 5,
    seed: int = 0,
    rest: Mapping[str, Rows] | None = None,
    spec: Mapping[str, Mapping[str, float]] | None = None,
) -> pd.DataFrame:
    """Errors by GPU, n_gpus, stack and regime, for one way of leaving rows out.

    seen: nothing left out; sizes: whole message sizes, `folds` at a time; counts: the fit on `tables`, scored on the rows of `other`
    with a number of GPUs that it never saw; gpus: every GPU by a fit to the other ones (of `rest`, default `tables`); spec: constants
    fitted without that GPU, given in `spec`, else the laws' own. Columns: n, mean, median and p90 of |predicted / measured - 1|, that
    of the bare link bandwidth (`baseline`), and the share of rows inside the 80 % interval (`coverage`). Raises NoAnswerError when no
    row is left to score.
    """
    import pandas as pd

    if mode not in MODES:
        raise unknown_name("mode of evaluation", mode, MODES)
    pieces = []
    for name, rows in tables.items():
        others = [t for n, t in (rest or tables).items() if n != name]
        if mode == "sizes":
            for train, held in group_folds(rows.sizes, folds, seed):
                pieces.append(_scored(rows.take(held), _fitted([rows.take(train)])))
        elif mode == "counts":
            unseen = (other or {}).get(name)
            if unseen is not None:
                seen = set(np.unique(rows.columns["n_gpus"]))
                left_out = unseen.take(np.array([n not in seen for n in unseen.columns["n_gpus"]]))
                pieces.append(_scored(left_out, _fitted([rows]), OUTSIDE))
        else:
            own = constant_values(LAW, (spec or {}).get(name))
            constants = own if mode == "spec" else _fitted([rows] if mode == "seen" else others)
            pieces.append(_scored(rows, constants))
    scored = [p for p in pieces if len(p)]
    if not scored:
        raise NoAnswerError(f"no row of {', '.join(tables)} can be scored with {mode} left out: choose one of {', '.join(MODES)}")
    return summary(pd.concat(scored, ignore_index=True), ["gpu", "stack", "n_gpus", "regime"])


def summary(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Errors of scored rows, grouped, with a last line over all of each GPU and stack."""
    import pandas as pd

    total = rows.assign(n_gpus="all", regime="all")
    both = pd.concat([rows.astype({"n_gpus": object}), total], ignore_index=True)
    grouped = both.groupby(list(by), sort=False)
    return grouped.agg(
        n=("error", "size"),
        mean=("error", "mean"),
        median=("error", "median"),
        p90=("error", lambda e: float(np.quantile(e, 0.9))),
        baseline=("baseline", "mean"),
        coverage=("inside", "mean"),
    ).reset_index()


def _fitted(tables: Sequence[Rows]) -> dict[str, float]:
    """Constants of a fit, with interval widths from what is left out of it in turn: sizes of one GPU, or each of several GPUs."""
    if len(tables) == 1:
        widths = [sigmas(tables[0], held_out_errors(tables[0], None, 3, 1))]
    else:
        widths = [sigmas(t, t.errors(fit_constants([u for u in tables if u is not t]))) for t in tables]
    return {**fit_constants(tables), **{n: float(np.mean([w[n] for w in widths])) for n in widths[0]}}


def _scored(rows: Rows, constants: Mapping[str, float], widening: float = 1.0) -> pd.DataFrame:
    import pandas as pd

    terms = rows.terms(constants)
    log_error = rows.log_latency - np.log(terms.latency_s)
    message, n = rows.columns["message_bytes"], rows.columns["n_gpus"]
    measured = np.exp(rows.log_latency)
    kinds = np.asarray(rows.columns["kind"], dtype=str)
    factor = np.array([float(bus_factor(k, g)) for k, g in zip(kinds, n, strict=True)])
    wire = max(rows.gpu.nvlink_bytes_per_s, rows.gpu.pcie_bytes_per_s)
    stack = rows.columns.get("stack", np.full(len(rows), "nccl", dtype=object))
    regime = np.array([name for _, name in REGIMES], dtype=object)[np.searchsorted([low for low, _ in REGIMES], message, side="right") - 1]
    return pd.DataFrame(
        {
            "gpu": rows.gpu.name,
            "stack": stack,
            "n_gpus": n.astype(int),
            "regime": regime,
            "error": np.abs(np.exp(-log_error) - 1),
            "baseline": np.abs(factor * message / wire / measured - 1),
            "inside": np.abs(log_error) <= Z80 * widening * terms.log_sigma,
        }
    )


def evaluate_shipped(left_out: str = "sizes", gpu: str | None = None) -> pd.DataFrame:
    """Errors on the committed rows: see `evaluate`; `none` leaves nothing out.

    `counts` is judged on public rows of one machine; of those whose time holds waiting for the slowest rank, the large messages.
    Columns gpu, source (stack), n_gpus, regime, n, mean, median, p90, baseline, coverage.
    """

    mode = "seen" if left_out == "none" else left_out
    tables = {name: read_rows(find_gpu(name), frame) for name, frame in shipped_rows().items()}
    if gpu is not None and find_gpu(gpu).name not in tables:
        raise InputError(f"no committed rows of collectives on {find_gpu(gpu).name}: there are {', '.join(tables)}")
    other = measured_table("collectives_other.parquet")
    other = other[(other["nodes"] == 1) & (~other["source"].isin(WAITING) | (other["message_bytes"] >= STREAMING_BYTES))]
    more = {str(name): read_rows(find_gpu(str(name)), rows) for name, rows in other.groupby("gpu") if name in tables}
    asked = [find_gpu(gpu).name] if gpu is not None else list(tables)
    spec = {name: resolve(find_gpu(name), "collective", None).constants for name in asked}
    rest = {name: tables[name] for name in MEASURED}
    return evaluate({name: tables[name] for name in asked}, mode, more, rest=rest, spec=spec).rename(columns={"stack": "source"})
