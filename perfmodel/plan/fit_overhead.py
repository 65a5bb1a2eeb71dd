"""How the host overheads of calibration/physics/serving.toml were chosen, and how they do on runs that had no say in them.

    python -m perfmodel.plan.fit_overhead trtllm --rows 40

Each set of values below is scored on every published run of the stack. "fitted" is the set that is best over all runs; "left out" gives
each run the set that is best over the others. The score is the mean of |predicted / measured - 1| of TPOT, and of throughput where a run
has no TPOT; over runs its geometric mean counts, so that a run nothing explains does not decide.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.plan.evaluate_serving import rows, score
from perfmodel.plan.overhead import US, Overhead, overhead

if TYPE_CHECKING:
    import pandas as pd

SETS = ((100, 20, 150), (300, 8, 150), (300, 20, 150), (300, 8, 500), (1000, 10, 300))
"""(step, sequence, eager layer), microseconds."""


def candidates(stack: str) -> dict[str, Overhead]:
    """The sets, by name."""
    usual = overhead(stack)
    return {
        f"step {step} us, sequence {sequence} us, eager layer {eager} us": dataclasses.replace(
            usual, step_s=step * US, sequence_s=sequence * US, eager_layer_s=eager * US
        )
        for step, sequence, eager in SETS
    }


def errors(stack: str, per_run: int) -> pd.DataFrame:
    """Mean error, one row a run and one column a set."""
    import pandas as pd

    table = rows()
    table = table[(table["stack"] == stack) & table["kind"].isin(["served", "max_throughput"])]
    table = table[[overhead(stack, version) == overhead(stack) for version in table["version"]]]  # not TensorRT-LLM's compiled engine
    table = pd.concat([g.sample(min(per_run, len(g)), random_state=0) for _, g in table.groupby("run")])
    found = {}
    for name, host in candidates(stack).items():
        scored = score(table, host=host)
        error = scored["tpot"].where(np.isfinite(scored["tpot"]), scored["throughput"]).abs()
        found[name] = error.groupby(scored["run"]).mean()
    return pd.DataFrame(found)


def main() -> None:
    """Print both errors of one stack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stack", choices=("vllm", "sglang", "trtllm"))
    parser.add_argument("--rows", type=int, default=40, help="rows of each run at most")
    arguments = parser.parse_args()
    table = errors(arguments.stack, arguments.rows)
    print(table.round(3).to_string())
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
