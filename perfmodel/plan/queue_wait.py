"""How long a prompt waits for others before it is served."""

from __future__ import annotations

import math


def waiting_s(service_s: float, busy: float, servers: int = 1) -> float:
    """Mean wait in seconds of Poisson arrivals that each take `service_s` on one of `servers`, which are busy for that share of time.

        W = s / 2 x rho^(sqrt(2 (c + 1)) - 1) / (c (1 - rho))

    s: service time, constant; rho: share busy, below 1; c: servers. Source: H. Sakasegawa, "An approximation formula
    L_q = a rho^b / (1 - rho)", Ann. Inst. Stat. Math. 29 (1977); for c = 1 exact (M/D/1, Pollaczek-Khinchine). Infinite from rho = 1 on.
    """
    if busy >= 1.0:
        return math.inf
    return float(service_s / 2.0 * busy ** (math.sqrt(2.0 * (servers + 1)) - 1.0) / (servers * (1.0 - busy)))
