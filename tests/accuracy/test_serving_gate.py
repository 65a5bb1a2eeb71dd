"""Accuracy of serving estimates on published runs: fails when a figure worsens by more than 5 %, or a run loses its answer.

tests/accuracy/serving.json holds the reviewed figures of every sixth run, which only tighten (tightening.py).
`python tests/accuracy/test_serving_gate.py` writes them anew; a worse one is refused, or taken with `--accept-worse "reason"`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tightening import rewrite, stored

from perfmodel.evaluate.serving import rows, score, summary

FIGURES = Path(__file__).with_name("serving.json")
EVERY = 6
LOOSEST = 1.05
SLACK = 0.003
BETTER: Any = {
    "rows": "higher", "unanswered": "lower", "median_error": "lower", "mean_error": "lower", "p90_error": "lower", "covered_80": "nominal",
    "bias": "any", "roofline_median_error": "any",
}  # fmt: skip
TARGETS = {
    ("served H100 runs", "tpot"): 0.08,
    ("served H100 runs", "throughput"): 0.10,
    ("served H100 runs, concurrency 1-64", "ttft"): 0.25,
    ("TensorRT-LLM tables, a100_sxm4_80gb", "throughput"): 0.12,
    ("TensorRT-LLM tables, h100_sxm", "throughput"): 0.12,
}


def measure() -> list[dict[str, Any]]:
    table = rows()
    return summary(score(table[table["kind"].isin(["served", "max_throughput"])].iloc[::EVERY]))


@pytest.mark.slow
def test_no_figure_worsens() -> None:
    wanted = {(row["runs"], row["figure"]): row for row in stored(FIGURES)}
    found = {(row["runs"], row["figure"]): row for row in measure()}
    assert set(found) == set(wanted) >= set(TARGETS)
    for name, row in found.items():
        assert row["unanswered"] == 0 and row["rows"] == wanted[name]["rows"], name
        for figure in ("median_error", "mean_error"):
            assert row[figure] <= LOOSEST * wanted[name][figure] + SLACK, (name, figure, row[figure])
        assert row["median_error"] < 0.4 * row["roofline_median_error"], name
        assert abs(row["covered_80"] - wanted[name]["covered_80"]) <= 0.1, name
        assert row["median_error"] <= TARGETS.get(name, 1.0), name


if __name__ == "__main__":
    sys.exit(rewrite(FIGURES, [{k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in measure()], BETTER))
