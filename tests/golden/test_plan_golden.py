"""Reviewed values of the planner: which operators a step runs, memory of one GPU, simulated and closed-form serving, estimates, a plan.

All but the estimates and the plan hang on no fitted model. Written by `python tests/golden/rewrite.py plan`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from goldens import differences, number, read

import perfmodel as pm
from perfmodel.plan import operators
from perfmodel.plan.catalogue import models
from perfmodel.plan.closed_form import closed_loop
from perfmodel.plan.deployment import Deployment
from perfmodel.plan.memory import memory_ledger
from perfmodel.plan.model import load_model
from perfmodel.plan.overhead import overhead
from perfmodel.plan.scheduler import default_scheduler
from perfmodel.plan.simulate import simulate
from perfmodel.plan.tensors import active_parameters, parameters
from perfmodel.plan.traffic import Request

FILE = Path(__file__).with_name("plan.json")
ENGINES: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B": {},
    "Qwen3-32B fp8": {"tp": 4},
    "Qwen3-30B-A3B": {"tp": 2, "ep": 2},
    "Qwen3-30B-A3B fp8": {},
    "DeepSeek-V3": {"tp": 8},
    "Qwen3-30B-A3B int4_wo": {"dp": 4, "ep": 4},
    "Qwen3-Next-80B-A3B": {"tp": 4, "stack": "sglang"},
    "gpt-oss-120b": {"tp": 2, "stack": "trtllm"},
    "Llama-3.1-70B": {"tp": 4, "pp": 2, "stack": "trtllm"},
    "Gemma-3-27B": {"tp": 2, "gpu": "a100_sxm4_80gb"},
    "Llama-4-Scout-17B-16E": {"tp": 8, "ep": 8, "stack": "sglang"},
}


def deployment(name: str) -> Deployment:
    model, _, quantization = name.partition(" ")
    options = dict(ENGINES[name])
    return Deployment(model=load_model(model, quantization or None), gpu=pm.gpu(options.pop("gpu", "h100_sxm")), **options)


def emitted(name: str) -> dict[str, Any]:
    """Every row of a step's operators: how often, and its sizes at the last point."""
    d, book = deployment(name), operators.Book()
    two = np.array([3.0, 700.0])
    operators.token_operators(book, 0, d, two)
    operators.output_operators(book, 1, d, two)
    operators.decode_operators(book, 2, d, two, np.array([40.0, 5000.0]))
    operators.prefill_operators(book, 3, d, two, np.array([64.0, 2000.0]), np.array([64.0, 9000.0]))
    out: dict[str, Any] = {}
    for table, entries in book.entries.items():
        for at, (owner, term, where, counts, columns) in enumerate(entries):
            sizes = {k: v if isinstance(v, str) else number(np.ravel(v)[-1]) for k, v in columns.items()}
            out[f"{table} {at}"] = {"owner": owner, "term": term, "points": len(where), "count": number(counts[-1]), **sizes}
    return out


def memory(name: str) -> dict[str, Any]:
    d = deployment(name)
    shape = {
        "tensor_parallel_size": d.tp, "pipeline_parallel_size": d.pp, "expert_parallel_size": d.ep, "data_parallel_size": d.dp,
    }  # fmt: skip
    out: dict[str, Any] = {}
    for label, options in {
        "default": {},
        "fp8 cache, no graphs": {"kv_cache_dtype": "fp8", "cuda_graphs": False, "max_num_seqs": 64},
    }.items():
        for stack in ("vllm", "sglang", "trtllm"):
            ledger = memory_ledger(d.model, d.gpu, stack=stack, **shape, **options)
            out[f"{label}, {stack}"] = {
                **{k: number(v) for k, v in ledger.entries.items()}, "low": number(ledger.kv_low_bytes),
                "high": number(ledger.kv_high_bytes),
                "a token": number(ledger.kv_bytes_per_token), "tokens": ledger.kv_tokens, "requests": ledger.max_concurrency(3000),
                "chunk": ledger.chunk_tokens, "fits": ledger.fits,
            }  # fmt: skip
    return out


def linear_step(deployed: Any = None, host: Any = None) -> Any:
    """A step of 2 ms + 3 us a token + 1 us a sequence + 1 ns a key."""

    def seconds(chunks: Sequence[tuple[int, int]], sequences: int, kv_len: float) -> float:
        new = sum(take for take, _ in chunks)
        pairs = sum(take * (past + take / 2) for take, past in chunks)
        return 2e-3 + 3e-6 * (new + sequences) + 1e-6 * sequences + 1e-9 * (sequences * kv_len + pairs / 100)

    if deployed is None:
        return seconds
    found = SimpleNamespace(table=SimpleNamespace(deployment=deployed), host=host)
    return type("Step", (), {"__call__": lambda self, *a: seconds(*a), "table": found.table, "host": host})()


def simulated() -> dict[str, Any]:
    out: dict[str, Any] = {}
    isl = np.array([(37 * i) % 900 + 20 for i in range(120)])
    osl = np.array([(53 * i) % 160 + 1 for i in range(120)])
    arrivals = np.cumsum(np.array([((29 * i) % 13) * 0.004 for i in range(120)]))
    ways: dict[str, dict[str, Any]] = {
        "closed loop": {"concurrency": 12, "front_s": 0.001, "delay_s": 0.002},
        "arrivals": {"arrival_s": arrivals, "front_s": 0.0005},
        "prefix cache and speculation": {"concurrency": 7, "cached_share": 0.4, "tokens_per_step": 1.7},
        "a small cache": {"concurrency": 30, "kv_tokens": 2500.0},
    }
    for stack in ("vllm", "sglang", "trtllm"):
        for budget, most in ((8192, 1024), (256, 9)):
            rules = default_scheduler(stack, pm.gpu("h100_sxm")).limited(budget, most)
            for name, options in ways.items():
                trace = simulate(linear_step(), rules, isl, osl, **{"kv_tokens": 1e6, **options})
                out[f"{stack} {budget} {name}"] = {
                    "ttft": number(trace.ttft_s.mean()), "tpot": number(np.nanmean(trace.tpot_s)), "e2e": number(trace.e2e_s.mean()),
                    "end": number(trace.finish_s.max()), "steps": trace.steps, "preemptions": trace.preemptions,
                    "peak": trace.peak_kv_tokens,
                    "busy": number(trace.busy_s), "gaps": number(np.sum(trace.gaps_s * trace.gap_tokens)),
                    "tokens": number(trace.gap_tokens.sum()),
                }  # fmt: skip
    return out


def steady() -> dict[str, Any]:
    out: dict[str, Any] = {}
    for stack in ("vllm", "sglang", "trtllm"):
        for shape in ({}, {"pp": 2}, {"dp": 2, "ep": 2}):
            model = load_model("Qwen3-30B-A3B" if "dp" in shape else "Llama-3.1-8B", None)
            d = Deployment(model=model, gpu=pm.gpu("h100_sxm"), stack=stack, **shape)
            for request in (Request(1000, 200), Request(30000, 50), Request(4000, 400, 3000, 2.5), Request(300, 20)):
                for requests in (1, 6, 64):
                    rules = default_scheduler(stack, d.gpu)
                    rules = dataclasses.replace(rules, token_budget=2048) if requests == 6 else rules
                    found = closed_loop(linear_step(d, overhead(stack)), rules, request, requests)
                    out[f"{stack} {shape} {request.isl}/{request.osl} x{requests}"] = {
                        k: number(getattr(found, k)) for k in found.__slots__
                    }
    return out


def read_models() -> dict[str, Any]:
    """Every bundled model as it was read: its parameters, and each kind of layer's fields that are not the usual ones."""
    out: dict[str, Any] = {}
    for name in models():
        m = load_model(name)
        kinds = [{f.name: getattr(k, f.name) for f in dataclasses.fields(k) if getattr(k, f.name) != f.default} for k in m.layers]
        facts = {
            f: getattr(m, f) for f in ("hidden", "vocab", "max_context", "tied_embeddings", "weight_dtype", "group_size", "other_params")
        }
        order = "".join(map(str, m.order))
        out[name] = {"parameters": parameters(m), "active": active_parameters(m), **facts, "order": order, "layers": kinds}
    return out


ESTIMATES: dict[str, Callable[[], Any]] = {
    "Qwen3-32B on 4 H100, 16 in flight": lambda: pm.estimate(
        "Qwen3-32B", "h100_sxm", tensor_parallel_size=4, isl=1000, osl=200, concurrency=16
    ),
    "Llama-3.1-8B on L20, arrivals": lambda: pm.estimate("Llama-3.1-8B", "l20", isl=800, osl=100, request_rate=1.5, requests=200),
    "Llama-3.1-8B with a cached prefix and a draft": lambda: pm.estimate(
        "Llama-3.1-8B", "h100_sxm", isl=3000, osl=100, concurrency=8, prefix_cache_hit_rate=0.5, accepted_tokens_per_step=1.6
    ),
    "Gemma-3-27B on an H100 whose cache is full": lambda: pm.estimate(
        "Gemma-3-27B", "h100_sxm", isl=4000, osl=400, concurrency=48, requests=96
    ),
    "Qwen3-30B-A3B on 2 A100, TensorRT-LLM": lambda: pm.estimate(
        "Qwen3-30B-A3B", "a100", tensor_parallel_size=2, isl=2000, osl=300, concurrency=32, stack="trtllm"
    ),
}
SPLITS: dict[str, Callable[[], Any]] = {
    "at a rate": lambda: pm.estimate_split(
        "Llama-3.1-8B", "h100_sxm", prefill=pm.Pool(2), decode=pm.Pool(1), isl=2000, osl=100, request_rate=8.0, requests=150
    ),
    "in flight": lambda: pm.estimate_split(
        "Llama-3.1-8B", "h100_sxm", prefill=pm.Pool(1), decode=pm.Pool(2, pm.Parallel(2)), isl=2000, osl=100, concurrency=12,
        prefix_cache_hit_rate=0.3, accepted_tokens_per_step=1.5, link_gb_per_s=10.0,
    ),
}  # fmt: skip
PLANS: dict[str, Callable[[], Any]] = {
    "Qwen3-8B on H100 or L20": lambda: pm.plan(
        "Qwen3-8B", ["h100_sxm", "l20"], isl=1000, osl=300, ttft_ms=1000, tpot_ms=25, request_rate=6
    ),
    "Qwen3-8B, p90": lambda: pm.plan("Qwen3-8B", "h100_sxm", isl=1000, osl=100, ttft_ms=400, tpot_ms=20, request_rate=12, percentile="p90"),
    "Qwen3-32B, 8 GPUs filled": lambda: pm.plan("Qwen3-32B", "h100_sxm", isl=4000, osl=1000, tpot_ms=40, total_gpus=8, disaggregated=False),
}
CHOSEN = ("gpu", "mode", "replicas", "gpus", "parallel", "quantization", "tier")
NUMBERS = ("ttft_ms", "tpot_ms", "requests_per_s", "throughput_tok_s", "kv_used_percent", "ttft_high_ms", "tpot_high_ms", "usd_per_hour")


def estimated(name: str) -> dict[str, Any]:
    e = ESTIMATES[name]()
    parts = {f"{group} {k}": number(v) for group in ("terms", "prefill_terms") for k, v in getattr(e, group).items()}
    spreads = {f"{n} {p}": number(getattr(getattr(e, n), p)) for n in ("ttft", "tpot", "itl", "e2e") for p in ("mean", "p50", "p90", "p99")}
    ends = {f"{n} {side}": number(v[at]) for n, v in e.intervals.items() for at, side in enumerate(("low", "high"))}
    found = {n: number(getattr(e, n)) for n in ("throughput_tok_s", "requests_per_s", "user_tok_s", "queued", "concurrency")}
    return {**found, **parts, **spreads, **ends, "bound": e.bound, "tier": e.tier, "gpus": e.gpus}


def split(name: str) -> dict[str, Any]:
    e = SPLITS[name]()
    numbers = ("ttft_ms", "tpot_ms", "throughput_tok_s", "requests_per_s", "hand_over_ms", "prefill_busy", "decode_running")
    spreads = {f"{n} {p}": number(getattr(getattr(e, n), p)) for n in ("ttft", "tpot") for p in ("mean", "p50", "p99")}
    return {**{n: number(getattr(e, n)) for n in numbers}, **spreads, "gpus": e.gpus, "tier": e.tier, "bound": e.bound}


def planned(name: str) -> dict[str, Any]:
    best = PLANS[name]().best
    return {**{n: best[n] for n in CHOSEN}, **{n: number(best[n]) for n in NUMBERS}}


def figures() -> dict[str, Any]:
    return {
        **{f"operators of {name}": emitted(name) for name in ENGINES},
        **{f"memory of {name}": memory(name) for name in ENGINES},
        **{f"simulated {name}": v for name, v in simulated().items()},
        **{f"steady {name}": v for name, v in steady().items()},
        **{f"model {name}": v for name, v in read_models().items()},
        **{f"estimate {name}": estimated(name) for name in ESTIMATES},
        **{f"split {name}": split(name) for name in SPLITS},
        **{f"plan {name}": planned(name) for name in PLANS},
    }


def hold(prefix: str, found: dict[str, Any]) -> None:
    expected = {name: each for name, each in read(FILE).items() if name.startswith(prefix)}
    lines = differences(expected, {f"{prefix}{name}": each for name, each in found.items()})
    assert not lines, "\n".join(lines[:20])


def test_the_operators_of_a_step() -> None:
    hold("operators of ", {name: emitted(name) for name in ENGINES})


def test_the_memory_of_a_gpu() -> None:
    hold("memory of ", {name: memory(name) for name in ENGINES})


def test_simulated_serving() -> None:
    hold("simulated ", simulated())


def test_the_steady_state() -> None:
    hold("steady ", steady())


def test_the_bundled_models() -> None:
    hold("model ", read_models())


@pytest.mark.parametrize("name", SPLITS)
def test_prefill_and_decode_apart(name: str) -> None:
    hold(f"split {name}", {"": split(name)})


@pytest.mark.parametrize("name", ESTIMATES)
def test_an_estimate(name: str) -> None:
    hold(f"estimate {name}", {"": estimated(name)})


@pytest.mark.parametrize("name", PLANS)
def test_a_plan(name: str) -> None:
    hold(f"plan {name}", {"": planned(name)})
    rows = PLANS[name]().best_each[:2]
    first, second = (row["throughput_tok_s" if "filled" in name else "gpus"] for row in rows)
    assert abs(first / second - 1.0) > 0.01 or rows[0]["gpus"] != rows[1]["gpus"], "a near tie: the choice may turn on rounding"
