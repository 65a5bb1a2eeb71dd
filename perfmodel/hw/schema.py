"""The file format of hwdb: what a TOML may say, in which units, and its conversion to a GpuSpec.

A GPU file is flat: names, one fact a line, each with its source, and a table of full citations:

    sms = { value = 132, source = "datasheet" }
    dram_gb_per_s = { value = 3350, source = "datasheet" }
    tensor_tflops = { value = { bf16 = 989.4, fp8 = 1978.9 }, source = "datasheet" }

    [sources]
    datasheet = "NVIDIA, H100 Tensor Core GPU datasheet, product specifications, https://..."

A key is a GpuSpec field, or that field with a unit of `UNITS` in place of its own (`l2_mib` for `l2_bytes`).
Facts common to a compute capability stand once, in hwdb/arch/<arch>.toml; the GPU's file may override any of them.
The check is written out here, not in pydantic: importing that costs more than all else `gpu()` does, and one check that always
runs is better than a strict one in tests and a light one in use.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
RATES = ("bf16", "fp16", "fp8", "int8", "tf32", "fp4")
MAY_BE_ZERO = ("nvlink_bytes_per_s", "nvlink_generation")
_TYPES = {f.name: str(f.type) for f in dataclasses.fields(GpuSpec)}
FACTS = tuple(name for name, kind in _TYPES.items() if kind in ("int", "float") or name == "tensor_flops")


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


def read_sheet(path: Path) -> Sheet:
    """Read and check one TOML; any defect is one InputError line naming file and fix."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): make it readable or delete it") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML ({error}): correct it or delete it") from error
    try:
        return _sheet(path, raw)
    except _Bad as error:
        raise InputError(f"{path}: {error}") from None


class _Bad(ValueError):
    """A defect of the file at hand, without its path."""


def _sheet(path: Path, raw: dict[str, Any]) -> Sheet:
    text = {key: raw.pop(key, "") for key in TEXT}
    for key, value in text.items():
        if not isinstance(value, str):
            raise _Bad(f"{key} = {value!r}: write a text in quotes")
    aliases = raw.pop("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(a, str) and a.strip() for a in aliases):
        raise _Bad(f"aliases = {aliases!r}: write a list of names")
    tables = {key: raw.pop(key, {}) for key in ("sources", "allow", "lint", "draft")}
    for key, table in tables.items():
        if not isinstance(table, dict):
            raise _Bad(f"{key} = {table!r}: write a table, [{key}]")
    citations = tables.pop("sources")
    facts: dict[str, Value] = {}
    sources: dict[str, str] = {}
    for key, fact in raw.items():
        field, factor = _field(key)
        if field in facts:
            raise _Bad(f"{key}: {field} is given twice: keep one")
        if not isinstance(fact, dict) or not {"value", "source"} <= set(fact) <= {"value", "source", "note"}:
            raise _Bad(f'{key} = {fact!r}: write {{ value = ..., source = "..." }}')
        facts[field] = _value(key, field, fact["value"], factor)
        sources[field] = _citation(key, fact, citations)
    return Sheet(path, text, tuple(aliases), facts, sources, tables)


def _field(key: str) -> tuple[str, float]:
    if key in FACTS:
        return key, 1.0
    for ending in sorted(UNITS, key=len, reverse=True):
        if key.endswith(ending):
            field = key.removesuffix(ending) + UNITS[ending][0]
            if field in FACTS:
                return field, UNITS[ending][1]
    raise _Bad(f"{key}: no such fact: use one of {', '.join(FACTS)} (units: {', '.join(UNITS)})")


def _value(key: str, field: str, value: object, factor: float) -> Value:
    if field != "tensor_flops":
        return _number(key, field, value, factor)
    if not isinstance(value, dict) or not value:
        raise _Bad(f"{key} = {value!r}: write a table of rates, {{ bf16 = ... }}")
    if unknown := sorted(set(value) - set(RATES)):
        raise _Bad(f"{key}: unknown rate {unknown[0]!r}: use {', '.join(RATES)}")
    return {rate: _number(f"{key}.{rate}", field, number, factor) for rate, number in value.items()}


def _number(key: str, field: str, value: object, factor: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _Bad(f"{key} = {value!r}: write a finite number")
    if value < 0 or (value == 0 and field not in MAY_BE_ZERO):
        raise _Bad(f"{key} = {value!r}: must be positive")
    scaled = value * factor
    if _TYPES[field] != "int":
        return float(f"{scaled:.15g}")  # 66.9 TFLOP/s is 66.9e12 flop/s, without the product's last bit
    if abs(scaled - round(scaled)) > 1e-6 * scaled:
        raise _Bad(f"{key} = {value!r}: {field} must be a whole number")
    return round(scaled)


def _citation(key: str, fact: Mapping[str, Any], citations: Mapping[str, Any]) -> str:
    source = fact["source"]
    if not isinstance(source, str) or not source.strip():
        raise _Bad(f"{key}: source = {source!r}: name an entry of [sources]")
    text = citations.get(source, source)
    if not isinstance(text, str) or " " not in text.strip():
        raise _Bad(f"{key}: source {source!r} has no citation: add it to [sources]")
    return f"{text}; {fact['note']}" if fact.get("note") else text


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
