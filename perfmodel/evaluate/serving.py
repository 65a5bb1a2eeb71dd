"""How good serving estimates are on published runs, beside a roofline and what a peer publishes about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel._resources import measured_table
from perfmodel.errors import NoAnswerError
from perfmodel.hw import gpu as find_gpu
from perfmodel.plan.estimate import ServingEstimate, estimate
from perfmodel.plan.memory import kv_bytes_per_request
from perfmodel.plan.model import load_model
from perfmodel.plan.parallel import Parallel
from perfmodel.plan.weights import weight_bytes

if TYPE_CHECKING:
    import pandas as pd

KINDS = ("served", "max_throughput", "online", "static", "first_token")
PEER = (
    "AIConfigurator on its own served H100 runs, as it publishes: TPOT mean 12.1 %, median 8.7 %; TTFT about 50 %. "
    "Its rows are half of a table whose other half is held back from this project."
)
DRAWN_FROM = {"inferencex": 0.8}
"""Runs whose clients draw each length evenly from this share of the nominal one up to all of it, as their public scripts say."""
DRAWN = 2000  # lengths of such a client
REQUESTS = {
    (128, 128): 30000, (128, 2048): 3000, (128, 4096): 1500, (500, 2000): 3000, (1000, 1000): 3000, (2048, 128): 3000, (2048, 2048): 1500,
    (5000, 500): 1500, (20000, 2000): 1000,
}  # fmt: skip
"""Requests of a TensorRT-LLM maximum-throughput run by (isl, osl), as its documentation lists them; 1500 elsewhere."""
MOST_SIMULATED = 6000
ERRORS = ("tpot", "throughput", "ttft")


def rows() -> pd.DataFrame:
    """The published runs, data/serving.parquet."""

    return measured_table("serving.parquet")


def one_slot_less(row: Mapping[str, Any]) -> bool:
    """Runs whose engine had one slot less than the client had requests in flight: mean TTFT grows as a request's time over (slots)."""
    return bool(row["run"] == "trtllm/1.0.0rc3/meta-llama_Llama-3.1-8B-Instruct")


def drawn_lengths(row: Mapping[str, Any], low: float, high: float) -> dict[str, list[int]]:
    """isl and osl of DRAWN requests, each drawn evenly from low to high times the nominal length."""
    rng = np.random.default_rng(0)
    return {name: np.maximum(np.rint(rng.uniform(low, high, DRAWN) * float(row[name])), 1).astype(int).tolist() for name in ("isl", "osl")}


def predict_row(row: Mapping[str, Any], known: bool = True, spread: float | None = None, **options: Any) -> ServingEstimate:
    """The estimate for one published run.

    known: use what is known of the run beside its row, the engine's batch limit and how clients drew their lengths. spread: of the
    lengths of the other runs, either way, instead of the model's own.
    """
    quantization, kv = row["quantization"] or None, row["kv_cache_dtype"] or None
    common: dict[str, Any] = {
        "tensor_parallel_size": row["tp"], "expert_parallel_size": row["ep"], "data_parallel_size": row["dp"], "osl": row["osl"],
        "isl": row["isl"], "quantization": quantization, "kv_cache_dtype": kv, "stack": row["stack"], "framework_version": row["version"],
    } | options  # fmt: skip
    if row["kind"] == "max_throughput":
        count = min(REQUESTS.get((int(row["isl"]), int(row["osl"])), 1500), MOST_SIMULATED)
        return estimate(row["model"], row["gpu"], arrival_times_s=np.zeros(count).tolist(), **common)
    if row["kind"] == "online":
        burst = not np.isfinite(row["request_rate"])
        traffic: dict[str, Any] = (
            {"arrival_times_s": np.zeros(500).tolist()} if burst else {"request_rate": row["request_rate"], "requests": 500}
        )
        return estimate(row["model"], row["gpu"], **traffic, **common)
    if row["kind"] == "served":
        if known and one_slot_less(row):
            common["max_num_seqs"] = int(row["concurrency"]) - 1
        if known and row["run"] in DRAWN_FROM:
            common |= drawn_lengths(row, DRAWN_FROM[row["run"]], 1.0)
        elif spread is not None:
            common |= drawn_lengths(row, 1.0 - spread, 1.0 + spread)
    if row["kind"] in ("static", "first_token"):  # a benchmark in the engine's own process: all alike
        common |= {"isl": [int(row["isl"])], "osl": [int(row["osl"])]}
        return estimate(row["model"], row["gpu"], concurrency=row["concurrency"], requests=row["concurrency"], **common)
    return estimate(row["model"], row["gpu"], concurrency=row["concurrency"], **common)


def roofline(row: Mapping[str, Any]) -> dict[str, float]:
    """The baseline: a decode step reads weights and cache at the datasheet's rate, a prompt computes at the datasheet's rate.

    TPOT = (weights + c KV) / B + c P / osl; TTFT = P; throughput = c osl / (P + (osl - 1) TPOT), with P the prompt's time.
    """
    card, spec = find_gpu(row["gpu"]), load_model(row["model"], row["quantization"] or None)
    shape = Parallel(row["tp"], 1, row["ep"], row["dp"])
    weights = sum(weight_bytes(spec, shape, card, 0).values())
    requests = max(int(row["concurrency"]), 1) / shape.dp
    cache = requests * float(kv_bytes_per_request(spec, row["isl"] + row["osl"] / 2, shape, row["kv_cache_dtype"] or "bf16"))
    rate = card.tensor_rate("fp8" if row["quantization"] == "fp8" and "fp8" in card.tensor_flops else "bf16")
    active = sum(_active(spec, layer) * layer.count for layer in spec.layers)
    prompt = 2.0 * active * float(row["isl"]) / shape.gpus / rate
    tpot = (weights + cache) / card.dram_bytes_per_s + requests * prompt / float(row["osl"])
    return {
        "tpot_ms": tpot * 1e3,
        "ttft_ms": prompt * 1e3,
        "throughput_tok_s": requests * shape.dp * float(row["osl"]) / (prompt + (float(row["osl"]) - 1) * tpot),
    }


def _active(spec: Any, layer: Any) -> float:
    """Multiply-adds of one layer for one token, attention scores left out."""
    heads = spec.hidden * layer.head_dim * (2 * layer.q_heads + 2 * layer.kv_heads)
    mlp = layer.top_k * layer.moe_inter + layer.shared_inter if layer.mlp == "moe" else layer.inter
    return float(heads + 3 * spec.hidden * mlp)


def score(
    table: pd.DataFrame,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    known: bool = True,
    **options: Any,
) -> pd.DataFrame:
    """One row a run: relative errors (predicted / measured - 1) of TPOT, throughput and TTFT, of the baseline, and interval coverage.

    `known` and `options` go to `predict_row`.
    """
    import pandas as pd

    out = []
    records: list[dict[str, Any]] = table.to_dict("records")  # type: ignore[assignment]
    for done, row in enumerate(records):
        progress("evaluating", done, len(table))
        measured = {name: float(row[f"{name}_ms" if name != "throughput" else "throughput_tok_s"]) for name in ERRORS}
        found: dict[str, Any] = {name: row[name] for name in ("kind", "run", "gpu", "model", "stack", "tp", "isl", "osl", "concurrency")}
        try:
            answer = predict_row(row, known, **options)
        except NoAnswerError as error:
            out.append(found | {"reason": str(error)})
            continue
        base = roofline(row)
        for name, field in (("tpot", "tpot_ms"), ("throughput", "throughput_tok_s"), ("ttft", "ttft_ms")):
            found[name] = getattr(answer, field) / measured[name] - 1.0
            found[f"{name}_baseline"] = base[field] / measured[name] - 1.0
            low, high = answer.intervals[field]
            found[f"{name}_covered"] = float(low <= measured[name] <= high) if np.isfinite(measured[name]) else np.nan
        out.append(found | {"reason": ""})
    return pd.DataFrame(out)


def summary(scored: pd.DataFrame) -> list[dict[str, Any]]:
    """Figures by kind of run: median and mean absolute error, the baseline's median, coverage of the 80 % interval."""
    out = []
    groups: list[tuple[str, str, pd.DataFrame]] = []
    served = scored[scored["kind"] == "served"]
    groups.append(("served H100 runs", "tpot", served))
    groups.append(("served H100 runs", "throughput", served))
    groups.append(("served H100 runs, concurrency 1-64", "ttft", served[served["concurrency"] <= 64]))
    for gpu, rows_ in scored[scored["kind"] == "max_throughput"].groupby("gpu"):
        groups.append((f"TensorRT-LLM tables, {gpu}", "throughput", rows_))
    online = scored[scored["kind"] == "online"]
    groups += [("TensorRT-LLM online table", name, online) for name in ERRORS]
    groups += [("static batch", "throughput", scored[scored["kind"] == "static"])]
    groups += [("first token of one request", "ttft", scored[scored["kind"] == "first_token"])]
    for what, name, rows_ in groups:
        known = rows_[np.isfinite(rows_[name])] if name in rows_ else rows_[:0]
        if not len(known):
            continue
        error = known[name].abs()
        out.append(
            {
                "runs": what,
                "figure": name,
                "rows": len(known),
                "unanswered": int((rows_["reason"] != "").sum()),
                "median_error": float(error.median()),
                "mean_error": float(error.mean()),
                "p90_error": float(error.quantile(0.9)),
                "bias": float(known[name].median()),
                "roofline_median_error": float(known[f"{name}_baseline"].abs().median()),
                "covered_80": float(known[f"{name}_covered"].mean()),
            }
        )
    return out
