"""Figures that no verb of the command line prints as rows: `python docs/tools/figures.py NAME --json`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from perfmodel._resources import shipped
from perfmodel.evaluate.holdout_report import prove, prove_ranking
from perfmodel.evaluate.memory import compare_logs
from perfmodel.evaluate.ranking import over_library

GPU = "h200_sxm"
LIBRARIES = (("gemm", "bf16"), ("gemm", "fp8"), ("attention_prefill", None), ("attention_decode", None))
Rows = list[dict[str, Any]]


def library() -> Rows:
    """Best latency of the project's own kernels over the vendor library's on the same shape, in the exhaustive sweeps."""
    rows = []
    for family, dtype in LIBRARIES:
        frame = pd.read_parquet(shipped("data") / family / f"evaluation_{GPU}.parquet")
        frame = frame if dtype is None else frame[frame["dtype"] == dtype]
        for name, ratio in over_library(family, frame).items():
            figures = {"geometric mean": np.exp(np.log(ratio).mean()), "median": np.median(ratio), "p90": np.quantile(ratio, 0.9)}
            about = {"kernel": family, "dtype": dtype or "bf16", "library": name, "shapes": len(ratio)}
            rows.append(about | {key: float(value) for key, value in figures.items()} | {"worst": float(ratio.max())})
    return rows


def tune() -> Rows:
    """One row: how long `pm.tune` took on a real GPU, and its choice over the best config of the exhaustive sweep."""
    chosen = pd.read_csv(shipped("data") / "gemm" / f"tune_{GPU}.csv")
    sweep = pd.read_parquet(shipped("data") / "gemm" / f"evaluation_{GPU}.parquet")
    sweep = sweep[(sweep["status"] == "ok") & (sweep["variant"] != "cublas")]
    keys = ["dtype", "m", "n", "k"]
    config = ["variant", "block_m", "block_n", "block_k", "group_m", "split_k", "num_warps", "num_stages"]
    best = sweep.groupby(keys)["latency_us"].min().rename("best_us").reset_index()
    both = chosen.merge(best, on=keys).merge(sweep[[*keys, *config, "latency_us"]], on=[*keys, *config], suffixes=("", "_in_sweep"))
    ratio = both["latency_us_in_sweep"] / both["best_us"]
    seconds = {"least s": chosen["wall_s"].min(), "most s": chosen["wall_s"].max(), "asked again s": chosen["again_s"].max()}
    close = {"within 0.3 %": int((ratio <= 1.003).sum()), "within 2 %": int((ratio <= 1.02).sum()), "worst": ratio.max()}
    return [{"shapes": len(both), **{name: float(value) for name, value in (seconds | close).items()}}]


def memory_logs() -> Rows:
    """Errors of the memory ledger: on all start-up logs, and on those that no constant was set with (role check)."""
    found, rows = compare_logs(), []
    for role, part in (("all logs", found), ("logs that no constant was set with", found[found["role"] == "check"])):
        for name in ("weights", "kv"):
            error = part[f"{name}_error_percent"].abs().dropna()
            figures = {"mean": error.mean(), "median": error.median(), "worst": error.max()}
            rows.append({"logs": role, "part": name, "count": len(error), **{key: float(value) for key, value in figures.items()}})
    return rows


def proof() -> Rows:
    """The shipped two-minute calibration on rows that were measured apart from it."""
    return records(prove(GPU))


def proof_ranking() -> Rows:
    """How the run's own Triton configs rank exhaustive sweeps."""
    return records(prove_ranking(GPU))


def records(frame: pd.DataFrame) -> Rows:
    """Rows for JSON: numbers that JSON lacks become null."""
    rows: Rows = json.loads(frame.to_json(orient="records"))
    return rows


FIGURES: dict[str, Callable[[], Rows]] = {
    "over-library": library,
    "tune": tune,
    "memory-logs": memory_logs,
    "proof": proof,
    "proof-ranking": proof_ranking,
}


def main() -> None:
    """Print the rows of one figure as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=FIGURES)
    parser.add_argument("--json", action="store_true", help="as every verb has it; there is no other format")
    print(json.dumps(FIGURES[parser.parse_args().name](), indent=1))


if __name__ == "__main__":
    main()
