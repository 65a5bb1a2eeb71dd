"""What every operator law returns: the time, what each resource alone would take, and dimensionless features for the residual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class PricedTerms(Protocol):
    """What the terms of any law have: the time, what each resource needs, dimensionless features, and which resource binds."""

    @property
    def latency_s(self) -> Floats:
        """Seconds of each row."""
        ...

    @property
    def seconds(self) -> Mapping[str, Floats]:
        """Seconds of each resource alone."""
        ...

    @property
    def features(self) -> Mapping[str, Floats]:
        """Dimensionless columns."""
        ...

    def bound(self) -> npt.NDArray[np.str_]:
        """Name of the largest term of each row."""
        ...

    def largest(self) -> npt.NDArray[np.integer[Any]]:
        """Place in `seconds` of the largest term of each row."""
        ...


@dataclass(frozen=True, slots=True)
class OperatorTerms:
    """Physical terms of n operators on one GPU.

    latency_s: the closed form, seconds; `seconds`: what each resource alone needs; `features`: dimensionless columns of length n;
    least_s: what no correction may fall below, the flops at the tensor rate of the highest clock (0: nothing is known).
    variant: code of the kernel that runs where a stack takes several under one name (None: it does not).
    All are arrays of n.
    """

    latency_s: Floats
    seconds: Mapping[str, Floats]
    features: Mapping[str, Floats]
    least_s: Floats | float = 0.0
    variant: Floats | None = None

    def bound(self) -> npt.NDArray[np.str_]:
        """Name of the largest term of each row."""
        winner: npt.NDArray[np.str_] = np.array(list(self.seconds))[self.largest()]
        return winner

    def largest(self) -> npt.NDArray[np.int8]:
        """Place in `seconds` of the largest term of each row, the first of equal ones."""
        code = np.zeros(self.latency_s.shape, dtype=np.int8)
        best: Floats | None = None
        for index, value in enumerate(self.seconds.values()):
            if best is None:
                best = np.broadcast_to(value, code.shape).copy()
            else:
                code[value > best] = index
                np.maximum(best, value, out=best)
        return code
