"""What a kernel family tells the rest about its configs: its physical terms and its rules. Constants: see analytic/constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.constants import Constant, constant_values, physics

__all__ = ["Constant", "Floats", "Rule", "Terms", "constant_values", "physics"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Terms:
    """Physical terms of n configs.

    `seconds` says how long each resource alone needs (compute, shared memory, issue, L2, memory latency, DRAM, fill and epilogue,
    launch); `latency_s` is the closed form over them; `features` are dimensionless columns for the residual.
    """

    latency_s: Floats
    seconds: Mapping[str, Floats]
    waves: Floats
    blocks_per_sm: npt.NDArray[np.int32]
    limiter: npt.NDArray[np.str_]
    features: Mapping[str, Floats]
    exact_facts: npt.NDArray[np.bool_]

    def bound(self) -> npt.NDArray[np.str_]:
        """Name of the largest term of each config."""
        names = np.array(list(self.seconds))
        stacked = np.vstack([np.broadcast_to(v, self.latency_s.shape) for v in self.seconds.values()])
        winner: npt.NDArray[np.str_] = names[np.argmax(stacked, axis=0)]
        return winner


@dataclass(frozen=True, slots=True)
class Rule:
    """Configs to prune and why. A `hard` rule says that they cannot run; the others that they cannot win."""

    mask: npt.NDArray[np.bool_]
    reason: str
    hard: bool = True
