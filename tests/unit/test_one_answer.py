"""What one answer must keep: terms that reconcile with it, questions that contradict themselves, commands that fail in one clear line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import perfmodel as pm
from perfmodel.cli import evaluate_speed
from perfmodel.cli.main import run
from perfmodel.errors import InputError
from perfmodel.plan.hf_config import parse_config
from perfmodel.tune.store import Store

CONFIG = {"block_m": 64, "block_n": 128, "block_k": 64, "num_warps": 4, "num_stages": 3}
DENSE = {
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 32000,
}
ARGUMENT = re.compile(r"\b(prices|quantization|calibration)=")


@pytest.mark.parametrize("gpu", ["h100_sxm", "a100_sxm", "l20", "b200_sxm"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_terms_of_latent_attention_reconcile_with_the_answer(gpu: str, phase: str) -> None:
    for batch in (1, 16, 128):
        for length in (256, 4096, 32768):
            op = pm.MLA(phase, batch, 1 if phase == "decode" else min(length, 8192), length, 16)
            found = pm.predict(op, gpu, stack="vllm")
            told = found.explain()
            assert told.law_us * told.learnt == pytest.approx(found.latency_us)
            assert all(row["share"] <= 1.0 + 1e-9 for row in told.terms)
            assert told.terms[0]["term"] == found.bound
            assert f"{told.law_us:.4g} us by the law" in str(told) and told.as_dict()["law_us"] == told.law_us


@pytest.mark.parametrize("gpu", ["h100_sxm", "h200_sxm", "l20"])
@pytest.mark.parametrize("op", [pm.Attention("prefill", 1, 2048, 2048, 32, 8, 128), pm.Attention("decode", 4, 1, 32768, 64, 1, 128)])
def test_without_a_stack_the_answer_lies_between_the_stacks_and_tells_of_one_of_them(gpu: str, op: pm.Attention) -> None:
    found = pm.predict(op, gpu)
    named = [pm.predict(op, gpu, stack=stack) for stack in ("vllm", "sglang", "trtllm")]
    assert all(found.low_us <= one.latency_us <= found.high_us for one in named)
    assert min(one.latency_us for one in named) <= found.latency_us <= max(one.latency_us for one in named) or gpu == "h200_sxm"
    with_torch = [*named, pm.predict(op, gpu, stack="torch")]
    assert any(
        found.terms == pytest.approx(one.terms) and found.detail["law_us"] == pytest.approx(one.detail["law_us"]) for one in with_torch
    )
    told = found.explain()
    assert told.law_us * told.learnt == pytest.approx(found.latency_us)
    fields = {"q_heads": op.q_heads, "kv_heads": op.kv_heads, "head_dim": op.head_dim, "dtype": op.dtype}
    table = pd.DataFrame([{"phase": op.phase, "batch": op.batch, "q_len": op.q_len, "kv_len": op.kv_len, **fields}])
    assert pm.predict_table("attention", table, gpu)["latency_us"][0] == pytest.approx(found.latency_us, rel=1e-4)


def test_a_stack_and_a_config_contradict_each_other() -> None:
    with pytest.raises(InputError, match="stack 'vllm' and config"):
        pm.predict(pm.Gemm(64, 4096, 4096), "h100_sxm", stack="vllm", config=CONFIG)
    assert pm.predict(pm.Gemm(64, 4096, 4096), "h100_sxm", config=CONFIG).latency_us > 0


@pytest.mark.parametrize("kind", ["attention", "mla"])
def test_a_table_of_decode_has_one_query_token_a_sequence(kind: str) -> None:
    sizes = {"batch": 2, "kv_len": 128, "q_heads": 8, "kv_heads": 8, "head_dim": 128, "num_heads": 16}
    frame = pd.DataFrame([{"phase": "decode", "q_len": 1, **sizes}, {"phase": "decode", "q_len": 4, **sizes}], index=["good", "bad"])
    with pytest.raises(InputError, match="q_len of decode must be 1: row bad does not"):
        pm.predict_table(kind, frame, "h100_sxm")
    assert len(pm.predict_table(kind, frame.iloc[:1], "h100_sxm")) == 1


def test_a_reader_that_takes_the_first_line_is_no_error() -> None:
    words = ["memory", "--gpu", "h100_sxm", "--model", "Qwen3-32B"]
    code = f"from perfmodel.cli.main import main; main({words!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    assert b"Qwen3-32B on h100_sxm" in process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(60) == 0


@pytest.mark.parametrize("budget", ["nan", "0", "-5", "inf"])
def test_a_budget_that_cannot_be_is_refused_before_a_gpu_is_looked_for(budget: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "--budget", budget]) == 2
    assert capsys.readouterr().err == f"perfmodel: budget must be 10 to 3600 seconds, got {budget}\n"


def test_an_import_of_several_files_adds_all_or_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row: dict[str, Any] = {"kernel": "gemm", "sizes": {"m": 1}, "dtype": "bf16", "source_hash": "x", "gpu": "g", "driver": "", "triton": ""}
    row |= {"torch": "", "config": {"block_m": 16}, "role": "config", "status": "ok", "reason": "", "latency_us": 3.0, "spread": None}
    row |= {"predicted_us": None, "clock_mhz": None, "at": "2026-01-01", "detail": {}}
    files = {}
    for name, latency in (("a", 3.0), ("b", -1.0), ("c", 4.0)):
        files[name] = tmp_path / f"{name}.json"
        files[name].write_text(json.dumps({"perfmodel_store": 1, "runs": [{**row, "latency_us": latency}]}))
    store = tmp_path / "store.sqlite"

    def bring(*names: str) -> tuple[int, str]:
        code = run(["store", "import", *(str(files[name]) for name in names), "--store", str(store), "--json"])
        return code, capsys.readouterr().err

    code, told = bring("a", "b")
    assert code == 2 and "b.json: run 0 has latency_us -1.0" in told
    with Store(store) as book:
        assert book.history() == []
    assert bring("a", "c")[0] == 0
    with Store(store) as book:
        assert [run.latency_us for run in book.history()] == [3.0, 4.0]


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--model", "Qwen3-8B", "--gpus", "h100_sxm", "--isl", "1000", "--osl", "100", "--request-rate", "1"],
        ["plan", "--model", "Qwen3-8B", "--gpus", "l4", "--isl", "1000", "--osl", "100", "--objective", "cost", "--request-rate", "1"],
    ],
)
def test_the_command_line_speaks_of_its_own_options(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run(words)
    told = capsys.readouterr()
    assert not ARGUMENT.search(told.out + told.err)


@pytest.mark.parametrize(("gpu", "why"), [("h100_sxm", "its models were fitted to tables of rows"), ("l20", "nothing was measured on it")])
def test_a_missing_report_says_why_and_who_has_one(gpu: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "report", "--gpu", gpu]) == 1
    told = capsys.readouterr().err
    assert f"{gpu} has no calibration report: {why}" in told and "there are reports of h200_sxm" in told


@pytest.mark.parametrize("tokens", ["", " ", "1,,2"])
def test_an_export_of_no_token_counts_is_refused(tokens: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "fp8-gemm", "--gpu", "h100_sxm", "-n", "4096", "-k", "4096", "--tokens", tokens, "--out", str(tmp_path)]
    assert run(words) == 2
    assert "--tokens must be a whole number" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("torch_dtype", "int3", "torch_dtype = 'int3': expected one of bfloat16, float16"),
        ("torch_dtype", ["bfloat16"], "torch_dtype is ['bfloat16']: expected text"),
        ("num_hidden_layers", [32], "num_hidden_layers is [32]: expected a whole number"),
        ("quantization_config", [1], "quantization_config is [1]: expected an object"),
        ("quantization_config", "fp8", "quantization_config is 'fp8': expected an object"),
    ],
)
def test_a_config_that_cannot_be_is_one_line(field: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"config.json: {message}")):
        parse_config({**DENSE, field: value}, "x")
    for fine in ("float16", "torch.bfloat16", "float32"):
        assert parse_config({**DENSE, "torch_dtype": fine}, "x").activation_dtype == ("fp16" if fine == "float16" else "bf16")


def test_speed_is_told_of_every_operator(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIMES", "TABLES", "RANKS", "STARTS", "CONFIGS"):
        monkeypatch.setattr(evaluate_speed, name, 1)
    assert run(["evaluate", "speed", "--rows", "64", "--json"]) == 0
    told = {row["question"]: row for row in json.loads(capsys.readouterr().out)}
    tables = {"gemm", "attention prefill", "attention decode", "mla decode", "moe", "memory", "collective"}
    assert tables | {"rank gemm", "occupancy", *evaluate_speed.COLD} == set(told) and len(evaluate_speed.COLD) == 4
    assert all((row["ms"] or row["table_rows_per_s"]) > 0 for row in told.values()) and told["gemm"]["table_rows_per_s"] > 0


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        (pm.Attention("decode", 16, 1, 4096, 32, 8, 128), "attention"),
        (pm.Attention("prefill", 1, 4096, 4096, 32, 8, 128), "attention"),
        (pm.MemoryBound("rmsnorm", 64, 4096), "memory"),
    ],
)
def test_an_interpolated_calibration_answers_one_question_as_in_a_table(op: Any, kind: str) -> None:
    fields = {name: getattr(op, name) for name in type(op).__slots__ if getattr(op, name) is not None}
    table = pd.DataFrame([{**fields, "stack": "torch"}] * 3)
    found = pm.predict_table(kind, table, "h200_sxm")
    assert found["latency_us"].to_numpy() == pytest.approx(pm.predict(op, "h200_sxm", stack="torch").latency_us, rel=1e-4)


def test_a_calibration_answers_only_for_the_stacks_it_saw() -> None:
    op = pm.MLA("decode", 8, 1, 8192, 16)
    tier = {stack: pm.predict(op, "a100_sxm", stack=stack).tier for stack in ("trtllm", "vllm", "any")}
    assert tier == {"trtllm": "calibrated", "vllm": "spec", "any": "spec"}  # its rows are TensorRT-LLM's alone
    assert pm.predict(op, "h100_sxm", stack="any").tier == "calibrated"
