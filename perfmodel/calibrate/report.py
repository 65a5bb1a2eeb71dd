"""What a calibration run did and what it changed: one summary, written as JSON, Markdown and a page of HTML with its plots inside."""

from __future__ import annotations

import base64
import datetime
import html as escape
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfmodel.calibrate.ceilings import datasheet
from perfmodel.calibrate.fit import Outcome
from perfmodel.hw.spec import GpuSpec
from perfmodel.measure.ceilings import CEILINGS
from perfmodel.measure.state import Sample, bad_state
from perfmodel.units import US_PER_S

REGIMES = ((0.0, 10.0, "under 10 us"), (10.0, 100.0, "10 to 100 us"), (100.0, np.inf, "over 100 us"))
_SHOWN = {  # unit -> (factor, unit shown)
    "bytes/s": (1e-9, "GB/s"),
    "flop/s": (1e-12, "TFLOP/s"),
    "1/s": (1e-12, "T/s"),
    "s": (1e9, "ns"),
}
_VERSIONS = ("gpu_name", "torch", "triton", "cuda", "source_hash")
_TRACE = 600  # points of the clock and power curve that are kept


def summarise(
    gpu: GpuSpec,
    rows: Sequence[Mapping[str, Any]],
    outcomes: Sequence[Outcome],
    *,
    states: Sequence[Mapping[str, Any]] = (),
    budget_s: float | None = None,
) -> dict[str, Any]:
    """Everything the report says, as plain numbers: state of the GPU, ceilings, what was run, errors before and after, by regime."""
    samples = [Sample.from_row(s) for s in states]
    times = [float(r["time_s"]) for r in rows if r.get("time_s")]
    return {
        "gpu": gpu.name,
        "full_name": gpu.full_name,
        "measured_at": datetime.datetime.fromtimestamp(min(times), datetime.UTC).isoformat(timespec="seconds") if times else None,
        "budget_s": budget_s,
        "spent_s": round(sum(float(r.get("wall_s") or 0.0) for r in rows), 1),
        "devices": len({(r.get("rank"), r.get("device")) for r in rows}),
        "provenance": provenance_of(rows),
        "bad_state": bad_state(samples, rows),
        "ran": _ran(rows),
        "ceilings": _ceilings(gpu, rows),
        "parts": [_part(o) for o in outcomes],
        "points": {o.what: _points(o) for o in outcomes if o.points is not None},
        "trace": _trace(samples),
        "datasheet": {"dram_bytes_per_s": gpu.dram_bytes_per_s, "bf16_flops": gpu.tensor_flops.get("bf16"), "power_w": gpu.power_w},
    }


def provenance_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Versions that the rows name."""
    return {name: values for name in _VERSIONS if (values := ", ".join(sorted({str(r[name]) for r in rows if r.get(name)})))}


def _ran(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        name = str(row.get("what", "worker"))
        kinds.setdefault(f"{name} {row['phase']}" if row.get("phase") else name, []).append(row)
    found = []
    for name, members in kinds.items():
        reasons: dict[str, int] = {}
        for row in members:
            if row["status"] != "ok":
                reason = f"{row['status']}: {row.get('reason', '')}"[:120]
                reasons[reason] = reasons.get(reason, 0) + 1
        found.append(
            {
                "what": name,
                "points": len(members),
                "ok": sum(r["status"] == "ok" for r in members),
                "unsteady": sum(bool(r.get("unstable")) for r in members),
                "seconds": round(sum(float(r.get("wall_s") or 0.0) for r in members), 1),
                "failures": reasons,
            }
        )
    return found


def _ceilings(gpu: GpuSpec, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    printed = datasheet(gpu)
    found = []
    for row in rows:
        if row.get("what") == "ceiling" and row["status"] == "ok":
            name = str(row["name"])
            entry = {"name": name, "value": float(row["value"]), "unit": CEILINGS[name].unit, "datasheet": printed.get(name)}
            state = {k: row.get(k) for k in ("clock_mhz", "power_w", "spread", "reps")}
            found.append(entry | state)
            if row.get("sustained"):
                found.append(entry | state | {"name": f"{name}_sustained", "value": float(row["sustained"])})
    return found


def _part(outcome: Outcome) -> dict[str, Any]:
    row: dict[str, Any] = {
        "what": outcome.what,
        "rows": outcome.rows,
        "shapes": outcome.shapes,
        "failed": outcome.failed,
        "before": outcome.before,
        "after": outcome.after,
        "coverage": outcome.coverage,
        "adopted": outcome.adopted,
        "reason": outcome.reason,
    }
    if outcome.points is not None and outcome.coverage is not None:  # out of fold
        measured, before, after = (outcome.points[name].to_numpy(dtype=np.float64) for name in ("measured_us", "before_us", "after_us"))
        for low, high, label in REGIMES:
            at = (measured >= low) & (measured < high)
            if at.any():
                mean = [float(np.mean(np.abs(p[at] / measured[at] - 1.0))) for p in (before, after)]
                row.setdefault("regimes", []).append({"regime": label, "rows": int(at.sum()), "before": mean[0], "after": mean[1]})
    return row


def _points(outcome: Outcome) -> dict[str, Any]:
    """Measured, before and after (microseconds) of each row; products also flops a byte and flop/s, for the roofline."""
    frame = outcome.points
    found = {name: [float(f"{v:.5g}") for v in frame[name]] for name in ("measured_us", "before_us", "after_us")}
    if outcome.what == "gemm":
        m, n, k = (frame[name].to_numpy(dtype=np.float64) for name in ("m", "n", "k"))
        flops = 2.0 * m * n * k
        found["flop_per_byte"] = [float(f"{v:.4g}") for v in flops / (2.0 * (m * k + n * k + m * n))]
        found["flop_per_s"] = [float(f"{v:.4g}") for v in flops / (frame["measured_us"].to_numpy(dtype=np.float64) / US_PER_S)]
    return found


def _trace(samples: Sequence[Sample]) -> list[list[float | None]]:
    """[seconds from the start, clock MHz, power W, heat C], thinned."""
    if not samples:
        return []
    step = max(1, len(samples) // _TRACE)
    start = samples[0].time_s
    return [[round(s.time_s - start, 1), s.clock_mhz, s.power_w, s.temperature_c] for s in samples[::step]]


def shown(value: float, unit: str) -> str:
    """A ceiling in the unit people use."""
    factor, name = (1e6, "us") if unit == "s" and value >= 1e-6 else _SHOWN[unit]
    return f"{value * factor:,.4g} {name}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def tables(summary: Mapping[str, Any]) -> list[tuple[str, str, list[str], list[list[str]]]]:
    """(title, remark, header, cells) of every table of the report."""
    parts = [
        [p["what"], str(p["rows"]), str(p["shapes"]), _percent(p["before"]), _percent(p["after"]), _percent(p["coverage"]),
         "yes" if p["adopted"] else f"no: {p['reason']}"]
        for p in summary["parts"]
    ]  # fmt: skip
    regimes = [
        [p["what"], r["regime"], str(r["rows"]), _percent(r["before"]), _percent(r["after"])]
        for p in summary["parts"]
        for r in p.get("regimes", ())
    ]
    ceilings = [_ceiling_cells(c) for c in summary["ceilings"]]
    ran = [
        [r["what"], str(r["points"]), str(r["ok"]), str(r["unsteady"]), f"{r['seconds']:.1f}",
         "; ".join(f"{n} x {w}" for w, n in r["failures"].items())]
        for r in summary["ran"]
    ]  # fmt: skip
    held_out = "mean |predicted / measured - 1| on whole shapes that the fit had not seen; before: the model that never saw this GPU"
    return [
        ("Error before and after", held_out, ["part", "rows", "shapes", "before", "after", "80 % interval covers", "adopted"], parts),
        ("By regime", held_out, ["part", "latency", "rows", "before", "after"], regimes),
        (
            "Ceilings",
            "medians; tensor rates: 8192 x 8192 x 8192 on random data, 10 products after a rest, and (sustained) after 0.3 s of them",
            ["ceiling", "measured", "hwdb", "ratio", "SM MHz", "W", "spread"],
            ceilings,
        ),
        (
            "What was run",
            "unsteady: spread (interquartile range over median) above 5 %",
            ["what", "points", "ok", "unsteady", "s", "failures"],
            ran,
        ),
    ]  # fmt: skip


def _ceiling_cells(c: Mapping[str, Any]) -> list[str]:
    printed, state = c["datasheet"], ("-" if c[name] is None else f"{c[name]:.0f}" for name in ("clock_mhz", "power_w"))
    beside = [shown(printed, c["unit"]), f"{c['value'] / printed:.2f}"] if printed else ["-", "-"]
    return [c["name"], shown(c["value"], c["unit"]), *beside, *state, _percent(c["spread"])]


def head(summary: Mapping[str, Any]) -> list[str]:
    """Lines above the tables: what, when, how long, and the GPU's state, loudly where it was bad."""
    spent = f"{summary['spent_s']:.0f} s of measuring on {summary['devices']} GPU{'s' if summary['devices'] > 1 else ''}"
    budget = f", of a budget of {summary['budget_s']:.0f} s" if summary["budget_s"] else ""
    when = f", {summary['measured_at']}" if summary["measured_at"] else ""
    versions = ", ".join(f"{k} {v}" for k, v in summary["provenance"].items())
    lines = [f"{summary['full_name']} ({summary['gpu']}): {spent}{budget}{when}"] + ([versions] if versions else [])
    if summary["bad_state"]:
        return lines + [f"WARNING: {problem}" for problem in summary["bad_state"]]
    watched = summary["trace"] and "the GPU's state was good: no thermal throttling, clocks free, no other process, no ECC error"
    return [*lines, watched or "the GPU's state was not recorded with these rows"]


def markdown(summary: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    text = [f"# Calibration of {summary['full_name']}", "", *(f"{line}  " for line in head(summary))]
    for title, remark, header, cells in tables(summary):
        if cells:
            text += ["", f"## {title}", "", f"{remark}.", "", _line(header), _line(["---"] * len(header)), *map(_line, cells)]
    return "\n".join(text) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def html(summary: Mapping[str, Any], figures: Mapping[str, bytes]) -> str:
    """The report as one page that needs nothing else: tables, and the plots (PNG) inside it."""

    def cell(tag: str, text: str) -> str:
        return f"<{tag}>{escape.escape(text)}</{tag}>"

    body = [f"<h1>Calibration of {escape.escape(summary['full_name'])}</h1>"]
    for line in head(summary):
        body.append(f'<p class="{"bad" if line.startswith("WARNING") else "head"}">{escape.escape(line)}</p>')
    for title, remark, header, cells in tables(summary):
        if cells:
            rows = ["<tr>" + "".join(cell("td", c) for c in row) + "</tr>" for row in cells]
            body += [
                cell("h2", title),
                cell("p", remark + "."),
                "<table><tr>" + "".join(cell("th", h) for h in header) + "</tr>",
                *rows,
                "</table>",
            ]
    for name, png in figures.items():
        body += [cell("h2", name), f'<img alt="{escape.escape(name)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">']
    style = (
        "body{font:15px/1.45 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}table{border-collapse:collapse}"
        "td,th{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:right}"
        "td:first-child,th:first-child,td:last-child{text-align:left}"
        "img{max-width:100%}.bad{background:#b00020;color:#fff;padding:.4rem .7rem;font-weight:bold}"
    )
    top = f'<meta charset="utf-8"><title>Calibration of {escape.escape(summary["full_name"])}</title><style>{style}</style>'
    return f'<!doctype html><html lang="en"><head>{top}</head><body>{"".join(body)}</body></html>\n'
