"""Rows that a passing disturbance slowed down: longer than the same operator at every next larger size. A model should not learn them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
GROWS: Mapping[str, tuple[str, ...]] = {
    "attention": ("batch", "q_len", "kv_len", "q_heads"),
    "mla": ("batch", "q_len", "kv_len", "num_heads"),
    "memory": ("tokens", "hidden"),
}
"""Sizes that an operator's time grows with, kernels chosen by the way aside; q_len grows with the keys before it unchanged."""
SLOWER = 1.4  # times the latency of each neighbour
SLOW, SLOW_SPREADS = 0.5, 4.5  # a row is a slow run this far above its kind, in log latency and in median absolute deviations
SLOW_MOST, SLOW_KIND = 0.3, 8  # unless that many of its kind are, or the kind has fewer rows
FEWEST = 2  # larger neighbours: one alone may be the first size of a faster kernel


def outliers(kind: str, columns: Mapping[str, Floats], gpu: npt.NDArray[np.str_], log_latency: Floats) -> npt.NDArray[np.bool_]:
    """Rows over SLOWER times as long as each neighbour: the next size up (FEWEST or more) or down of one of GROWS, all else equal.

    A slow kernel is no disturbance: its smaller neighbours run it too and take nearly as long. All False for kinds without an entry.
    """
    import pandas as pd

    if kind not in GROWS or not len(log_latency):
        return np.zeros(len(log_latency), dtype=bool)
    frame = pd.DataFrame({**columns, "gpu": gpu}).fillna(-1.0)
    if "q_len" in frame:
        frame["before"] = frame["kv_len"] - frame["q_len"]
    columns_of = [str(name) for name in frame.columns]
    least = np.full(len(frame), np.inf)  # by how much a row is slower than the neighbour next to it in latency
    neighbours = np.zeros(len(frame), dtype=int)
    for size in GROWS[kind]:
        moves = {"q_len": "kv_len", "kv_len": "before"}.get(size)
        same = [name for name in columns_of if name not in (size, moves)]
        ordered = frame.sort_values(by=[*same, size], kind="stable").index.to_numpy()
        group = frame.groupby(same, sort=False).ngroup().to_numpy()[ordered]
        value = frame[size].to_numpy()[ordered]
        at = np.flatnonzero((group[1:] == group[:-1]) & (value[1:] > value[:-1]))
        smaller, larger = ordered[at], ordered[at + 1]
        neighbours[smaller] += 1
        for row, other in ((smaller, larger), (larger, smaller)):
            least[row] = np.minimum(least[row], log_latency[row] - log_latency[other])
    result: npt.NDArray[np.bool_] = (neighbours >= FEWEST) & (least > np.log(SLOWER))
    return result


def steady_rows(names: Floats, residual: Floats) -> npt.NDArray[np.bool_]:
    """Which rows teach: all but slow runs, which stand far above other rows of the same `names`, by the prior.

    A tuner that chose a bad tactic, a busy machine or a cold clock make a run several times slower than the next of the same kernel, never
    faster. Such rows still count where errors and widths are judged. Evidence: of the public TensorRT-LLM rows of H100 one in nine is a
    run of 2 to 6 times what the same layer takes beside it, at random.
    """
    kinds = np.unique(names, axis=0, return_inverse=True)[1].reshape(-1)
    slow = np.zeros(len(residual), dtype=bool)
    for kind in range(int(kinds.max()) + 1):
        at = np.flatnonzero(kinds == kind)
        above = residual[at] - np.median(residual[at])
        far = above > max(SLOW, SLOW_SPREADS * float(np.median(np.abs(above))))
        if len(at) >= SLOW_KIND and far.mean() <= SLOW_MOST:
            slow[at[far]] = True
    return ~slow
