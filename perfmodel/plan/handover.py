"""Handing a prompt's KV cache from a prefill engine to a decode engine."""

from __future__ import annotations

from perfmodel.hw.node import node
from perfmodel.hw.spec import GpuSpec
from perfmodel.plan.memory import kv_bytes_per_request
from perfmodel.plan.model import ModelSpec
from perfmodel.plan.parallel import Parallel


def hand_over_s(
    model: ModelSpec, isl: int, prefill: Parallel, decode: Parallel, kv_dtype: str, gpu: GpuSpec, link_bytes_per_s: float | None = None
) -> float:
    """Seconds to send the cache of `isl` tokens: bytes of all the prefill engine's GPUs over the engines' link.

    The link (bytes/s an engine) is by default the full rate of the network cards (PCIe where the host has none) of the smaller engine's
    GPUs: a floor, as the transfer's own protocol costs more.
    """
    sent = float(kv_bytes_per_request(model, isl, prefill, kv_dtype)) * prefill.tp
    own = (node("auto", gpu).nic_bytes_per_s or gpu.pcie_bytes_per_s) * min(prefill.gpus, decode.gpus)
    return sent / (own if link_bytes_per_s is None else link_bytes_per_s)
