"""Multi-head latent attention (DeepSeek): prefill with expanded heads, decode over the compressed cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError, shown
from perfmodel.ops import names
from perfmodel.ops.attention import BATCH, DERIVED, KV_LEN, PHASES, Q_LEN, phase_of, read_phase, visited_pairs
from perfmodel.ops.check import holdable, size
from perfmodel.ops.kinds import DTYPE, KERNEL, STACK, Columns, Field, OperatorKind, named, register
from perfmodel.ops.work import Work

LATENT = 512  # compressed key-value dimension (DeepSeek-V2, arXiv 2405.04434, section 2.1)
ROPE = 64  # decoupled rotary dimension (same)
NOPE = 128  # dimension of a head without rotary part, and of its value (same)


@dataclass(frozen=True, slots=True)
class MLA:
    """One call of multi-head latent attention, sizes as in DeepSeek-V2 and V3 (latent 512, rotary 64, head 128).

    Parameters
    ----------
    phase : {"prefill", "decode"}
        Expanded heads, or absorbed ones over the compressed cache.
    batch, q_len, kv_len : int
        Sequences, new tokens of each, and its keys in all. Decode has q_len 1.
    num_heads : int
        Query heads of this GPU.
    dtype, kv_dtype : str
        Element type of queries, and of the cache (None: the same).

    Raises
    ------
    InputError
        For impossible sizes, a decode with more than one new token, and unknown phases or element types.

    Examples
    --------
    >>> import perfmodel as pm
    >>> float(pm.MLA("decode", batch=1, q_len=1, kv_len=1024, num_heads=16).work().flops)
    35651584.0
    """

    phase: str
    batch: int
    q_len: int
    kv_len: int
    num_heads: int
    dtype: str = "bf16"
    kv_dtype: str | None = None

    operator: ClassVar[str] = "mla"
    kind: ClassVar[str] = "mla"

    def __post_init__(self) -> None:
        if not isinstance(self.phase, str) or self.phase not in PHASES:
            raise InputError(f"phase must be prefill or decode, got {shown(self.phase)}")
        for name in ("batch", "q_len", "kv_len", "num_heads"):
            object.__setattr__(self, name, size(name, getattr(self, name)))
        object.__setattr__(self, "dtype", parse_dtype(self.dtype).name)
        object.__setattr__(self, "kv_dtype", parse_dtype(self.dtype if self.kv_dtype is None else self.kv_dtype).name)
        if self.phase == "decode" and self.q_len != 1:
            raise InputError(f"decode has q_len 1, got {self.q_len}")
        if self.q_len > self.kv_len:
            raise InputError(f"causal attention needs kv_len of at least q_len, got {self.kv_len} and {self.q_len}")
        holdable("mla", self.batch * self.kv_len * (LATENT + ROPE), self.batch * self.q_len * self.num_heads * NOPE)

    def work(self) -> Work:
        """Compulsory work: 2 H (576 + 512) flops a pair over the latent cache in decode, 2 H (192 + 128) in prefill."""
        kv_bytes = parse_dtype(self.kv_dtype or self.dtype).a_bytes
        return mla_work(self.batch, self.q_len, self.kv_len, self.num_heads, kv_bytes, self.phase == "decode")


def mla_work(batch: Any, q_len: Any, kv_len: Any, num_heads: Any, kv_bytes: Any, decode: Any) -> Work:
    """Work of latent attention, broadcast over arrays: 2 H (576 + 512) flops a pair over the latent cache in decode, 2 H (192 + 128) in
    prefill; the latent cache read once, queries and outputs of 16 bits.

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """
    decode = np.asarray(decode, dtype=bool)
    wide, narrow = np.where(decode, LATENT + ROPE, NOPE + ROPE), np.where(decode, LATENT, NOPE)
    cache = 1.0 * batch * kv_len * (LATENT + ROPE) * kv_bytes
    rows = 1.0 * batch * q_len * num_heads
    return Work(2.0 * batch * num_heads * visited_pairs(q_len, kv_len) * (wide + narrow), cache + rows * wide * 2.0, rows * narrow * 2.0)


_FIELDS = (
    BATCH,
    KV_LEN,
    Field("num_heads", "heads", "query heads of this GPU"),
    Q_LEN,
    DTYPE,
    STACK,
    KERNEL,
)


def _of(op: Any) -> dict[str, float]:
    return {**named(_FIELDS, op), **phase_of(op)}


def _work(columns: Columns) -> Work:
    sizes = {name: columns[name] for name in ("batch", "q_len", "kv_len", "num_heads")}
    return mla_work(**sizes, kv_bytes=names.A_BYTES[columns["kv_dtype"].astype(np.intp)], decode=columns["decode"] > 0)


register(OperatorKind("mla", _FIELDS, _work, _of, read_phase, DERIVED))
