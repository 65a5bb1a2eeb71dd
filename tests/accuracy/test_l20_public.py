"""An L20, of which no row was ever seen, against figures that people published for it."""

from __future__ import annotations

import pytest

import perfmodel as pm


@pytest.mark.parametrize("size", [4096, 8192, 16384])
def test_torch_fp16_matmul(size: int) -> None:
    """Published: torch fp16 matmul of 4096 to 16384 cubed reaches 104 to 115 TFLOP/s."""
    found = pm.predict(pm.Gemm(size, size, size, dtype="fp16"), "l20", stack="torch")
    assert found.tier == "spec" and found.in_domain
    assert 2.0 * size**3 / found.latency_us / 1e6 == pytest.approx(109.5, rel=0.12)
    assert 2.0 * size**3 / found.high_us / 1e6 <= 115 and 2.0 * size**3 / found.low_us / 1e6 >= 104


@pytest.mark.parametrize("tokens", [8192, 16384])
def test_flash_attention_2_of_head_dim_64(tokens: int) -> None:
    """Published: FlashAttention-2 forward, head dim 64, long sequences: 100 to 109 TFLOP/s."""
    op = pm.Attention("prefill", 16384 // tokens, tokens, tokens, 32, 32, 64, dtype="fp16", causal=False)
    found = pm.predict(op, "l20", stack="torch")
    reached = op.work().flops / found.latency_us / 1e6
    assert reached == pytest.approx(104.5, rel=0.15)
    assert op.work().flops / found.high_us / 1e6 <= 109 and op.work().flops / found.low_us / 1e6 >= 100
