"""How good the operator models are, split by whole GPUs and whole shapes, beside two baselines.

    python -m perfmodel.calibrate.evaluate_operators gemm --mode left-out
    python -m perfmodel.calibrate.evaluate_operators gemm --mode table --rows 200

left-out: the shipped model that never saw the GPU. table: that model corrected with N rows of half of the shapes, scored on the other half.
shipped: the GPU's own calibration; its rows were seen, so only its card's held-out error counts, which this mode prints beside.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from perfmodel.calibrate.build_operators import load
from perfmodel.calibrate.operators import Rows, sample, shape_folds
from perfmodel.calibrate.table import correct
from perfmodel.hw import gpu as find_gpu
from perfmodel.learn.operators import operator_model, predict_columns
from perfmodel.library import names
from perfmodel.library.columns import take
from perfmodel.library.registry import MODELS
from perfmodel.ops.attention import visited_pairs
from perfmodel.ops.memory import TRAFFIC

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.learn.model import FittedModel

Floats = npt.NDArray[np.float64]
MODES = ("left-out", "table", "shipped")
REGIMES = ((0.0, 10.0, "under 10 us"), (10.0, 100.0, "10 to 100 us"), (100.0, np.inf, "over 100 us"))


def work_of(what: str, columns: dict[str, Floats]) -> tuple[Floats, Floats]:
    """(flops, compulsory bytes) of each row, for the baselines."""
    code = columns["dtype"].astype(np.intp)
    a, b = names.A_BYTES[code], names.B_BYTES[code]
    if what.startswith("gemm"):
        m, n, k = columns["m"], columns["n"], columns["k"]
        return 2 * m * n * k, m * k * a + n * k * b + m * n * 2.0
    if what.startswith("attention"):
        kv = names.A_BYTES[columns["kv_dtype"].astype(np.intp)]
        pairs = visited_pairs(columns["q_len"], columns["kv_len"], columns["window"])
        keys = np.where(columns["window"] > 0, np.minimum(columns["kv_len"], columns["window"] + columns["q_len"]), columns["kv_len"])
        moved = columns["q_len"] * columns["q_heads"] * 4.0 + 2.0 * keys * columns["kv_heads"] * kv
        return 4 * columns["batch"] * columns["q_heads"] * columns["head_dim"] * pairs, columns["batch"] * columns["head_dim"] * moved
    if what.startswith("moe"):
        rows = columns["tokens"] * columns["top_k"] / columns["ep"]
        matrices = (
            columns["hidden"]
            * columns["inter"]
            / columns["tp"]
            * np.select([columns["stage"] == 1, columns["stage"] == 2], [1.0 + columns["gated"], 1.0], 2.0 + columns["gated"])
        )
        touched = np.minimum(columns["num_experts"] / columns["ep"], rows)
        return 2 * rows * matrices, touched * matrices * b + rows * columns["hidden"] * 2.0
    if what.startswith("mla"):
        kv = names.A_BYTES[columns["kv_dtype"].astype(np.intp)]
        pairs = visited_pairs(columns["q_len"], columns["kv_len"])
        width = 1088.0 if what == "mla_decode" else 320.0
        return 2 * columns["batch"] * columns["num_heads"] * pairs * width, columns["batch"] * columns["kv_len"] * 576.0 * kv
    traffic = np.array([read + written for read, written, _ in TRAFFIC.values()])
    elements = columns["tokens"] * columns["hidden"]
    return elements, elements * a * traffic[columns["kind"].astype(np.intp)]


def baselines(name: str, what: str, columns: dict[str, Floats]) -> tuple[Floats, Floats]:
    """Microseconds of the bare roofline, and of max(flops / peak, bytes / (0.8 bandwidth)) + 3 us."""
    spec = find_gpu(name)
    flops, moved = work_of(what, columns)
    rate = names.tensor_rates(spec, columns["dtype"].astype(np.intp))
    roof = np.maximum(flops / rate, moved / spec.dram_bytes_per_s)
    two = np.maximum(flops / rate, moved / (0.8 * spec.dram_bytes_per_s)) + 3e-6
    return roof * 1e6, two * 1e6


def evaluate(what: str, mode: str = "left-out", rows_given: int = 200, per_gpu: int = 8000, only: str | None = None) -> pd.DataFrame:
    """One row a GPU, stack, dtype and regime: n, mean, median and 90th percentile of |predicted / measured - 1|, coverage, baselines."""
    import pandas as pd

    rows = load(what)
    pieces = []
    for name in rows.gpus if only is None else [only]:
        own = rows.take(rows.gpu == name)
        spec, model = find_gpu(name), operator_model(find_gpu(name), what, "auto" if mode == "shipped" else None)
        if mode == "table":
            train, held = shape_folds(own, 2)[0]
            given = sample(own.take(train), rows_given)
            model, own = correct(spec, given, model), own.take(held)
        pieces.append(_scored(name, sample(own, per_gpu), model))
    return pd.concat(pieces, ignore_index=True)


def _scored(name: str, rows: Rows, model: FittedModel) -> pd.DataFrame:
    import pandas as pd

    columns = dict(take(rows.columns, slice(None)))
    found = predict_columns(find_gpu(name), rows.what, columns, model)
    measured = np.exp(rows.log_latency) * 1e6
    roof, two = baselines(name, rows.what, columns)
    regime = np.select([measured < high for _, high, _ in REGIMES[:-1]], [label for *_, label in REGIMES[:-1]], REGIMES[-1][2])
    return pd.DataFrame(
        {
            "gpu": name,
            "stack": np.array(names.STACKS)[columns["stack"].astype(np.intp)],
            "dtype": np.array(names.DTYPES)[columns["dtype"].astype(np.intp)],
            "regime": regime,
            "error": np.abs(found.latency_us / measured - 1),
            "covered": (measured >= found.low_us) & (measured <= found.high_us),
            "roofline": np.abs(roof / measured - 1),
            "two_constants": np.abs(two / measured - 1),
        }
    )


def summary(scored: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Percent, by the columns named."""
    import pandas as pd

    grouped = scored.groupby(by, observed=True)
    error = grouped["error"]
    table = pd.DataFrame({"n": error.size(), "mean": error.mean(), "median": error.median(), "p90": error.quantile(0.9)})
    for column in ("covered", "roofline", "two_constants"):
        table[column] = grouped[column].mean()
    percent = [column for column in table.columns if column != "n"]
    table[percent] = (100 * table[percent]).round(1)
    return table


def main() -> None:
    """Print the tables of one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=sorted(MODELS))
    parser.add_argument("--mode", choices=MODES, default="left-out")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--by", default="gpu", help="comma-separated: gpu, stack, dtype, regime")
    arguments = parser.parse_args()
    print(summary(evaluate(arguments.what, arguments.mode, arguments.rows), arguments.by.split(",")).to_string())


if __name__ == "__main__":
    main()
