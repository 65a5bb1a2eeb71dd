"""The draft of a GPU's file: every fact with a comment that says where its number is found, values as of a like GPU where one is named."""

from __future__ import annotations

import re
from pathlib import Path

from perfmodel._atomic import write_atomically
from perfmodel._resources import folders
from perfmodel.errors import InputError
from perfmodel.hw.registry import arch_sheet, files
from perfmodel.hw.spec import GpuSpec

# Key in the file, factor to GpuSpec's unit, where the number is found.
_WHERE = (
    ("sms", "sms", 1.0, "streaming multiprocessors enabled on this product: whitepaper, or multi_processor_count of torch"),
    ("boost_clock_mhz", "boost_clock_hz", 1e6, "the clock that the datasheet's tensor rates are quoted at: whitepaper"),
    ("max_clock_mhz", "max_clock_hz", 1e6, "nvidia-smi -q -d CLOCK, Max Clocks, SM"),
    ("l2_mib", "l2_bytes", 2.0**20, "L2 cache: whitepaper, or L2_cache_size of torch"),
    (
        "l2_gb_per_s",
        "l2_bytes_per_s",
        1e9,
        "read rate of L2, all SMs together: gpu-benches, gpu-l2-cache; else estimate per clock and SM of a like die",
    ),
    ("l2_latency_ns", "l2_latency_s", 1e-9, "a hit in the near partition: gpu-benches, gpu-latency; else estimate of a like die"),
    ("dram_mib", "dram_bytes", 2.0**20, "nvidia-smi, memory.total, with ECC as shipped"),
    ("dram_gb_per_s", "dram_bytes_per_s", 1e9, "memory bandwidth of the datasheet, in GB/s of 1e9 bytes"),
    ("dram_latency_ns", "dram_latency_s", 1e-9, "gpu-benches, gpu-latency; else estimate of a like memory"),
    ("fp32_tflops", "fp32_flops", 1e12, "fp32 without tensor cores: datasheet"),
    ("nvlink_gb_per_s", "nvlink_bytes_per_s", 1e9, "one direction: half of what the datasheet prints; 0 without NVLink"),
    ("nvlink_generation", "nvlink_generation", 1.0, "0 without NVLink"),
    ("pcie_gb_per_s", "pcie_bytes_per_s", 1e9, "one direction of the slot: 31.5 for 4.0 x16, 63 for 5.0 x16"),
    ("pcie_generation", "pcie_generation", 1.0, "datasheet, or nvidia-smi -q, PCIe Generation, Max"),
    ("power_w", "power_w", 1.0, "power limit as shipped: datasheet, or nvidia-smi -q -d POWER"),
)
_RATES = "dense, fp32 accumulation, in TFLOP/s: datasheets print sparse ones since Hopper, so halve them"


def template(name: str, arch: str, like: GpuSpec | None = None) -> str:
    """Text of a draft. Without `like` every value is 0, which is refused until it is filled in."""
    source = "like" if like else "fill in"
    lines = [
        f"# Draft: correct every number and its source, then check with `perfmodel gpus lint {name}`.",
        f'name = "{name}"',
        f'full_name = "{name}"  # what nvidia-smi -L and torch.cuda.get_device_name() report',
        "aliases = []",
        f'arch = "{arch}"  # compute capability: torch.cuda.get_device_capability()',
        "",
    ]
    for key, field, factor, where in _WHERE:
        value = f"{getattr(like, field) / factor:.10g}" if like else "0"
        lines += [f"# {where}", f'{key} = {{ value = {value}, source = "{source}" }}']
    rates = {rate: f"{value / 1e12:.10g}" for rate, value in like.tensor_flops.items()} if like else {"bf16": "0", "fp16": "0"}
    shown = ", ".join(f"{rate} = {value}" for rate, value in rates.items())
    lines += [f"# {_RATES}", f'tensor_tflops = {{ value = {{ {shown} }}, source = "{source}" }}', "", "[sources]"]
    lines.append(f'like = "draft: as {like.full_name}, to be replaced"' if like else '"fill in" = "draft: to be filled in"')
    lines.append('# datasheet = "NVIDIA, ... datasheet, product specifications, https://..."')
    return "\n".join(lines) + "\n"


def add_template(name: str, arch: str | None, like: GpuSpec | None, *, overwrite: bool = False) -> Path:
    """Write a draft to the user's folder of GPUs and return its path; raises InputError for a name that is taken or no file's name."""
    if not re.fullmatch(r"[a-z0-9_]{1,60}", name):
        raise InputError(f"GPU name {name[:60]!r}: use lower case letters, digits and underscores, at most 60")
    if arch is None and like is None:
        raise InputError("a draft needs --arch (sm_80, sm_90 ...), --like GPU, or --from-device")
    arch = arch or (like.arch if like else "")
    arch_sheet(arch, name)
    folder = folders("hwdb")[0]
    path = folder / f"{name}.toml"
    known = files().get(name)
    if not overwrite and (path.exists() or known):
        raise InputError(f"{known or path} describes {name} already: --force replaces it with a draft, or choose another name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, template(name, arch, like))
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}): choose a folder you may write to (PERFMODEL_HWDB)") from None
    return path
