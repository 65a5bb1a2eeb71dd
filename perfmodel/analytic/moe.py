"""Laws of routed rows: how many rows an expert gets, and how many tiles of block_m rows all experts need together."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def even_tiles(tokens: Any, top_k: Any, num_experts: Any, block_m: Any) -> Floats:
    """Tiles of `block_m` rows when the tokens x top_k rows are dealt out to the experts in turn: each gets as many as any, or one more.

    With rows = q E + b: b ceil((q + 1) / block_m) + (E - b) ceil(q / block_m).
    """
    rows, e, b = (np.asarray(x, dtype=np.float64) for x in (np.multiply(tokens, top_k), num_experts, block_m))
    each = np.floor(rows / e)
    more = rows - each * e
    return np.asarray(more * np.ceil((each + 1.0) / b) + (e - more) * np.ceil(each / b), dtype=np.float64)


def padded_tiles(tokens: Any, top_k: Any, num_experts: Any, block_m: Any) -> Floats:
    """Expected tiles of `block_m` rows when each expert's rows are padded to whole tiles and tokens choose top_k experts at random.

    Sum over experts of E[ceil(r / block_m)], r binomial (tokens, top_k / experts). With mean mu, the ceil is taken of a normal of the
    same mean and variance: sum over t of P(r > t block_m), t = 0, 1, ...; the first term is the exact chance of a touched expert.
    Evidence: within 2 % of drawn routings from 1 to 16384 tokens (tests/unit/test_kernels_moe.py).
    """
    t, k, e, b = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (tokens, top_k, num_experts, block_m)))
    share = np.minimum(k / e, 1.0)
    mean = t * share
    deviation = np.sqrt(np.maximum(mean * (1.0 - share), 1e-9))
    chosen = -np.expm1(t * np.log1p(-np.minimum(share, 1.0 - 1e-12)))
    whole = np.floor(np.maximum(mean - 4.0 * deviation, 0.0) / b)  # tiles that every expert fills for certain
    total = np.where(whole >= 1.0, whole, chosen)
    first = np.maximum(whole, 1.0)
    for step in range(int(np.max(np.ceil((mean + 4.0 * deviation) / b - whole), initial=1.0))):
        edge = (first + step) * b
        total = total + _above(edge, mean, deviation) * (edge < t)
    return np.asarray(e * total, dtype=np.float64)


def _above(edge: Floats, mean: Floats, deviation: Floats) -> Floats:
    """P(r > edge) of a normal, with half a row of continuity correction."""
    z = (edge + 0.5 - mean) / deviation
    return np.asarray(1.0 / (1.0 + np.exp(np.clip(1.5976 * z + 0.07056 * z**3, -60.0, 60.0))), dtype=np.float64)


def rows_of_busiest(tokens: Any, top_k: Any, num_experts: Any) -> Floats:
    """Rows of the busiest of E experts, about: mean + sqrt(2 ln E) deviations, at most one a token (extreme value of a normal)."""
    t, k, e = (np.asarray(x, dtype=np.float64) for x in (tokens, top_k, num_experts))
    mean = t * k / e
    spread = np.sqrt(np.maximum(mean * (1.0 - k / e), 0.0) * 2.0 * np.log(np.maximum(e, 1.0)))
    return np.asarray(np.minimum(np.maximum(mean + spread, 1.0), t), dtype=np.float64)


def stream_share(
    row_bytes: Any,
    stages: Any,
    rows: Any,
    group_m: Any,
    lost_bytes: float,
    stream_loss: float,
    band_loss: float,
    deep_loss: float,
) -> Floats:
    """Share of the sustained DRAM rate when weights stream in as tiles whose rows lie a whole weight row apart.

    row_bytes: length of a tile's row; with 3 stages or more two such pieces of one row are in flight, one after the other in memory, with
    2 stages one. rows: rows that an SM streams at once (tile rows x resident tiles); group_m: tile rows of a band, each of another expert.

        share = run / (run + lost_bytes) / (1 + stream_loss log2(rows / 16)) / (1 + band_loss log2(group_m)) / (1 + deep_loss (stages - 3))

    run = row_bytes min(stages - 1, 2): a piece that ends opens its DRAM page anew; many streams share few open pages; a band streams
    several experts at once; buffers beyond three are fetched before the first multiply and help nothing. Source: a choice of form.
    Evidence: the near-best public configs of A100, A40, L40 and H20 (README, accuracy); the constants are shared by the four.
    """
    run = np.asarray(row_bytes, dtype=np.float64) * np.clip(np.asarray(stages, dtype=np.float64) - 1.0, 1.0, 2.0)
    crowd = 1.0 + stream_loss * np.log2(np.maximum(np.asarray(rows, dtype=np.float64) / 16.0, 1.0))
    band = 1.0 + band_loss * np.log2(group_m)
    deep = 1.0 + deep_loss * np.maximum(np.asarray(stages, dtype=np.float64) - 3.0, 0.0)
    return np.asarray(run / (run + lost_bytes) / (crowd * band * deep), dtype=np.float64)
