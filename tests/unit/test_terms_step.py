"""What an engine step costs, by hand: pricing of operators, interpolation between points, host time, pipelines and replicas."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fictional import close

import perfmodel as pm
from perfmodel.plan import step as step_module
from perfmodel.plan.deployment import Deployment
from perfmodel.plan.model import load_model
from perfmodel.plan.operators import Book
from perfmodel.plan.overhead import Overhead, overhead
from perfmodel.plan.serving_step import ServingStep
from perfmodel.plan.step import Costs, price
from perfmodel.plan.step_table import CHUNKS, KV_LENGTHS, PASTS, PROMPTS, SEQUENCES, TOKENS, StepTable

# One step: a table whose parts can be told apart by their size


class Table:
    """tokens 1 ms each, outputs 10 ms each, decode 1 s a sequence + 1 us a key, prefill 100 s a prompt + 1 s a token + 1 ms a past one."""

    def __init__(self, dp: int = 1, pp: int = 1) -> None:
        self.deployment = SimpleNamespace(dp=dp, pp=pp, model=SimpleNamespace(num_layers=32))

    def tokens_s(self, tokens: float) -> float:
        return 1e-3 * tokens

    def output_s(self, sequences: float) -> float:
        return 1e-2 * sequences

    def decode_s(self, sequences: int, kv_len: float) -> float:
        return sequences + 1e-6 * kv_len

    def prefill_s(self, prompts: int, q_len: float, past: float) -> float:
        return 100.0 * prompts + q_len + 1e-3 * past


HOST = Overhead(step_s=0.25, sequence_s=0.5, eager_layer_s=0.125, request_s=0.0, delay_s=0.0)


def serving(**shape: int) -> Any:
    return ServingStep(Table(**shape), HOST)  # type: ignore[arg-type]


def test_a_decode_step() -> None:
    # 8 tokens, 8 outputs, 8 sequences of 500 keys; the host: a step and 8 sequences
    assert serving()([], 8, 500.0) == close(0.008 + 0.08 + 8 + 0.0005 + 0.25 + 8 * 0.5)


def test_stages_and_replicas_share_a_step() -> None:
    # two stages: what 4 of 8 sequences take; 7 of them: 3.5 tokens, 4 sequences; one alone is not split
    assert serving(pp=2)([], 8, 500.0) == close(0.004 + 0.04 + 4 + 0.0005 + 0.25 + 4.0)
    assert serving(pp=2)([], 7, 500.0) == close(0.0035 + 0.035 + 4 + 0.0005 + 0.25 + 3.5)
    assert serving(pp=4)([], 1, 500.0) == serving()([], 1, 500.0)
    assert serving(dp=2)([], 8, 500.0) == serving(pp=2)([], 8, 500.0)
    assert serving(dp=2, pp=2)([], 8, 500.0) == close(0.002 + 0.02 + 2 + 0.0005 + 0.25 + 4.0)


def test_a_step_with_prompts() -> None:
    # 100 tokens from the start and 300 after 50, beside 4 sequences: 404 tokens, 6 outputs
    # pairs 100 x 50 + 300 x (50 + 150) = 65000: a mean token sees 162.5, of which half of 200 are its own prompt's
    found = serving()([(100, 0), (300, 50)], 4, 1000.0)
    assert found == close(0.404 + 0.06 + (4 + 0.001) + (2 * 100 + 200 + 0.0625) + 0.25 + 4 * 0.5)
    # two stages: 202 tokens, 3 outputs, 2 sequences, one prompt of 200
    assert serving(pp=2)([(100, 0), (300, 50)], 4, 1000.0) == close(0.202 + 0.03 + 2.001 + (100 + 200 + 0.0625) + 0.25 + 2.0)
    # three prompts over two stages: two on one of them, of 3 x 100 / 2 / 2 tokens
    assert serving(pp=2)([(100, 0)] * 3, 0, 0.0) == close(0.15 + 0.015 + (200 + 75) + 0.25)


def test_a_step_with_prompts_is_launched_layer_by_layer() -> None:
    small = ServingStep(Table(), Overhead(0.25, 0.5, 100.0, 0.0, 0.0))  # type: ignore[arg-type]
    assert small([(100, 0)], 0, 0.0) == close(32 * 100.0 + 0.25)
    assert small([], 8, 500.0) == serving()([], 8, 500.0)  # decode replays a graph


def test_prompts_that_lack_their_last_token_decode() -> None:
    # two sequences of 50 keys, and prompts of 100 and 200 whose last token is missing: 4 sequences of 100 keys
    assert serving()([(1, 99), (1, 199)], 2, 50.0) == serving()([], 4, 100.0)


def test_overheads_are_microseconds() -> None:
    found = overhead("vllm")
    assert (found.step_s, found.sequence_s, found.eager_layer_s, found.request_s, found.delay_s) == close(
        (300e-6, 20e-6, 150e-6, 2e-3, 20e-3)
    )
    assert overhead("trtllm", "0.20").eager_layer_s == close(50e-6) and overhead("trtllm", "1.0").eager_layer_s == close(500e-6)


# Interpolation: grids whose values are linear, so that every point between is known


def grid(values: Any, low: float, high: float, inside: float = 1.0, **terms: float) -> Costs:
    seconds = np.asarray(values, dtype=np.float64).ravel()
    shares = {name: seconds * share for name, share in terms.items()}
    return Costs(seconds, seconds * low, seconds * high, shares, "calibrated", np.full(len(seconds), inside))


def table() -> StepTable:
    decode = (2e-3 + 1e-5 * SEQUENCES[:, None]) + 1e-7 * KV_LENGTHS[None, :]
    prefill = PROMPTS[:, None, None] * 1e-2 + CHUNKS[None, :, None] * 1e-5 + PASTS[None, None, :] * 1e-7
    costs = {
        "tokens": grid(1e-3 + TOKENS * 1e-6, 0.9, 1.2, 0.75, mlp=0.75, norms=0.25), "output": grid(4e-3 + SEQUENCES * 1e-5, 0.8, 1.5,
        head=1.0),
        "decode": grid(decode, 0.5, 2.0, 0.25), "prefill": grid(prefill, 0.9, 1.1),
    }  # fmt: skip
    return StepTable(None, costs)  # type: ignore[arg-type]


def test_between_points_a_line() -> None:
    t = table()
    assert t.tokens_s(1) == close(1e-3 + 1e-6) and t.tokens_s(100) == close(1e-3 + 1e-4) and t.tokens_s(16384) == close(1e-3 + 16384e-6)
    assert t.output_s(20) == close(4e-3 + 2e-4)
    assert t.decode_s(20, 3000) == close(2e-3 + 2e-4 + 3e-4)
    assert t.prefill_s(2, 300, 0) == close(2e-2 + 3e-3)
    assert t.prefill_s(2, 300, 2000) == close(2e-2 + 3e-3 + 2e-4)


def test_flat_below_the_first_point_and_in_proportion_beyond_the_last() -> None:
    t = table()
    assert t.tokens_s(0.25) == close(1e-3 + 1e-6) and t.decode_s(1, 5) == close(2e-3 + 1e-5 + 32e-7)
    assert t.tokens_s(2 * 16384) == close(2 * (1e-3 + 16384e-6))
    assert t.output_s(3 * 2048) == close(3 * (4e-3 + 2048e-5))


def test_terms_by_group() -> None:
    t = table()
    assert t.terms_s(20, 3000) == close({"mlp": 0.75 * 1.02e-3, "norms": 0.25 * 1.02e-3, "head": 4.2e-3, "attention": 2.5e-3})
    assert t.prompt_terms_s(300) == close({"mlp": 0.75 * 1.3e-3, "norms": 0.25 * 1.3e-3, "attention": 1e-2 + 3e-3})


def test_the_width_of_a_step_is_that_of_its_parts_in_quadrature() -> None:
    tokens, output, decode = 1.02e-3, 4.2e-3, 2.5e-3
    total = tokens + output + decode
    low = ((0.1 * tokens) ** 2 + (0.2 * output) ** 2 + (0.5 * decode) ** 2) ** 0.5
    high = ((0.2 * tokens) ** 2 + (0.5 * output) ** 2 + (1.0 * decode) ** 2) ** 0.5
    assert table().width(20, 3000) == close((1 - low / total, 1 + high / total))


def test_the_share_within_what_was_measured() -> None:
    tokens, decode = 1.02e-3, 2.5e-3
    assert table().inside(20, 3000) == close((0.75 * tokens + 0.25 * decode) / (tokens + decode))


def test_widths_are_those_of_the_point_above() -> None:
    t = table()
    cost = t.costs["tokens"]
    cost.low_s[TOKENS == 24] = 0.0  # 20 tokens: read at 24
    tokens, output, decode = 1.02e-3, 4.2e-3, 2.5e-3
    low = (tokens**2 + (0.2 * output) ** 2 + (0.5 * decode) ** 2) ** 0.5
    assert t.width(20, 3000)[0] == close(1 - low / (tokens + output + decode))
    t.costs["decode"].in_domain[3 * len(KV_LENGTHS) + 5] = 1.0  # 32 sequences, 4096 keys
    assert t.inside(20, 3000) == close((0.75 * tokens + decode) / (tokens + decode))


# Pricing


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """price() with an answer of m us, a tenth less to a fifth more, for GEMMs and of tokens us, half to twice, for memory."""
    asked: list[tuple[str, pd.DataFrame]] = []

    def ask(kind: str, frame: pd.DataFrame, gpu: Any, calibration: Any) -> pd.DataFrame:
        asked.append((kind, frame))
        us = frame["m" if kind == "gemm" else "tokens" if kind == "memory" else "n_gpus"].to_numpy(dtype=np.float64)
        low, high = (0.9, 1.2) if kind == "gemm" else (0.5, 2.0)
        tier = "calibrated" if kind == "gemm" else "spec"
        return pd.DataFrame({"latency_us": us, "low_us": low * us, "high_us": high * us, "tier": tier, "in_domain": us != 30.0})

    monkeypatch.setattr(step_module, "_ask", ask)

    def run(fill: Callable[[Book], None], sizes: list[int], **options: Any) -> Any:
        book = Book()
        fill(book)
        d = Deployment(model=load_model("Llama-3.1-8B"), gpu=pm.gpu("h100_sxm"), **options)
        return price(book, [d] * len(sizes), sizes), asked

    return run


def test_a_step_is_the_sum_of_its_operators(priced: Callable[..., Any]) -> None:
    def fill(book: Book) -> None:
        book.add("gemm", 0, "mlp", 3, [0, 1], m=np.array([10.0, 20.0]), n=64, k=64, dtype="bf16")
        book.add("gemm", 0, "head", 1, [1], m=30.0, n=64, k=64, dtype="bf16")
        book.add("memory", 0, "norms", 2, [0, 1], kind="add", tokens=np.array([5.0, 50.0]), hidden=64)
        book.add("gemm", 1, "mlp", 1, [0], m=7.0, n=64, k=64, dtype="bf16")

    (one, other), _ = priced(fill, [2, 1])
    us = 1e-6
    assert one.seconds == close(np.array([3 * 10 + 2 * 5, 3 * 20 + 30 + 2 * 50]) * us)
    assert {k: list(v) for k, v in one.terms.items()} == {
        "mlp": close(np.array([30, 60]) * us), "head": close(np.array([0, 30]) * us), "norms": close(np.array([10, 100]) * us),
    }  # fmt: skip
    # GEMMs err together, memory apart from them
    assert one.low_s == close(np.array([40 - (3.0**2 + 5**2) ** 0.5, 190 - (9.0**2 + 50**2) ** 0.5]) * us)
    assert one.high_s == close(np.array([40 + (6.0**2 + 10**2) ** 0.5, 190 + (18.0**2 + 100**2) ** 0.5]) * us)
    assert one.in_domain == close(np.array([1.0, 160 / 190]))
    assert (one.tier, other.tier) == ("spec", "calibrated")
    assert other.seconds == close(np.array([7 * us]))


def test_a_count_below_zero_takes_off_and_widens(priced: Callable[..., Any]) -> None:
    def fill(book: Book) -> None:
        book.add("gemm", 0, "mlp", 1, [0], m=10.0, n=64, k=64, dtype="fp8")
        book.add("gemm", 0, "mlp", -1, [0], m=4.0, n=64, k=64, dtype="fp8")

    (found,), _ = priced(fill, [1])
    assert found.seconds == close([6e-6]) and found.low_s == close([6e-6 - 1.4e-6]) and found.high_s == close([6e-6 + 2.8e-6])


def test_what_a_deployment_says_of_its_operators(priced: Callable[..., Any]) -> None:
    def fill(book: Book) -> None:
        book.add("memory", 0, "norms", 1, [0], kind="add", tokens=0.2, hidden=64.4)
        book.add("collective", 0, "communication", 1, [0, 1], kind="all_reduce", message_bytes=np.array([10.0, 20.0]), n_gpus=4)
        book.add("collective", 0, "pipeline", 1, [0], kind="p2p", message_bytes=10.0, n_gpus=2)

    _, asked = priced(fill, [2], tp=4, nodes=2, stack="sglang", version="0.5")
    frames = dict(asked)
    memory, collective = frames["memory"], frames["collective"].sort_values("n_gpus")
    assert memory["stack"].tolist() == ["any"] and memory["tokens"].tolist() == [1.0] and memory["hidden"].tolist() == [64.0]
    assert set(collective["stack"]) == {"sglang_graph"} and set(collective["version"]) == {"0.5"}
    assert collective["nodes"].tolist() == [1.0, 2.0, 2.0]


def test_each_distinct_operator_is_asked_once(priced: Callable[..., Any]) -> None:
    def fill(book: Book) -> None:
        for owner in (0, 1):
            book.add("gemm", owner, "mlp", 1, [0, 1, 2], m=np.array([8.0, 8.0, 16.0]), n=64, k=64, dtype="bf16")

    found, asked = priced(fill, [3, 3])
    assert len(asked) == 1 and len(asked[0][1]) == 2
    for cost in found:
        assert cost.seconds == close(np.array([8, 8, 16]) * 1e-6)


def test_no_width_reaches_down_to_nothing() -> None:
    t = table()
    for cost in t.costs.values():
        cost.low_s[:] = -1.0
    assert t.width(20, 3000)[0] == 0.05
