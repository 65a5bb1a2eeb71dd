"""Measured rows of one model on several GPUs: read from a table, without the impossible ones, and what they show, for a model's card."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perfmodel.hw import gpu as find_gpu
from perfmodel.learn.card import MEASURED_KEY
from perfmodel.learn.model import FittedModel
from perfmodel.learn.operators import operator_terms
from perfmodel.learn.transfer import pair_codes
from perfmodel.library.least import faster_than_physics
from perfmodel.library.registry import MODELS, parts
from perfmodel.ops import OperatorTable
from perfmodel.ops.names import STACKS
from perfmodel.units import US_PER_S

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
MOST_NAMED = 5  # rows that a warning names


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured rows of one model on several GPUs: law columns, log latency in seconds, GPU and shape of each."""

    model_key: str
    columns: OperatorTable
    log_latency: Floats
    gpu: npt.NDArray[np.str_]
    shape: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.log_latency)

    @property
    def gpus(self) -> list[str]:
        """Names, sorted."""
        return sorted(set(self.gpu.tolist()))

    def take(self, rows: Any) -> Rows:
        """The rows of a mask or index."""
        return Rows(self.model_key, self.columns.take(rows), self.log_latency[rows], self.gpu[rows], self.shape[rows])

    def without_names(self) -> Rows:
        """The same rows as if nobody had said which stack and kernel ran."""
        unnamed = np.zeros(len(self))
        return Rows(self.model_key, self.columns.having(stack=unnamed, kernel=unnamed), self.log_latency, self.gpu, self.shape)


def read_rows(model_key: str, frame: pd.DataFrame) -> Rows:
    """Those rows of a table that `what` answers for; it has a gpu column and latencies in microseconds."""
    return _rows(model_key, *_own_part(model_key, frame))


def read_possible(model_key: str, frame: pd.DataFrame) -> Rows:
    """As `read_rows`, without the rows that are faster than their GPU can be; a warning names them."""
    columns, frame = _own_part(model_key, frame)
    kept = possible(model_key, columns, frame)
    return _rows(model_key, columns, frame) if kept.all() else _rows(model_key, columns.take(kept), frame.iloc[kept])


def _own_part(model_key: str, frame: pd.DataFrame) -> tuple[OperatorTable, pd.DataFrame]:
    """Columns, and the frame, of the rows that `what` answers for."""
    columns = OperatorTable.read(MODELS[model_key].kind, frame)
    mine = next((rows for name, rows in parts(columns) if name == model_key), np.zeros(0, dtype=np.intp))
    return columns.take(mine), frame.iloc[mine]


def _rows(model_key: str, columns: OperatorTable, frame: pd.DataFrame) -> Rows:
    key = np.stack([columns[name] for name in MODELS[model_key].shape], axis=1)
    shape = np.unique(key, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    log_latency = np.log(frame["latency_us"].to_numpy(dtype=np.float64) / US_PER_S)
    return Rows(model_key, columns, log_latency, frame["gpu"].to_numpy(dtype=str), shape)


def possible(model_key: str, columns: OperatorTable, frame: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which rows of a table of `what` no physics forbids, `columns` of the same rows; a warning in one line says how many are faster than
    their GPU can be, and which."""
    kept = np.ones(len(frame), dtype=bool)
    names, latency_us = frame["gpu"].to_numpy(dtype=str), frame["latency_us"].to_numpy(dtype=np.float64)
    for name in np.unique(names):
        at = np.flatnonzero(names == name)
        beaten = at[faster_than_physics(find_gpu(name), columns.take(at), latency_us[at])]
        kept[beaten] = False
        if len(beaten):
            named = ", ".join(map(str, frame.index[beaten[:MOST_NAMED]].tolist()))
            more = ", ..." if len(beaten) > MOST_NAMED else ""
            warnings.warn(
                f"{len(beaten)} of {len(at)} {model_key} rows are faster than {name} can be and are left out: rows {named}{more}",
                stacklevel=3,
            )
    return kept


def sample(rows: Rows, per_gpu: int, seed: int = 0) -> Rows:
    """At most `per_gpu` rows of each GPU, the same for the same seed."""
    rng = np.random.default_rng(seed)
    found = [np.flatnonzero(rows.gpu == name) for name in rows.gpus]
    return rows.take(np.concatenate([at[drawn(len(at), per_gpu, rng)] for at in found]))


def drawn(count: int, most: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """Which of `count` rows a sample of at most so many has, in order."""
    return np.arange(count) if count <= most else np.sort(rng.choice(count, most, replace=False))


def law_of(rows: Rows, constants: Mapping[str, float]) -> tuple[Floats, dict[str, Floats]]:
    """(log of the law's latency, features) of every row."""
    log_law = np.empty(len(rows))
    features: dict[str, Floats] = {}
    for name in rows.gpus:
        at = np.flatnonzero(rows.gpu == name)
        terms = operator_terms(find_gpu(name), rows.model_key, rows.columns.take(at), constants)
        log_law[at] = np.log(terms.latency_s)
        for feature, values in terms.features.items():
            features.setdefault(feature, np.empty(len(rows)))[at] = values
    return log_law, features


def envelope(rows: Rows, features: Mapping[str, Floats]) -> dict[str, tuple[float, float]]:
    """Range of the features that say whether an answer extrapolates."""
    return {name: (float(features[name].min()), float(features[name].max())) for name in MODELS[rows.model_key].domain}


def card(rows: Rows) -> dict[str, Any]:
    """What a model rests on."""
    found = {
        "kind": rows.model_key,
        "gpus": rows.gpus,
        "archs": sorted({find_gpu(name).arch for name in rows.gpus}),
        "rows": len(rows),
        "shapes": len(np.unique(rows.shape)),
        "dtype_codes": type_codes(rows.columns["dtype"]),
        "data_hash": digest(rows),
        MEASURED_KEY: measured(rows),
    }
    if "kv_dtype" in rows.columns:
        found["kv_dtype_codes"] = type_codes(rows.columns["kv_dtype"])
    return found | ({"kind_codes": sorted({int(code) for code in rows.columns["kind"]})} if "kind" in rows.columns else {})


def type_codes(column: Floats) -> list[int]:
    """Codes of the element types in a column; fp16 runs as bf16 does."""
    return sorted({int(code) for code in np.unique(column)} | ({0, 1} if np.isin(column, (0, 1)).any() else set()))


def measured(rows: Rows) -> dict[str, Any]:
    """Card entry: how many rows of each GPU and stack there are; of one GPU also its stacks with their kernels, and element types."""
    counts = {name: np.bincount(rows.columns["stack"][rows.gpu == name].astype(np.intp), minlength=len(STACKS)) for name in rows.gpus}
    found: dict[str, Any] = {
        "rows": {name: {STACKS[code]: int(count[code]) for code in np.flatnonzero(count)} for name, count in counts.items()}
    }
    if len(rows.gpus) == 1:
        found["names"] = sorted({int(code) for code in pair_codes(law_of(rows, {})[1])})
        found["dtypes"] = type_codes(rows.columns["dtype"])
        found |= {"kv_dtypes": type_codes(rows.columns["kv_dtype"])} if "kv_dtype" in rows.columns else {}
    return found


def digest(rows: Rows) -> str:
    """Short hash of the latencies."""
    return hashlib.sha256(np.ascontiguousarray(np.round(rows.log_latency, 6)).tobytes()).hexdigest()[:12]


def with_prior(facts: Mapping[str, Any], prior: FittedModel) -> dict[str, Any]:
    """Card entries of what rows and prior show together; of the GPU itself, what a prior shows that was measured on it too."""
    found = {
        key: sorted({*facts[key], *prior.card.get(key, ())}) for key in ("dtype_codes", "kv_dtype_codes", "kind_codes") if key in facts
    }
    before = prior.card.get(MEASURED_KEY, {})
    if prior.tier == "spec" or not before:
        return found
    mine = facts[MEASURED_KEY]
    both = {key: sorted({*codes, *before.get(key, ())}) for key, codes in mine.items() if key != "rows"}
    rows = {
        gpu: {name: before["rows"].get(gpu, {}).get(name, 0) + stacks.get(name, 0) for name in {**before["rows"].get(gpu, {}), **stacks}}
        for gpu, stacks in mine["rows"].items()
    }
    return {**found, MEASURED_KEY: {"rows": rows, **both}}
