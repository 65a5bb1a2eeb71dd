"""What an engine step costs: every operator of many deployments priced in one table a kind, and summed.

Intervals: operators of one kind err together (one fitted model answers for all of them), so their widths add up linearly; different kinds
are taken as independent and add up in quadrature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.calibration import CalibrationLike
from perfmodel.plan.deployment import Deployment
from perfmodel.plan.operators import Book
from perfmodel.predict import predict_table

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
GEMM_STACK = "trtllm"
"""Whose GEMM rows stand for a model's: weights cold in L2 and random operands, as inside a model; the other public rows are L2-warm."""
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k", "batch", "dtype", "stack"),
    "attention": ("phase", "batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "window", "dtype", "kv_dtype", "stack"),
    "mla": ("phase", "batch", "q_len", "kv_len", "num_heads", "dtype", "kv_dtype", "stack"),
    "moe": ("tokens", "hidden", "inter", "num_experts", "top_k", "tp", "ep", "distribution", "dtype", "stack"),
    "memory": ("kind", "tokens", "hidden", "dtype", "stack"),
    "collective": ("kind", "message_bytes", "n_gpus", "nodes", "topology", "version", "stack"),
}
NAMES = ("phase", "dtype", "kv_dtype", "stack", "kind", "distribution", "topology", "version")  # the columns that are no numbers
_WHOLE = ("m", "batch", "q_len", "kv_len", "tokens", "hidden", "message_bytes")
TIERS = ("spec", "calibrated", "measured")


@dataclass(frozen=True, slots=True)
class Costs:
    """What the points of one table cost: seconds of one GPU, the width of the 80 % interval upwards and downwards, and by term.

    tier: the weakest of the operators'; in_domain: share of the time that lies within what was measured.
    """

    seconds: Floats
    low_s: Floats
    high_s: Floats
    terms: Mapping[str, Floats]
    tier: str
    in_domain: Floats


def price(book: Book, deployments: Sequence[Deployment], sizes: Sequence[int], calibration: CalibrationLike = "auto") -> list[Costs]:
    """Costs of each owner's points. `sizes`: how many points each owner has; owner i belongs to deployments[i].

    Raises InputError where an element type has no tensor cores on a GPU.
    """
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    total = int(offsets[-1])
    names = sorted({entry[1] for entries in book.entries.values() for entry in entries})
    terms = np.zeros((len(names), total))
    seconds, inside = np.zeros(total), np.zeros(total)
    low, high = np.zeros(total), np.zeros(total)  # squares of the widths
    weakest = np.full(len(sizes), len(TIERS) - 1)
    for kind, entries in book.entries.items():
        found = _priced(kind, entries, deployments, calibration)
        at = np.concatenate([offsets[owner] + where.astype(np.intp) for owner, _, where, _, _ in entries])
        counts = np.concatenate([counts for *_, counts, _ in entries])
        lengths = [len(entry[2]) for entry in entries]
        term = np.repeat([names.index(entry[1]) for entry in entries], lengths)
        each = counts * found["latency_us"] * 1e-6
        spent = np.bincount(at, each, total)
        seconds += spent
        low += np.bincount(at, np.abs(counts) * (found["latency_us"] - found["low_us"]) * 1e-6, total) ** 2
        high += np.bincount(at, np.abs(counts) * (found["high_us"] - found["latency_us"]) * 1e-6, total) ** 2
        inside += np.bincount(at, each * found["in_domain"], total)
        terms += np.bincount(term * total + at, each, len(names) * total).reshape(len(names), total)
        np.minimum.at(weakest, np.repeat([entry[0] for entry in entries], lengths), found["tier"])
    spans = [slice(offsets[i], offsets[i + 1]) for i in range(len(sizes))]
    low, high = seconds - np.sqrt(low), seconds + np.sqrt(high)
    share = inside / np.where(seconds > 0, seconds, 1.0)
    return [
        Costs(
            seconds[s],
            low[s],
            high[s],
            {name: row[s] for name, row in zip(names, terms, strict=True) if row[s].any()},
            TIERS[weakest[i]],
            share[s],
        )
        for i, s in enumerate(spans)
    ]


def _priced(kind: str, entries: Sequence[Any], deployments: Sequence[Deployment], calibration: CalibrationLike) -> dict[str, Any]:
    """latency_us, low_us, high_us, in_domain and tier (its rank) of every row of the entries, each distinct operator asked once."""
    import pandas as pd

    lengths = [len(entry[2]) for entry in entries]
    owners = [deployments[entry[0]] for entry in entries]
    frame = pd.DataFrame({name: _column(name, kind, entries, owners, lengths) for name in COLUMNS[kind]})
    gpus = {d.gpu.name: d.gpu for d in owners}
    codes = {name: i for i, name in enumerate(gpus)}
    gpu = np.repeat([codes[d.gpu.name] for d in owners], lengths)
    key = pd.util.hash_pandas_object(frame, index=False, categorize=False).to_numpy() + gpu.astype(np.uint64)
    _, first, back = np.unique(key, return_index=True, return_inverse=True)
    out: dict[str, Any] = {name: np.empty(len(first)) for name in ("latency_us", "low_us", "high_us", "in_domain", "tier")}
    for name, code in codes.items():
        rows = np.flatnonzero(gpu[first] == code)
        found = _ask(kind, frame.iloc[first[rows]].reset_index(drop=True), gpus[name], calibration)
        for column in ("latency_us", "low_us", "high_us", "in_domain"):
            out[column][rows] = found[column].to_numpy(dtype=np.float64)
        out["tier"][rows] = [TIERS.index(tier) for tier in found["tier"]]
    return {column: (values.astype(np.intp) if column == "tier" else values)[back] for column, values in out.items()}


def _ask(kind: str, frame: pd.DataFrame, gpu: GpuSpec, calibration: CalibrationLike) -> pd.DataFrame:
    return predict_table(kind, frame, gpu, calibration=calibration)


def _column(name: str, kind: str, entries: Sequence[Any], owners: Sequence[Deployment], lengths: Sequence[int]) -> Any:
    """One column of a kind's table: what each entry says, else what its deployment does."""
    import pandas as pd

    values = [e[4][name] if name in e[4] else _usual(name, kind, e[4], d) for e, d in zip(entries, owners, strict=True)]
    if name in NAMES:
        levels = list(dict.fromkeys(map(str, values)))
        return pd.Categorical.from_codes(np.repeat([levels.index(str(v)) for v in values], lengths), categories=pd.Index(levels))
    column = np.concatenate([np.broadcast_to(np.asarray(v, dtype=np.float64), (n,)) for v, n in zip(values, lengths, strict=True)])
    return np.maximum(np.rint(column), 1.0) if name in _WHOLE else column


def _usual(name: str, kind: str, columns: Mapping[str, Any], d: Deployment) -> Any:
    """A column that an operator of a deployment leaves out."""
    if name == "batch":
        return 1.0
    if name == "nodes":
        return d.nodes if columns["n_gpus"] > 2 else 1
    if name != "stack":
        return getattr(d, name)
    return {"gemm": GEMM_STACK, "memory": "any", "collective": f"{d.stack}_graph"}.get(kind, d.stack)
