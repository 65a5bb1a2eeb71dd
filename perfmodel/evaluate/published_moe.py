"""How high fused-MoE configs that others found best stand in the ranking: no measured row of theirs is in any fit.

Near-best (data/fused_moe/near_best.parquet): configs within 1 % of the best, or in the first three, of a public sweep on four GPUs.
Rows were dealt out evenly there, and the first projection alone was launched over and over without a flush: where its weights fit in L2
it ran from there (on L40 at 4.1 to 4.6 TB/s up to 96 MiB of weights, at 0.9 with 126: its DRAM gives 0.86). The ranking is therefore
asked for a replayed projection; and again for cold weights, as a layer is served, whose figures are given beside.
Tuned (data/fused_moe/tuned.parquet): what users of vLLM and SGLang tuned and ship, by number of experts, width and tokens; hidden size
and experts a token are those of USUAL models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel._resources import measured_table
from perfmodel.hw import gpu as find_gpu
from perfmodel.kernels.fused_moe import COLUMNS
from perfmodel.learn.calibration import CalibrationLike
from perfmodel.ops import MoE
from perfmodel.tune.rank import COLD, Ranking, rank

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[str, int, int], None]
FIRST = 8
REPLAYED = "projection"  # in the published runs
PROBLEM = ("gpu", "num_experts", "top_k", "hidden", "inter", "tokens")
USUAL = {
    8: (4096, 2), 16: (5120, 1), 32: (2880, 4), 62: (4096, 8), 64: (2048, 8), 72: (4096, 8), 128: (4096, 8), 256: (7168, 8), 257: (7168, 9),
    512: (2048, 10),
}  # fmt: skip
"""Hidden size and experts a token of public models with that many experts."""


def near_best(
    *, every: int = 1, calibration: CalibrationLike = None, progress: Progress | None = None, replayed: str = REPLAYED
) -> pd.DataFrame:
    """One row a problem (every n-th of them): gpu, tokens, rows an expert, warm, and whether a near-best config is in the first FIRST.

    `hit` is of the best predicted, `shortlist` of those that tuning would time (Ranking.shortlist); `place` of the first near-best one.
    `replayed` is what the ranking is asked for ("nothing": cold weights); `warm` says that what was replayed fits in L2.
    """
    import pandas as pd

    frame = measured_table("fused_moe/near_best.parquet")
    problems = list(frame.groupby(list(PROBLEM)))[::every]
    found: list[dict[str, Any]] = []
    for done, (label, rows) in enumerate(problems, start=1):
        key: Any = label
        gpu = str(key[0])
        experts, top_k, hidden, inter, tokens = (int(v) for v in key[1:])
        ranking = rank(MoE(tokens, hidden, inter, experts, top_k), gpu, calibration=calibration, replayed=replayed)
        good = _in(ranking, rows)
        at = np.flatnonzero(good[ranking.order])
        touched_bytes = min(tokens * top_k, experts) * 2 * inter * hidden * 2
        found.append(
            {
                **dict(zip(PROBLEM, (gpu, experts, top_k, hidden, inter, tokens), strict=True)),
                "rows_an_expert": tokens * top_k / experts,
                "warm": bool(touched_bytes < ranking.gpu.l2_bytes),
                "place": int(at[0]) + 1 if len(at) else None,
                "configs": len(ranking),
                "hit": bool(good[ranking.order[:FIRST]].any()),
                "shortlist": bool(good[ranking.shortlist(FIRST)].any()),
            }
        )
        if progress:
            progress("near-best", done, len(problems))
    return pd.DataFrame(found)


def tuned(*, every: int = 1, calibration: CalibrationLike = None, progress: Progress | None = None) -> pd.DataFrame:
    """One row a shipped config (every n-th): gpu, dtype, place in the ranking over its length, and the model's time over its first's.

    Tokens choose experts at random, as in those projects' tuning scripts. A config that the rules prune has place 1 and no time.
    """
    import pandas as pd

    frame = measured_table("fused_moe/tuned.parquet").iloc[::every]
    found: list[dict[str, Any]] = []
    for done, row in enumerate(frame.to_dict("records"), start=1):
        hidden, top_k = USUAL[int(row["num_experts"])]
        sizes = (int(row["tokens"]), hidden, int(row["inter"]), int(row["num_experts"]), top_k)
        ranking = rank(MoE(*sizes, dtype=str(row["dtype"]), distribution="random"), str(row["gpu"]), calibration=calibration)
        at = np.flatnonzero(_in(ranking, pd.DataFrame([row]))[ranking.order])
        latency = ranking.predictions.latency_us[ranking.order]
        found.append(
            {
                "gpu": find_gpu(str(row["gpu"])).name,
                "dtype": row["dtype"],
                "tokens": sizes[0],
                "place": at[0] / len(ranking) if len(at) else 1.0,
                "slower": latency[at[0]] / latency[0] - 1.0 if len(at) else np.nan,
            }
        )
        if progress:
            progress("tuned", done, len(frame))
    return pd.DataFrame(found)


def summary(problems: Mapping[str, pd.DataFrame], configs: pd.DataFrame) -> list[dict[str, Any]]:
    """One row a GPU of the near-best problems and one over all, for each `replayed` they were asked with; then one a GPU and dtype of the
    tuned configs. None where not asked."""
    rows: list[dict[str, Any]] = []
    blank = dict.fromkeys(
        ("first 8", "shortlist of 8", "fit in L2", "beyond L2: first 8", "beyond L2: shortlist", "place", "slower", "pruned")
    )
    for replayed, asked in problems.items():
        for label, part in [*asked.groupby("gpu"), ("all", asked)]:
            large = part[~part["warm"]]
            found = {"first 8": part["hit"].mean(), "shortlist of 8": part["shortlist"].mean(), "fit in L2": int(part["warm"].sum())}
            found |= {"beyond L2: first 8": large["hit"].mean(), "beyond L2: shortlist": large["shortlist"].mean()}
            about = {"table": "near-best", "gpu": str(label), "dtype": "bf16", "replayed": replayed, "count": len(part)}
            rows.append({**about, **blank, **found})
    for (gpu, dtype), part in configs.groupby(["gpu", "dtype"]):
        found = {"place": part["place"].median(), "slower": part["slower"].median(), "pruned": (part["place"] >= 1.0).mean()}
        about = {"table": "tuned", "gpu": str(gpu), "dtype": str(dtype), "replayed": COLD, "count": len(part)}
        rows.append({**about, **blank, **found})
    return rows


def _in(ranking: Ranking, rows: pd.DataFrame) -> Any:
    """Which of the ranking's configs are among the rows."""
    good = {tuple(map(int, r)) for r in rows[list(COLUMNS)].to_numpy()}
    columns = [ranking.configs[name].tolist() for name in COLUMNS]
    return np.array([c in good for c in zip(*columns, strict=True)])
