"""Faults in questions to the planning part: each is one line with the field, the value, what is allowed, in the words of the interface."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import perfmodel as pm
from perfmodel.cli.main import run
from perfmodel.cli.memory import entries
from perfmodel.cli.wording import ENGINE, GOAL, reworded
from perfmodel.plan.flags import read_command
from perfmodel.plan.prices import prices

SMALL = "Qwen3-0.6B"
TRAFFIC = {"isl": 100, "osl": 10}
DENSE = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
    "intermediate_size": 4096, "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pm.load_model("x" * 5000), "at most 1024 characters"),
        (lambda: pm.load_model("a\0.json"), "NUL"),
        (lambda: pm.load_model("/dev/zero"), "plain file"),
        (lambda: pm.load_model("./no/such.json"), "no such file"),
        (lambda: pm.load_model(SMALL, ""), "quantization ''"),
        (lambda: pm.load_model(SMALL, "zz9"), "unknown quantization 'zz9'"),
        (lambda: pm.memory_ledger(SMALL, "l4", kv_cache_dtype="zz9"), "kv_cache_dtype 'zz9': use auto"),
        (lambda: pm.memory_ledger(SMALL, "l4", memory_fraction=True), "memory_fraction"),
        (lambda: pm.memory_ledger(SMALL, "l4", max_num_seqs=np.bool_(True)), "max_num_seqs"),
        (lambda: pm.plan(SMALL, "l4", quantization=0, **TRAFFIC), "quantization is 0"),
        (lambda: pm.plan(SMALL, "l4", quantization=["fp8", 1], **TRAFFIC), "quantization is ['fp8', 1]"),
        (lambda: pm.plan(SMALL, 5, **TRAFFIC), "gpus is 5"),
        (lambda: pm.plan(SMALL, "l4", isl=10**18, osl=1), "isl must be a whole number from 1 to 16777216"),
        (lambda: pm.plan(SMALL, "l4", concurrency=1e300, **TRAFFIC), "concurrency must be a whole number from 1 to 1000000"),
        (lambda: pm.plan(SMALL, "l4", total_gpus=10**9, **TRAFFIC), "total_gpus must be a whole number from 1 to 100000"),
        (lambda: pm.plan(SMALL, "l4", request_rate=float("inf"), **TRAFFIC), "request_rate must be a number over 0"),
        (lambda: pm.max_concurrency(SMALL, "l4", tensor_parallel_sizes=4), "tensor_parallel_sizes is 4"),
        (lambda: pm.max_concurrency(SMALL, "l4", stack="nan", tensor_parallel_sizes=[3]), "stack 'nan'"),
        (lambda: pm.estimate(SMALL, "l4", framework_version=[], concurrency=1, **TRAFFIC), "framework_version []"),
        (lambda: pm.estimate(SMALL, "l4", framework_version="newest", concurrency=1, **TRAFFIC), "framework_version 'newest'"),
        (lambda: pm.estimate(SMALL, "l4", topology="abc", concurrency=1, **TRAFFIC), "topology 'abc'"),
        (lambda: pm.estimate(SMALL, "l4", host=5, concurrency=1, **TRAFFIC), "host is 5"),
        (lambda: pm.estimate(SMALL, "l4", concurrency=10**6, **TRAFFIC), "too many to simulate"),
        (lambda: pm.estimate(SMALL, "l4", concurrency=1, max_num_batched_tokens=1, isl=20_000, osl=10), "too many to simulate"),
        (lambda: pm.sensitivity(5, []), "sensitivity is asked of 5"),
        (lambda: prices({"l4": True}), "usd_per_gpu_hour"),
        (lambda: prices("/dev/zero"), "plain file"),
    ],
)  # fmt: skip
def test_a_fault_is_named(call, words):
    with pytest.raises(pm.InputError) as error:
        call()
    assert words in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layer_types", 5), ("layer_types", ["full_attention"]), ("mlp_only_layers", True), ("moe_layers", 1), ("sliding_window", []),
        ("architectures", ["BertModel"]), ("architectures", "LlamaForCausalLM"), ("hidden_size", "big"), ("hidden_size", True),
        ("hidden_size", 10**18),
        ("attention_bias", "perhaps"), ("vision_config", 7), ("text_config", 7), ("torch_dtype", 3), ("tie_word_embeddings", "x"),
        ("num_hidden_layers", [4, 4]), ("quantization_config", 3), ("mlp_layer_types", ["sparse"] * 9), ("intermediate_size", [1, 2]),
    ],
)  # fmt: skip
def test_a_field_of_a_config_is_named(field, value):
    with pytest.raises(pm.InputError, match=field) as error:
        pm.load_model({**DENSE, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, field: value})
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ({"quant_method": "fp8", "weight_block_size": "a"}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [0, 0]}, "weight_block_size"),
        ({"quant_method": "awq", "bits": True}, "bits"),
        ({"quant_method": "awq", "bits": 3}, "bits"),
        ({"quant_method": "gptq", "group_size": "x"}, "group_size"),
        ({"quant_method": "fp8", "ignored_layers": "lm_head"}, "ignored_layers"),
        ({"quant_method": "fp8", "ignored_layers": ["re:("]}, "regular expression"),
        ({"quant_method": "compressed-tensors", "config_groups": [1]}, "config_groups"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": 5}}, "config_groups"),
        ({"quant_method": "modelopt", "quant_algo": 5}, "quant_algo"),
        ({"quant_method": 5}, "quant_method"),
    ],
)
def test_a_field_of_a_quantization_config_is_named(quantization, words):
    with pytest.raises(pm.InputError, match=words):
        pm.load_model({**DENSE, "quantization_config": quantization})


def test_architectures_that_write_text_are_read():
    for name in ("LlamaForCausalLM", "ChatGLMModel", "Qwen2_5_VLForConditionalGeneration"):
        assert pm.load_model({**DENSE, "architectures": [name]}).num_layers == 4
    assert pm.load_model({**DENSE, "architectures": None, "num_key_value_heads": [4, 4, 4, 4]}).layers[0].kv_heads == 4


def test_an_array_of_no_dimension_is_a_number():
    found = [pm.estimate(SMALL, "h100_sxm", isl=isl, osl=10, concurrency=1).ttft_ms for isl in (100, np.array(100), np.int64(100))]
    assert found[0] == found[1] == found[2]


def test_a_users_broken_model_hides_no_other(tmp_path, monkeypatch):
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "mine.json").write_text('{"name": "mine", "aliases": 5}', encoding="utf-8")
    monkeypatch.setenv("PERFMODEL_HOME", str(tmp_path))
    with pytest.warns(UserWarning, match="aliases"):
        assert pm.load_model(SMALL).name == SMALL


def _said(text):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        engine = read_command(text)
    return engine, [str(w.message) for w in seen]


def test_flags_that_matter_and_unknown_ones_are_named():
    engine, said = _said("vllm serve m --enforce-eager --port 80 --speculative-config '{}' -tp 2 --frobnicate 7 --no-enable-prefix-caching")
    assert engine.model == "m" and engine.parallel.tp == 2
    assert said == [
        "start command: --enforce-eager, --speculative-config, --no-enable-prefix-caching change the answer and are not modelled",
        "start command: --frobnicate is no flag that vllm is known to have: ignored",
    ]
    _, said = _said("python -m sglang.launch_server --model-path m --disable-cuda-graph --cuda-graph-bs 1 2 4 --host 0.0.0.0")
    assert said == ["start command: --disable-cuda-graph, --cuda-graph-bs change the answer and are not modelled"]
    assert _said("vllm serve --port 80 --trust-remote-code m --max_num_seqs=7 --seed -1")[1] == []


def test_values_of_a_start_command_are_named_as_written():
    for text, words in (
        ("vllm serve m -tp 0", "-tp must be"),
        ("vllm serve m --max-num-seqs 1e9", "--max-num-seqs must be"),
        ("vllm serve m -tp --port 80", "-tp has no value"),
        ("sglang serve --model-path m --mem-fraction-static nan", "--mem-fraction-static must be"),
    ):
        with pytest.raises(pm.InputError, match=words):
            read_command(text)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("estimate --model Qwen3-0.6B --gpu l4 --isl 10 --osl 10", "give one of --concurrency and --request-rate"),
        ("estimate --model Qwen3-0.6B --gpu l4 --isl 10 --osl 10 --request-rate 0", "--request-rate must be"),
        ("estimate --model Qwen3-0.6B --gpu l4 --isl 10 --osl 10 --concurrency 1 --tp 5000", "--tp must be"),
        ("memory --model Qwen3-0.6B --gpu l4 --tp=", "--tp must be a whole number of 1 or more, got ''"),
        ("memory --model= --gpu l4", "--model is empty"),
        ("memory --model Qwen3-0.6B --gpu l4 --memory-fraction 2", "--memory-fraction"),
        ("plan --model Qwen3-0.6B --gpus l4 --isl 10 --osl 10 --total-gpus 0", "--total-gpus must be"),
        ("plan --model Qwen3-0.6B --gpus l4 --isl 10 --osl 10 --budget-usd-per-hour 1 --prices /dev/full", "/dev/full"),
        ("plan --model Qwen3-0.6B --gpus l4 --isl 10 --osl 10 --html /no/such/place.html", "--html /no/such/place.html: cannot be written"),
    ],
)
def test_the_command_line_names_its_options(capsys, words, expected):
    assert run(words.split()) == 2
    said = capsys.readouterr().err
    assert expected in said and said.count("\n") == 1 and "_size" not in said and "arrival_times_s" not in said


def test_a_commands_limit_of_tokens_is_kept(capsys):
    words = ["estimate", "--gpu", "l4", "--isl", "900", "--osl", "200", "--concurrency", "1"]
    assert run([*words, "--command", "vllm serve Qwen3-0.6B --max-model-len 1000"]) == 2
    assert "limit of 1000 tokens" in capsys.readouterr().err


def test_names_become_options_once():
    assert (
        reworded("prices (--prices) or memory_fraction (gpu) of model.json", ENGINE | GOAL)
        == "--prices or --memory-fraction (gpu) of model.json"
    )
    assert reworded("isl must be 1", {"isl": "--isl"}) == "--isl must be 1"
    assert reworded("the isl", {"isl": "--isl"}) == "the isl"


def test_a_kind_of_gpu_that_is_asked_for_and_not_there_has_its_reason():
    found = pm.plan("Llama-3.1-70B", ["l4", "h200_sxm"], isl=1000, osl=100, max_engine_gpus=1, quantization="fp8", disaggregated=False)
    assert set(found.frame["gpu"]) == {"h200_sxm"}
    (line,) = [note for note in found.notes() if note.startswith("l4:")]
    assert "weights of" in line and "max_engine_gpus" in line


def test_memory_for_people_has_no_thousandths():
    rows = {row["entry"]: row["memory"] for row in entries(pm.memory_ledger(SMALL, "h100_sxm"))}
    assert rows["weights: norm"] == "0.1 MiB" and rows["driver"] == "0.50 GiB"


@pytest.mark.parametrize(("isl", "osl"), [(9000, 30), (256, 2), (100, 1)])
def test_more_prompts_than_decode_steps_still_take_their_steps(isl, osl):
    found = pm.plan("Qwen3-30B-A3B", "h100_sxm", isl=isl, osl=osl, max_engine_gpus=4)
    for engine, curve in found.engines:
        steps = np.maximum(osl - 1, 1)
        assert (curve.tpot_s * steps >= curve.decode_s * steps * (1 - 1e-9)).all(), engine.parallel


def test_a_page_into_a_full_device_is_refused_by_name():
    found = pm.plan(SMALL, "h100_sxm", disaggregated=False, max_engine_gpus=1, **TRAFFIC)
    with pytest.raises(pm.InputError, match="/dev/full"):
        found.to_html(Path("/dev/full"))
