"""Draft a GpuSpec from the GPU in this machine: what the driver reports, the rest from its architecture's family."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from perfmodel._atomic import write_atomically
from perfmodel.errors import InputError, NoAnswerError
from perfmodel.hw import nvml
from perfmodel.hw.lint import PCIE_X16
from perfmodel.hw.registry import aliases, arch_sheet, files, normalise
from perfmodel.hw.schema import FACTS, Sheet
from perfmodel.hw.spec import GpuSpec

QUERY = "device query"
FAMILY = "draft: arch family default"
_NVLINK = {2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}  # bytes/s of a link one way, by generation (NVIDIA A100, H100, Blackwell whitepapers)
_DRAFT = (
    *("tensor_flop_per_clock_per_sm", "fp32_flop_per_clock_per_sm", "rates", "l2_bytes_per_clock_per_sm", "l2_latency_ns"),
    *("dram_latency_ns", "pcie_generation", "power_w"),
)


def probe_device(index: int = 0) -> GpuSpec:
    """Draft the spec of CUDA device `index`; each fact's source says whether it was queried or is the family's default.

    Needs torch and a GPU. With nvidia-ml-py also clocks, memory bandwidth, power limit, PCIe and NVLink are read.
    Check it with `lint`, correct it against the datasheet, and save it with `write_draft`.
    """
    props = _properties(index)
    uuid = getattr(props, "uuid", None)  # torch's index would not do: CUDA_VISIBLE_DEVICES may renumber
    ask = nvml.device(f"GPU-{uuid}" if uuid else None, index)
    asked = _nvml_facts(ask) if ask else {}  # without: "family default", as each source then says
    arch = f"sm_{props.major}{props.minor}"
    family = arch_sheet(arch, props.name)
    queried = {k: v for k, v in {**_torch_facts(props), **asked}.items() if v}
    facts: dict[str, Any] = {**family.facts, **queried}
    sources = {**family.sources, **dict.fromkeys(queried, QUERY)}
    for field, value in _family_facts(family, facts).items():
        if field not in facts:
            facts[field] = value
            sources[field] = FAMILY
    if missing := [field for field in FACTS if field not in facts]:
        raise NoAnswerError(f"{props.name}: the driver does not report {', '.join(missing)}: install nvidia-ml-py and try again")
    name = re.sub(r"[^a-z0-9]+", "_", props.name.lower()).strip("_").removeprefix("nvidia_").removeprefix("geforce_")
    return GpuSpec(name=name, full_name=props.name, aliases=(), arch=arch, sources=sources, **facts)


def write_draft(spec: GpuSpec, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Write a spec as a TOML the registry can load, whole or not at all, and return its path.

    Facts are written in SI units, so that loading gives the same spec back. Refuses, unless told to overwrite, to replace a file or
    to shadow a GPU the registry knows already.
    """
    folder = Path(folder).expanduser()
    path = folder / f"{spec.name}.toml"
    if not re.fullmatch(r"[a-z0-9_]+", spec.name):
        raise InputError(f"GPU name {spec.name!r}: use lower case letters, digits and underscores")
    known = files().get(spec.name) or files().get(aliases()[0].get(normalise(spec.full_name), ""))
    if not overwrite and (path.exists() or known):
        raise InputError(
            f"{path}: not written: {known or path} describes {spec.full_name} already; pass overwrite=True (--force) to replace it"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _toml(spec))
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}): choose a folder you may write to") from error
    return path


def _properties(index: int) -> Any:
    try:
        import torch
    except ImportError:
        raise NoAnswerError("probing a GPU needs torch: pip install 'perfmodel[gpu]'") from None
    if not torch.cuda.is_available():
        raise NoAnswerError("no CUDA device is visible to torch: run this on a machine with a GPU")
    count = torch.cuda.device_count()
    if not 0 <= index < count:
        raise InputError(f"device {index}: this machine has devices 0 to {count - 1}")
    return torch.cuda.get_device_properties(index)


def _torch_facts(p: Any) -> dict[str, Any]:
    """GpuSpec fields that torch reports (kHz and bits converted); absent ones are None, for torch versions differ."""

    def get(key: str, factor: float = 1) -> Any:
        value = getattr(p, key, None)
        return value * factor if value else None

    clock, width = get("memory_clock_rate", 1e3), get("memory_bus_width")
    threads = get("max_threads_per_multi_processor")
    return {
        "sms": p.multi_processor_count,
        "dram_bytes": p.total_memory,
        "l2_bytes": get("L2_cache_size"),
        "max_warps_per_sm": threads and threads // 32,
        "max_threads_per_block": get("max_threads_per_block"),
        "regs_per_sm": get("regs_per_multiprocessor"),
        "smem_per_sm_bytes": get("shared_memory_per_multiprocessor"),
        "smem_per_block_bytes": get("shared_memory_per_block_optin"),
        "boost_clock_hz": get("clock_rate", 1e3),
        "max_clock_hz": get("clock_rate", 1e3),
        "dram_bytes_per_s": clock and width and clock * 2 * width / 8,
    }


def _nvml_facts(ask: nvml.Ask) -> dict[str, Any]:
    """GpuSpec fields that NVML reports; a query that this GPU does not support is left out."""
    sm_mhz, mem_mhz = ask("nvmlDeviceGetMaxClockInfo", 1), ask("nvmlDeviceGetMaxClockInfo", 2)  # NVML_CLOCK_SM, NVML_CLOCK_MEM
    width, generation = ask("nvmlDeviceGetMemoryBusWidth"), ask("nvmlDeviceGetMaxPcieLinkGeneration")
    lanes, power_mw = ask("nvmlDeviceGetMaxPcieLinkWidth"), ask("nvmlDeviceGetPowerManagementDefaultLimit")
    return {
        "boost_clock_hz": sm_mhz and sm_mhz * 1e6,
        "max_clock_hz": sm_mhz and sm_mhz * 1e6,
        "dram_bytes_per_s": mem_mhz and width and mem_mhz * 1e6 * 2 * width / 8,
        "power_w": power_mw and power_mw / 1e3,
        "pcie_generation": generation,
        "pcie_bytes_per_s": generation in PCIE_X16 and lanes and PCIE_X16[generation] * lanes / 16,
        **_nvlink(ask),
    }


def _nvlink(ask: nvml.Ask) -> dict[str, Any]:
    """Active links and their generation; nothing where none is up (a bridge not fitted, say)."""
    up = [link for link in range(18) if ask("nvmlDeviceGetNvLinkState", link)]
    generation = ask("nvmlDeviceGetNvLinkVersion", up[0]) if up else None
    if generation not in _NVLINK:
        return {}
    return {"nvlink_generation": generation, "nvlink_bytes_per_s": _NVLINK[generation] * len(up)}


def _family_facts(family: Sheet, facts: dict[str, Any]) -> dict[str, Any]:
    """What the architecture's family gives a GPU of this many SMs at this clock."""
    draft = family.extra["draft"]
    if missing := [key for key in _DRAFT if key not in draft]:
        raise InputError(f"{family.path}: [draft] lacks {', '.join(missing)}: add them, as the other arch files have them")
    if "boost_clock_hz" not in facts:
        return {}
    cycles = facts["sms"] * facts["boost_clock_hz"]
    bf16 = draft["tensor_flop_per_clock_per_sm"] * cycles
    return {
        "tensor_flops": {rate: ratio * bf16 for rate, ratio in draft["rates"].items()},
        "fp32_flops": draft["fp32_flop_per_clock_per_sm"] * cycles,
        "l2_bytes_per_s": draft["l2_bytes_per_clock_per_sm"] * cycles,
        "l2_latency_s": draft["l2_latency_ns"] * 1e-9,
        "dram_latency_s": draft["dram_latency_ns"] * 1e-9,
        "nvlink_bytes_per_s": 0.0,
        "nvlink_generation": 0,
        "pcie_bytes_per_s": PCIE_X16[draft["pcie_generation"]],
        "pcie_generation": draft["pcie_generation"],
        "power_w": draft["power_w"],
    }


def _toml(spec: GpuSpec) -> str:
    lines = [f"name = {_text(spec.name)}", f"full_name = {_text(spec.full_name)}", f"aliases = [{', '.join(map(_text, spec.aliases))}]"]
    lines += [f"arch = {_text(spec.arch)}", f"price_note = {_text(spec.price_note)}", ""]
    facts = dataclasses.asdict(spec)
    for field in FACTS:
        value = facts[field]
        number = f"{{ {', '.join(f'{k} = {v!r}' for k, v in value.items())} }}" if isinstance(value, dict) else repr(value)
        lines.append(f"{field} = {{ value = {number}, source = {_text(spec.sources[field])} }}")
    allow = {k.removeprefix("allow."): v for k, v in spec.sources.items() if k.startswith("allow.")}
    return "\n".join([*lines, *(["", "[allow]"] if allow else []), *(f"{k} = {_text(v)}" for k, v in allow.items())]) + "\n"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
