"""Which kernels besides attention itself a call of a stack runs: one entry a stack and kernel family."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfmodel.library.stacks import like_first, table_of_stacks
from perfmodel.ops.names import KERNELS, STACKS

PATHS = (
    "any", "vllm_fa", "vllm_flashinfer", "vllm_triton", "sglang_fa", "sglang_flashinfer", "sglang_triton", "trtllm",
    "torch_fa", "torch_cudnn", "sglang_fa3",
)  # fmt: skip
"""What a call runs besides the attention kernel differs by stack and kernel: each pair has its own count of launches."""


def family(kernel: str) -> str:
    """The three FlashAttentions are called alike and count as one."""
    return "fa" if kernel in ("fa2", "fa3", "fa4") else kernel


@table_of_stacks
def _codes() -> npt.NDArray[np.intp]:
    """(stack, kernel) -> place in PATHS: the pair's own, else the stack's, else the stack with FlashAttention, else those of its like."""

    def place(stack: str, kernel: str) -> int:
        callers = ((f"{name}_{kernel}", name, f"{name}_{family(kernel)}", f"{name}_fa") for name in like_first(stack))
        return next(PATHS.index(name) for names in callers for name in names if name in PATHS)

    return np.array([[place(stack, kernel) for kernel in KERNELS] for stack in STACKS])


def paths(stack: npt.NDArray[np.intp], kernel: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Place in PATHS of each row's stack and kernel."""
    return _codes()[stack, kernel]
