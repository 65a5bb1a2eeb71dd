"""Physical plausibility of hwdb: a spec that breaks a law of its own architecture is a typing error until shown otherwise."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

from perfmodel.errors import InputError, InputWarning
from perfmodel.hw.ranges import RANGES
from perfmodel.hw.registry import arch_sheet, files, load, normalise
from perfmodel.hw.schema import FACTS, read_toml
from perfmodel.hw.spec import GpuSpec

TOLERANCE = 0.03
# Rate of a type over the bf16 rate, any of these (NVIDIA whitepapers; int8 at 4x where GeForce halves fp32 accumulation only).
RATIOS = {"fp16": (1.0,), "fp8": (2.0,), "int8": (2.0, 4.0), "tf32": (0.5,), "fp4": (4.0,)}
FIRST_ARCH = {"bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9), "fp4": (10, 0)}
# One direction of x16, bytes/s: transfers a second x 16 lanes x coding / 8 (PCI Express Base Specification 3.0 to 6.0).
PCIE_X16 = {3: 15.75e9, 4: 31.5e9, 5: 63e9, 6: 121e9}
L2_PORT_BYTES = 64  # a SM's read port to L2, bytes per clock (NVIDIA A100 whitepaper, L2 cache)


def lint(spec: GpuSpec) -> list[str]:
    """Everything implausible in a spec, one line each; empty when all is well.

    A check named in the file's `[allow]` table, with its reason, is skipped (an export-limited part, say).
    """
    allowed = {key.removeprefix("allow.") for key in spec.sources if key.startswith("allow.")}
    found = list(_checks(spec))
    unused = allowed - {check for check, _ in found}
    return [f"{check}: {text}" for check, text in found if check not in allowed] + [
        f"allow: nothing to allow for {check!r}: remove it" for check in sorted(unused)
    ]


def lint_all() -> dict[str, list[str]]:
    """Problems of every file the registry sees, by canonical name; unreadable files and names claimed twice included."""
    problems: dict[str, list[str]] = {}
    owners: dict[str, str] = {}
    for name, path in files().items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", InputWarning)  # what they say is in the answer
                spec = load(path)
            problems[name] = lint(spec)
        except InputError as error:
            problems[name] = file_faults(path) or [str(error)]
            continue
        for alias in {normalise(a) for a in (name, spec.full_name, *spec.aliases)}:
            if owners.setdefault(alias, name) != name:
                problems[name].append(f"aliases: {alias!r} already means {owners[alias]}")
    return problems


def file_faults(path: Path) -> list[str]:
    """Everything that keeps a file from being read as a GPU, field by field; nothing where it is no TOML at all, or complete."""
    from perfmodel.hw.document import faults

    try:
        return [f"{path}: {line}" for line in faults(read_toml(path))]
    except InputError:
        return []


def _checks(s: GpuSpec) -> Iterator[tuple[str, str]]:
    yield from _rates(s)
    yield from _memory(s)
    yield from _limits(s)
    for field, bound in RANGES.items():
        value = getattr(s, field)
        for name, number in {f"{field}.{k}": v for k, v in value.items()}.items() if field == "tensor_flops" else [(field, value)]:
            if number not in bound:
                yield "range", f"{name} = {number:g} is outside {bound.text()}: wrong unit?"
    for field in FACTS:
        if not s.sources.get(field, "").strip():
            yield "source", f"{field} has no source"


def _rates(s: GpuSpec) -> Iterator[tuple[str, str]]:
    sheet = arch_sheet(s.arch, s.name)
    expected = sheet.extra["lint"]
    if not {"tensor_flop_per_clock_per_sm", "fp32_flop_per_clock_per_sm"} <= set(expected):
        yield "arch", f"{sheet.path} lacks its [lint] table: rates not checked"
        return
    if "bf16" not in s.tensor_flops:
        yield "tensor_rate", "no bf16 rate"
        return
    bf16 = s.tensor_flops["bf16"]
    per_clock = bf16 / (s.sms * s.boost_clock_hz)
    known = expected["tensor_flop_per_clock_per_sm"]
    if not any(_near(per_clock, k) for k in known):
        yield "tensor_rate", f"bf16 is {per_clock:.0f} flop per clock and SM, {s.arch} has {' or '.join(map(str, known))}"
    for rate, value in s.tensor_flops.items():
        if rate in RATIOS and not any(_near(value / bf16, r) for r in RATIOS[rate]):
            yield "ratio", f"{rate} is {value / bf16:.2f} x bf16, not {' or '.join(f'{r:g}' for r in RATIOS[rate])}: sparse rate?"
        if s.capability < FIRST_ARCH.get(rate, (0, 0)):
            yield "rate", f"{s.arch} has no {rate} tensor cores"
    clocks = {s.fp32_flops / (s.sms * clock) for clock in (s.boost_clock_hz, s.max_clock_hz)}
    if not any(_near(c, expected["fp32_flop_per_clock_per_sm"]) for c in clocks):
        yield "fp32_rate", f"fp32 is {max(clocks):.0f} flop per clock and SM, {s.arch} has {expected['fp32_flop_per_clock_per_sm']}"
    if s.boost_clock_hz > s.max_clock_hz:
        yield "clock", "boost_clock is above max_clock"


def _memory(s: GpuSpec) -> Iterator[tuple[str, str]]:
    if s.dram_bytes_per_s >= s.l2_bytes_per_s:
        yield "order", "DRAM is not slower than L2"
    if s.l2_bytes_per_s > s.sms * L2_PORT_BYTES * s.max_clock_hz:
        yield "l2_rate", f"L2 gives more than {L2_PORT_BYTES} bytes per clock and SM"
    if s.l2_latency_s >= s.dram_latency_s:
        yield "order", "L2 is not closer than DRAM"
    if not 0.005 <= s.dram_bytes / s.dram_bytes_per_s <= 0.2:
        yield "dram", f"reading all of DRAM takes {s.dram_bytes / s.dram_bytes_per_s:.3g} s, usually 0.005 to 0.2: wrong unit?"
    x16 = PCIE_X16.get(s.pcie_generation)
    if x16 is None or not x16 / 4 * (1 - TOLERANCE) <= s.pcie_bytes_per_s <= x16 * (1 + TOLERANCE):
        yield "pcie", f"{s.pcie_bytes_per_s / 1e9:g} GB/s one way does not fit PCIe {s.pcie_generation} x4 to x16: both ways counted?"
    if (s.nvlink_bytes_per_s == 0) != (s.nvlink_generation == 0):
        yield "nvlink", "bandwidth and generation must both be 0 or both be given"
    if s.nvlink_bytes_per_s and s.nvlink_bytes_per_s < s.pcie_bytes_per_s:
        yield "nvlink", "slower than PCIe"


def _limits(s: GpuSpec) -> Iterator[tuple[str, str]]:
    if s.smem_per_block_bytes > s.smem_per_sm_bytes - s.smem_reserved_bytes:
        yield "smem", "a block may take more shared memory than an SM has beside the reserved part"
    if s.max_warps_per_sm * 32 > 2048:
        yield "warps", f"{s.max_warps_per_sm} warps are more than 2048 threads on an SM"
    if not 32 <= s.max_threads_per_block <= min(1024, s.max_warps_per_sm * 32):
        yield "threads", f"max_threads_per_block = {s.max_threads_per_block} does not fit an SM or exceeds 1024"
    if s.max_blocks_per_sm > s.max_warps_per_sm:
        yield "blocks", "more blocks than warps on an SM"
    if s.regs_per_sm % s.reg_alloc_unit or s.max_regs_per_thread > 255:
        yield "registers", "regs_per_sm is no multiple of reg_alloc_unit, or over 255 registers a thread"


def _near(value: float, target: float) -> bool:
    return abs(value / target - 1) <= TOLERANCE
