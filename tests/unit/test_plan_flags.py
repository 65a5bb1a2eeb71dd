"""Start commands: what is written reads back as the same engine; prices come from files and are never guessed."""

import pytest

from perfmodel.errors import InputError
from perfmodel.plan.flags import Engine, command, read_command
from perfmodel.plan.parallel import Parallel
from perfmodel.plan.prices import prices

ENGINES = [
    Engine("Qwen/Qwen3-32B"),
    Engine("Qwen/Qwen3-32B", "vllm", Parallel(4, 2), "fp8", "fp8", 64, 8192, 8192, 0.92),
    Engine("deepseek-ai/DeepSeek-V3", "vllm", Parallel(1, 1, 8, 8), max_num_seqs=256),
    Engine("deepseek-ai/DeepSeek-V3", "sglang", Parallel(2, 1, 8, 4), kv_cache_dtype="fp8", memory_fraction=0.85),
    Engine("my model", "sglang", Parallel(8), max_num_batched_tokens=4096, max_model_len=32768, other=("--trust-remote-code",)),
]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: f"{e.stack}-{e.parallel}")
def test_round_trip(engine):
    assert read_command(command(engine)) == engine


def test_spellings_people_use():
    text = """python3 -m vllm.entrypoints.openai.api_server --model=meta-llama/Llama-3.1-8B -tp 2 \\
        --gpu-memory-utilization 0.8 --port 8000 --kv-cache-dtype fp8_e5m2"""
    engine = read_command(text)
    assert (engine.model, engine.parallel, engine.memory_fraction, engine.kv_cache_dtype) == (
        "meta-llama/Llama-3.1-8B",
        Parallel(2),
        0.8,
        "fp8",
    )
    assert engine.other == ("--port", "8000")
    assert read_command("/usr/bin/vllm serve m --enable-expert-parallel -tp 8").parallel == Parallel(8, ep=8)
    assert read_command("python -m sglang.launch_server --model-path m --tp 8 --dp 8 --enable-dp-attention").parallel == Parallel(1, dp=8)


@pytest.mark.parametrize(
    "text",
    [
        "", "ollama run llama3", "vllm serve", "vllm serve m -tp", "vllm serve m -tp 0", "vllm serve m -tp x", "vllm serve 'm",
        "vllm serve m --gpu-memory-utilization much", "python -m sglang.launch_server --model-path m --tp 4 --dp 3 --enable-dp-attention",
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line(text):
    with pytest.raises(InputError) as error:
        read_command(text)
    assert "\n" not in str(error.value)


def test_no_command_for_other_stacks():
    with pytest.raises(InputError, match="trtllm"):
        command(Engine("m", "trtllm"))


def test_shipped_prices_are_marked_examples_with_date_and_source():
    found = prices()
    assert found and all(p.example and p.date and p.source.startswith("http") for p in found.values())


def test_own_prices(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFMODEL_HOME", str(tmp_path))
    (tmp_path / "prices.toml").write_text("[h100_sxm]\nusd_per_gpu_hour = 9\n[l20]\nusd_per_gpu_hour = 0.8\n", encoding="utf-8")
    assert prices()["h100_sxm"].usd_per_gpu_hour == 9 and not prices()["h100_sxm"].example
    assert prices()["a100_sxm4_80gb"].example
    assert prices({"L20": 1.5})["l20"].usd_per_gpu_hour == 1.5
    only = tmp_path / "mine.toml"
    only.write_text("[l20]\nusd_per_gpu_hour = 1\n", encoding="utf-8")
    assert set(prices(only)) == {"l20"}


@pytest.mark.parametrize(
    "content",
    ["[h100_sxm]\n", "[h100_sxm]\nusd_per_gpu_hour = -1\n", "[h100_sxm]\nusd_per_gpu_hour = 'x'\n", "[nogpu]\nusd_per_gpu_hour = 1\n", "["],
)
def test_bad_price_files_are_one_line(tmp_path, content):
    file = tmp_path / "p.toml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as error:
        prices(file)
    assert "\n" not in str(error.value)
