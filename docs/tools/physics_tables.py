"""Tables of how a prediction is made: constants with their sources, what the compiler says, what a card reaches of its datasheet."""

from __future__ import annotations

import tomllib

import numpy as np
from evaluations import ROOT, read
from markdown_table import Table

from perfmodel.hw import gpu
from perfmodel.kernels import gemm
from perfmodel.kernels.configs import Configs
from perfmodel.kernels.facts import facts_for

EFFECTS = {
    "tile": (
        ("gemm", "mma_sync_share", "tensor cores: older instruction (mma.sync) on Hopper, over the native one"),
        ("gemm", "multiply_latency_cycles", "a multiply that waits for the one before it, cycles"),
        ("gemm", "smem_bytes_per_cycle", "shared memory of an SM, bytes a cycle"),
        ("gemm", "port_bytes_per_cycle", "L2 cache to one SM, bytes a cycle"),
        ("gemm", "dram_latency_factor", "a loaded DRAM access over an unloaded one"),
        ("gemm", "sync_cycles", "barrier in each iteration, cycles"),
        ("gemm", "tail_weight", "a last, partly filled wave over a full one"),
        ("gemm", "dram_efficiency", "sustained over datasheet DRAM rate"),
        ("gemm", "launch_s", "launch between two events, seconds"),
        ("gemm", "spill_share_per_64_bytes", "longer loop for each 64 bytes of spilled registers a thread"),
    ),
    "library": (
        ("library_gemm", "tail_weight", "a last, partly filled wave over a full one (libraries balance it)"),
        ("library_gemm", "tile_cycles", "start and end of a tile, cycles"),
        ("library_gemm", "usable_cache", "share of the L2 cache at which half of a repeated working set misses"),
        ("library_gemm", "partition_share", "share of a two-part L2 cache for data that all SMs read"),
        ("library_gemm", "bytes_in_flight", "bytes an SM keeps in flight towards DRAM"),
        ("library_gemm", "dram_efficiency", "sustained over datasheet DRAM rate"),
        ("library_gemm", "inline_ecc_share", "DRAM rate that error correction leaves on GDDR6 boards"),
        ("library_gemm", "pj_wgmma", "energy of a bf16 operation on Hopper, pJ"),
        ("library_gemm", "pj_per_byte", "energy of a byte from DRAM, pJ"),
        ("library_gemm", "constant_data_power", "power on constant over random data"),
        ("library_gemm", "floor_us", "launch inside a CUDA graph, us"),
        ("library_gemm", "weight_only_us", "shortest weight-only kernel, more than a plain one, us"),
        ("library_gemm", "peak_share", "most of the datasheet's tensor rate that a GEMM reaches"),
    ),
    "links": (
        ("collective", "tuner_base_ll_us", "start of a ring, protocol LL, us"),
        ("collective", "tuner_nvlink_ll_us", "one NVLink hop, protocol LL, us"),
        ("collective", "tuner_nvlink_simple_us", "one NVLink hop, protocol Simple, us"),
        ("collective", "nvlink_rate", "ring over datasheet NVLink rate"),
        ("collective", "nvls_min_gpus", "GPUs from which Hopper's switch reduces (NVLS)"),
        ("collective", "pcie_sockets_gb_per_s", "all GPUs of a two-socket PCIe host together, GB/s"),
        ("collective", "eager_us", "custom all-reduce launched from Python, without a CUDA graph, us more"),
    ),
}


def effects(group: str) -> Table:
    """Constants of the laws with their sources, from calibration/physics."""
    rows = []
    for file, key, words in EFFECTS[group]:
        constant = tomllib.loads((ROOT / "calibration" / "physics" / f"{file}.toml").read_text(encoding="utf-8"))[key]
        rows.append([words, f"{constant['value']:g}", constant["source"].replace("|", "\\|")])
    return Table(["effect", "value", "source"], rows, ())


TILES = ((128, 128, 64, 8, 3), (64, 256, 64, 8, 4), (16, 64, 128, 4, 4))  # rows, columns, depth, warps, stages
ARCHS = {"a100_sxm4_80gb": "sm_80 (A100)", "l40s": "sm_89 (L40S)", "h100_sxm": "sm_90 (H100)"}


def compiled() -> Table:
    """Facts of three tiles of the pointer kernel on three architectures, as shipped."""
    columns = dict(zip(gemm.BINARY, np.array(TILES).T, strict=True)) | {
        "group_m": np.full(len(TILES), 8),
        "split_k": np.ones(len(TILES), dtype=int),
    }
    configs = Configs(columns, np.zeros(len(TILES), dtype=np.int8), gemm.VARIANTS)
    rows = []
    for name, arch in ARCHS.items():
        facts = facts_for("gemm", gpu(name), "bf16", configs, dict.fromkeys(gemm.SIZES, 4096))
        for i, (bm, bn, bk, warps, stages) in enumerate(TILES):
            kind = "warp-group" if facts.warpgroup[i] else "mma.sync"
            tile = f"{bm} x {bn} x {bk}, {warps} warps, {stages} stages"
            rows.append([arch, tile, f"{facts.shared_bytes[i]:,.0f}", f"{facts.regs[i]:.0f}", f"{facts.multiplies[i]:.0f} {kind}"])
    return Table(["architecture", "tile", "shared memory, bytes", "registers", "tensor-core instructions an iteration"], rows, ())


def ceilings() -> Table:
    """What an H200 reaches of its datasheet, as its calibration run measured it."""
    rows = []
    for row in read("calibration_report").rows["ceilings"]:
        if row.get("datasheet") and "latency" not in row["name"]:
            rows.append([row["name"].replace("_", " "), f"{row['value'] / row['datasheet']:.2f}"])
    return Table(["ceiling of an H200", "measured over datasheet"], rows, ["calibration_report"])
