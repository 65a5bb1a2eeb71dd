"""How the host overheads of calibration/physics/serving.toml were chosen, and how they do on runs that had no say in them.

    python -m perfmodel.evaluate.serving_overhead trtllm --rows 40
    python -m perfmodel.evaluate.serving_overhead arrival --rows 40

Each set of values below is scored on every published run. "fitted" is the set that is best over all runs; "left out" gives each run the
set that is best over the others. Over runs the geometric mean of their mean errors counts, so that a run nothing explains does not decide.

Of a stack: step, sequence and eager layer, by the mean of |predicted / measured - 1| of TPOT, of throughput where a run has no TPOT, and
of TTFT where it has neither. Of `arrival`: how far lengths of a benchmark spread, and the way to the engine and back, one value for the
three Python servers, by TTFT of served runs with 1 to 64 requests in flight.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.evaluate.serving import KINDS, rows, score
from perfmodel.plan.overhead import US, Overhead, overhead

if TYPE_CHECKING:
    import pandas as pd

STACKS = ("vllm", "sglang", "trtllm")
ENGINE = "trtllm_engine"
ENGINE_VERSION = "0.17"  # any before 1.0: TensorRT-LLM's compiled engine
SETS = {
    **dict.fromkeys(STACKS, ((100, 20, 150), (300, 8, 150), (300, 20, 150), (300, 8, 500), (1000, 10, 300))),
    ENGINE: ((300, 3, 50), (300, 5, 50), (300, 8, 50), (600, 3, 50), (600, 5, 50), (900, 3, 50), (900, 5, 50), (900, 8, 50)),
}
"""(step, sequence, eager layer), microseconds."""
SPREADS, DELAYS = (0.02, 0.05, 0.1, 0.15, 0.2), (8, 12, 15, 20, 25)  # delays in milliseconds
MOST_IN_FLIGHT = 64


def host_of(stack: str) -> Overhead:
    """The overheads as shipped."""
    return overhead("trtllm", ENGINE_VERSION) if stack == ENGINE else overhead(stack)


def candidates(stack: str) -> dict[str, Overhead]:
    """The sets, by name."""
    usual = host_of(stack)
    return {
        f"step {step} us, sequence {sequence} us, eager layer {eager} us": dataclasses.replace(
            usual, step_s=step * US, sequence_s=sequence * US, eager_layer_s=eager * US
        )
        for step, sequence, eager in SETS[stack]
    }


def runs_of(stack: str, kinds: tuple[str, ...], per_run: int) -> pd.DataFrame:
    """At most `per_run` rows of each run of a stack; the two models of one sweep are two runs."""
    import pandas as pd

    table = rows()
    table = table[(table["stack"] == ("trtllm" if stack == ENGINE else stack)) & table["kind"].isin(kinds)]
    table = table[[overhead("trtllm" if stack == ENGINE else stack, version) == host_of(stack) for version in table["version"]]]
    groups = table.groupby(["run", "model"]) if stack in ("vllm", "sglang") else table.groupby("run")
    return pd.concat([group.sample(min(per_run, len(group)), random_state=0) for _, group in groups])


def scored(table: pd.DataFrame, figures: tuple[str, ...], **options: Any) -> pd.Series[float]:
    """Mean error of each run and model; of a row the first of the figures that it has."""
    found = score(table, **options)
    error = found[figures[0]]
    for name in figures[1:]:
        error = error.where(np.isfinite(error), found[name])
    run = found["run"] + np.where(found["run"] == "inferencex", " " + found["model"], "")
    means: pd.Series[float] = error.abs().groupby(run).mean()
    return means


def errors(stack: str, per_run: int) -> pd.DataFrame:
    """Mean error, one row a run and one column a set."""
    import pandas as pd

    table = runs_of(stack, KINDS if stack == ENGINE else ("served", "max_throughput"), per_run)
    return pd.DataFrame({name: scored(table, ("tpot", "throughput", "ttft"), host=host) for name, host in candidates(stack).items()})


def arrival_errors(per_run: int) -> pd.DataFrame:
    """The same of TTFT, one column a spread of lengths and a delay."""
    import pandas as pd

    tables = {stack: runs_of(stack, ("served",), per_run) for stack in STACKS}
    tables = {stack: table[table["concurrency"].between(1, MOST_IN_FLIGHT)] for stack, table in tables.items()}

    def of_stacks(spread: float, delay: int) -> Iterator[pd.Series[float]]:
        for stack, table in tables.items():
            host = dataclasses.replace(overhead(stack), delay_s=delay * 1e-3)
            yield scored(table, ("ttft",), host=host, spread=spread if stack != "sglang" else None)

    return pd.DataFrame(
        {f"lengths {spread:.0%}, {delay} ms": pd.concat(list(of_stacks(spread, delay))) for spread in SPREADS for delay in DELAYS}
    )


def main() -> None:
    """Print both errors of one stack, or of how requests arrive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=(*STACKS, ENGINE, "arrival"))
    parser.add_argument("--rows", type=int, default=40, help="rows of each run at most")
    arguments = parser.parse_args()
    table = arrival_errors(arguments.rows) if arguments.what == "arrival" else errors(arguments.what, arguments.rows)
    print(table.T.assign(all=np.exp(np.log(table).mean())).round(3).to_string())
    best = str(np.log(table).mean().idxmin())
    print(f"fitted: {best}: geometric mean over runs {np.exp(np.log(table[best]).mean()):.3f}")
    missed = []
    for run, own in table.iterrows():
        rest = table.drop(index=[run])
        others = str(np.log(rest).mean().idxmin()) if len(rest) else best
        missed.append(float(own[others]))
        print(f"left out {run}: {missed[-1]:.3f} with {others} (fitted {float(own[best]):.3f})")
    print(f"left out: geometric mean over runs {np.exp(np.mean(np.log(missed))):.3f}")


if __name__ == "__main__":
    main()
