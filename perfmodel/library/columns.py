"""From a table or one operator to the arrays a law reads: names of public tables, checks that name the row, codes for names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError, listed, plain, shown
from perfmodel.library import moe_rows, names
from perfmodel.ops.check import MAX_SIZE, table
from perfmodel.ops.memory import TRAFFIC, memory_kind
from perfmodel.ops.moe import skew

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Columns = dict[str, Floats]

ALIASES: Mapping[str, tuple[str, ...]] = {
    "dtype": ("compute_dtype", "precision", "quantization", "gemm_dtype"),
    "kv_dtype": ("kv_cache_dtype",),
    "stack": ("framework", "backend"),
    "stack_version": ("framework_version", "backend_version", "version"),
    "kernel": ("kernel_source", "impl"),
    "batch": ("batch_size",),
    "q_len": ("isl", "seq_len", "q_tokens", "input_len"),
    "kv_len": ("context_len", "seq_len_kv"),
    "q_heads": ("num_heads", "heads", "num_q_heads"),
    "kv_heads": ("num_kv_heads", "num_key_value_heads"),
    "window": ("window_tokens", "window_size", "sliding_window"),
    "hidden": ("hidden_size", "n_embd"),
    "inter": ("inter_size", "intermediate_size"),
    "top_k": ("topk",),
    "num_experts": ("experts",),
    "tp": ("moe_tp_size", "tp_size"),
    "ep": ("moe_ep_size", "ep_size"),
    "tokens": ("num_tokens",),
    "kind": ("op",),
}
"""Field -> other spellings that public tables use; the field's own name comes first."""

MEMORY_KINDS = tuple(TRAFFIC)
NEEDED: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention": ("batch", "kv_len", "q_heads", "kv_heads", "head_dim"),
    "moe": ("tokens", "hidden", "inter", "num_experts", "top_k"),
    "mla": ("batch", "kv_len", "num_heads"),
    "memory": ("kind", "tokens", "hidden"),
}
_OPTIONAL: Mapping[str, Mapping[str, float]] = {
    "gemm": {"batch": 1.0},
    "attention": {"q_len": np.nan, "window": 0.0, "causal": 1.0},
    "moe": {"tp": 1.0, "ep": 1.0},
    "mla": {"q_len": np.nan},
    "memory": {},
}
_ZERO_ALLOWED = ("window", "causal")


def find(frame: pd.DataFrame, field: str) -> str | None:
    """The column of `frame` that holds a field: its own name first, then the usual other spellings; None without one."""
    return next((name for name in (field, *ALIASES.get(field, ())) if name in frame.columns), None)


def coded(values: Any, code: Callable[[Any], float]) -> Floats:
    """Translate a column of names to codes, each distinct name once."""
    import pandas as pd

    if isinstance(getattr(values, "dtype", None), pd.CategoricalDtype):
        found, levels = values.cat.codes.to_numpy(), list(values.cat.categories)
        if (found < 0).any():
            levels = [*levels, None]
    else:
        found, uniques = factorized(values)
        levels = [None if pd.api.types.is_scalar(value) and pd.isna(value) else value for value in uniques]
    used = np.bincount(found[found >= 0], minlength=len(levels))
    table = np.array([float(code(level)) if used[i] or level is None else np.nan for i, level in enumerate(levels)])
    result: Floats = table[found]
    return result


def factorized(values: Any) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.object_]]:
    """(which of the distinct values each row has, those values); raises InputError for a cell that is no name, such as a list."""
    import pandas as pd

    text = isinstance(getattr(values, "dtype", None), pd.StringDtype)  # no cell can be anything but text there
    cells = values if text else np.asarray(values, dtype=object)
    try:
        codes, found = pd.factorize(cells, use_na_sentinel=False)
    except (TypeError, ArithmeticError):  # a list; a signalling NaN, which cannot be hashed
        row = next((i for i, value in enumerate(cells) if not pd.api.types.is_hashable(value)), 0)
        raise InputError(f"row {row} has {shown(cells[row])} in column {getattr(values, 'name', None)}: expected one name") from None
    return codes, np.asarray(found, dtype=object)


def plain_numbers(kind: str, field: str, series: Any) -> Floats:
    """A column as floats, missing cells NaN; raises InputError for one that holds anything else."""
    import pandas as pd

    column = pd.Series(series)
    if column.dtype.kind not in "cmM":  # complex numbers and dates would convert
        with contextlib.suppress(TypeError, ValueError, ArithmeticError):
            values: Floats = column.to_numpy(dtype=np.float64, na_value=np.nan)
            return values
    raise InputError(f"{kind} table: column {field} must hold numbers, it holds {column.dtype}")


def numbers(kind: str, field: str, series: Any, labels: Any = None) -> Floats:
    """A column as whole numbers; raises InputError naming the first bad row."""
    values = plain_numbers(kind, field, series)
    low = 0.0 if field in _ZERO_ALLOWED else 1.0
    bad = ~((values >= low) & (values <= MAX_SIZE) & (values == np.floor(values)))
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        label = first if labels is None else labels[first]
        raise InputError(
            f"{kind} table: {field} must be a whole number of {low:.0f} or more: "
            f"row {label} has {shown(float(values[first]))} ({int(bad.sum())} such rows)"
        )
    return values


def read_frame(kind: str, frame: pd.DataFrame) -> Columns:
    """The columns of a table of one kind of operator; unknown columns are ignored.

    Raises InputError naming missing columns, and the first bad row of a column.
    """
    table(frame, kind)
    missing = [field for field in NEEDED[kind] if find(frame, field) is None]
    if missing:
        raise InputError(f"a {kind} table lacks column {', '.join(missing)}; it has {listed(map(str, frame.columns))}")
    length, labels = len(frame), frame.index
    out: Columns = {}
    for field in NEEDED[kind]:
        column = frame[find(frame, field)]
        out[field] = (
            coded(column, lambda v: MEMORY_KINDS.index(memory_kind(v))) if field == "kind" else numbers(kind, field, column, labels)
        )
    for field, default in _OPTIONAL[kind].items():
        name = find(frame, field)
        out[field] = np.full(length, default) if name is None else numbers(kind, field, frame[name], labels)
    for field, code in (("dtype", names.dtype_code), ("stack", names.stack_code), ("kernel", names.kernel_code)):
        name = find(frame, field)
        out[field] = np.zeros(length) if name is None else coded(frame[name], code)
    if kind in ("attention", "mla"):
        name = find(frame, "kv_dtype")
        out["kv_dtype"] = out["dtype"] if name is None else coded(frame[name], lambda v: -1 if v is None else names.dtype_code(v))
        out["kv_dtype"] = np.where(out["kv_dtype"] < 0, out["dtype"], out["kv_dtype"])
        phase = find(frame, "phase")
        if phase is None:
            if "q_len" not in frame.columns and find(frame, "q_len") is None:
                raise InputError(f"a {kind} table needs phase (prefill or decode) or q_len")
            out["decode"] = np.where((out["q_len"] == 1) & (out["kv_len"] > 1), 1.0, 0.0)
        else:
            out["decode"] = coded(frame[phase], _phase_code)
        out["q_len"] = np.where(np.isnan(out["q_len"]), np.where(out["decode"] > 0, 1.0, out["kv_len"]), out["q_len"])
        _require(kind, (out["decode"] == 0) | (out["q_len"] == 1), "q_len of decode must be 1", labels)
        seen_by_some = (out["q_len"] <= out["kv_len"]) | (out.get("causal", np.ones(length)) == 0)
        _require(kind, seen_by_some, "causal attention needs kv_len of at least q_len", labels)
    if kind == "attention":
        _require(kind, np.mod(out["q_heads"], out["kv_heads"]) == 0, "q_heads must be a multiple of kv_heads", labels)
    if kind == "memory":
        _tensor_parallel(frame, out)
        source = find(frame, "source")
        out["alone"] = np.zeros(length) if source is None else coded(frame[source], lambda v: "vidur" in plain(v).lower())
    if kind == "moe":
        name = find(frame, "distribution")
        out["skew"] = np.zeros(length) if name is None else coded(frame[name], lambda v: skew("" if v is None else v))
        out["stage"] = np.zeros(length) if "weight" not in frame.columns else coded(frame["weight"], _stage_code)
        kernel_name, version = find(frame, "kernel"), find(frame, "stack_version")
        nongated = np.zeros(length) if kernel_name is None else coded(frame[kernel_name], lambda v: "nongated" in plain(v).lower())
        old = np.zeros(length)
        for stack, since in moe_rows.SINCE.items() if version is not None else ():
            mine = out["stack"] == names.stack_code(stack)
            old[mine] = coded(frame[version][mine], partial(moe_rows.is_older, since))
        out["gated"] = moe_rows.gated(out["hidden"], out["inter"], old, nongated > 0)
        out["old"] = old
        out["whole_tokens"] = moe_rows.whole_tokens(out["stack"], out["ep"], old)
        _require(kind, out["top_k"] <= out["num_experts"], "top_k must be at most num_experts", labels)
        _require(kind, np.mod(out["num_experts"], out["ep"]) == 0, "ep must divide num_experts", labels)
    return out


def read_operator(kind: str, op: Any, stack: str | None, kernel: str | None = None) -> Columns:
    """What `read_frame` gives for a table of this one checked operator."""
    out: dict[str, float] = {field: getattr(op, field) for field in (*NEEDED[kind], *_OPTIONAL[kind]) if field != "kind"}
    out["dtype"] = names.dtype_code(op.dtype)
    out["stack"] = names.stack_code(stack)
    out["kernel"] = names.kernel_code(kernel) if kernel else 0.0
    if kind in ("attention", "mla"):
        out["kv_dtype"] = names.dtype_code(op.kv_dtype)
        out["decode"] = 1.0 if op.phase == "decode" else 0.0
    if kind == "moe":
        out["skew"] = skew(op.distribution)
        out["stage"] = out["whole_tokens"] = out["old"] = 0.0
        out["gated"] = 0.0 if (op.hidden, op.inter) in moe_rows.UNGATED else 1.0
    if kind == "memory":
        out["kind"] = MEMORY_KINDS.index(op.kind)
        out["alone"] = 0.0
    return {name: np.array([value], dtype=np.float64) for name, value in out.items()}


def take(columns: Mapping[str, Floats], rows: Any) -> Columns:
    """The rows of an index, mask or slice."""
    return {name: values[rows] for name, values in columns.items()}


def _stage_code(value: Any) -> float:
    text = plain(value).lower()
    if value is None or text in ("", "both", "all"):
        return 0.0
    if text in ("w13", "w1", "gate_up"):
        return 1.0
    if text in ("w2", "down"):
        return 2.0
    raise InputError(f"weight must be w13 or w2 (one grouped GEMM alone) or both, got {shown(value)}")


def _phase_code(value: Any) -> float:
    text = plain(value).lower()
    if text in ("prefill", "context"):
        return 0.0
    if text in ("decode", "generation"):
        return 1.0
    raise InputError(f"phase must be prefill or decode, got {shown(value)}")


def _tensor_parallel(frame: pd.DataFrame, out: Columns) -> None:
    """Tables of whole models give n_embd, n_expanded_embd and tp: activations are n_expanded_embd / tp wide, rotary parts n_embd / tp."""
    if "tp" not in frame.columns:
        return
    share = np.maximum(np.nan_to_num(plain_numbers("memory", "tp", frame["tp"]), nan=1.0), 1.0)
    kind = out["kind"]
    if "n_expanded_embd" in frame.columns:
        wide = plain_numbers("memory", "n_expanded_embd", frame["n_expanded_embd"])
        out["hidden"] = np.where((kind == MEMORY_KINDS.index("silu_mul")) & (wide > 0), wide / share, out["hidden"])
    out["hidden"] = np.where(kind == MEMORY_KINDS.index("rope"), out["hidden"] / share, out["hidden"])


def _require(kind: str, good: npt.NDArray[np.bool_], rule: str, labels: Any) -> None:
    if not good.all():
        raise InputError(f"{kind} table: {rule}: row {labels[int(np.flatnonzero(~good)[0])]} does not")
