"""Memory-bound operators: normalisation, rotary embedding, activations, additions, embedding look-up, softmax, sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import plain, unknown_name
from perfmodel.ops import names
from perfmodel.ops.cells import plain_numbers
from perfmodel.ops.check import holdable, size
from perfmodel.ops.kinds import DTYPE, KERNEL, STACK, Columns, Field, OperatorKind, named, register
from perfmodel.ops.work import Floats, Work

if TYPE_CHECKING:
    from perfmodel.ops.reader import Reader

TRAFFIC: Mapping[str, tuple[float, float, float]] = MappingProxyType(
    {
        # kind: (elements read, elements written, floating-point operations) for each element of tokens x hidden
        "rmsnorm": (1, 1, 4), "layernorm": (1, 1, 6), "add_rmsnorm": (2, 2, 5), "rope": (1, 1, 6), "silu_mul": (2, 1, 6),
        "gelu": (1, 1, 12),
        "relu": (1, 1, 1), "tanh": (1, 1, 8), "add": (2, 1, 1), "mul": (2, 1, 1), "div": (2, 1, 4), "pow": (2, 1, 20), "scale": (1, 1, 1),
        "copy": (1, 1, 0), "embedding": (1, 1, 0), "softmax": (1, 1, 6), "sampling": (2, 0.1, 8), "quantise": (1, 0.5, 2),
    }
)  # fmt: skip
_ALIASES = {
    "input_layernorm": "rmsnorm", "post_attention_layernorm": "rmsnorm", "rms_norm": "rmsnorm", "ln": "layernorm",
    "layer_norm": "layernorm",
    "attn_rope": "rope", "mlp_act": "silu_mul", "swiglu": "silu_mul", "silu_and_mul": "silu_mul", "emb": "embedding", "embed": "embedding",
    "addu": "scale", "mulu": "scale", "divu": "scale", "powu": "scale", "residual_add": "add", "quantize": "quantise",
    "fused_add_rmsnorm": "add_rmsnorm",
}  # fmt: skip


def memory_kind(name: object) -> str:
    """Canonical name of a memory-bound operator; raises InputError for an unknown one."""
    key = plain(name).lower()
    key = _ALIASES.get(key, key)
    if key not in TRAFFIC:
        raise unknown_name("memory-bound operator", name, TRAFFIC)
    return key


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """An elementwise or row-wise operator over tokens x hidden elements.

    Parameters
    ----------
    kind : str
        rmsnorm, layernorm, add_rmsnorm, rope, silu_mul, gelu, add, copy, embedding, softmax, sampling, quantise ..., or a usual spelling.
    tokens, hidden : int
        Rows, and elements of a row.
    dtype : str
        Element type.

    Raises
    ------
    InputError
        For unknown kinds and element types, and impossible sizes.

    Examples
    --------
    >>> import perfmodel as pm
    >>> pm.MemoryBound("rmsnorm", tokens=64, hidden=4096).work().bytes
    1048576.0
    """

    kind: str
    tokens: int
    hidden: int
    dtype: str = "bf16"

    operator: ClassVar[str] = "memory"

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", memory_kind(self.kind))
        object.__setattr__(self, "tokens", size("tokens", self.tokens))
        object.__setattr__(self, "hidden", size("hidden", self.hidden))
        object.__setattr__(self, "dtype", parse_dtype(self.dtype).name)
        holdable(self.kind, self.tokens * self.hidden)

    def work(self) -> Work:
        """Compulsory work from TRAFFIC."""
        return memory_work(*TRAFFIC[self.kind], self.tokens, self.hidden, parse_dtype(self.dtype).a_bytes)


def memory_work(read: Any, written: Any, flops: Any, tokens: Any, hidden: Any, element_bytes: Any) -> Work:
    """Work of a memory-bound operator over tokens x hidden elements, broadcast over arrays; `read`, `written`, `flops`: of an element."""
    elements = 1.0 * tokens * hidden
    return Work(flops * elements, read * elements * element_bytes, written * elements * element_bytes)


KINDS = tuple(TRAFFIC)  # a table's codes of `kind` count these
_TRAFFIC = np.array(list(TRAFFIC.values())).T
_FIELDS = (
    Field("kind", "", "which operator", code=lambda name: KINDS.index(memory_kind(name)), also=("op",)),
    Field("tokens", "tokens", "rows", also=("num_tokens",)),
    Field("hidden", "elements", "elements of a row", also=("hidden_size", "n_embd")),
    DTYPE,
    STACK,
    KERNEL,
)


def _complete(columns: dict[str, Floats], reader: Reader) -> None:
    """Add `alone`; tables of whole models give n_embd, n_expanded_embd and tp: activations are n_expanded_embd / tp wide, rotary parts
    n_embd / tp."""
    columns["alone"] = reader.coded(lambda name: "vidur" in plain(name).lower(), "source")
    if (tp := reader.column("tp")) is None:
        return
    share = np.maximum(np.nan_to_num(plain_numbers("memory", "tp", tp), nan=1.0), 1.0)
    kind = columns["kind"]
    if (expanded := reader.column("n_expanded_embd")) is not None:
        wide = plain_numbers("memory", "n_expanded_embd", expanded)
        columns["hidden"] = np.where((kind == KINDS.index("silu_mul")) & (wide > 0), wide / share, columns["hidden"])
    columns["hidden"] = np.where(kind == KINDS.index("rope"), columns["hidden"] / share, columns["hidden"])


def _of(op: Any) -> dict[str, float]:
    return {**named(_FIELDS, op), "kind": float(KINDS.index(op.kind)), "alone": 0.0}


def _work(columns: Columns) -> Work:
    read, written, flops = _TRAFFIC[:, columns["kind"].astype(np.intp)]
    return memory_work(read, written, flops, columns["tokens"], columns["hidden"], names.widths(columns)[0])


register(OperatorKind("memory", _FIELDS, _work, _of, _complete, (("alone", "1 where a profile timed the kernel alone"),)))
