"""Reviewed predictions: any change of one shows up here. They follow the shipped models and constants, so a new fit changes them.

Read what changed, then write them anew with `python tests/golden/rewrite.py predictions`, which prints every difference, and commit
predictions.json with the change that caused it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from goldens import differences, number, read

import perfmodel as pm

FILE = Path(__file__).with_name("predictions.json")
FIELDS = ("variant", "block_m", "block_n", "block_k", "group_m", "split_k", "num_warps", "num_stages")
CONFIGS = {
    "anyone's 128x128x64": {"block_m": 128, "block_n": 128, "block_k": 64, "group_m": 8, "num_warps": 8, "num_stages": 3},
    "pointer 64x128x64": {"variant": "pointer", "block_m": 64, "block_n": 128, "block_k": 64, "num_warps": 4, "num_stages": 4},
    "pointer 16x64x128 split 4": {"variant": "pointer", "block_m": 16, "block_n": 64, "block_k": 128, "split_k": 4, "num_stages": 4},
    "tma 128x256x64": {"variant": "tma", "block_m": 128, "block_n": 256, "block_k": 64, "group_m": 8, "num_warps": 8, "num_stages": 3},
    "tma_swap 16x64x128": {"variant": "tma_swap", "block_m": 16, "block_n": 64, "block_k": 128, "num_stages": 5},
    "persistent 128x128x64": {"variant": "persistent", "block_m": 128, "block_n": 128, "block_k": 64, "group_m": 8, "num_warps": 8},
}
LARGE, MIDDLE, TINY = (4096, 4096, 4096), (256, 6144, 4096), (4, 8192, 3584)
ONE = [  # gpu, sizes, dtype, config, calibration
    *((gpu, LARGE, "bf16", "anyone's 128x128x64", None) for gpu in ("a100_sxm", "h100_sxm", "h200_sxm", "l20", "b200_sxm", "rtx_pro_6000")),
    *((gpu, MIDDLE, "bf16", "pointer 64x128x64", None) for gpu in ("a100_sxm", "h200_sxm", "l20", "b200_sxm")),
    *((gpu, TINY, "bf16", "pointer 16x64x128 split 4", None) for gpu in ("a100_sxm", "h200_sxm", "l20")),
    *((gpu, LARGE, "bf16", "tma 128x256x64", None) for gpu in ("h100_sxm", "b200_sxm")),
    ("h100_sxm", TINY, "fp8", "tma_swap 16x64x128", None),
    ("l40s", LARGE, "fp8", "anyone's 128x128x64", None),
    ("a100_sxm", MIDDLE, "int8", "anyone's 128x128x64", None),
    ("h200_sxm", LARGE, "bf16", "anyone's 128x128x64", "auto"),
    ("h200_sxm", LARGE, "bf16", "tma 128x256x64", "auto"),
    ("h200_sxm", MIDDLE, "bf16", "persistent 128x128x64", "auto"),
    ("h200_sxm", MIDDLE, "fp16", "pointer 64x128x64", "auto"),
    ("h200_sxm", TINY, "bf16", "tma_swap 16x64x128", "auto"),
    ("h200_sxm", TINY, "fp8", "pointer 16x64x128 split 4", "auto"),
]
BEST = [  # gpu, sizes, dtype, calibration
    *((gpu, sizes, "bf16", None) for gpu in ("a100_sxm", "h100_sxm", "l20") for sizes in (LARGE, TINY)),
    *(("h200_sxm", sizes, dtype, "auto") for sizes in (LARGE, MIDDLE, TINY) for dtype in ("bf16", "fp8")),
    ("b200_sxm", LARGE, "fp8", None),
    ("rtx_pro_6000", MIDDLE, "bf16", None),
]


def key(*parts: Any) -> str:
    return " | ".join("x".join(map(str, p)) if isinstance(p, tuple) else "spec" if p is None else str(p) for p in parts)


def figures() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for gpu, sizes, dtype, config, calibration in ONE:
        p = pm.predict(pm.Gemm(*sizes, dtype), gpu, config=CONFIGS[config], calibration=calibration)
        numbers = {"latency_us": number(p.latency_us), "low_us": number(p.low_us), "high_us": number(p.high_us)}
        found[key(gpu, sizes, dtype, config, calibration)] = {**numbers, "bound": p.bound, "tier": p.tier, "in_domain": bool(p.in_domain)}
    for gpu, sizes, dtype, calibration in BEST:
        ranking = pm.rank(pm.Gemm(*sizes, dtype), gpu, calibration=calibration)
        best = ranking.frame.iloc[0]
        fields = " ".join(str(best[name]) for name in FIELDS)
        count = {"ranked": len(ranking), "pruned": len(ranking.pruned)}
        found[key(gpu, sizes, dtype, "best", calibration)] = {"config": fields, "latency_us": number(best["latency_us"]), **count}
    return found


def test_every_prediction_is_as_reviewed() -> None:
    lines = differences(read(FILE), figures())
    assert not lines, "\n".join(lines)
