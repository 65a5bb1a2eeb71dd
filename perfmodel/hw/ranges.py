"""The numbers a GPU of this century can have: bounds of every fact, generous, but not so wide that a slipped unit passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """From `low` to `high`, both allowed; `none`: so is 0, for what a GPU may lack."""

    low: float
    high: float
    none: bool = False

    def __contains__(self, value: float) -> bool:
        """Whether a value is allowed; NaN is not."""
        return self.low <= value <= self.high or (self.none and value == 0)

    def text(self, factor: float = 1.0) -> str:
        """What is allowed, in a unit of `factor`."""
        return f"{self.low / factor:g} to {self.high / factor:g}{', or 0 for none' if self.none else ''}"


RANGES: Mapping[str, Range] = {
    "sms": Range(4, 400),
    "boost_clock_hz": Range(0.7e9, 4e9),
    "max_clock_hz": Range(0.7e9, 4e9),
    "max_warps_per_sm": Range(16, 128),
    "max_blocks_per_sm": Range(4, 128),
    "max_threads_per_block": Range(128, 2048),
    "regs_per_sm": Range(16_384, 1_048_576),
    "max_regs_per_thread": Range(63, 1024),
    "reg_alloc_unit": Range(8, 1024),
    "smem_per_sm_bytes": Range(16 * 1024, 4 * 1024**2),
    "smem_per_block_bytes": Range(16 * 1024, 4 * 1024**2),
    "smem_reserved_bytes": Range(1, 64 * 1024, none=True),
    "smem_alloc_unit_bytes": Range(1, 16 * 1024),
    "l2_bytes": Range(1e6, 1e9),
    "l2_bytes_per_s": Range(200e9, 100e12),
    "l2_latency_s": Range(50e-9, 400e-9),
    "dram_bytes": Range(2e9, 2e12),
    "dram_bytes_per_s": Range(100e9, 40e12),
    "dram_latency_s": Range(150e-9, 1200e-9),
    "tensor_flops": Range(1e12, 1e17),
    "fp32_flops": Range(1e12, 1e15),
    "sfu_per_clock_per_sm": Range(4, 128),
    "nvlink_bytes_per_s": Range(10e9, 10e12, none=True),
    "nvlink_generation": Range(1, 12, none=True),
    "pcie_bytes_per_s": Range(1e9, 1e12),
    "pcie_generation": Range(1, 9),
    "power_w": Range(20, 5000),
}
"""By GpuSpec field, in its unit. The whole database lies well inside; the widest factor between an end and a wrong unit is 1,000."""
