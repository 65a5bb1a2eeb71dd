"""What a kernel family tells the rest about its configs: the physical terms, and the constants of the law."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfmodel._resources import shipped
from perfmodel.errors import InputError

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


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of a law: its value, the range calibration may move it in, and where it comes from."""

    value: float
    low: float
    high: float
    source: str


@functools.cache
def physics(family: str) -> Mapping[str, Constant]:
    """The shipped spec-tier constants of a kernel family (calibration/physics/<family>.toml)."""
    path = shipped("calibration") / "physics" / f"{family}.toml"
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        return {name: Constant(float(e["value"]), float(e["low"]), float(e["high"]), str(e["source"])) for name, e in raw.items()}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"cannot read the constants in {path}: {error}; reinstall perfmodel or restore the file") from None


def constant_values(family: str, overrides: Mapping[str, float] | None = None) -> dict[str, float]:
    """Values of a family's constants, `overrides` (a calibration's) on top."""
    values = {name: c.value for name, c in physics(family).items()}
    for name, value in (overrides or {}).items():
        if name not in values:
            raise InputError(f"calibration moves an unknown constant {name!r} of the {family} law: it was made by another version")
        values[name] = float(value)
    return values
