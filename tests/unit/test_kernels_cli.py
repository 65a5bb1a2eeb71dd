"""`perfmodel rank`, `predict` and `tune` of attention and MoE on the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perfmodel.cli.main import run

PREFILL = [
    "--phase",
    "prefill",
    "--batch",
    "1",
    "--q-len",
    "4096",
    "--kv-len",
    "4096",
    "--q-heads",
    "32",
    "--kv-heads",
    "8",
    "--head-dim",
    "128",
]
DECODE = [
    "--phase",
    "decode",
    "--batch",
    "8",
    "--q-len",
    "1",
    "--kv-len",
    "8192",
    "--q-heads",
    "32",
    "--kv-heads",
    "8",
    "--head-dim",
    "128",
]
MOE = ["--tokens", "64", "--hidden", "2048", "--inter", "768", "--num-experts", "128", "--top-k", "8"]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert run([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "kind", "count", "columns"),
    [
        (["attention", *PREFILL, "--top-k", "3"], "attention", 3, {"block_m", "block_n"}),
        (["attention", *DECODE, "--best", "3"], "attention", 3, {"block_n", "num_splits"}),
        (["moe", *MOE, "--best", "3"], "moe", 3, {"block_m", "block_n", "block_k", "group_m"}),
    ],
)
def test_rank(capsys: pytest.CaptureFixture[str], words: list[str], kind: str, count: int, columns: set[str]) -> None:
    found = answer(capsys, "rank", *words, "--gpu", "h100")
    assert found["op"]["kind"] == kind and len(found["configs"]) == count and columns <= set(found["configs"][0])
    latency = [c["latency_us"] for c in found["configs"]]
    assert latency == sorted(latency)
    assert run(["rank", *words, "--gpu", "l20"]) == 0
    assert "nothing was ever measured on this GPU" in capsys.readouterr().out


def test_what_is_replayed_is_asked_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    served, replayed = (answer(capsys, "rank", "moe", *MOE, "--gpu", "l40", *more) for more in ([], ["--replayed", "layer"]))
    assert served["notes"] == [] and "layer replayed without a flush" in replayed["notes"][0]
    assert replayed["configs"][0]["latency_us"] < served["configs"][0]["latency_us"]


def test_one_config_and_pruned(capsys: pytest.CaptureFixture[str]) -> None:
    one = answer(capsys, "predict", "attention", *PREFILL, "--gpu", "h100", "--config", "BM=64,BN=64,num_warps=4,num_stages=3")
    assert one["latency_us"] > 0 and "exponentials" in one["terms_us"]
    pruned = answer(capsys, "rank", "attention", *PREFILL, "--gpu", "h100", "--pruned")["pruned"]
    assert pruned and all(p["reason"] and "block_m" in p for p in pruned)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rank", "attention", *PREFILL, "--window", "64", "--gpu", "h100"], "has no window, got window=64"),
        (["rank", "attention", *PREFILL, "--gpu", "h100", "--best", "0"], "top_k"),
        (["rank", "moe", *MOE, "--gpu", "h100", "--distribution", "power_law_1.2"], "balanced and for random routing"),
        (["rank", "moe", *MOE, "--gpu", "h100", "--replayed", "expert"], "expected nothing or layer or projection"),
        (
            ["predict", "memory", "--kind", "rmsnorm", "--tokens", "8", "--hidden", "64", "--gpu", "h100", "--config", "block_m=64"],
            "no Triton",
        ),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert run(words) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and message in shown.err and shown.err.count("\n") == 1


def test_tuning_without_a_gpu_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    for words in (["attention", *DECODE], ["moe", *MOE]):
        assert run(["tune", *words]) == 1
        assert "no NVIDIA GPU is visible here" in capsys.readouterr().err
