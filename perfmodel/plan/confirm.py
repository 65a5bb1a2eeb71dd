"""Limits on percentiles: candidates that meet them by their means are simulated in order of preference, until one holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.plan.result import Plan, Row, kind_of

MOST = 32  # candidates that are simulated
LIKELY = 0.7  # of the ratio of percentile to mean seen of an engine: with more engines the queue, and so the ratio, is smaller


def confirmed(found: Plan) -> Plan:
    """The same plan, its rows up to the choice judged by the goal's percentile.

    A simulated row has ttft_<percentile>_ms and tpot_<percentile>_ms and meets the goal only if these do. Rows that are preferred to the
    choice and were not simulated do not meet it: more load on an engine that was seen to miss, by the ratio of percentile to mean seen.
    """
    rows: list[Row] = []
    ratios: dict[tuple[Any, ...], dict[str, float]] = {}
    for i, row in enumerate(found.rows):
        if not row["meets"]:
            rows.append(row)
            continue
        ratio = ratios.get(kind_of(row), {"ttft": 1.0, "tpot": 1.0})
        used = {name: share * ratio[name] * LIKELY for name, share in found.goal.misses(row["ttft_ms"], row["tpot_ms"]).items()}
        tightest = max(used, key=lambda name: used[name], default="")
        if len(ratios) == MOST or (tightest and used[tightest] > 1.0):
            missed = max(used.get(tightest, 1.0) / LIKELY, 1.0)
            rows.append({**row, "meets": False, "sure": False, "tightest": tightest, "tightest_used": missed})
            continue
        rows.append(_simulated(found, row))
        if rows[-1]["meets"]:
            rows += [{**other, "sure": False} for other in found.rows[i + 1 :]]
            break
        seen = {name: rows[-1][f"{name}_{found.goal.percentile}_ms"] / row[f"{name}_ms"] for name in ("ttft", "tpot")}
        ratios[kind_of(row)] = seen
    return replace(found, rows=sorted(rows, key=lambda row: not row["meets"]))


def _simulated(found: Plan, row: Row) -> Row:
    """The row with the percentiles of a simulation and what they make of the limits; other limits stay as they are."""
    goal, seen = found.goal, found.check(row)
    name = goal.percentile
    ttft, tpot = (float(getattr(spread, name)) for spread in (seen.ttft, seen.tpot))
    used = goal.misses(ttft, tpot)
    wide = {key: row[f"{key}_high_ms"] / row[f"{key}_ms"] for key in used}
    if row["tightest"] not in ("", "ttft", "tpot"):
        used[row["tightest"]] = row["tightest_used"]
    tightest = max(used, key=lambda key: used[key], default="")
    return {
        **row,
        f"ttft_{name}_ms": ttft,
        f"tpot_{name}_ms": tpot,
        "meets": not used or used[tightest] <= 1.0,
        "sure": all(share * wide.get(key, 1.0) <= 1.0 for key, share in used.items()),
        "tightest": tightest,
        "tightest_used": used.get(tightest, 0.0),
    }
