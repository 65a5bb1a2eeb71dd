"""Work: what must be done, whatever machine does it. A frozen triple with addition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point (or integer) operations, bytes read and bytes written; scalars or broadcastable arrays."""

    flops: float | Floats
    read_bytes: float | Floats
    write_bytes: float | Floats

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.read_bytes + other.read_bytes, self.write_bytes + other.write_bytes)

    @property
    def bytes(self) -> float | Floats:
        """Compulsory traffic: every input read once, every output written once."""
        return self.read_bytes + self.write_bytes
