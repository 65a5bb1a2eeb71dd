"""Explanations: terms, what would change, and what a number rests on."""

from __future__ import annotations

import csv
import dataclasses
import io
import json

import pytest

import perfmodel as pm
from perfmodel.cli.main import run
from perfmodel.errors import NoAnswerError
from perfmodel.predict.explain import better

Capture = pytest.CaptureFixture[str]
DECODE_LIKE = pm.Gemm(16, 14336, 8192)
LARGE = pm.Gemm(8192, 8192, 8192)


def test_a_small_gemm_waits_for_memory_and_a_large_one_does_not() -> None:
    small, large = (pm.predict(op, "l20", stack="vllm").explain() for op in (DECODE_LIKE, LARGE))
    assert small.terms[0]["term"] == "dram" and small.changes[0]["change"] == "DRAM bandwidth"
    assert large.terms[0]["term"] != "dram"
    assert large.changes[0]["change"] != "DRAM bandwidth"


def test_terms_are_those_of_the_prediction() -> None:
    found = pm.predict(LARGE, "h100_sxm", stack="torch")
    assert {row["term"] for row in found.explain().terms} == {name for name, us in found.terms.items() if us > 0}
    for row in found.explain().terms:
        assert row["alone_us"] == found.terms[row["term"]] and row["share"] == pytest.approx(row["alone_us"] / found.detail["law_us"])


def test_changes_are_what_a_changed_gpu_is_predicted_to_take() -> None:
    gpu = pm.gpu("l20")
    faster = better(gpu, ("dram_bytes_per_s",), 1.1)
    assert faster.dram_bytes_per_s == pytest.approx(1.1 * gpu.dram_bytes_per_s) and faster.sms == gpu.sms
    now, then = (pm.predict(DECODE_LIKE, spec, stack="vllm", calibration=None).detail["law_us"] for spec in (gpu, faster))
    told = pm.predict(DECODE_LIKE, gpu, stack="vllm", calibration=None).explain().changes[0]
    assert told["faster"] == pytest.approx(1.0 - then / now)


def test_the_basis_names_rows_gpus_and_a_missing_stack() -> None:
    told = "\n".join(pm.predict(LARGE, "l20").explain().basis)
    assert "none of this GPU" in told and "no stack named" in told and "l40s" in told
    assert "this GPU's own" in "\n".join(pm.predict(LARGE, "l40s", stack="vllm").explain().basis)


def test_a_prediction_made_by_hand_has_no_explanation() -> None:
    bare = dataclasses.replace(pm.predict(LARGE, "l20"), explainer=None)
    with pytest.raises(NoAnswerError, match=r"not made by perfmodel.predict"):
        bare.explain()


def test_verb_prints_bars_json_and_csv(capsys: Capture) -> None:
    words = ["explain", "gemm", "--gpu", "l20", "-m", "16", "-n", "14336", "-k", "8192"]
    assert run(words) == 0
    text = capsys.readouterr().out
    assert "####" in text and "what the number rests on" in text and "arXiv" in text
    assert run([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["terms"][0]["term"] == "dram" and told["references"]
    assert run([*words, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["term"] for row in rows] == [row["term"] for row in told["terms"]]


@pytest.mark.parametrize(
    "words",
    [
        "attention --phase decode --batch 8 --q-len 1 --kv-len 4096 --q-heads 32 --kv-heads 8 --head-dim 128",
        "moe --tokens 512 --hidden 4096 --inter 14336 --num-experts 8 --top-k 2",
        "mla --phase decode --batch 8 --q-len 1 --kv-len 4096 --num-heads 16",
        "memory --kind rmsnorm --tokens 512 --hidden 4096",
        "all_reduce --n-gpus 8 --bytes 16MiB",
        "gemm -m 64 -n 4096 -k 4096 --config block_m=64,block_n=128,block_k=64,num_warps=4",
    ],
)
def test_every_operator_explains_itself(words: str, capsys: Capture) -> None:
    assert run(["explain", *words.split(), "--gpu", "h100_sxm", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["terms"] and told["basis"] and told["references"] and "h100_sxm" in told["title"]


def test_the_stacks_rule_is_printed_with_its_reason_and_source(capsys: Capture) -> None:
    found = pm.predict(pm.Attention("decode", 8, 1, 4096, 32, 8, 128), "h100_sxm", stack="vllm").explain()
    assert found.dispatch.startswith("vllm 0.24 on sm_90 with a bf16 cache runs FlashAttention-3 because sm_90 has FlashAttention-3")
    assert "get_attn_backend_cls" in found.dispatch_source
    words = "explain attention --phase decode --batch 8 --q-len 1 --kv-len 4096 --q-heads 32 --kv-heads 8 --head-dim 128"
    assert run([*words.split(), "--kv-dtype", "fp8", "--gpu", "l40s", "--stack", "vllm"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if " runs " in line)
    assert line.startswith("vllm 0.24 on sm_89 with an fp8 cache runs FlashInfer because FlashAttention-2 reads no fp8 cache (")
    assert run([*words.split(), "--gpu", "a100_sxm4_80gb", "--stack", "sglang", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "FlashAttention-2 because on sm_80" in told["dispatch"] and "server_args.py" in told["dispatch_source"]


@pytest.mark.parametrize(
    ("op", "stack", "gpu", "words"),
    [
        (pm.MLA("decode", 8, 1, 4096, 16), "vllm", "h100_sxm", "with a bf16 cache runs FlashMLA or a kernel of its form because"),
        (pm.MLA("decode", 8, 1, 4096, 16), "vllm", "l40s", "runs a Triton kernel because kernels of warp-group multiplies do not run"),
        (
            pm.MLA("decode", 8, 1, 4096, 16),
            "trtllm",
            "l40s",
            "trtllm 1.3 on sm_89 with a bf16 cache runs TensorRT-LLM's kernels of mma.sync",
        ),
        (pm.MLA("prefill", 1, 4096, 4096, 16), "sglang", "h100_sxm", "with the up-projections absorbed because"),
        (pm.MoE(512, 4096, 1536, 64, 4), "sglang", "h100_sxm", "sglang 0.5 on sm_90 runs SGLang's Triton fused experts because"),
        (pm.MoE(512, 4096, 1536, 64, 4), "trtllm", "h100_sxm", "runs TensorRT-LLM's CUTLASS grouped GEMMs because"),
    ],
)
def test_latent_attention_and_experts_say_what_runs(op: pm.MLA | pm.MoE, stack: str, gpu: str, words: str) -> None:
    found = pm.predict(op, gpu, stack=stack).explain()
    assert words in found.dispatch and found.dispatch_source and f"{found.dispatch} ({found.dispatch_source})." in str(found)


def test_without_a_stack_or_a_rule_no_kernel_is_named() -> None:
    attention = pm.Attention("decode", 8, 1, 4096, 32, 8, 128)
    silent = [
        (attention, None),
        (LARGE, "vllm"),
        (pm.MLA("decode", 8, 1, 4096, 16), "torch"),
        (pm.Collective("all_reduce", 2**20, 8), None),
    ]
    for op, stack in silent:
        found = pm.predict(op, "h100_sxm", stack=stack).explain()
        assert found.dispatch == "" and found.as_dict()["dispatch"] == "" and " because " not in str(found)
