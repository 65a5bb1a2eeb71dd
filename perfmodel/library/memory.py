"""Memory-bound operators: bytes over bandwidth, from L2 while they fit, plus one launch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.analytic.roofline import cache, dram_seconds, miss_share, overlap
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.arch import dram_efficiency
from perfmodel.library.launch import launch_floor_s
from perfmodel.library.law import OperatorLaw, register
from perfmodel.library.stacks import stack_flags
from perfmodel.library.terms import Floats, OperatorTerms
from perfmodel.ops import names
from perfmodel.ops.memory import TRAFFIC, memory_work

LAW = "library_memory"
_READ, _WRITTEN, _FLOPS = (np.array([traffic[i] for traffic in TRAFFIC.values()]) for i in range(3))
_ROWWISE = np.array([kind in ("rmsnorm", "layernorm", "add_rmsnorm", "softmax", "sampling") for kind in TRAFFIC])
_NARROW = np.array([kind not in ("add", "sampling", "copy") for kind in TRAFFIC])  # in a served model kernels of 2-byte loads
BLOCK_ELEMENTS = 4096.0  # elements one thread block covers: 256 threads x 16 bytes x 2


def terms(gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float]) -> OperatorTerms:
    """Terms of n memory-bound operators over tokens x hidden elements.

        t = floor + overlap(DRAM, L2, arithmetic) + row latency

    Two kinds of kernel: those on tensors that repetition leaves in L2; and a served model's, which find most of their data cold,
    load 2 bytes at a time, and for an embedding, a rotary part, an addition or a norm move alone_<kind> times the bytes, because
    the module does more than the operator. Profiles that time each kernel alone (`alone`) are of the second kind and start later.

    Bytes from ops/memory.TRAFFIC; what fits in L2 is read from there; one block a row for row-wise kinds, whose reduction costs
    row_latencies DRAM latencies; arithmetic at the fp32 rate. Source: NVIDIA CUDA C++ Best Practices Guide, "Memory Optimizations".
    Valid: 1 to 2^31 elements. Evidence: `perfmodel evaluate operators --operator memory`.
    """
    kind, code = columns["kind"].astype(np.intp), columns["dtype"].astype(np.intp)
    elements = columns["tokens"] * columns["hidden"]
    each = names.A_BYTES[code]
    alone = columns["alone"] > 0
    served = alone | (stack_flags("warm_elementwise", columns["stack"].astype(np.intp)) == 0)
    more = np.where(served, np.array([c.get(f"alone_{name}", 1.0) for name in TRAFFIC])[kind], 1.0)
    work = memory_work(_READ[kind], _WRITTEN[kind], _FLOPS[kind], columns["tokens"], columns["hidden"], each)
    read, written = work.read_bytes * more, work.write_bytes * more
    rowwise = _ROWWISE[kind]
    sms = float(gpu.sms)
    blocks = np.where(rowwise, columns["tokens"], np.ceil(elements / BLOCK_ELEMENTS))
    active = np.minimum(blocks, sms)
    capacity, sharpness = cache(gpu, c)
    cold = miss_share(read + written, capacity, sharpness)
    cold = np.where(served, np.maximum(cold, c["alone_cold"]), cold)
    dram = dram_seconds(
        (read + written) * cold, gpu.dram_bytes_per_s, dram_efficiency(gpu, c), 2.0 * gpu.dram_latency_s, active, c["bytes_in_flight"]
    )
    narrow = (read + written) / (active * c["alone_bytes_per_cycle"] * gpu.max_clock_hz)  # kernels of 2-byte loads
    dram = np.where(served & _NARROW[kind], np.maximum(dram, narrow), dram)
    l2 = (read + written) / (gpu.l2_bytes_per_s * c["l2_rate_factor"]) * sms / active
    arithmetic = (work.flops + 0.1 * elements) / (gpu.fp32_flops * 0.5) * sms / active
    rows = np.where(rowwise, c["row_latencies"] * gpu.dram_latency_s + columns["hidden"] * c["row_cycles"] / gpu.max_clock_hz, 0.0)
    floor = launch_floor_s(gpu, c) + np.where(served, c["alone_us"] * 1e-6, 0.0)
    latency = floor + overlap(c["overlap_power"], dram, l2, arithmetic) + rows
    one = np.ones_like(latency)
    features = {
        "dram": np.log(dram / latency),
        "l2": np.log(l2 / latency),
        "arithmetic": np.log(arithmetic / latency),
        "fixed": (floor + rows) / latency,
        "in_l2": np.log((read + written) / capacity),
        "rows": rows / latency,
        "blocks": np.log(blocks / sms),
        "log2_tokens": np.log2(columns["tokens"]),
        "log2_hidden": np.log2(columns["hidden"]),
        "kind": kind.astype(np.float64),
        "element_bytes": each,
        "alone": served.astype(np.float64),
        "stack": columns["stack"],
    }
    seconds = {"dram": dram, "l2": l2, "arithmetic": arithmetic, "row latency": rows * one, "launch": floor * one}
    return OperatorTerms(latency, seconds, features)


register(OperatorLaw("memory", "memory", LAW, terms, ("kind", "hidden"), ("log2_tokens", "log2_hidden"), "memory"))
