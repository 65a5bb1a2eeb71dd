"""What the host costs: scheduling, launching and the front end, by serving stack. Constants: calibration/physics/serving.toml."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from perfmodel.analytic.constants import constant_values

US = 1e-6


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds of host work of one stack.

    step_s: a step's scheduling, input preparation and output handling that the GPU waits for; sequence_s: the same for each running
    sequence; eager_layer_s: launching one layer's kernels where no CUDA graph holds them (hidden while the GPU is slower); request_s and
    prompt_token_s: front end (HTTP, tokeniser, first response) of a request, part of its time to first token but not of a step.
    """

    step_s: float
    sequence_s: float
    eager_layer_s: float
    request_s: float
    prompt_token_s: float


@functools.cache
def overhead(stack: str) -> Overhead:
    """The overheads of a stack."""
    c = constant_values("serving")
    names = ("step", "sequence", "eager_layer", "request", "prompt_token")
    return Overhead(*(c[f"{name}_us_{stack}"] * US for name in names))
