"""What an attention call does to its own queries, keys and values before it attends: turn, cast, append to the cache."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.library.launch import stack_values
from perfmodel.library.names import STACKS
from perfmodel.library.terms import Floats

_ANY, _VLLM, _SGLANG, _TRTLLM = (STACKS.index(name) for name in ("any", "vllm", "sglang", "trtllm"))
APPEND_THREADS = 512.0  # of a token's block in vLLM's reshape_and_cache_flash, at most
UNEVEN_DIM = 192.0  # head_dim of public models whose values are narrower (128)


def append_s(
    gpu: GpuSpec,
    stack: npt.NDArray[np.intp],
    columns: Mapping[str, Floats],
    cold: Floats,
    narrow: npt.NDArray[np.bool_],
    flash3: npt.NDArray[np.bool_],
    c: Mapping[str, float],
) -> Floats:
    """Seconds before attention starts, of n prefill calls.

        t = share x bytes / bandwidth + tokens x threads of a token's block x cycles of a block / (SMs x resident threads x clock)

    `cold`: share of the bytes that comes from DRAM; `narrow`: an fp8 cache; `flash3`: FlashAttention-3. TensorRT-LLM handles queries, keys
    and values in one kernel; the others append keys and values, and read queries only to cast them. vLLM appends with a block of
    min(kv_heads head_dim, 512) threads a token, of which few have anything to load: the blocks take the time, most at 512 elements a
    token. SGLang appends keys and values of one width in one kernel, others through torch's indexed store (`indexed`).
    Source: vLLM csrc/cache_kernels.cu, SGLang memory_pool.py (set_kv_buffer), TensorRT-LLM unfusedAttentionKernels. Evidence: public vLLM
    rows of H100 take 0.2 to 0.5 longer in log latency at kv_heads head_dim = 512 than at 128 or 4096; the law alone, its constants fitted
    to a GPU's vLLM rows, errs by 10.8 without and 7.6 % with the blocks on H100, 7.1 and 4.3 on A100, 13.1 and 10.1 on L40S.
    """
    dim, kv_heads = columns["head_dim"], columns["kv_heads"]
    tokens = columns["batch"] * columns["q_len"]
    whole = (stack == _ANY) | (stack == _TRTLLM) | (flash3 & narrow)  # FlashAttention-3 multiplies in the cache's type
    uneven = np.where(indexed(stack, flash3, dim), c["uneven_append_cost"], 1.0)
    element = stack_values(c, "prepare", stack) * 4.0 * (cold / gpu.dram_bytes_per_s + (1.0 - cold) / gpu.l2_bytes_per_s)
    queries = np.where(whole, columns["q_heads"], 0.0) * dim * element
    threads = np.where(stack == _VLLM, np.minimum(kv_heads * dim, APPEND_THREADS), 0.0)
    cycles = c["token_block_cycles"] * np.where(narrow, c["token_block_fp8_cost"], 1.0)
    blocks = threads * cycles / gpu.max_clock_hz / (gpu.sms * 32.0 * gpu.max_warps_per_sm)
    result: Floats = tokens * (queries + 2.0 * kv_heads * dim * uneven * element + blocks)
    return result


def indexed(stack: npt.NDArray[np.intp], flash3: npt.NDArray[np.bool_], head_dim: Floats) -> npt.NDArray[np.bool_]:
    """Rows whose keys and values go to the cache through torch's indexed store, kernels of their own: SGLang's of uneven width."""
    found: npt.NDArray[np.bool_] = (stack == _SGLANG) & flash3 & (head_dim == UNEVEN_DIM)
    return found
