"""Rows that a passing disturbance slowed down: longer than the same operator at every next larger size. A model should not learn them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

GROWS: Mapping[str, tuple[str, ...]] = {
    "attention": ("batch", "q_len", "kv_len", "q_heads"),
    "mla": ("batch", "q_len", "kv_len", "num_heads"),
    "memory": ("tokens", "hidden"),
}
"""Sizes that an operator's time grows with, kernels chosen by the way aside; q_len grows with the keys before it unchanged."""
SLOWER = 1.4  # times the latency of each neighbour
FEWEST = 2  # larger neighbours: one alone may be the first size of a faster kernel


def disturbed(
    kind: str, columns: Mapping[str, npt.NDArray[np.float64]], gpu: npt.NDArray[np.str_], log_latency: npt.NDArray[np.float64]
) -> npt.NDArray[np.bool_]:
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
