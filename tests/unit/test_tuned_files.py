"""Files of tuned configs: names and text as the engines write them, exports for GPUs that are not there, imports of what others tuned."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import perfmodel as pm
from perfmodel.cli import main
from perfmodel.tune.exports import Experts, fp8_gemm_file, inductor_table, moe_file, read_experts
from perfmodel.tune.imports import read_autotune, read_inductor
from perfmodel.tune.store import Store
from perfmodel.tune.tuned_files import TOKENS, device_label, read

# First and last entry of a file that vLLM ships (vllm-project/vllm, Apache-2.0, fused_moe/configs/ and this name).
SHIPPED_NAME = "E=128,N=192,device_name=NVIDIA_H100_80GB_HBM3.json"
SHIPPED = """\
{
    "1": {
        "BLOCK_SIZE_M": 16,
        "BLOCK_SIZE_N": 64,
        "BLOCK_SIZE_K": 64,
        "GROUP_SIZE_M": 1,
        "num_warps": 4,
        "num_stages": 5
    },
    "4096": {
        "BLOCK_SIZE_M": 128,
        "BLOCK_SIZE_N": 128,
        "BLOCK_SIZE_K": 64,
        "GROUP_SIZE_M": 16,
        "num_warps": 4,
        "num_stages": 3
    }
}
"""
BLOCKED = "N=1536,K=7168,device_name=NVIDIA_L20,dtype=fp8_w8a8,block_shape=[128,128].json"
QWEN = Experts(hidden=2048, inter=768, num_experts=128, top_k=8)


@pytest.mark.parametrize(
    "name", [SHIPPED_NAME, BLOCKED, "E=8,N=3584,device_name=NVIDIA_A100-SXM4-80GB,dtype=int8_w8a16.json",
             "E=128,N=384,device_name=NVIDIA_H100,dtype=fp8_w8a8,block_shape=[128,128].json"]
)  # fmt: skip
def test_a_shipped_file_survives_the_round_trip(tmp_path, name):
    path = tmp_path / name
    path.write_text(SHIPPED)
    file = read(path)
    assert file.name == name and file.text == SHIPPED
    assert file.write(tmp_path / "again").read_text() == SHIPPED
    assert file.rows()[0] | {"m": 1, "block_m": 16, "group_m": 1, "num_stages": 5} == file.rows()[0]


def test_sglang_names_and_folders(tmp_path):
    folder = tmp_path / "triton_3_4_0"
    folder.mkdir()
    name = "E=128,N=192,device_name=NVIDIA_L20,dtype=fp8_w8a8,block_shape=[128, 128].json"
    (folder / name).write_text(SHIPPED)
    file = read(folder / name)
    assert (file.style, file.triton, file.name, file.folder) == ("sglang", "3.4.0", name, "triton_3_4_0")
    assert file.write(tmp_path / "out") == tmp_path / "out" / "triton_3_4_0" / name


def test_device_labels_are_the_engines():
    assert device_label(pm.gpu("h100_sxm").full_name) == "NVIDIA_H100_80GB_HBM3"
    assert device_label(pm.gpu("a100_sxm4_80gb").full_name) == "NVIDIA_A100-SXM4-80GB"
    assert device_label("NVIDIA H200 NVL") == "NVIDIA_H200"
    assert device_label("NVIDIA H200 NVL", "sglang") == "NVIDIA_H200_NVL"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("tuned.json", SHIPPED, "not the name of a tuned file"),
        (SHIPPED_NAME, "[1]", "not a map"),
        (SHIPPED_NAME, "{", "not JSON"),
        (SHIPPED_NAME, "{}", "holds no config"),
        (SHIPPED_NAME, '{"x": {}}', "not a map"),
    ],
)
def test_bad_files_are_one_line(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(pm.InputError, match=words) as error:
        read(tmp_path / name)
    assert "\n" not in str(error.value)


def test_exports_what_vllm_would_load():
    file = moe_file(QWEN, "l20", tp=4, tokens=(1, 4096))
    assert file.name == "E=128,N=192,device_name=NVIDIA_L20.json"
    assert list(json.loads(file.text)) == ["1", "4096"]
    fields = ["BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages"]
    assert all(list(config) == fields for config in file.configs.values())
    assert file.configs[1]["BLOCK_SIZE_M"] == 16 < file.configs[4096]["BLOCK_SIZE_M"]
    assert moe_file(QWEN, "l20", ep=4, tokens=(64,)).name == "E=32,N=768,device_name=NVIDIA_L20.json"


def test_block_scaled_tiles_fit_their_blocks():
    experts = Experts(2048, 768, 128, 8, "fp8_w8a8", (128, 128))
    file = moe_file(experts, "h20", tokens=(16, 1024))
    assert file.name == "E=128,N=768,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128,128].json"
    assert {c["BLOCK_SIZE_K"] for c in file.configs.values()} == {128}
    gemm = fp8_gemm_file(1536, 7168, "l20", tokens=(1, 2048))
    assert gemm.name == BLOCKED
    assert all(128 % c["BLOCK_SIZE_K"] == 0 for c in gemm.configs.values())
    with pytest.raises(pm.InputError, match="fp8"):
        fp8_gemm_file(1536, 7168, "a100_sxm4_80gb")


def test_reads_a_models_config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "hidden_size": 7168, "moe_intermediate_size": 2048, "intermediate_size": 18432, "n_routed_experts": 256,
                "num_experts_per_tok": 8, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
            }
        )
    )  # fmt: skip
    assert read_experts(tmp_path) == Experts(7168, 2048, 256, 8, "fp8_w8a8", (128, 128))
    path.write_text('{"hidden_size": 4096, "intermediate_size": 14336}')
    with pytest.raises(pm.InputError, match="a dense model"):
        read_experts(path)


def test_inductor_table_reads_back(tmp_path):
    table = inductor_table([pm.Gemm(512, 4096, 1024)], "h100_sxm", top_k=2)
    (key,) = table
    assert key == ("NVIDIA H100 80GB HBM3+((torch.bfloat16, [512, 1024], [1024, 1]), (torch.bfloat16, [1024, 4096], [1, 1024]))+mm")
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table))
    rows = read_inductor(path)
    best = pm.rank(
        pm.Gemm(512, 4096, 1024), "h100_sxm", configs=[{k: v for k, v in rows[0].items() if k.startswith(("block", "num", "group"))}]
    )
    assert len(rows) == 2 and (rows[0]["m"], rows[0]["n"], rows[0]["k"], rows[0]["device"]) == (512, 4096, 1024, "NVIDIA H100 80GB HBM3")
    assert len(best) == 1
    plain = inductor_table([pm.Gemm(512, 4096, 1024)], "h100_sxm", transposed=False, device_key=False)
    assert next(iter(plain)).startswith("((torch.bfloat16, [512, 1024]") and "[4096, 1]" in next(iter(plain))


AUTOTUNE = {
    "key": ["512", "4096", "1024", "torch.bfloat16"],
    "configs_timings": [
        [{"kwargs": {"BM": 64}, "num_warps": 4, "num_ctas": 1, "num_stages": 3, "maxnreg": None, "pre_hook": None}, [0.021, 0.020, 0.023]],
        [{"kwargs": {"BM": 128}, "num_warps": 8, "num_ctas": 1, "num_stages": 3, "maxnreg": None, "pre_hook": None}, [float("inf")] * 3],
    ],
}


def test_tritons_autotune_cache_becomes_runs(tmp_path, capsys):
    path = tmp_path / "matmul_kernel.autotune.json"
    path.write_text(json.dumps(AUTOTUNE))
    good, failed = read_autotune(path, gpu="l20", keys=["M", "N", "K"])
    assert good.key.kernel == "matmul_kernel" and good.key.sizes == {"M": 512, "N": 4096, "K": 1024} and good.key.gpu == "NVIDIA L20"
    assert (
        good.config == {"BM": 64, "num_warps": 4, "num_stages": 3} and good.latency_us == pytest.approx(21) and good.key.dtype == "bfloat16"
    )
    assert failed.status == "error" and failed.latency_us is None
    store = tmp_path / "store.sqlite"
    assert main.run(["store", "import-autotune", str(path), "--gpu", "l20", "--keys", "M,N,K", "--store", str(store)]) == 0
    with Store(store) as book:
        assert len(book.history()) == 2
    assert main.run(["store", "import-autotune", str(path), "--gpu", "l20", "--keys", "M,N", "--store", str(store)]) == 2
    assert "its key has 3 numbers" in capsys.readouterr().err
    path.write_text("{}")
    with pytest.raises(pm.InputError, match="not an autotune cache"):
        read_autotune(path, gpu="l20")


def test_export_command(tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text('{"hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}')
    ask = ["export", "vllm-moe", "--model", str(config), "--gpu", "l20", "--tp", "4", "--tokens", "1,64", "--out", str(tmp_path), "--json"]
    assert main.run(ask) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [r["m"] for r in rows] == [1, 64]
    written = tmp_path / "E=128,N=192,device_name=NVIDIA_L20.json"
    assert read(written).device == "NVIDIA L20"
    assert main.run(["export", "show", str(written), "--csv"]) == 0
    capsys.readouterr()
    for bad, words in (
        (["--tp", "5"], "tp must divide"),
        (["--gpu", "l21"], "unknown gpu"),
        (["--tokens", "0"], "tokens"),
        (["--dtype", "int3"], "dtype of a tuned file"),
        (["--style", "trt"], "style"),
        (["--hidden", "4"], "leave --hidden out"),
    ):
        assert main.run([*ask, *bad]) == 2
        assert words in capsys.readouterr().err.lower()
    assert main.run(["export", "vllm-moe", "--gpu", "l20"]) == 2


def test_the_default_token_counts_are_those_that_ship():
    assert TOKENS[0] == 1 and TOKENS[-1] == 4096 and len(TOKENS) == 18


def test_a_device_is_not_replaced_and_a_link_is_followed(tmp_path: Path) -> None:
    from perfmodel._atomic import write_atomically

    fifo, real, link = tmp_path / "fifo", tmp_path / "real", tmp_path / "link"
    os.mkfifo(fifo)
    with pytest.raises(pm.InputError, match="not a plain file"):
        write_atomically(fifo, "x")
    real.write_text("old")
    link.symlink_to(real)
    write_atomically(link, "new")
    assert link.is_symlink() and real.read_text() == "new" and fifo.is_fifo()
