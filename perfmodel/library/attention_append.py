"""What an attention call does to its own queries, keys and values before it attends: turn, cast, append to the cache."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.library.launch import stack_values
from perfmodel.library.stacks import stack_flags
from perfmodel.library.terms import Floats

UNEVEN_DIM = 192.0  # head_dim of public models whose values are narrower (128)


def append_s(
    gpu: GpuSpec,
    stack: npt.NDArray[np.intp],
    columns: Mapping[str, Floats],
    cold: Floats,
    narrow: npt.NDArray[np.bool_],
    cache_type: npt.NDArray[np.bool_],
    by_index: npt.NDArray[np.bool_],
    c: Mapping[str, float],
) -> Floats:
    """Seconds before attention starts, of n prefill calls.

        t = share x bytes / bandwidth + tokens x threads of a token's block x cycles of a block / (SMs x resident threads x clock)

    `cold`: share of the bytes that comes from DRAM; `narrow`: an fp8 cache; `cache_type`: the kernel multiplies in the type of the cache;
    `by_index`: values of uneven width are stored by index. Some stacks handle queries, keys and values in one kernel; the others append
    keys and values, and read queries only to cast them. One appends with a block of min(kv_heads head_dim, 512) threads a token, of which
    few have anything to load: the blocks take the time, most at 512 elements a token.
    Source: vLLM csrc/cache_kernels.cu, SGLang memory_pool.py (set_kv_buffer), TensorRT-LLM unfusedAttentionKernels. Evidence: public vLLM
    rows of H100 take 0.2 to 0.5 longer in log latency at kv_heads head_dim = 512 than at 128 or 4096; the law alone, its constants fitted
    to a GPU's vLLM rows, errs by 10.8 without and 7.6 % with the blocks on H100, 7.1 and 4.3 on A100, 13.1 and 10.1 on L40S.
    """
    dim, kv_heads = columns["head_dim"], columns["kv_heads"]
    tokens = columns["batch"] * columns["q_len"]
    whole = (stack_flags("appends_with_queries", stack) > 0) | (cache_type & narrow)
    uneven = np.where(indexed(by_index, dim), c["uneven_append_cost"], 1.0)
    element = stack_values(c, "prepare", stack) * 4.0 * (cold / gpu.dram_bytes_per_s + (1.0 - cold) / gpu.l2_bytes_per_s)
    queries = np.where(whole, columns["q_heads"], 0.0) * dim * element
    threads = np.minimum(kv_heads * dim, stack_flags("append_block_threads", stack))
    cycles = c["token_block_cycles"] * np.where(narrow, c["token_block_fp8_cost"], 1.0)
    blocks = threads * cycles / gpu.max_clock_hz / (gpu.sms * 32.0 * gpu.max_warps_per_sm)
    result: Floats = tokens * (queries + 2.0 * kv_heads * dim * uneven * element + blocks)
    return result


def indexed(by_index: npt.NDArray[np.bool_], head_dim: Floats) -> npt.NDArray[np.bool_]:
    """Rows whose keys and values go to the cache through an indexed store, kernels of their own: where values are narrower than keys."""
    found: npt.NDArray[np.bool_] = by_index & (head_dim == UNEVEN_DIM)
    return found
