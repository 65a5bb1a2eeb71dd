"""Laws of a blocked attention kernel: which blocks of keys a block of queries visits, what a visit costs, how uneven programs end.

All are pure and broadcast over arrays. Lengths are tokens; times inside an SM are clock cycles (`_cycles`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def visited_blocks(q_len: Any, kv_len: Any, block_m: Floats, block_n: Floats, causal: Any) -> tuple[Floats, Floats, Floats]:
    """Blocks of keys that all query blocks of one head visit, the most that one visits, and how many lie wholly before every query.

    Query block i ends at key min((i + 1) block_m + kv - q, kv) when causal and visits ceil(that / block_n) blocks, ceil(kv / block_n)
    otherwise; floor((i block_m + kv - q + 1) / block_n) of them need no mask. Masking is block-granular: half-seen blocks cost a whole one.
    The sums are closed: the mean of ceil(x / block_n) over aligned x is x / block_n + (1 - min(block_m, block_n) / block_n) / 2.
    Source: FlashAttention-2 (Dao, arXiv 2307.08691), section 3.1. Exact for powers of two with kv - q a multiple of the larger
    block; else within a block a query block (tests/unit/test_kernels_attention.py).
    """
    q, kv = np.asarray(q_len, dtype=np.float64), np.asarray(kv_len, dtype=np.float64)
    tiles = np.ceil(q / block_m)
    longest = np.ceil(kv / block_n)
    before = kv - q
    rounding = (1.0 - np.minimum(block_m, block_n) / block_n) / 2.0
    inner = tiles - 1.0  # all query blocks but the last, whose end is cut at kv
    ends = inner * (inner + 1.0) / 2.0 * block_m + inner * before
    causal_visits = np.minimum(ends / block_n + inner * rounding, inner * longest) + longest
    starts = tiles * (tiles - 1.0) / 2.0 * block_m + tiles * (before + 1.0)
    whole = np.clip(starts / block_n - tiles * (rounding + 1.0 / block_n), 0.0, causal_visits)
    is_causal = np.asarray(causal, dtype=bool)
    plain_whole = tiles * np.floor(kv / block_n)
    return np.where(is_causal, causal_visits, tiles * longest), longest, np.where(is_causal, whole, plain_whole)


def softmax_cycles(instructions: Floats, special: Floats, warps: Floats, special_per_cycle: float) -> tuple[Floats, Floats]:
    """Cycles of one SM to issue a visit's instructions, and those of its special-function unit for the exponentials.

    instructions, special: of one warp. An SM issues four instructions a cycle; a warp's exponential is 32 results.
    Source: CUDA C++ Programming Guide, "Arithmetic Instructions" (16 special-function results a cycle and SM from sm_80 to sm_90).
    """
    return instructions * warps / 4.0, special * warps * 32.0 / special_per_cycle


def makespan(total: Floats, longest: Floats, slots: Floats, equal: Any, tail_share: Any, tail_weight: float) -> Floats:
    """Visits that the last slot to finish has made, when programs of together `total` visits are handed out in order to `slots`.

    Equal programs go in whole rounds, of which the last counts with `tail_weight`; uneven ones end `tail_share` of the longest after the
    mean (about half when they are handed out shortest first, little when longest first). Never less than mean and longest.
    Source: R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", 1969 (greedy hand-out <= mean + longest).
    """
    mean = total / slots
    rounds = mean / longest
    whole = longest * (np.ceil(rounds - 1e-9) * tail_weight + rounds * (1.0 - tail_weight))
    last: Floats = np.maximum(np.where(equal, whole, mean + longest * tail_share), np.maximum(longest, mean))
    return last


def combine_seconds(
    heads: Any,
    splits: Any,
    split_cycles: Any,
    sms: float,
    latency_s: float,
    clock_hz: float,
    launch_s: float,
    per_sm: float,
) -> Floats:
    """Seconds of the kernel that adds the shares of each head, launched behind the first: launch + round trip + its pass over the splits.

    A program spends `split_cycles` on a split; sms x per_sm programs run at once. Source: Flash-Decoding (Dao et al., 2023,
    pytorch.org/blog/flash-decoding), whose second kernel this is.
    """
    rounds = np.maximum(np.asarray(heads, dtype=np.float64) / (sms * per_sm), 1.0)
    return np.asarray(launch_s + latency_s + rounds * splits * split_cycles / clock_hz, dtype=np.float64)
