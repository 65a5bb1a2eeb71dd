"""The file format of hwdb: what a TOML may say, in which units, and its conversion to a GpuSpec.

A GPU file is flat: names, one fact a line, each with its source, and a table of full citations:

    sms = { value = 132, source = "datasheet" }
    dram_gb_per_s = { value = 3350, source = "datasheet" }
    tensor_tflops = { value = { bf16 = 989.4, fp8 = 1978.9 }, source = "datasheet" }

    [sources]
    datasheet = "NVIDIA, H100 Tensor Core GPU datasheet, product specifications, https://..."

A key is a GpuSpec field, or that field with a unit of `UNITS` in place of its own (`l2_mib` for `l2_bytes`).
Facts common to a compute capability stand once, in hwdb/arch/<arch>.toml; the GPU's file may override any of them.
Shipped files are checked by lint in tests; all others by the pydantic models of hw/document when they are read.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel._resources import shipped
from perfmodel.errors import InputError
from perfmodel.hw.spec import GpuSpec
from perfmodel.units import GB, GIB, KIB, MIB, TERA

Value = float | dict[str, float]

# Ending of a key in a file -> the ending GpuSpec uses, and the factor. The longest match wins.
UNITS: dict[str, tuple[str, float]] = {
    "_gb_per_s": ("_bytes_per_s", GB),
    "_tb_per_s": ("_bytes_per_s", TERA),
    "_tflops": ("_flops", TERA),
    "_kib": ("_bytes", KIB),
    "_mib": ("_bytes", MIB),
    "_gib": ("_bytes", GIB),
    "_gb": ("_bytes", GB),
    "_mhz": ("_hz", 1e6),
    "_ghz": ("_hz", 1e9),
    "_ns": ("_s", 1e-9),
    "_us": ("_s", 1e-6),
}
TEXT = ("name", "full_name", "arch", "price_note")
TABLES = ("allow", "lint", "draft")
LARGEST_FILE_BYTES = 1 << 20
_TYPES = {f.name: str(f.type) for f in dataclasses.fields(GpuSpec)}
FACTS = tuple(name for name, kind in _TYPES.items() if kind in ("int", "float") or name == "tensor_flops")
WHOLE = frozenset(name for name, kind in _TYPES.items() if kind == "int")


@dataclass(frozen=True, slots=True)
class Sheet:
    """One checked file: texts, facts in SI units by GpuSpec field, and a citation for each fact.

    `extra` holds the arch file's `lint` and `draft` tables and a GPU file's `allow` table (lint check -> reason to skip it).
    """

    path: Path
    text: Mapping[str, str]
    aliases: tuple[str, ...]
    facts: Mapping[str, Value]
    sources: Mapping[str, str]
    extra: Mapping[str, Mapping[str, Any]]


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML of hwdb, unchecked; any defect of the file is one InputError line."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE_BYTES + 1)
        if len(data) > LARGEST_FILE_BYTES:
            raise InputError(f"{path}: larger than {LARGEST_FILE_BYTES} bytes: a file of hwdb has one GPU")
        return tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): make it readable or delete it") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error) if len(str(error)) <= 60 else f"{str(error)[:60]}..."
        raise InputError(f"{path}: not valid TOML ({reason}): correct it or delete it") from error


def read_sheet(path: Path) -> Sheet:
    """Read one TOML, and check it where it is not a shipped one; any defect is one InputError line naming file, field, value and fix."""
    raw = read_toml(path)
    if not path.is_relative_to(shipped("hwdb")):
        _check(path, raw)
    try:
        return _sheet(path, raw)
    except (KeyError, TypeError, ValueError, AttributeError):  # a shipped file that somebody changed
        _check(path, raw)
        raise


def _check(path: Path, raw: Mapping[str, Any]) -> None:
    from perfmodel.hw.document import check

    check(path, raw)


def _sheet(path: Path, raw: Mapping[str, Any]) -> Sheet:
    citations = raw.get("sources", {})
    facts: dict[str, Value] = {}
    sources: dict[str, str] = {}
    for key, fact in raw.items():
        if key in (*TEXT, *TABLES, "aliases", "sources"):
            continue
        found = field_of(key)
        if found is None:
            raise ValueError(key)
        field, factor = found
        value, cited = fact["value"], citations.get(fact["source"], fact["source"])
        facts[field] = {rate: _si(field, v, factor) for rate, v in value.items()} if field == "tensor_flops" else _si(field, value, factor)
        sources[field] = f"{cited}; {fact['note']}" if fact.get("note") else cited
    text = {key: raw.get(key, "") for key in TEXT}
    return Sheet(path, text, tuple(raw.get("aliases", ())), facts, sources, {key: raw.get(key, {}) for key in TABLES})


def field_of(key: str) -> tuple[str, float] | None:
    """(GpuSpec field, factor to its unit) of a key in a file; None for one that is no fact."""
    if key in FACTS:
        return key, 1.0
    for ending in sorted(UNITS, key=len, reverse=True):
        if key.endswith(ending):
            field = key.removesuffix(ending) + UNITS[ending][0]
            if field in FACTS:
                return field, UNITS[ending][1]
    return None


def _si(field: str, value: float, factor: float) -> float:
    # 66.9 TFLOP/s is 66.9e12 flop/s, without the product's last bit
    return round(value * factor) if field in WHOLE else float(f"{value * factor:.15g}")


def build(gpu: Sheet, arch: Sheet) -> GpuSpec:
    """Lay a GPU's facts over those of its compute capability."""
    facts = {**arch.facts, **gpu.facts}
    if missing := [name for name in FACTS if name not in facts]:
        raise InputError(f"{gpu.path}: missing {', '.join(missing)}: add {'it' if len(missing) == 1 else 'them'} with a source")
    name = gpu.text["name"]
    if name != gpu.path.stem:
        raise InputError(f"{gpu.path}: name = {name!r}: must be the file's name, {gpu.path.stem!r}")
    if not gpu.text["full_name"].strip():
        raise InputError(f"{gpu.path}: full_name is missing: write the name the driver reports")
    allowed = {f"allow.{check}": str(reason) for check, reason in gpu.extra["allow"].items()}
    sources = {**arch.sources, **gpu.sources, **allowed}
    return GpuSpec(**gpu.text, aliases=gpu.aliases, sources=sources, **facts)  # type: ignore[arg-type]
