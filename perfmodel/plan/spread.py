"""How sure a serving figure is: the operators' width, and what served runs leave unexplained."""

from __future__ import annotations

import math

from perfmodel.analytic.constants import constant_values

QUANTITIES = ("ttft_ms", "tpot_ms", "throughput_tok_s")


def factors(quantity: str, low: float, high: float) -> tuple[float, float]:
    """(divide by, multiply by) of the 80 % interval of a time or a throughput, from the factors low < 1 < high of a step's time.

    The step's width and the model's own error on served runs (width_* of calibration/physics/serving.toml, in logarithms) add in
    quadrature; a throughput is low where a step is slow.
    """
    own = constant_values("serving")[f"width_{quantity}"]
    down, up = (math.exp(math.hypot(math.log(width), own)) for width in (1.0 / low, high))
    return (up, down) if quantity == "throughput_tok_s" else (down, up)
