"""torch: eager operators on tensors of their own, scaled_dot_product_attention for attention."""

from __future__ import annotations

from perfmodel.library.stacks.stack import Communication, Rule, Stack, always, register

TORCH = register(
    Stack(
        "torch",
        like="any",
        attention=(
            Rule("fa2", always, "scaled_dot_product_attention takes its FlashAttention-2 first", "torch, sdp_utils.cpp, priority order"),
        ),
        communication=Communication(
            graphs=False,
            from_python=True,
            graph_us="torch_graph_us",
            call_us="torch_eager_us",
            p2p_calls="torch_p2p_eager",
            grouped_calls="torch_grouped_eager",
        ),
        dense_cache=True,
        warm_elementwise=True,
        gemm_like="vllm",
    )
)
