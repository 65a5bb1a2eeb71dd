"""Work of a table of operators, and the least time it takes on a GPU: flops and compulsory bytes of every row, from ops/."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.bound import beats, least_seconds
from perfmodel.hw.spec import GpuSpec
from perfmodel.library import names
from perfmodel.ops.attention import attention_work
from perfmodel.ops.gemm import gemm_work
from perfmodel.ops.memory import TRAFFIC, memory_work
from perfmodel.ops.mla import mla_work
from perfmodel.ops.moe import moe_work, touched_experts
from perfmodel.ops.work import Work

Floats = npt.NDArray[np.float64]
Columns = Mapping[str, Floats]
_TRAFFIC = np.array(list(TRAFFIC.values())).T


def _widths(columns: Columns) -> tuple[Floats, Floats, Floats]:
    code = columns["dtype"].astype(np.intp)
    return names.A_BYTES[code], names.B_BYTES[code], names.OUT_BYTES[code]


def _gemm(columns: Columns) -> Work:
    return gemm_work(columns["m"], columns["n"], columns["k"], *_widths(columns), columns["batch"])


def _attention(columns: Columns) -> Work:
    sizes = (columns[name] for name in ("batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim"))
    return attention_work(*sizes, _widths(columns)[0], _kv_bytes(columns), columns["window"], columns["causal"] > 0)


def _kv_bytes(columns: Columns) -> Floats:
    return names.A_BYTES[columns["kv_dtype"].astype(np.intp)]


def _mla(columns: Columns) -> Work:
    sizes = (columns[name] for name in ("batch", "q_len", "kv_len", "num_heads"))
    return mla_work(*sizes, _kv_bytes(columns), columns["decode"] > 0)


def _memory(columns: Columns) -> Work:
    return memory_work(*_TRAFFIC[:, columns["kind"].astype(np.intp)], columns["tokens"], columns["hidden"], _widths(columns)[0])


def _moe(columns: Columns) -> Work:
    experts, routed = columns["num_experts"], columns["tokens"] * columns["top_k"]
    spread = touched_experts(columns["tokens"], columns["top_k"], experts)
    return _experts(columns, np.where(columns["skew"] > 0, spread, np.minimum(routed, experts)))


def _experts(columns: Columns, touched: Floats) -> Work:
    first, second = 1.0 + columns["gated"], 1.0  # hidden x inter of the two grouped GEMMs
    stage = columns["stage"]
    matrices = np.where(stage == 2, 0.0, first) + np.where(stage == 1, 0.0, second)
    inter = columns["inter"] / columns["tp"]
    sizes = columns["tokens"], columns["hidden"], inter, columns["top_k"], columns["ep"]
    return moe_work(*sizes, touched, *_widths(columns), matrices=matrices, reads=np.where(stage == 2, 0.0, 1.0))


def _least_moe(columns: Columns) -> Work:
    """MoE work that no routing avoids: top_k experts where it is skewed; activations of as many tokens as this GPU's rows need."""
    experts, routed = columns["num_experts"], columns["tokens"] * columns["top_k"]
    touched = np.where(columns["skew"] > 0, columns["top_k"], np.minimum(routed, experts))
    alone = {**columns, "tokens": columns["tokens"] / np.minimum(columns["ep"], columns["top_k"])}  # ep: each GPU sees some of the tokens
    whole, some = _experts(columns, touched), _experts(alone, touched)
    out = np.where(columns["stage"] == 1, 0.0, np.asarray(some.write_bytes))
    return Work(whole.flops, some.read_bytes, out)


_WORK: Mapping[str, Callable[[Columns], Work]] = {
    "gemm": _gemm,
    "attention": _attention,
    "mla": _mla,
    "moe": _moe,
    "memory": _memory,
}


def work(kind: str, columns: Columns) -> Work:
    """Flops and compulsory bytes of each row of a table of one kind."""
    return _WORK[kind](columns)


def least_s(gpu: GpuSpec, kind: str, columns: Columns) -> Floats:
    """Seconds below which no program does each row's work on a GPU (analytic/bound.py)."""
    necessary = _least_moe(columns) if kind == "moe" else work(kind, columns)
    return least_seconds(gpu, necessary, _rates(gpu, columns))


def _rates(gpu: GpuSpec, columns: Columns) -> Floats:
    """The fastest tensor rate that each row may be multiplied at: that of its element type or, in attention, of the cache's."""
    rates = names.fastest_rates(gpu)
    found = rates[columns["dtype"].astype(np.intp)]
    if "kv_dtype" in columns:
        found = np.maximum(found, rates[columns["kv_dtype"].astype(np.intp)])
    return found


def faster_than_physics(gpu: GpuSpec, kind: str, columns: Columns, latency_us: Floats) -> npt.NDArray[np.bool_]:
    """Which rows of a table of measured latencies, microseconds, cannot be: faster than the GPU by more than a margin for clocks."""
    return beats(latency_us * 1e-6, least_s(gpu, kind, columns))
