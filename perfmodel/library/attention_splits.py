"""How attention decode cuts its work: which query heads share a pass over the keys, and into how many shares the keys go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.library.arch import warpgroup_path
from perfmodel.library.attention_tiles import narrow_tiles
from perfmodel.library.names import KERNELS, STACKS
from perfmodel.library.terms import Floats

_VLLM, _SGLANG, _TORCH = (STACKS.index(name) for name in ("vllm", "sglang", "torch"))
_FA2, _FA3, _FA4, _TRITON, _TRTLLM = (KERNELS.index(k) for k in ("fa2", "fa3", "fa4", "triton", "trtllm"))
_ROWS = np.array([64.0 if name in ("fa2", "fa3", "fa4") else 16.0 for name in KERNELS])  # query rows that a multiply is padded to
FA3_FEWEST_BLOCKS = 4.0  # key blocks up to which FlashAttention-3 does not split (hopper/heuristics.h, num_splits_heuristic)
FA3_MOST_SEQUENCES = 992.0  # of a batch whose shares are planned on the GPU (flash_prepare_scheduler.cu: 32 warps of 31 lanes)
PORT_BLOCK = 112.0  # keys of its block in decode with mma.sync (hopper/tile_size.h, tile_size_fwd_sm8x)
XQA_BLOCK, XQA_WAVES, XQA_MOST_SHARES = 128.0, 8.0, 6000.0  # tokens of a share at least, blocks an SM and shares of a batch at most
XQA_GROUP = 32  # widest group of TensorRT-LLM's XQA kernels; wider ones run one query head at a time


@dataclass(frozen=True, slots=True)
class Plan:
    """How a kernel cuts the work: query heads that share a pass over the keys, blocks along the keys, and whether a combine follows."""

    passes: Floats  # passes over the keys of one KV head: 1 where its query heads are packed into one tile
    rows: Floats  # padded query rows of a pass
    splits: Floats
    blocks_per_sm: Floats
    combined: npt.NDArray[np.bool_]  # a combine kernel is launched, whether or not this row's keys are split
    xqa: npt.NDArray[np.bool_]  # TensorRT-LLM's kernel for packed groups
    serial: npt.NDArray[np.bool_]  # one stage of keys: loads and multiplies take turns


def plan(
    gpu: GpuSpec, stack: npt.NDArray[np.intp], kernel: npt.NDArray[np.intp], columns: Mapping[str, Floats], seen: Floats, fp8: Floats,
    c: Mapping[str, float],
) -> Plan:  # fmt: skip
    """Packing and splits of each row.

    FlashAttention-2 packs the query heads of a KV head only without a window, and its variable-length call (vLLM) splits the keys only
    when it packs. FlashAttention-3 has one block an SM, splits from five key blocks on while the KV heads of one sequence leave SMs idle,
    into shares of ceil(1.1 blocks / SMs), and then always launches its combine kernel; vLLM gives it a bound instead, so that it splits
    from two blocks on, and batches of over 992 not at all. On sm_80 SGLang calls FlashAttention-3's code for mma.sync, whose keys have
    one stage. TensorRT-LLM: `xqa`; its mma.sync kernels for an fp8 cache do not split, on sm_90 shares before a window cost nothing.
    Source: public kernels (flash_api.cpp, hopper/heuristics.h, tile_size.h and flash_prepare_scheduler.cu of flash-attention, sgl-kernel's
    is_fa3_supported); public rows: vLLM's step of 2 us at the second block, window on over off = group (2 to 50) for FlashAttention-2
    alone, 8x from group 48 on for TensorRT-LLM,
    time = 18 ns x tokens for one unsplit head on L40S.
    """
    group = columns["q_heads"] / columns["kv_heads"]
    port = (kernel == _FA2) & (stack == _SGLANG)  # FlashAttention-3's code for mma.sync
    fa2, fa3, trtllm = (kernel == _FA2) & ~port, (kernel == _FA3) | (kernel == _FA4) | port, kernel == _TRTLLM
    packed, shares = xqa(gpu, columns, fp8)
    apart = (fa2 & (columns["window"] > 0)) | (trtllm & ~packed)
    tile = np.where(port | (fa3 & (columns["head_dim"] > 128)), 128.0, _ROWS[kernel])
    passes = np.where(apart, group, np.ceil(group / np.maximum(tile, 64.0)))
    rows = np.ceil(np.where(apart, 1.0, np.minimum(group, 64.0)) / tile) * tile
    whole = fa2 & (stack == _VLLM) & (apart | (group == 1))
    block = c["split_tokens"] * np.where(fa2 | fa3, np.clip(128.0 / columns["head_dim"], 0.5, np.where(fa3, 1.0, 2.0)), 1.0)
    block = np.where(port, PORT_BLOCK, block)
    blocks = np.ceil(seen / block)
    per_sm = np.where((fa3 & ~port) | (trtllm & packed), 1.0, c["blocks_per_sm"])
    slots = gpu.sms * np.where(trtllm, 1.0, per_sm)  # MMHA: SMs over heads
    heads = columns["kv_heads"] * passes
    units = columns["batch"] * heads
    triton = np.where(stack == _VLLM, c["max_splits_vllm_triton"], c["max_splits_sglang_triton"])
    most = np.where(kernel == _TRITON, triton, c["max_splits"])
    splits = np.clip(np.where(fa2, full_waves(units, 2.0 * gpu.sms), np.floor(slots / units)), 1.0, np.minimum(blocks, most))
    splits = np.where(whole, 1.0, splits)
    bounded = (stack == _VLLM) & (columns["batch"] <= FA3_MOST_SEQUENCES)  # a bound for its CUDA graphs instead of the heuristic
    may = np.where(bounded, blocks > 1.0, (stack != _VLLM) & (blocks > FA3_FEWEST_BLOCKS)) & (heads < 0.8 * gpu.sms)
    dynamic = np.ceil(blocks / np.ceil(1.1 * blocks * units / gpu.sms))
    splits = np.where(fa3, np.where(may, np.minimum(dynamic, np.maximum(np.floor(gpu.sms / heads), 1.0)), 1.0), splits)
    dense = fa2 & (stack == _TORCH) & (splits <= 1.0)  # in one piece: the kernel of prefill
    rows = np.where(dense, np.where((columns["head_dim"] > 192) & narrow_tiles(gpu), 64.0, 128.0), rows)
    busy = np.maximum(shares * seen / columns["kv_len"], 1.0)  # shares of keys before a window end at once
    cut = np.where(fp8 > 0, busy if warpgroup_path(gpu) else 1.0, shares)
    splits = np.where(trtllm & packed, cut, splits)
    return Plan(passes, rows, splits, per_sm, np.where(fa3, may, splits > 1.0), trtllm & packed, port)


def full_waves(units: Floats, slots: float) -> Floats:
    """Shares of the keys that FlashAttention-2 takes: the fewest that fill whole waves to 85 %, one from 0.8 slots on.

    Source: flash-attention 2.7, flash_api.cpp, num_splits_heuristic, asked with two blocks an SM.
    """
    shares = [np.floor(waves * slots / units) for waves in (1.0, 2.0, 3.0)]
    fills = [units * share / (waves * slots) >= 0.85 for waves, share in zip((1.0, 2.0, 3.0), shares, strict=True)]
    found: Floats = np.where(units >= 0.8 * slots, 1.0, np.select(fills[:2], shares[:2], shares[2]))
    return found


def xqa(gpu: GpuSpec, columns: Mapping[str, Floats], fp8: Floats) -> tuple[npt.NDArray[np.bool_], Floats]:
    """(rows that TensorRT-LLM runs with XQA, the shares that it cuts the keys into); the others run one query head at a time (MMHA).

    XQA packs groups of 2 to 32. With a 16-bit cache it is taken only where 4 batch kv_heads max(1, kv / 128) >= SMs. Shares:
    n = kv / 128, at most sqrt(8 n) and 8 blocks an SM, whatever the window. Source: TensorRT-LLM, decoderXQAImplJIT (mayHavePerfGain,
    shouldUse, computeMultiBlockCount) and decoderXQAConstants.h.
    """
    group, units = columns["q_heads"] / columns["kv_heads"], columns["batch"] * columns["kv_heads"]
    blocks = np.maximum(np.floor(columns["kv_len"] / XQA_BLOCK), 1.0)
    gain = 4.0 * units * blocks >= gpu.sms
    shares = np.minimum(blocks, np.round(np.sqrt(8.0 * blocks)))
    shares = np.floor(shares / np.maximum(units * shares / gpu.sms / XQA_WAVES, 1.0))
    shares = np.maximum(np.minimum(shares, np.floor(XQA_MOST_SHARES / columns["batch"])), 1.0)
    return (group > 1) & (group <= XQA_GROUP) & (gain | (fp8 > 0)), shares


def xqa_hopper(gpu: GpuSpec, kernel: npt.NDArray[np.intp], fp8: Floats, group: Floats) -> npt.NDArray[np.bool_]:
    """Rows of TensorRT-LLM's warp-group XQA kernel: fp8 cache, a group that packs, sm_90. It turns queries and appends keys itself.

    Source: TensorRT-LLM, decoderXQAImplJIT (applyRoPEInXqaKernel for the Hopper kernel).
    """
    found: npt.NDArray[np.bool_] = (kernel == _TRTLLM) & (fp8 > 0) & (group > 1) & (group <= XQA_GROUP) & warpgroup_path(gpu)
    return found
