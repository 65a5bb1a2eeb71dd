"""Tiles of the grouped GEMMs by stack, release and GPU, and what old public MoE rows mean."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import perfmodel as pm
from perfmodel.hw import gpu
from perfmodel.library import moe_kernels, moe_tiles
from perfmodel.library.arch import inline_ecc
from perfmodel.library.records import Kernels
from perfmodel.ops import OperatorTable, moe_table
from perfmodel.ops.names import DTYPES, KERNELS, STACKS

TOKENS = (16.0, 64.0, 256.0, 4096.0)
Sizes = list[tuple[float, float, float]]


def layer(name: str, path: str, *, dtype: str = "bf16", old: float = 0.0, ep: float = 1.0) -> Sizes:
    many = len(TOKENS)
    columns = {
        "tokens": np.array(TOKENS), "num_experts": np.full(many, 64.0), "ep": np.full(many, ep), "old": np.full(many, old),
        "dtype": np.full(many, float(DTYPES.index(dtype))),
    }  # fmt: skip
    mean = np.array([2.0, 20.0, 70.0, 900.0])
    kernels = Kernels(moe_kernels.records(), np.full(many, moe_kernels.names().index(path)))
    found = moe_tiles.layer_tiles(gpu(name), kernels, columns, mean)
    return list(zip(found.rows.tolist(), found.columns.tolist(), found.depth.tolist(), strict=True))


def alone(name: str, tokens: float, experts: float, hidden: float) -> tuple[float, float, float]:
    found = moe_tiles.kernel_tiles(gpu(name), *(np.array([value]) for value in (tokens, experts, hidden)))
    return float(found.rows[0]), float(found.columns[0]), float(found.depth[0])


def test_default_tiles_of_the_stacks() -> None:
    assert layer("h100_sxm", "vllm_triton") == [(16, 64, 128), (32, 64, 128), (64, 128, 64), (128, 128, 64)]
    assert layer("h100_sxm", "sglang_triton") == [(16, 32, 64), (16, 32, 64), (64, 64, 32), (64, 64, 32)]
    assert layer("a100_sxm4_80gb", "vllm_triton", old=1.0) == layer("a100_sxm4_80gb", "sglang_triton")
    assert layer("h100_sxm", "sglang_triton", ep=4.0)[1] == (64, 64, 32)  # 16 experts are left for 64 tokens
    assert [rows for rows, *_ in layer("h100_sxm", "trtllm")] == [16, 32, 128, 128]
    assert layer("l40s", "vllm_triton", dtype="fp8_block") == [(16, 128, 128), (16, 128, 128), (64, 128, 128), (64, 128, 128)]


def test_kernels_that_nobody_tuned_take_the_first_tile() -> None:
    assert set(layer("h100_sxm", "sglang_cutlass")) == {(128, 16, 64)}
    assert set(layer("rtx_pro_6000", "sglang_cutlass")) == {(32, 128, 64)}
    assert layer("h100_sxm", "vllm_cutlass", dtype="fp8_block") == layer("h100_sxm", "trtllm", dtype="fp8_block")


def test_tiles_of_the_kernel_alone_follow_shared_memory() -> None:
    assert [alone("h20", m, 64, 4096)[0] for m in (128, 256, 512, 2048, 8192)] == [16, 32, 64, 128, 128]
    assert [alone("a100_sxm4_80gb", m, 64, 4096)[0] for m in (512, 2048, 8192)] == [64, 64, 64]
    assert [alone("l20", m, 32, 4096)[0] for m in (512, 2048, 8192)] == [64, 128, 64]
    assert alone("l20", 8192, 64, 4096) == (128, 64, 64) and alone("l20", 64, 64, 1536) == (16, 16, 256)
    assert alone("h20", 8192, 64, 4096) == (128, 128, 64)


def test_paths() -> None:
    def path(stack: str, kernel: str) -> str:
        codes = np.array([STACKS.index(stack)]), np.array([KERNELS.index(kernel)])
        return moe_kernels.names()[moe_kernels.kernels(gpu("h100_sxm"), *codes).code[0]]

    assert path("vllm", "other") == path("vllm", "triton") == "vllm_triton"
    assert path("sglang", "flashinfer") == "sglang_cutlass"
    assert path("trtllm", "cutlass") == "trtllm" and path("any", "triton") == path("torch", "other") == "any"


@pytest.mark.parametrize(("name", "inline"), [("l20", True), ("l40s", True), ("a40", True), ("rtx_6000_ada", False), ("h100_sxm", False)])
def test_only_boards_that_lose_memory_to_ecc_lose_bandwidth(name: str, inline: bool) -> None:
    assert inline_ecc(gpu(name)) is inline


def test_old_rows_are_gated_and_send_whole_tokens() -> None:
    frame = pd.DataFrame(
        {
            "tokens": 64, "hidden": 2688, "inter": 1856, "num_experts": 128, "top_k": 6, "ep": [1, 8, 8, 8, 8],
            "stack": ["sglang", "sglang", "sglang", "vllm", "trtllm"],
            "framework_version": ["0.5.10", "0.5.10", "0.5.14", "0.14.0", "1.0.0"],
        }
    )  # fmt: skip
    found = OperatorTable.read("moe", frame)
    assert found["gated"].tolist() == [1, 1, 0, 1, 0]
    assert found["whole_tokens"].tolist() == [0, 1, 0, 0, 0]
    assert OperatorTable.read("moe", frame.drop(columns="framework_version"))["gated"].tolist() == [0] * 5
    assert moe_table.is_older((0, 24), "unknown") == 0.0


def test_an_untuned_kernel_is_slower_than_a_tuned_one_on_hopper() -> None:
    frame = pd.DataFrame(
        {
            "tokens": [96, 96], "hidden": 2688, "inter": 1856, "num_experts": 128, "top_k": 6,
            "stack": ["sglang", "trtllm"], "kernel": ["flashinfer_cutlass", "cutlass"],
        }
    )  # fmt: skip
    untuned, tuned = pm.predict_table("moe", frame, "h100_sxm", calibration=None)["latency_us"]
    assert untuned > 2.0 * tuned
