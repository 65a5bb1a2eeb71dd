"""TensorRT-LLM: kernels of its own; in decode, which of three by the group of query heads and the cache."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.library.arch import warpgroup_path
from perfmodel.library.stacks.stack import Communication, Rule, Stack, always, register
from perfmodel.library.stacks.usual import MLA_DECODE, MLA_PREFILL

Floats = npt.NDArray[np.float64]
BLOCK_TOKENS, WAVES = 128.0, 8.0  # tokens of a share at least, blocks an SM at most
WIDEST_GROUP = 32  # query heads a KV head of XQA's kernels; wider groups run one query head at a time


def xqa(gpu: GpuSpec, columns: Mapping[str, Floats], fp8: Floats) -> tuple[npt.NDArray[np.bool_], Floats]:
    """(rows that XQA runs, the shares that it cuts the keys into); the others run one query head at a time (MMHA).

    XQA packs groups of 2 to 32. With a 16-bit cache it is taken only where 4 batch kv_heads max(1, kv / 128) >= SMs. Shares:
    n = kv / 128, at most sqrt(8 n) and 8 blocks an SM, whatever the window. Source: TensorRT-LLM, decoderXQAImplJIT (mayHavePerfGain,
    shouldUse, computeMultiBlockCount) and decoderXQAConstants.h.
    """
    units = columns["batch"] * columns["kv_heads"]
    blocks = np.maximum(np.floor(columns["kv_len"] / BLOCK_TOKENS), 1.0)
    gain = 4.0 * units * blocks >= gpu.sms
    shares = np.minimum(blocks, np.round(np.sqrt(8.0 * blocks)))
    shares = np.floor(shares / np.maximum(units * shares / gpu.sms / WAVES, 1.0))
    return packs(columns) & (gain | (fp8 > 0)), np.maximum(shares, 1.0)


def xqa_warpgroup(gpu: GpuSpec, columns: Mapping[str, Floats], fp8: Floats) -> npt.NDArray[np.bool_]:
    """Rows of the warp-group XQA kernel: fp8 cache, a group that packs, sm_90. It turns queries and appends keys itself.

    Source: TensorRT-LLM, decoderXQAImplJIT (applyRoPEInXqaKernel for the Hopper kernel).
    """
    return packs(columns) & (fp8 > 0) & warpgroup_path(gpu)


def packs(columns: Mapping[str, Floats]) -> npt.NDArray[np.bool_]:
    """Rows whose query heads of a KV head share a pass of an XQA kernel over its keys."""
    group = columns["q_heads"] / columns["kv_heads"]
    found: npt.NDArray[np.bool_] = (group > 1) & (group <= WIDEST_GROUP)
    return found


def decode_choice(gpu: GpuSpec, columns: Mapping[str, Floats], fp8: Floats) -> tuple[tuple[str, ...], npt.NDArray[np.intp], Floats]:
    """Of its three decode kernels, which runs each call; the shares that XQA's are told."""
    packed, shares = xqa(gpu, columns, fp8)
    return ("mmha", "xqa", "xqa_warpgroup"), np.where(xqa_warpgroup(gpu, columns, fp8), 2, np.where(packed, 1, 0)), shares


MLA = "TensorRT-LLM, kernels without warp groups: a block takes a whole request; the time of its public rows on mma.sync"
TRTLLM = register(
    Stack(
        "trtllm",
        release="1.3",
        like="any",
        attention=(Rule("trtllm", always, "it has kernels of its own", "TensorRT-LLM, fmha_v2 and XQA"),),
        mla_prefill=MLA_PREFILL,
        mla_decode=(MLA_DECODE[0], Rule("whole_requests", always, "its own kernels run on mma.sync, by whole requests", MLA)),
        moe=(Rule("trtllm", always, "it has CUTLASS kernels of its own and tunes their tiles", "TensorRT-LLM, moe_kernels.cu"),),
        decode_choosers={"trtllm": decode_choice},
        communication=Communication(rules="trtllm"),
        appends_with_queries=True,
    )
)
