"""What the host costs: scheduling, launching and the front end, by serving stack. Constants: calibration/physics/serving.toml."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from perfmodel.analytic.constants import constant_values
from perfmodel.errors import InputError, shown
from perfmodel.library.collective_stacks import version_key

US = 1e-6
LONGEST_VERSION = 40  # characters
_VERSION = re.compile(r"v?\d{1,6}(\.\d{1,6}){0,3}([.+-]?(a|b|rc|post|dev|alpha|beta|cu|g|commit)[.\w]*)*")


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds of host work of one stack.

    step_s: a step's scheduling, input preparation and output handling that the GPU waits for; sequence_s: the same for each running
    sequence; eager_layer_s: launching one layer's kernels where no CUDA graph holds them (hidden while the GPU is slower); request_s:
    front end (HTTP, tokeniser) of one request, which takes them one at a time; delay_s: the rest of the way to the engine and of the
    first token back.
    """

    step_s: float
    sequence_s: float
    eager_layer_s: float
    request_s: float
    delay_s: float


def checked_version(version: object) -> str:
    """The version of a serving framework, as it writes it: 0.11.2, v1.0.0rc3, 0.5.1.post1; empty where it is not said."""
    if not isinstance(version, str) or not (version in ("", "latest") or (len(version) <= LONGEST_VERSION and _VERSION.fullmatch(version))):
        raise InputError(f"framework_version {shown(version)}: write it as the framework does: 0.11.2, 1.0.0rc3, 0.5.1.post1")
    return version


@functools.cache
def overhead(stack: str, version: str = "") -> Overhead:
    """The overheads of a stack; TensorRT-LLM before 1.0 runs a compiled engine from C++, later ones PyTorch from Python."""
    engine = stack == "trtllm" and version_key(version) < (1,)
    c = constant_values("serving")
    names = ("step", "sequence", "eager_layer", "request", "delay")
    return Overhead(*(c[f"{name}_us_{'trtllm_engine' if engine else stack}"] * US for name in names))
