"""Which kernels besides attention itself a call of a stack runs: one entry a stack and kernel family."""

from __future__ import annotations

import numpy as np

from perfmodel.ops.names import KERNELS, STACKS

PATHS = (
    "any", "vllm_fa", "vllm_flashinfer", "vllm_triton", "sglang_fa", "sglang_flashinfer", "sglang_triton", "trtllm",
    "torch_fa", "torch_cudnn", "sglang_fa3",
)  # fmt: skip
"""What a call runs besides the attention kernel differs by stack and kernel: each pair has its own count of launches."""


def family(kernel: str) -> str:
    """The three FlashAttentions are called alike and count as one."""
    return "fa" if kernel in ("fa2", "fa3", "fa4") else kernel


def _path(stack: str, kernel: str) -> int:
    """Place in PATHS of a stack and kernel: the pair's own, else the stack's, else the stack with FlashAttention."""
    return next(PATHS.index(name) for name in (f"{stack}_{kernel}", stack, f"{stack}_{family(kernel)}", f"{stack}_fa") if name in PATHS)


PATH = np.array([[_path(stack, kernel) for kernel in KERNELS] for stack in STACKS])
