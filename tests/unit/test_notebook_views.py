"""What a notebook shows of each result, and tables that keep what was asked."""

from __future__ import annotations

import pandas as pd

import perfmodel as pm
from perfmodel.html import summary


def test_results_show_themselves() -> None:
    one = pm.predict(pm.Gemm(64, 4096, 4096), "h100_sxm", stack="vllm")._repr_html_()
    assert "80 % within" in one and "<td>dram</td>" in one
    assert "outside:" in pm.predict(pm.MoE(8, 1024, 512, 8, 2), "b200_sxm")._repr_html_()
    assert "<table" in pm.rank(pm.Gemm(512, 4096, 4096), "l20")._repr_html_()
    served = pm.estimate("Llama-3.1-8B", "h100_sxm", isl=500, osl=50, concurrency=4)._repr_html_()
    assert "tokens/s on 1 GPUs" in served and "<td>TTFT</td>" in served
    page = summary("a < b", [{"x": "<i>", "y": 1.23456}])
    assert page.startswith("<p><b>a &lt; b</b></p><table>") and "<tr><td>&lt;i&gt;</td><td>1.23</td></tr>" in page


def test_a_table_may_keep_its_columns() -> None:
    frame = pd.DataFrame({"m": [1, 64], "n": 4096, "k": 4096, "note": ["a", "b"], "tier": "mine"}, index=[7, 7])
    kept = pm.predict_table("gemm", frame, "h100_sxm", keep_columns=True)
    plain = pm.predict_table("gemm", frame, "h100_sxm")
    assert list(kept.columns) == ["m", "n", "k", "note", *plain.columns] and kept.index.tolist() == [7, 7]
    assert kept["latency_us"].tolist() == plain["latency_us"].tolist() and kept["tier"].tolist() == plain["tier"].tolist()
