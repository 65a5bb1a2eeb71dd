"""GpuSpec: what the model may know of a GPU. Datasheet facts only; measured ceilings live in calibration."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from perfmodel.errors import InputError


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU. Sizes in bytes, rates in bytes/s or flop/s, clocks in Hz, dense (never sparse) tensor rates."""

    name: str
    full_name: str
    aliases: tuple[str, ...]
    arch: str  # "sm_90"
    sms: int
    boost_clock_hz: float  # the clock the datasheet's rates are quoted at
    max_clock_hz: float  # highest SM clock the device reports
    max_warps_per_sm: int
    max_blocks_per_sm: int
    max_threads_per_block: int
    regs_per_sm: int
    max_regs_per_thread: int
    reg_alloc_unit: int  # registers, per warp
    smem_per_sm_bytes: int  # usable by blocks, reserved part included
    smem_per_block_bytes: int  # largest opt-in block
    smem_reserved_bytes: int  # per resident block
    smem_alloc_unit_bytes: int
    l2_bytes: int
    l2_bytes_per_s: float  # aggregate read bandwidth
    l2_latency_s: float
    dram_bytes: int
    dram_bytes_per_s: float
    dram_latency_s: float
    tensor_flops: Mapping[str, float]  # dense flop/s by rate name: bf16 fp16 fp8 int8 fp4 tf32
    fp32_flops: float
    sfu_per_clock_per_sm: float  # special-function results (exp2, rcp ...) per clock and SM
    nvlink_bytes_per_s: float  # per direction, 0 where there is none
    nvlink_generation: int
    pcie_bytes_per_s: float  # per direction
    pcie_generation: int
    power_w: float
    price_note: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)  # field -> citation

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability, e.g. (9, 0)."""
        return _capability(self.arch)

    def tensor_rate(self, rate: str) -> float:
        """Dense tensor-core flop/s for a rate name; raises InputError where this GPU has none."""
        if rate == "fp32":
            return self.fp32_flops
        if rate not in self.tensor_flops:
            have = ", ".join(sorted(self.tensor_flops))
            raise InputError(f"{self.name} has no {rate} tensor cores: it has {have}")
        return self.tensor_flops[rate]


@functools.lru_cache(maxsize=64)
def _capability(arch: str) -> tuple[int, int]:
    digits = arch.removeprefix("sm_")
    return int(digits[:-1]), int(digits[-1])
