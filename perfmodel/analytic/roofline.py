"""Rooflines: resources that overlap, caches that keep what fits, bandwidth that needs bytes in flight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec

Floats = npt.NDArray[np.float64]


def overlap(power: Any, *seconds: Any) -> Any:
    """Time of resources that overlap imperfectly: (sum t^p)^(1/p), p = `power`.

    p = 1 is no overlap, p = infinity the roofline. Units follow the terms (seconds). Source: a choice of form, as in Origami's
    blend of compute and memory; p is a constant of each operator's law. Valid for non-negative terms.
    """
    total = np.power(seconds[0], power)
    for term in seconds[1:]:
        total = total + np.power(term, power)
    return np.power(total, 1.0 / power)


def miss_share(working_set_bytes: Any, usable_bytes: float, sharpness: float) -> Any:
    """Share of a repeatedly read working set that comes from DRAM: 1 / (1 + (usable / set)^sharpness).

    0 while the set fits, 1 when it is several times the usable cache, with a step at `usable_bytes` that hashing, two partitions and other
    data blur. Source: the step of public rows: GEMM weights x rotating copies at 0.9 L2 on L40S and RTX PRO 6000, decode caches
    between 67 and 134 MB on L40S (96 MiB). Valid for steady-state repetition of the same tensors.
    """
    return 1.0 / (1.0 + np.power(usable_bytes / np.maximum(working_set_bytes, 1.0), sharpness))


def cache(gpu: GpuSpec, constants: Mapping[str, float]) -> tuple[float, float]:
    """(usable L2 bytes, sharpness of the step) for data that all SMs read repeatedly.

    Big HBM parts have two partitions that both keep a copy and a link between them: less room and a blurred step.
    Source: NVIDIA A100 whitepaper, "A100 L2 Cache": each partition caches data for its own SMs; the same on H100 and B200.
    """
    if gpu.capability in ((8, 0), (9, 0), (10, 0)):
        share = constants["partition_share"]
        if gpu.capability != (8, 0):
            share = constants.get("partition_share_hopper", share)  # a law with rows of both tells them apart
        return gpu.l2_bytes * share, constants["partition_sharpness"]
    return gpu.l2_bytes * constants["usable_cache"], constants["cache_sharpness"]


def dram_seconds(bytes_moved: Any, bytes_per_s: float, efficiency: float, latency_s: float, active_sms: Any, bytes_in_flight: float) -> Any:
    """Time of DRAM traffic: bytes / min(efficiency x bandwidth, active SMs x bytes in flight / latency).

    Source: Little's law; efficiency is what a long copy reaches of the datasheet's rate. latency_s is the loaded latency.
    Valid for streams; scattered single sectors are slower.
    """
    return bytes_moved / np.minimum(efficiency * bytes_per_s, active_sms * (bytes_in_flight / latency_s))
