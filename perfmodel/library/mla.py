"""Latent-attention prefill, with expanded or absorbed heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.analytic.roofline import cache, dram_seconds, miss_share, overlap
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.arch import dram_efficiency, warpgroup_path
from perfmodel.library.launch import launch_floor_s, stack_values
from perfmodel.library.law import OperatorLaw, register
from perfmodel.library.mla_kernels import MlaPrefillKernel, prefill_kernels
from perfmodel.library.records import Codes, Kernels
from perfmodel.library.terms import Floats, OperatorTerms
from perfmodel.ops import names
from perfmodel.ops.attention import visited_pairs
from perfmodel.ops.mla import LATENT, NOPE, ROPE

LAW = "library_mla"
ABSORBED = float(2 * LATENT + ROPE)  # multiply-adds a pair and head with the up-projections absorbed: 576 + 512
EXPANDED = float(2 * NOPE + ROPE)  # the same with heads expanded: 192 + 128
QUERY_ROWS, BLOCK = 128.0, 64.0  # rows of a query tile; rows and keys of what is masked as a whole


@dataclass(frozen=True, slots=True)
class _Calls:
    """n calls: sizes, the kernels that run, pairs of a head that those multiply, blocks over SMs, and what the busiest SM takes."""

    batch: Floats
    heads: Floats
    q_len: Floats
    kv_len: Floats
    kv_bytes: Floats
    k: Kernels[MlaPrefillKernel]
    pairs: Floats
    waves: Floats
    share: Floats

    @property
    def filled(self) -> Floats:
        """Share of the SMs that have a block."""
        return np.minimum(self.waves, 1.0)

    @property
    def held_bytes(self) -> Floats:
        """Bytes of keys and values, of every head."""
        return self.batch * self.kv_len * self.heads * (NOPE * 2 + ROPE) * self.kv_bytes

    @property
    def other_bytes(self) -> Floats:
        """Bytes of queries and outputs."""
        return self.batch * self.q_len * self.heads * (NOPE * 2 + ROPE) * 2.0


def terms(gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float]) -> OperatorTerms:
    """Terms of n latent-attention prefills: heads of 192 and 128, or the absorbed form of 576 and 512.

        t = floor x launches + overlap(tensor + exp, DRAM, L2, chain)

    Flop = 2 H 320 (or 1088) a visited pair; chain = KV tiles of the longest query block. Units: seconds. Valid: 1 to 128 heads, kv_len 1
    to 2^18. Source: DeepSeek-V2, arXiv 2405.04434, section 2.1. Evidence: 4,900 public rows of four GPUs; `perfmodel evaluate operators
    --operator mla_prefill`.
    """
    stack = columns["stack"].astype(np.intp)
    a = _calls(gpu, columns, stack, c)
    tensor, exp = _busy_s(gpu, a, c)
    chain = np.ceil(a.kv_len / 64.0) * c["tile_cycles"] / gpu.max_clock_hz
    dram, l2 = _traffic_s(gpu, a, c)
    fixed = (stack_values(c, "launches", stack) + np.where(a.kv_bytes < 2, c["fp8_launches"], 0.0)) * launch_floor_s(gpu, c)
    latency = fixed + overlap(c["overlap_power"], tensor + exp, dram, l2, chain)
    seconds = {"tensor": tensor, "exp": exp, "kv chain": chain, "dram": dram, "l2": l2, "launch": fixed}
    capacity, _ = cache(gpu, c)
    return OperatorTerms(latency, seconds, _features(gpu, a, columns, seconds, latency, a.held_bytes / capacity))


def _calls(gpu: GpuSpec, columns: Mapping[str, Floats], stack: Codes, c: Mapping[str, float]) -> _Calls:
    """The calls with the kernels that their stacks run, and the pairs that those multiply.

    A kernel that masks whole blocks multiplies half a block more along the diagonal; absorbed heads fill a block together.
    """
    q_len, kv_len = columns["q_len"], columns["kv_len"]
    kv_bytes = names.A_BYTES[columns["kv_dtype"].astype(np.intp)]
    k = prefill_kernels(gpu, stack, kv_bytes < 2)
    padded = np.ceil(q_len / BLOCK) * BLOCK
    whole = visited_pairs(padded, kv_len + padded - q_len) + padded * BLOCK / 2.0
    waves = columns["batch"] * columns["num_heads"] * np.ceil(q_len / QUERY_ROWS) / float(gpu.sms)
    return _Calls(
        batch=columns["batch"],
        heads=columns["num_heads"],
        q_len=q_len,
        kv_len=kv_len,
        kv_bytes=kv_bytes,
        k=k,
        pairs=np.where(k.flag("whole_blocks"), whole, visited_pairs(q_len, kv_len)),
        waves=waves,
        share=np.where(waves <= 1.0, 1.0 / np.minimum(waves, 1.0), 1.0 + c["tail_weight"] * (np.ceil(waves) / waves - 1.0)),
    )


def _busy_s(gpu: GpuSpec, a: _Calls, c: Mapping[str, float]) -> tuple[Floats, Floats]:
    """Seconds of (multiplies, exponentials) of all SMs."""
    grouped = warpgroup_path(gpu)
    flops = 2.0 * a.batch * a.heads * a.pairs * np.where(a.k.flag("absorbed"), ABSORBED, EXPANDED)
    reach = c["tensor_share_wgmma"] if grouped else c["tensor_share_mma"] * a.k.constant(c, "share_without_warpgroups")
    tensor = a.share * flops / (gpu.tensor_rate("bf16") * reach)
    return tensor, a.share * a.batch * a.heads * a.pairs / (gpu.sfu_per_clock_per_sm * float(gpu.sms) * gpu.max_clock_hz)


def _traffic_s(gpu: GpuSpec, a: _Calls, c: Mapping[str, float]) -> tuple[Floats, Floats]:
    """(DRAM seconds, L2 seconds): keys are read again from L2 by every query block."""
    held, other = a.held_bytes, a.other_bytes
    cold = miss_share(held + other, *cache(gpu, c))
    active, latency_s = a.filled * float(gpu.sms), 2.0 * gpu.dram_latency_s
    dram = dram_seconds((held + other) * cold, gpu.dram_bytes_per_s, dram_efficiency(gpu, c), latency_s, active, c["bytes_in_flight"])
    key = np.where(a.k.flag("absorbed"), LATENT + ROPE, NOPE * 2 + ROPE)
    again = a.batch * a.heads * a.pairs / QUERY_ROWS * key * a.kv_bytes
    return dram, (held + other + again) / (gpu.l2_bytes_per_s * c["l2_rate_factor"] * a.filled)


def _features(
    gpu: GpuSpec, a: _Calls, columns: Mapping[str, Floats], seconds: Mapping[str, Floats], latency: Floats, in_l2: Floats
) -> dict[str, Floats]:
    """Dimensionless columns for the residual."""
    one = np.ones_like(latency)
    shares = {"tensor": "tensor", "exp": "exp", "chain": "kv chain", "dram": "dram", "l2": "l2", "fixed": "launch"}
    return {
        **{name: np.log(seconds[term] / latency) for name, term in shares.items()},
        "waves": np.log(a.waves),
        "tail": np.ceil(a.waves) / a.waves,
        "cache_in_l2": np.log(in_l2),
        "log2_q": np.log2(a.q_len),
        "log2_kv": np.log2(a.kv_len),
        "log2_batch": np.log2(a.batch),
        "log2_heads": np.log2(a.heads),
        "fp8_cache": (a.kv_bytes < 2) * one,
        "warpgroup": one * warpgroup_path(gpu),
        "dtype": columns["dtype"].astype(np.float64),
        "stack": columns["stack"].astype(np.float64),
        "kernel": columns["kernel"].astype(np.float64),
    }


register(
    OperatorLaw(
        "mla_prefill",
        "mla",
        LAW,
        terms,
        ("num_heads", "q_len"),
        ("log2_q", "log2_batch", "log2_heads"),
        "mla_prefill",
        lambda columns: columns["decode"] == 0,
        rules="mla_prefill",
        records="mla_kernels",
    )
)
