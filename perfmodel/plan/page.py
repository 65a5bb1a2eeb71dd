"""A plan as one self-contained HTML page: no script, no font, no picture from anywhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel._atomic import write_atomically
from perfmodel.boundary import path_shown
from perfmodel.errors import InputError
from perfmodel.plan.result import front
from perfmodel.plan.svg import Series, chart, stacked_bar
from perfmodel.units import GIB

if TYPE_CHECKING:
    from perfmodel.plan.result import Plan

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1c2430;background:#fff;max-width:1340px;margin:2rem auto;padding:0 1.2rem}
h1{font-size:1.5rem;margin:0 0 .3rem} h2{font-size:1.1rem;margin:2rem 0 .5rem}
.answer{font-size:1.05rem;padding:.8rem 1rem;border-left:5px solid #2e933c;background:#f1f7f2}
.answer.missed{border-color:#d1495b;background:#fbf1f2} .note{color:#55606e;font-size:.9rem;margin:.2rem 0}
table{border-collapse:collapse;font-size:.84rem;width:100%} th,td{padding:.28rem .5rem;text-align:left;border-bottom:1px solid #dfe4ea}
td:last-child{min-width:9rem} td.n,th.n{text-align:right;font-variant-numeric:tabular-nums} tr.chosen{background:#f1f7f2;font-weight:600}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(430px,1fr));gap:1.2rem} figure{margin:0}
svg{width:100%;height:auto} .title{font-size:14px;font-weight:600} .tick{font-size:11px;fill:#55606e} .label{font-size:12px;fill:#333}
.grid{stroke:#e6eaef;stroke-width:1} .limit{stroke:#d1495b;stroke-width:1.5;stroke-dasharray:6 4}
figcaption{font-size:.8rem;color:#333;display:flex;flex-wrap:wrap;gap:.2rem .9rem}
figcaption i{display:inline-block;width:.7rem;height:.7rem;border-radius:2px;margin-right:.35rem}
pre{background:#f5f7f9;padding:.7rem;overflow-x:auto;font-size:.82rem} .scroll{overflow-x:auto}
"""
_COLUMNS: Mapping[str, str] = {
    "gpus": "GPUs", "gpu": "GPU", "deployed": "deployed as", "quantization": "weights", "concurrency": "in flight", "ttft_ms": "TTFT ms",
    "tpot_ms": "TPOT ms", "tpot_range": "80 % within", "requests_per_s": "requests/s", "tok_s_per_user": "tokens/s, user",
    "tok_s_per_gpu": "tokens/s, GPU", "tier": "tier", "why_not": "why not",
}  # fmt: skip
_COSTS: Mapping[str, str] = {
    "gpus": "GPUs", "gpu": "GPU", "deployed": "deployed as", "usd_per_hour": "USD/h", "usd_per_m_input_tokens": "USD/M tokens in",
    "usd_per_m_output_tokens": "USD/M tokens out", "power_limit_w": "W at most", "joule_per_output_token": "J/token out at most",
}  # fmt: skip
_CURVES_EACH = 3  # engines of each kind of GPU shown in latency against load


def write_page(plan: Plan, path: Path) -> Path:
    """Write the page; raises InputError where it cannot."""
    document = page(plan)
    try:
        write_atomically(path, document)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path_shown(path)}: cannot be written ({getattr(error, 'strerror', None) or error})") from None
    return path


def page(plan: Plan) -> str:
    """The whole document."""
    goal = plan.goal
    limits = [f"{name} at most {value:g} ms" for name, value in (("TTFT", goal.ttft_ms), ("TPOT", goal.tpot_ms)) if value]
    traffic = f"{goal.request_rate:g} requests/s" if goal.request_rate else f"{goal.concurrency} in flight" if goal.concurrency else ""
    asked = ", ".join(filter(None, [f"{goal.isl} tokens in, {goal.osl} out", traffic, *limits, plan.stack]))
    title = f"Deployment plan: {plan.model.name}"
    commands = "".join(f"<p class='note'>{escape(role)}</p><pre>{escape(line)}</pre>" for role, line in plan.commands().items())
    body = [
        f"<h1>{escape(title)}</h1><p class='note'>{escape(asked)}; {plan.examined} deployments examined</p>",
        f"<p class='answer{'' if plan.best else ' missed'}'>{escape(plan.sentence())}</p>",
        *(f"<p class='note'>{escape(line)}</p>" for line in plan.notes()),
        "<h2>Choice and runners-up</h2>",
        table(_rows(plan), _COLUMNS, chosen=0),
        f"<div class='two'>{_pareto(plan)}{_load(plan)}</div>",
        "<h2>Cost and power</h2><p class='note'>An hour's cost is shared between input and output as the engines' time is. "
        "Power is the boards' limit, so energy is an upper bound.</p>",
        table(_rows(plan), _COSTS, chosen=0),
        f"<h2>Memory of one {escape(plan.nearest['gpu'])}</h2>",
        _memory(plan),
        "<h2>What binds</h2>",
        table(plan.what_binds().to_dict("records"), {"limit": "limit", "used_percent": "used %"}),
        "<h2>Start</h2>" if commands else "",
        commands,
    ]
    head = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{escape(title)}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(body)}</body></html>\n"


def summary(plan: Plan) -> str:
    """The answer, what to know of it, and the choice beside its runners-up, as a fragment of HTML."""
    notes = "".join(f"<p>{escape(line)}</p>" for line in plan.notes())
    return f"<p><b>{escape(plan.sentence())}</b></p>{notes}{table(_rows(plan), _COLUMNS, chosen=0)}"


def table(rows: Sequence[Mapping[Any, Any]], columns: Mapping[str, str], chosen: int = -1) -> str:
    """Rows as an HTML table; numbers to four digits, right-aligned."""
    numeric = {c: all(isinstance(r.get(c), int | float) or r.get(c) is None for r in rows) for c in columns}
    head = "".join(f"<th{' class=n' if numeric[c] else ''}>{escape(label)}</th>" for c, label in columns.items())
    lines = []
    for i, row in enumerate(rows):
        cells = "".join(f"<td{' class=n' if numeric[c] else ''}>{escape(_cell(row.get(c)))}</td>" for c in columns)
        lines.append(f"<tr{' class=chosen' if i == chosen else ''}>{cells}</tr>")
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _rows(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            **row,
            "deployed": f"{row['replicas']} x {row['parallel']}" if row["mode"] == "agg" else f"{row['replicas']} x ({row['parallel']})",
            "tpot_range": f"{row['tpot_low_ms']:.1f}\u2013{row['tpot_high_ms']:.1f}",
        }
        for row in (plan.nearest, *plan.runners_up)
    ]


def _pareto(plan: Plan) -> str:
    frame = plan.frame
    series = []
    for (gpu, mode), part in frame.groupby(["gpu", "mode"], sort=True):
        best = front(part)
        titles = [f"{r.parallel}, {r.quantization}, {r.concurrency:.0f} in flight" for r in best.itertuples()]
        series.append(Series(f"{gpu} {mode}", list(best["tok_s_per_user"]), list(best["tok_s_per_gpu"]), True, titles))
    row = plan.nearest
    name = "chosen" if plan.best else "nearest"
    series.append(Series(name, [row["tok_s_per_user"]], [row["tok_s_per_gpu"]], False, [plan.sentence()], True))
    return chart("Throughput against speed", "output tokens/s and user", "output tokens/s and GPU", series, log_y=True)


def _load(plan: Plan) -> str:
    shown: list[Series] = []
    seen: set[tuple[str, str, str | None]] = set()
    for row in plan.best_each:
        engine, curve = plan.engine_of(row)
        key = (engine.gpu.name, str(engine.parallel), engine.quantization)
        if key in seen:
            continue
        if sum(s[0] == engine.gpu.name for s in seen) == _CURVES_EACH:
            continue
        seen.add(key)
        name = f"{engine.gpu.name} {engine.parallel}" + (f" {engine.quantization}" if engine.quantization else "")
        per_gpu = curve.rate_s / engine.parallel.gpus
        titles = [f"{b:.0f} in flight, TTFT {1e3 * t:.0f} ms" for b, t in zip(curve.concurrency, curve.ttft_s, strict=True)]
        shown.append(Series(name, list(per_gpu), list(curve.tpot_s * 1e3), True, titles))
    return chart("Latency against load", "requests/s and GPU", "TPOT ms", shown, log_x=True, log_y=True, limit_y=plan.goal.tpot_ms)


def _memory(plan: Plan) -> str:
    entries = [(name, value / GIB) for name, value in plan.ledger.entries.items() if abs(value) > 0.001 * plan.ledger.total_bytes]
    rows = plan.ledger.frame.to_dict("records")
    total = {"entry": "sum", "gib": plan.ledger.total_bytes / GIB, "share_percent": 100.0}
    bar = stacked_bar(f"{plan.ledger.total_bytes / GIB:.1f} GiB", entries, "GiB")
    return f"<div class='two'>{bar}{table([*rows, total], {'entry': 'entry', 'gib': 'GiB', 'share_percent': '% of the card'})}</div>"
