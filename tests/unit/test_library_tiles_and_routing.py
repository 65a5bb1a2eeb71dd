"""Facts of kernels that the laws count by: tiles of attention prefill, loads and tiles of experts."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.hw import gpu
from perfmodel.library import moe_routing
from perfmodel.library.attention_kernels import prefill_kernels
from perfmodel.library.attention_tiles import tiles
from perfmodel.ops.names import KERNELS, STACKS


def tile(name: str, stack: str, kernel: str, head_dim: int, group: int = 1, fp8: bool = False) -> tuple[float, float, float]:
    kernels = prefill_kernels(np.array([STACKS.index(stack)]), np.array([KERNELS.index(kernel)]))
    found = tiles(gpu(name), kernels, np.array([float(head_dim)]), np.array([float(group)]), np.array([fp8]))
    return tuple(float(part[0]) for part in found)  # type: ignore[return-value]


def test_tiles_follow_kernel_head_and_element() -> None:
    assert tile("h100_sxm", "vllm", "fa3", 64) == (192, 128, 1)
    assert tile("h100_sxm", "vllm", "fa3", 128) == (128, 128, 1)
    assert tile("h100_sxm", "vllm", "fa3", 256, fp8=True) == (128, 128, 1)
    assert tile("h100_sxm", "trtllm", "trtllm", 64) == (128, 256, 1)
    assert tile("h100_sxm", "trtllm", "trtllm", 128, fp8=True) == (128, 256, 1)
    assert tile("l40s", "trtllm", "trtllm", 64) == (64, 64, 1)


def test_a_paged_cache_takes_the_split_kernel_of_flash_attention_2() -> None:
    assert tile("l40s", "vllm", "fa2", 128) == (64, 128, 1)
    assert tile("l40s", "torch", "fa2", 128) == (128, 64, 1)


def test_packed_heads_leave_fewer_tokens_in_a_tile() -> None:
    assert tile("l40s", "sglang", "flashinfer", 128, group=8) == (16, 64, 8)
    assert tile("l40s", "sglang", "flashinfer", 128, group=1) == (128, 64, 1)
    assert tile("l40s", "sglang", "flashinfer", 128, group=512) == (1, 64, 128)


def loads(tokens: float, top_k: float, experts: float, ep: float, skew: float, whole_tokens: float = 0.0) -> moe_routing.Loads:
    values = {"tokens": tokens, "top_k": top_k, "num_experts": experts, "ep": ep, "skew": skew, "whole_tokens": whole_tokens}
    return moe_routing.loads({name: np.array([value]) for name, value in values.items()})


def test_balanced_routing_by_hand() -> None:
    found = loads(1024, 8, 128, 4, 0.0)
    assert found.total[0] == pytest.approx(1024 * 8 / 4) and found.touched[0] == pytest.approx(32)
    assert found.tiles(np.array([64.0]))[0] == pytest.approx(32)  # 64 rows an expert
    assert found.tiles(np.array([48.0]))[0] == pytest.approx(64)
    assert loads(4, 2, 128, 1, 0.0).touched[0] == pytest.approx(8)
    uneven = loads(128, 8, 60, 1, 0.0)  # 1024 rows: 4 experts of 18, 56 of 17
    assert uneven.total[0] == pytest.approx(1024)
    assert uneven.tiles(np.array([17.0]))[0] == pytest.approx(56 + 2 * 4)
    assert uneven.tiles(np.array([16.0]))[0] == pytest.approx(120)


def test_whole_tokens_bring_every_row_to_a_gpu() -> None:
    few, many = (loads(1024, 8, 128, ep, 0.0, whole_tokens=1.0) for ep in (8, 32))
    assert few.total[0] == pytest.approx(1024 * 8)  # as on one GPU
    assert many.total[0] == pytest.approx(1024 * 8 * 8 / 32)
    assert few.touched[0] == pytest.approx(16)
    assert loads(1024, 8, 128, 8, 1.2, whole_tokens=1.0).total[0] <= 1024 * 8 * (1 + 1e-9)


@pytest.mark.parametrize("skew", [1.01, 1.2, 1.0, 2.0])
@pytest.mark.parametrize(("tokens", "top_k", "experts"), [(4096, 2, 8), (4096, 8, 128), (2, 8, 256)])
def test_skewed_rows_are_shared_out_and_one_gpu_has_the_busiest_expert(skew: float, tokens: int, top_k: int, experts: int) -> None:
    whole = loads(tokens, top_k, experts, 1, skew)
    assert whole.total[0] == pytest.approx(max(1, tokens * top_k))
    assert whole.rows[0].max() <= tokens * (1 + 1e-9)  # a token picks an expert once
    assert np.all(np.diff(whole.rows[0]) >= -1e-9)  # the busiest is last
    shares = [loads(tokens, top_k, experts, ep, skew).total[0] / max(1, tokens * top_k) for ep in (2, 4, 8)]
    assert all(share >= 1 / ep - 1e-9 for share, ep in zip(shares, (2, 4, 8), strict=True))
    assert shares == sorted(shares, reverse=True)


def test_loads_agree_with_sampled_weights() -> None:
    tokens, top_k, experts, ep, a = 4096, 8, 128, 8, 1.2
    rng = np.random.default_rng(0)
    low, high = 1.0, 0.8 * tokens
    u = rng.random((4000, experts))
    weights = (low ** (1 - a) + u * (high ** (1 - a) - low ** (1 - a))) ** (1 / (1 - a))
    rows = np.minimum(weights / weights.sum(axis=1, keepdims=True) * tokens * top_k, tokens)
    busiest = rows.max(axis=1).mean()
    ours = loads(tokens, top_k, experts, ep, a)
    assert ours.rows[0, -1] == pytest.approx(busiest, rel=0.25)
    sampled = rows.reshape(4000, ep, -1).sum(axis=2).max(axis=1).mean()
    assert ours.total[0] == pytest.approx(sampled, rel=0.35)
