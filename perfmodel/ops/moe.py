"""Fused mixture-of-experts layer: routing, two grouped GEMMs and the activation between them, on one GPU of tp x ep."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError, plain, shown
from perfmodel.ops.check import holdable, size
from perfmodel.ops.work import Floats, Work

BALANCED = "balanced"
_POWER_LAW = re.compile(r"power_law(?:_(\d+(?:\.\d+)?))?")


@dataclass(frozen=True, slots=True)
class MoE:
    """One fused mixture-of-experts layer on one GPU of tp x ep: routing, two grouped GEMMs and the activation between them.

    Parameters
    ----------
    tokens : int
        Tokens of the layer, all GPUs together.
    hidden, inter : int
        Width of a token, and inside an expert (before it is shared out over `tp`).
    num_experts, top_k : int
        Experts of the layer, and of each token.
    dtype : str
        Element type of the experts.
    tp, ep : int
        GPUs that share each expert, and that share out the experts.
    distribution : str
        "balanced", or "power_law_<exponent>" for skewed routing.

    Raises
    ------
    InputError
        For impossible sizes or parallelism, and unknown element types or distributions.

    Examples
    --------
    >>> import perfmodel as pm
    >>> pm.MoE(tokens=64, hidden=4096, inter=1536, num_experts=128, top_k=8).work().flops
    19327352832.0
    """

    tokens: int
    hidden: int
    inter: int
    num_experts: int
    top_k: int
    dtype: str = "bf16"
    tp: int = 1
    ep: int = 1
    distribution: str = "balanced"

    operator: ClassVar[str] = "moe"
    kind: ClassVar[str] = "moe"

    def __post_init__(self) -> None:
        for name in ("tokens", "hidden", "inter", "num_experts", "top_k", "tp", "ep"):
            object.__setattr__(self, name, size(name, getattr(self, name)))
        object.__setattr__(self, "dtype", parse_dtype(self.dtype).name)
        object.__setattr__(self, "distribution", plain(self.distribution).strip().lower())
        skew(self.distribution)
        if self.top_k > self.num_experts:
            raise InputError(f"top_k must be at most num_experts, got {self.top_k} of {self.num_experts}")
        if self.num_experts % self.ep:
            raise InputError(f"ep must divide num_experts, got {self.ep} for {self.num_experts}")
        if self.inter % self.tp:
            raise InputError(f"tp must divide inter, got {self.tp} for {self.inter}")
        holdable("moe", self.num_experts // self.ep * self.hidden * (self.inter // self.tp), self.tokens * self.hidden)

    def work(self) -> Work:
        """Compulsory work of one GPU: its share of the routed rows and the experts they touch."""
        d = parse_dtype(self.dtype)
        everywhere = self.distribution == BALANCED
        touched = (
            min(self.tokens * self.top_k, self.num_experts) if everywhere else touched_experts(self.tokens, self.top_k, self.num_experts)
        )
        sizes = self.tokens, self.hidden, self.inter / self.tp, self.top_k, self.ep
        return moe_work(*sizes, touched, d.a_bytes, d.b_bytes, d.out_bytes)


def moe_work(
    tokens: Any,
    hidden: Any,
    inter: Any,
    top_k: Any,
    ep: Any,
    touched: Any,
    a_bytes: Any,
    b_bytes: Any,
    out_bytes: Any,
    matrices: Any = 3.0,
    reads: Any = 1.0,
) -> Work:
    """Work of one GPU of ep, broadcast over arrays: its share of the routed rows and of the `touched` experts of the layer.

    flops = 2 matrices hidden inter a routed row; weights of the touched experts once; activations in and out once a token (`reads`: of
    the layer's input; 0 where a grouped GEMM alone reads something else). matrices: hidden x inter in an expert, 3 with a gate.
    """
    weights = touched / ep * matrices * hidden * inter * b_bytes
    elements = 1.0 * tokens * hidden
    return Work(2.0 * matrices * tokens * top_k / ep * hidden * inter, weights + reads * elements * a_bytes, elements * out_bytes)


def skew(distribution: str) -> float:
    """Exponent of a routing distribution: 0 for balanced, x for power_law_x (1.0 where not said); raises InputError for others."""
    text = plain(distribution).strip().lower()
    if text in ("balanced", "uniform", "random", ""):
        return 0.0
    found = _POWER_LAW.fullmatch(text)
    if not found:
        raise InputError(f"distribution must be balanced or power_law_<exponent>, got {shown(distribution)}")
    return float(found.group(1) or 1.0)


def touched_experts(tokens: npt.ArrayLike, top_k: npt.ArrayLike, num_experts: npt.ArrayLike) -> Floats:
    """Expected number of distinct experts that independent tokens touch, each choosing top_k of E: E (1 - (1 - top_k / E)^tokens)."""
    t, k, e = (np.asarray(x, dtype=np.float64) for x in (tokens, top_k, num_experts))
    return np.asarray(e * -np.expm1(t * np.log1p(-np.minimum(k / e, 1.0 - 1e-12))), dtype=np.float64)
