"""How far two stacks are apart on the same operators of one GPU: below this no answer gets that does not know the stack."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.fit.operator_models import load
from perfmodel.ops import names

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 20  # operators that both measured


def apart(what: str, only: str | None = None) -> pd.DataFrame:
    """A row a GPU and pair of stacks: operators measured by both, median ratio of their latencies, and mean deviation from it, percent."""
    import pandas as pd

    rows = load(what)
    kept = [name for name in rows.columns if name not in ("stack", "kernel")]
    found = []
    for gpu in [only] if only else rows.gpus:
        own = rows.take(rows.gpu == gpu)
        frame = pd.DataFrame({name: own.columns[name] for name in kept})
        frame["of_stack"], frame["log"] = own.columns["stack"], own.log_latency
        table = frame.groupby([*kept, "of_stack"], dropna=False)["log"].median().unstack()
        for one, other in itertools.combinations(table.columns, 2):
            ratio = (table[one] - table[other]).dropna()
            if len(ratio) >= FEWEST:
                pair = [names.STACKS[int(code)] for code in (one, other)]
                middle = float(ratio.median())
                spread = float(np.abs(np.expm1(ratio - middle)).mean())
                found.append({"operator": what, "gpu": gpu, "stacks": " / ".join(pair), "operators": len(ratio),
                              "ratio": round(float(np.exp(middle)), 3), "apart_percent": round(100 * spread, 1)})  # fmt: skip
    return pd.DataFrame(found, columns=["operator", "gpu", "stacks", "operators", "ratio", "apart_percent"])
