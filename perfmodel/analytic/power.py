"""Sustained speed under a power limit: a kernel cannot spend energy faster than the board may draw it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def power_seconds(
    flops: Floats, joule_per_flop: float, dram_bytes: Floats, joule_per_byte: float, power_w: float, idle_share: float
) -> Floats:
    """Least time in seconds that the energy of a kernel takes under the board's limit.

        t = (flops e_f + dram_bytes e_b) / (P (1 - idle_share))

    flops: operations; e_f: joule an operation, all of the SM's share included; e_b: joule a byte of DRAM; P: board limit in watt;
    idle_share: what leakage, fans and clocks draw whatever runs. The clock falls until power fits, so the time is linear in energy.
    Source: the form follows from energy conservation; H. He, "Strangely, matrix multiplications on GPUs run faster when given
    predictable data" (thonking.ai, 2024) measures it: A100, 8192 cubed, 257 TFLOP/s on random data and 295 on zeros.
    Valid for kernels of 100 us and more in a steady state; shorter ones run before the limiter acts.
    Evidence: GEMMs over 1 TFLOP on L40S reach 65-75 % of peak, on RTX PRO 6000 90 % and on H100 80 % (public tables); one constant
    a tensor path explains the three.
    """
    return (flops * joule_per_flop + dram_bytes * joule_per_byte) / (power_w * (1.0 - idle_share))
