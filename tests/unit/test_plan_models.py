"""Models: bundled ones against published parameter counts, configs of every kind, quantisation, and what cannot be read."""

import json

import pytest

from perfmodel.errors import InputError
from perfmodel.plan.catalogue import models
from perfmodel.plan.hf_config import parse_config
from perfmodel.plan.model import load_model
from perfmodel.plan.tensors import active_parameters, parameters

DENSE = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
    "intermediate_size": 4096, "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip
MOE = {**DENSE, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "head_dim": 64}


@pytest.mark.parametrize("name", models())
def test_parameters_are_the_published_ones(name):
    model = load_model(name)
    assert model.published_params > 0 and model.source and model.licence
    assert parameters(model) == pytest.approx(model.published_params, rel=0.01)


def test_most_counts_are_exact_to_the_last_digit():
    exact = [n for n in models() if parameters(load_model(n)) == load_model(n).published_params]
    assert len(exact) >= 25 and len(models()) >= 30


@pytest.mark.parametrize(
    ("name", "active"),
    [("DeepSeek-V3", 37e9), ("Qwen3-30B-A3B", 3.3e9), ("Qwen3-235B-A22B", 22e9), ("gpt-oss-120b", 5.1e9), ("Mixtral-8x7B", 12.9e9)],
)
def test_active_parameters_are_near_the_published_ones(name, active):
    assert active_parameters(load_model(name)) == pytest.approx(active, rel=0.1)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("qwen3-32b", "Qwen3-32B"), ("QWEN/Qwen3-32B", "Qwen3-32B"), ("meta-llama/Llama-3.1-70B-Instruct", "Llama-3.1-70B"),
        ("llama 3.3 70b instruct", "Llama-3.1-70B"), ("deepseek-ai/DeepSeek-R1", "DeepSeek-V3"), ("openai/GPT-OSS-120B", "gpt-oss-120b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B"), ("google/gemma-3-27b-it", "Gemma-3-27B"),
    ],
)  # fmt: skip
def test_aliases(alias, name):
    assert load_model(alias).name == name


@pytest.mark.parametrize("typo", ["Qwen3-23B", "llama-3.1-71b", "deepseek-v33"])
def test_unknown_name_says_the_nearest_in_one_line(typo):
    with pytest.raises(InputError) as error:
        load_model(typo)
    assert "did you mean" in str(error.value) and "\n" not in str(error.value)


def test_llama_by_hand():
    hidden, inter, vocab, layers = 1024, 4096, 32000, 4
    attention = hidden * 1024 + 2 * hidden * 256 + 1024 * hidden
    expected = layers * (attention + 3 * hidden * inter + 2 * hidden) + 2 * vocab * hidden + hidden
    assert parameters(load_model(DENSE)) == expected
    assert parameters(load_model({**DENSE, "tie_word_embeddings": True})) == expected - vocab * hidden
    assert parameters(load_model({**DENSE, "attention_bias": True})) == expected + layers * (1024 + 512 + 1024)


def test_sources_of_a_config(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(DENSE), encoding="utf-8")
    snapshot = tmp_path / "hub" / "models--acme--tiny" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(DENSE), encoding="utf-8")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    counts = {parameters(load_model(m)) for m in (DENSE, str(folder), folder / "config.json", "acme/tiny")}
    assert len(counts) == 1
    assert load_model(str(folder)).name == "mine"


def test_layers_of_every_kind():
    first_dense = load_model({**MOE, "model_type": "glm4_moe", "first_k_dense_replace": 1, "n_shared_experts": 2})
    assert [first_dense.layers[i].mlp for i in first_dense.order] == ["dense", "moe", "moe", "moe"]
    assert first_dense.layers[1].shared_inter == 1024
    every_other = load_model({**MOE, "decoder_sparse_step": 2})
    assert [every_other.layers[i].mlp for i in every_other.order] == ["dense", "moe", "dense", "moe"]
    listed = load_model({**MOE, "mlp_only_layers": [0], "decoder_sparse_step": 1})
    assert [listed.layers[i].mlp for i in listed.order] == ["dense", "moe", "moe", "moe"]
    gemma = load_model("Gemma-3-27B")
    assert [gemma.layers[i].window for i in gemma.order][:7] == [1024] * 5 + [0, 1024]
    oss = load_model("gpt-oss-20b")
    assert {layer.window: layer.count for layer in oss.layers} == {128: 12, 0: 12}
    hybrid = load_model("Qwen3-Next-80B-A3B")
    assert {layer.attention: layer.count for layer in hybrid.layers} == {"linear": 36, "gqa": 12}
    llama4 = load_model("Llama-4-Maverick")
    assert [llama4.layers[i].mlp for i in llama4.order][:4] == ["dense", "moe", "dense", "moe"]
    assert load_model({**DENSE, "model_type": "mistral", "sliding_window": 1024}).layers[0].window == 1024
    assert load_model({**DENSE, "model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": False}).layers[0].window == 0


def test_models_that_also_see_and_sparse_configs():
    tower = {"hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304}
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "intermediate_size": 10240, "sliding_window": 1024}
    gemma = load_model({"model_type": "gemma3", "text_config": text, "vision_config": tower})
    assert parameters(gemma) == pytest.approx(4_300_079_472, rel=0.01)  # gemma-3-4b, as the hub counts it
    seeing = load_model({**DENSE, "model_type": "qwen2_5_vl", "vision_config": {"depth": 2, "hidden_size": 64, "intermediate_size": 128}})
    assert seeing.other_params == 2 * (4 * 64**2 + 2 * 64 * 128)
    assert load_model({**DENSE, "vision_config": {"patch_size": 14}}).other_params == 0


def test_counts_and_order_agree_everywhere():
    for name in models():
        model = load_model(name)
        assert sum(layer.count for layer in model.layers) == model.num_layers == len(model.order)


@pytest.mark.parametrize(
    ("quantization", "dtype", "group"),
    [
        ({"quant_method": "fp8"}, "fp8", 0),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block", 128),
        ({"quant_method": "fbgemm_fp8"}, "fp8", 0),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}, "int4_wo", 64),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128, "sym": True}, "int8_wo", 128),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4", 64),
        ({"quant_method": "mxfp4"}, "mxfp4", 32),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 16),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
             "input_activations": {"num_bits": 8}}}}, "int8", 0,
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int", "strategy": "group",
             "group_size": 128, "symmetric": False}}}}, "int4_wo", 128,
        ),
    ],
)  # fmt: skip
def test_quantisation_configs(quantization, dtype, group):
    model = load_model({**DENSE, "quantization_config": quantization})
    assert (model.weight_dtype, model.group_size) == (dtype, group)
    assert model.layers[0].attention_dtype == model.layers[0].mlp_dtype == dtype
    assert model.lm_head_dtype == "bf16" and "lm_head" in model.unquantised


def test_modules_that_stay_at_16_bits():
    oss = load_model("gpt-oss-120b")
    assert all(layer.attention_dtype == "bf16" and layer.mlp_dtype == "mxfp4" for layer in oss.layers)
    some = load_model(
        {
            **DENSE,
            "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.mlp", "re:.*layers.3.self_attn.*"]},
        }
    )
    assert [some.layers[i].mlp_dtype for i in some.order] == ["bf16", "fp8", "fp8", "fp8"]
    assert [some.layers[i].attention_dtype for i in some.order] == ["fp8", "fp8", "fp8", "bf16"]
    assert "attention of 1 layers" in some.unquantised


def test_asking_for_another_type():
    assert load_model("Qwen3-32B", "awq").zero_points
    assert load_model("DeepSeek-V3", "bf16").weight_dtype == "bf16"
    assert load_model("Qwen3-32B", "mxfp4").weight_dtype == "mxfp4"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": 0}, "hidden_size"), ({"hidden_size": None}, "hidden_size is missing"), ({"vocab_size": -1}, "vocab_size"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers"), ({"num_key_value_heads": 3}, "num_key_value_heads = 3"),
        ({"model_type": "retnet"}, "retnet"), ({"num_attention_heads": 10, "num_key_value_heads": 10}, "head_dim"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1"), ({"layer_types": ["mamba"] * 4}, "mamba"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "aqlm"),
        ({"num_local_experts": 4, "num_experts_per_tok": 8}, "num_experts_per_tok"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line_naming_the_field(change, says):
    with pytest.raises(InputError) as error:
        parse_config({**DENSE, **change}, "x")
    assert says in str(error.value) and "\n" not in str(error.value)


def test_assume_dense():
    unknown = {**DENSE, "model_type": "retnet"}
    assert parameters(load_model(unknown, assume_dense=True)) == parameters(load_model(DENSE))
    with pytest.raises(InputError, match="experts"):
        load_model({**MOE, "model_type": "retmoe"}, assume_dense=True)


@pytest.mark.parametrize("content", ["", "{", "[1]", "\x00\xff"])
def test_corrupt_files_are_one_line(tmp_path, content):
    file = tmp_path / "config.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError) as error:
        load_model(str(file))
    assert str(file) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("bad", [None, "", "  ", 7])
def test_what_is_no_model(bad):
    with pytest.raises(InputError):
        load_model(bad)


def test_quantization_names():
    for bad in ("fp32", "int3", "none"):
        with pytest.raises(InputError):
            load_model("Qwen3-32B", bad)
