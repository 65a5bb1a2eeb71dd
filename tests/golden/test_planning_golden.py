"""Reviewed answers of the planner as its users see them: choices, runners-up, limits, commands, pages, and tables of capacity.

They rest on the shipped models. Written by `python tests/golden/rewrite.py planning`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from goldens import differences, number, read

import perfmodel as pm
from perfmodel.plan.disagg import Pool, estimate_split

FILE = Path(__file__).with_name("planning.json")
BEST = ("gpu", "mode", "parallel", "replicas", "meets", "tightest")
PRICES = {"h100_sxm": 3.0, "l40s": 1.0, "a100_sxm4_80gb": 1.8, "h200_sxm": 3.8}
PLANS: dict[str, Callable[[], Any]] = {
    "cheapest at a rate": lambda: pm.plan(
        "Llama-3.1-8B", ["h100_sxm", "l40s", "a100_sxm4_80gb"], isl=2000, osl=200, ttft_ms=800, tpot_ms=30, request_rate=9,
        prices=PRICES, quantization="auto",
    ),
    "fewest for requests in flight": lambda: pm.plan(
        "Qwen3-32B", ["h100_sxm", "l40s"], isl=1500, osl=500, tpot_ms=40, concurrency=90, kv_cache_dtype="fp8", stack="sglang",
    ),
    "apart, on SGLang": lambda: pm.plan(
        "Llama-3.1-70B", "h200_sxm", isl=8000, osl=150, ttft_ms=1500, tpot_ms=20, request_rate=6, stack="sglang",
    ),
    "experts filled within a budget": lambda: pm.plan(
        "Qwen3-30B-A3B", ["h100_sxm", "a100_sxm4_80gb"], isl=1000, osl=1000, tpot_ms=30, total_gpus=8, prices=PRICES,
        budget_usd_per_hour=20.0, quantization=["bf16", "fp8"],
    ),
    "nothing meets it": lambda: pm.plan("Llama-3.1-70B", ["l40s", "h100_sxm"], isl=6000, osl=300, ttft_ms=150, tpot_ms=6, request_rate=3),
    "p99 of simulated requests": lambda: pm.plan(
        "Qwen3-8B", "l40s", isl=700, osl=80, ttft_ms=600, tpot_ms=30, request_rate=5, percentile="p99", disaggregated=False,
    ),
    "a cached prefix and a draft": lambda: pm.plan(
        "DeepSeek-V3", "h200_sxm", isl=4000, osl=600, tpot_ms=30, concurrency=64, prefix_cache_hit_rate=0.5, accepted_tokens_per_step=1.8,
        stack="trtllm", max_engine_gpus=16,
    ),
    "a GPU on which it does not fit": lambda: pm.plan(
        "Llama-3.1-405B", ["l20", "h200_sxm"], isl=2000, osl=200, concurrency=8, objective="gpus",
    ),
}  # fmt: skip
SPLITS: dict[str, Callable[[], Any]] = {
    "three to one": lambda: estimate_split(
        "Qwen3-32B", "h100_sxm", prefill=Pool(3, pm.Parallel(2)), decode=Pool(1, pm.Parallel(4)), isl=6000, osl=60, request_rate=0.8,
        requests=120, seed=3,
    ),
    "few in flight over a slow link": lambda: estimate_split(
        "Llama-3.1-8B", "a100_sxm4_80gb", prefill=Pool(1), decode=Pool(1), isl=3000, osl=300, concurrency=3, link_gb_per_s=2.0,
        kv_cache_dtype="fp8", stack="sglang",
    ),
    "many in flight": lambda: estimate_split(
        "Llama-3.1-8B", "h100_sxm", prefill=Pool(), decode=Pool(3), isl=500, osl=200, concurrency=200, stack="trtllm",
    ),
}  # fmt: skip
TABLES: dict[str, Callable[[], pd.DataFrame]] = {
    "contexts that fit": lambda: pm.max_concurrency(
        "Qwen3-30B-A3B", ["h100_sxm", "l40s"], [4096, 65536], tensor_parallel_sizes=(1, 4), stack="sglang", memory_fraction=0.8
    ),
    "contexts that fit, fp8": lambda: pm.max_concurrency("Gemma-3-27B", "a100_sxm4_80gb", quantization="int4_wo", kv_cache_dtype="fp8"),
    "GPUs for a rate": lambda: pm.gpus_for("Llama-3.1-8B", ["h100_sxm", "l20"], request_rate=20, isl=900, osl=300, tpot_ms=15, ttft_ms=250),
    "GPUs that fall short": lambda: pm.gpus_for("Llama-3.1-70B", ["h100_sxm", "l40s"], request_rate=2, isl=3000, osl=200, tpot_ms=4),
    "kinds side by side": lambda: pm.compare("Qwen3-8B", ["h100_sxm", "l40s"], isl=1200, osl=400, tpot_ms=20, prices=PRICES),
    "changes": lambda: pm.sensitivity(
        pm.plan("Llama-3.1-8B", "h100_sxm", isl=1000, osl=200, tpot_ms=18, request_rate=30, disaggregated=False),
        ["+50 % traffic", "2x context", "-40 % tpot", "fp8", "fp8 kv", {"stack": "sglang"}],
    ),
}


def plain(value: Any) -> Any:
    """As it is stored: numbers with the digits that are held, all else as text."""
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    try:
        return None if pd.isna(value) else number(value)
    except (TypeError, ValueError):
        return str(value)


def table(frame: pd.DataFrame) -> list[Any]:
    return [plain(row) for row in frame.to_dict("records")]


def planned(name: str) -> dict[str, Any]:
    """Everything a plan says; of its page a digest without numbers, which the rows hold."""
    found = PLANS[name]()
    rows = table(found.frame.head(6))
    page = found._repr_html_()
    return {
        "sentence": found.sentence(), "notes": found.notes(), "rows": len(found.rows), "first": rows,
        "best each": [{k: row[k] for k in BEST} for row in map(plain, found.best_each[:8])],
        "runners-up": [row["why_not"] for row in found.runners_up], "pareto": len(found.pareto), "binds": table(found.what_binds()),
        "commands": found.commands(), "absent": sorted(f"{r.gpu} {r.parallel} {r.reason}" for r in found.rejected)[:5],
        "page": hashlib.sha256("".join(c for c in page if not c.isdigit() and c != ".").encode()).hexdigest()[:16],
    }  # fmt: skip


def checked(name: str) -> dict[str, Any]:
    """A plan's choice, simulated."""
    found = PLANS[name]().check()
    return {n: plain(getattr(found, n)) for n in ("ttft_ms", "tpot_ms", "throughput_tok_s", "requests_per_s", "gpus", "tier", "bound")}


def split(name: str) -> dict[str, Any]:
    e = SPLITS[name]()
    numbers = ("ttft_ms", "tpot_ms", "throughput_tok_s", "requests_per_s", "hand_over_ms", "prefill_busy", "decode_running", "gpus")
    spreads = {f"{n} {p}": plain(getattr(getattr(e, n), p)) for n in ("ttft", "tpot") for p in ("mean", "p50", "p90", "p99")}
    return {**{n: plain(getattr(e, n)) for n in numbers}, **spreads, "tier": e.tier, "bound": e.bound}


def figures() -> dict[str, Any]:
    return {
        **{f"plan {name}": planned(name) for name in PLANS},
        **{f"checked {name}": checked(name) for name in PLANS},
        **{f"split {name}": split(name) for name in SPLITS},
        **{f"table {name}": table(make()) for name, make in TABLES.items()},
    }


def hold(name: str, found: Any) -> None:
    found = json.loads(json.dumps(found))
    lines = differences({name: read(FILE)[name]}, {name: found})
    assert not lines, "\n".join(lines[:20])


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_says_what_was_reviewed(name: str) -> None:
    hold(f"plan {name}", planned(name))


@pytest.mark.parametrize("name", PLANS)
def test_a_choice_simulated(name: str) -> None:
    hold(f"checked {name}", checked(name))


@pytest.mark.parametrize("name", SPLITS)
def test_pools_apart(name: str) -> None:
    hold(f"split {name}", split(name))


@pytest.mark.parametrize("name", TABLES)
def test_a_table(name: str) -> None:
    hold(f"table {name}", table(TABLES[name]()))
