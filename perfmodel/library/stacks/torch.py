"""torch: eager operators on tensors of their own, scaled_dot_product_attention for attention."""

from __future__ import annotations

from perfmodel.library.stacks.stack import Rule, Stack, always, register

TORCH = register(
    Stack(
        "torch",
        attention=(
            Rule("fa2", always, "scaled_dot_product_attention takes its FlashAttention-2 first", "torch, sdp_utils.cpp, priority order"),
        ),
        dense_cache=True,
        gemm_like="vllm",
    )
)
