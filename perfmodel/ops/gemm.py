"""Matrix multiplication C[m,n] = A[m,k] B[k,n], optionally a batch of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.ops import names
from perfmodel.ops.check import holdable, size
from perfmodel.ops.kinds import DTYPE, KERNEL, STACK, Columns, Field, OperatorKind, named, register
from perfmodel.ops.work import Work


@dataclass(frozen=True, slots=True)
class Gemm:
    """One matrix multiplication C[m, n] = A[m, k] B[k, n].

    Parameters
    ----------
    m, n, k : int
        Rows of activations, output features, contracted features.
    dtype : str
        Element type of the operands: bf16, fp16, fp8, fp8_block, int8, int8_wo, int4_wo, nvfp4, fp32, or a usual spelling of one.
    batch : int
        Independent copies.

    Raises
    ------
    InputError
        For sizes that are not whole numbers of 1 or more, tensors that no GPU holds, and unknown element types.

    Examples
    --------
    >>> import perfmodel as pm
    >>> float(pm.Gemm(4096, 14336, 4096).work().flops)
    481036337152.0
    """

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    batch: int = 1

    operator: ClassVar[str] = "gemm"
    kind: ClassVar[str] = "gemm"

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            object.__setattr__(self, name, size(name, getattr(self, name)))
        object.__setattr__(self, "dtype", parse_dtype(self.dtype).name)
        sides = (self.m * self.k, self.n * self.k, self.m * self.n)
        holdable(f"gemm {self.m}x{self.n}x{self.k}", *(self.batch * side for side in sides))

    def work(self) -> Work:
        """Compulsory work of this GEMM."""
        d = parse_dtype(self.dtype)
        return gemm_work(self.m, self.n, self.k, d.a_bytes, d.b_bytes, d.out_bytes, self.batch)


def gemm_work(
    m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike, a_bytes: Any, b_bytes: Any, out_bytes: Any, batch: npt.ArrayLike = 1
) -> Work:
    """Work of C[m, n] = A[m, k] B[k, n], broadcast over arrays.

        flops = 2 m n k,   read = m k a_bytes + n k b_bytes,   written = m n out_bytes,   each times batch

    Parameters
    ----------
    m, n, k, batch : array_like of float
        Sizes; shapes that broadcast with each other.
    a_bytes, b_bytes, out_bytes : array_like of float
        Bytes of an element of A, B and C.

    Returns
    -------
    Work
        Floating-point operations and bytes, of the broadcast shape.

    References
    ----------
    .. [1] NVIDIA, Matrix Multiplication Background User's Guide, section 2.

    Examples
    --------
    >>> float(gemm_work(2, 3, 4, 2, 2, 2).bytes)
    52.0
    """
    acts, weights, out = gemm_bytes(m, n, k, a_bytes, b_bytes, out_bytes, batch)
    return Work(gemm_flops(m, n, k, batch), acts + weights, out)


def gemm_flops(m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike, batch: npt.ArrayLike = 1) -> Any:
    """Operations of `gemm_work`: 2 m n k."""
    mm, nn, kk, bb = (np.asarray(x, dtype=np.float64) for x in (m, n, k, batch))
    return 2 * bb * mm * nn * kk


def gemm_bytes(
    m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike, a_bytes: Any, b_bytes: Any, out_bytes: Any, batch: npt.ArrayLike = 1
) -> tuple[Any, Any, Any]:
    """Bytes of A, of B and of C of `gemm_work`, each moved once."""
    mm, nn, kk, bb = (np.asarray(x, dtype=np.float64) for x in (m, n, k, batch))
    return bb * mm * kk * a_bytes, bb * nn * kk * b_bytes, bb * mm * nn * out_bytes


def _work(columns: Columns) -> Work:
    a_bytes, b_bytes, out_bytes = names.widths(columns)
    return gemm_work(columns["m"], columns["n"], columns["k"], a_bytes, b_bytes, out_bytes, columns["batch"])


_FIELDS = (
    Field("m", "rows", "rows of activations"),
    Field("n", "columns", "output features"),
    Field("k", "columns", "contracted features"),
    Field("batch", "copies", "independent copies", 1.0),
    DTYPE,
    STACK,
    KERNEL,
)
register(OperatorKind("gemm", _FIELDS, _work, partial(named, _FIELDS)))
