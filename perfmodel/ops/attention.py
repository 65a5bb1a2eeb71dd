"""Attention over a KV cache: prefill (many query tokens) and decode (one query token a sequence)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError, plain, shown
from perfmodel.ops import names
from perfmodel.ops.check import holdable, size
from perfmodel.ops.kinds import DTYPE, KERNEL, STACK, Columns, Field, OperatorKind, named, register
from perfmodel.ops.work import Floats, Work

if TYPE_CHECKING:
    from perfmodel.ops.reader import Reader

PHASES = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention call over a KV cache, with the heads of one GPU.

    Parameters
    ----------
    phase : {"prefill", "decode"}
        Many new tokens a sequence, or one.
    batch : int
        Sequences.
    q_len, kv_len : int
        New tokens of a sequence, and its keys in all, the new ones included. Decode has q_len 1.
    q_heads, kv_heads, head_dim : int
        Query and key heads of this GPU, and elements of a head.
    dtype, kv_dtype : str
        Element type of queries, and of the cache (None: the same).
    causal : bool
        Whether a query sees nothing after it.
    window : int
        Keys before it that a query sees, in tokens; 0: all of them.

    Raises
    ------
    InputError
        For impossible sizes, heads that do not divide, a decode with more than one new token, and unknown phases or element types.

    Examples
    --------
    >>> import perfmodel as pm
    >>> op = pm.Attention("decode", batch=16, q_len=1, kv_len=4096, q_heads=32, kv_heads=8, head_dim=128)
    >>> float(op.work().read_bytes)
    268566528.0
    """

    phase: str
    batch: int
    q_len: int
    kv_len: int
    q_heads: int
    kv_heads: int
    head_dim: int
    dtype: str = "bf16"
    kv_dtype: str | None = None
    causal: bool = True
    window: int = 0

    operator: ClassVar[str] = "attention"
    kind: ClassVar[str] = "attention"

    def __post_init__(self) -> None:
        if not isinstance(self.phase, str) or self.phase not in PHASES:
            raise InputError(f"phase must be prefill or decode, got {shown(self.phase)}")
        for name in ("batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim"):
            object.__setattr__(self, name, size(name, getattr(self, name)))
        object.__setattr__(self, "window", size("window", self.window, low=0))
        if not isinstance(self.causal, bool):
            raise InputError(f"causal must be True or False, got {shown(self.causal)}")
        object.__setattr__(self, "dtype", parse_dtype(self.dtype).name)
        object.__setattr__(self, "kv_dtype", parse_dtype(_given(self.kv_dtype) or self.dtype).name)
        if self.q_heads % self.kv_heads:
            raise InputError(f"q_heads must be a multiple of kv_heads, got {self.q_heads} and {self.kv_heads}")
        if self.phase == "decode" and self.q_len != 1:
            raise InputError(f"decode has q_len 1, got {self.q_len}")
        if self.causal and self.q_len > self.kv_len:
            raise InputError(f"causal attention needs kv_len of at least q_len, got {self.kv_len} and {self.q_len}")
        heads = (self.q_len * self.q_heads, self.kv_len * self.kv_heads)
        holdable("attention", *(self.batch * self.head_dim * rows for rows in heads))

    def work(self) -> Work:
        """Compulsory work of this call."""
        widths = parse_dtype(self.dtype).a_bytes, parse_dtype(self.kv_dtype or self.dtype).a_bytes
        heads = self.q_heads, self.kv_heads, self.head_dim
        return attention_work(self.batch, self.q_len, self.kv_len, *heads, *widths, self.window, self.causal)


def attention_work(
    batch: Any,
    q_len: Any,
    kv_len: Any,
    q_heads: Any,
    kv_heads: Any,
    head_dim: Any,
    q_bytes: Any,
    kv_bytes: Any,
    window: Any = 0,
    causal: Any = True,
) -> Work:
    """Work of attention, broadcast over arrays.

        flops = 4 d a visited pair of each query head
        read  = queries, and the keys and values that any query sees, each once;   written = outputs of 16 bits

    Parameters
    ----------
    batch, q_len, kv_len, q_heads, kv_heads, head_dim, window : array_like of float
        As in `Attention`; shapes that broadcast with each other.
    q_bytes, kv_bytes : array_like of float
        Bytes of an element of a query and of the cache.
    causal : array_like of bool
        Whether a query sees nothing after it.

    Returns
    -------
    Work
        Floating-point operations and bytes, of the broadcast shape.

    References
    ----------
    .. [1] T. Dao, FlashAttention-2, arXiv 2307.08691, section 2.

    Examples
    --------
    >>> float(attention_work(1, 2, 2, 1, 1, 64, 2, 2).flops)
    768.0
    """
    pairs = visited_pairs(q_len, kv_len, window, causal)
    rows = 1.0 * batch * q_len * q_heads * head_dim
    keys = np.where(np.asarray(window) > 0, np.minimum(kv_len, np.asarray(window) + q_len - 1.0), kv_len)
    kv = 2.0 * batch * keys * kv_heads * head_dim
    return Work(4.0 * batch * q_heads * head_dim * pairs, rows * q_bytes + kv * kv_bytes, rows * 2.0)


def _given(name: object) -> str:
    """A name as text, empty for none; what is no text stays visible, for the check to name it."""
    return "" if name is None else name if isinstance(name, str) else plain(name)


def visited_pairs(q_len: npt.ArrayLike, kv_len: npt.ArrayLike, window: npt.ArrayLike = 0, causal: npt.ArrayLike = True) -> Floats:
    """Query-key pairs of one head, exact, broadcast over arrays.

    Query i (1 to q) stands at key c = kv - q + i and sees min(c, window or infinity) keys when causal, kv otherwise. Summed:
    with a = kv - q, L = window: the queries with c <= L see c each, the others L.
    """
    q, kv, win = (np.asarray(x, dtype=np.float64)[()] for x in (q_len, kv_len, window))
    limit = np.where(win > 0, win, np.inf)
    start = kv - q
    growing = np.clip(np.minimum(limit, kv) - start, 0.0, q)  # queries that still see all before them
    seen = growing * start + growing * (growing + 1.0) / 2.0 + (q - growing) * np.minimum(limit, kv)
    pairs: Floats = np.where(np.asarray(causal)[()], seen, q * np.minimum(kv, limit))
    return pairs


BATCH = Field("batch", "sequences", "sequences of the call", also=("batch_size",))
KV_LEN = Field("kv_len", "tokens", "keys of a sequence, its new ones included", also=("context_len", "seq_len_kv"))
Q_LEN = Field("q_len", "tokens", "new tokens of a sequence", np.nan, also=("isl", "seq_len", "q_tokens", "input_len"))
DERIVED = (("kv_dtype", "code of the element type of the cache"), ("decode", "1 for decode, 0 for prefill"))
_FIELDS = (
    BATCH,
    KV_LEN,
    Field("q_heads", "heads", "query heads of this GPU", also=("num_heads", "heads", "num_q_heads")),
    Field("kv_heads", "heads", "key heads of this GPU", also=("num_kv_heads", "num_key_value_heads")),
    Field("head_dim", "elements", "width of a head"),
    Q_LEN,
    Field("window", "tokens", "keys before it that a query sees, 0 for all", 0.0, 0, ("window_tokens", "window_size", "sliding_window")),
    Field("causal", "", "1 where a query sees nothing after it", 1.0, 0),
    DTYPE,
    STACK,
    KERNEL,
)


def read_phase(columns: dict[str, Floats], reader: Reader) -> None:
    """Add kv_dtype and decode, and q_len where a table of one phase leaves it out; raises InputError for what no phase allows."""
    cache = reader.coded(lambda v: -1 if v is None else names.dtype_code(v), "kv_dtype", "kv_cache_dtype")
    stated = reader.column("kv_dtype", "kv_cache_dtype") is not None
    columns["kv_dtype"] = np.where(cache < 0, columns["dtype"], cache) if stated else columns["dtype"]
    if reader.column("phase") is not None:
        columns["decode"] = reader.coded(_phase_code, "phase")
    elif reader.column("q_len") is None:
        raise InputError(f"a {reader.kind} table needs phase (prefill or decode) or q_len")
    else:
        columns["decode"] = np.where((columns["q_len"] == 1) & (columns["kv_len"] > 1), 1.0, 0.0)
    whole = np.where(columns["decode"] > 0, 1.0, columns["kv_len"])
    columns["q_len"] = np.where(np.isnan(columns["q_len"]), whole, columns["q_len"])
    reader.require((columns["decode"] == 0) | (columns["q_len"] == 1), "q_len of decode must be 1")
    seen_by_some = (columns["q_len"] <= columns["kv_len"]) | (columns.get("causal", np.ones(len(reader))) == 0)
    reader.require(seen_by_some, "causal attention needs kv_len of at least q_len")


def phase_of(op: Any) -> dict[str, float]:
    """What `read_phase` adds, of one checked operator."""
    return {"kv_dtype": float(names.dtype_code(op.kv_dtype)), "decode": 1.0 if op.phase == "decode" else 0.0}


def _complete(columns: dict[str, Floats], reader: Reader) -> None:
    read_phase(columns, reader)
    reader.require(np.mod(columns["q_heads"], columns["kv_heads"]) == 0, "q_heads must be a multiple of kv_heads")


def _phase_code(value: Any) -> float:
    text = plain(value).lower()
    if text in ("prefill", "context"):
        return 0.0
    if text in ("decode", "generation"):
        return 1.0
    raise InputError(f"phase must be prefill or decode, got {shown(value)}")


def _of(op: Any) -> dict[str, float]:
    return {**named(_FIELDS, op), **phase_of(op)}


def _work(columns: Columns) -> Work:
    sizes = {name: columns[name] for name in ("batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "window")}
    kv_bytes = names.A_BYTES[columns["kv_dtype"].astype(np.intp)]
    return attention_work(**sizes, q_bytes=names.widths(columns)[0], kv_bytes=kv_bytes, causal=columns["causal"] > 0)


register(OperatorKind("attention", _FIELDS, _work, _of, _complete, DERIVED))
