"""Facts of a tensor path that the laws need and a datasheet does not give, by compute capability. Values are in the laws' TOML files."""

from __future__ import annotations

import math
from collections.abc import Mapping

from perfmodel.hw.spec import GpuSpec

FULL_MMA, FULL_WGMMA = 1000.0, 4000.0
"""bf16 flop a clock and SM of an uncut part (L40S 1012, H100 4096). Cut ones (L20, H20) feed fewer multiplies by the same data paths."""


def warpgroup_path(gpu: GpuSpec) -> bool:
    """Whether multiplies are issued for whole warp groups with operands in shared memory (sm_90 wgmma, sm_100 tcgen05)."""
    return gpu.capability[0] in (9, 10)


def joule_per_flop(gpu: GpuSpec, constants: Mapping[str, float]) -> float:
    """Energy of one bf16 tensor operation, J, by process node and tensor path.

    mma.sync on 4 nm (sm_89, sm_120), times pj_7nm on 7 and 8 nm (sm_80, sm_86); wgmma (sm_90); times pj_tcgen on sm_100.
    """
    major, minor = gpu.capability
    if major in (9, 10):
        return constants["pj_wgmma"] * (constants["pj_tcgen"] if major == 10 else 1.0) * 1e-12
    return constants["pj_mma"] * (constants["pj_7nm"] if (major, minor) in ((8, 0), (8, 6), (8, 7)) else 1.0) * 1e-12


def inline_ecc(gpu: GpuSpec) -> bool:
    """Whether ECC bits are kept in the memory itself: on GDDR6 boards (sm_86, sm_89) that run with ECC, which then offer 1/16 less of it.

    Source: NVIDIA, GPU memory with ECC: 46068 MiB of 48 GiB on L40S, L20 and A40 as shipped, 49140 on RTX 6000 Ada with ECC off.
    """
    gib = gpu.dram_bytes / 2**30
    return gpu.capability in ((8, 6), (8, 9)) and gib < math.ceil(gib / 8.0) * 8.0 * 31.0 / 32.0


def dram_efficiency(gpu: GpuSpec, constants: Mapping[str, float]) -> float:
    """Share of the datasheet's DRAM rate that long streams reach, ECC bits in line among them; HBM and GDDR7 have sideband bits."""
    return constants["dram_efficiency"] * (constants["inline_ecc_share"] if inline_ecc(gpu) else 1.0)
