"""What outside data may say in a TOML of hwdb: pydantic models, and their faults as one line each, in the file's own words and units.

Only files that are not shipped come here, and shipped ones that cannot be converted: loading pydantic costs more than all else `gpu()`
does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from perfmodel.errors import InputError
from perfmodel.hw.ranges import RANGES
from perfmodel.hw.schema import FACTS, UNITS, WHOLE, field_of

Finite = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"\S")]
SHOWN = 60  # characters of a value that a message shows


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Fact(_Strict):
    """One number: { value = 132, source = "datasheet", note = "..." }."""

    value: Finite
    source: Name
    note: str = ""


class _Rates(_Strict):
    """Tensor rates: { value = { bf16 = 989.4, fp8 = 1978.9 }, source = "datasheet" }."""

    value: Annotated[dict[Literal["bf16", "fp16", "fp8", "int8", "tf32", "fp4"], Finite], Field(min_length=1)]
    source: Name
    note: str = ""


class Document(_Strict):
    """A whole file: names, tables, and any fact of GpuSpec under its own name or with another unit."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, _Fact] = Field(init=False)
    name: str = ""
    full_name: str = ""
    arch: str = ""
    price_note: str = ""
    aliases: list[Name] = []
    sources: dict[str, str] = {}
    allow: dict[str, str] = {}
    lint: dict[str, Any] = {}
    draft: dict[str, Any] = {}
    tensor_flops: _Rates | None = None
    tensor_tflops: _Rates | None = None

    @field_validator("arch")
    @classmethod
    def _arch(cls, value: str) -> str:
        if not value:
            raise ValueError("expected a compute capability such as sm_90")
        return value

    @model_validator(mode="after")
    def _numbers(self) -> Document:
        """Each fact is one of GpuSpec's, given once, possible, whole where it counts things, and has a citation."""
        faults: list[str] = []
        seen: dict[str, str] = {}
        given: dict[str, _Fact | _Rates | None] = {
            **(self.model_extra or {}),
            **{n: getattr(self, n) for n in ("tensor_flops", "tensor_tflops")},
        }
        for key, fact in given.items():
            if fact is None:
                continue
            if (found := field_of(key)) is None:
                faults.append(f"{key}: no such fact: {_nearest(key)}")
                continue
            field, factor = found
            if field in seen:
                faults.append(f"{key}: {seen[field]} says the same: keep one")
            seen[field] = key
            values = fact.value.items() if isinstance(fact, _Rates) else [("", fact.value)]
            for rate, value in values:
                faults += _impossible(f"{key}.{rate}" if rate else key, field, value, factor, "range" in self.allow)
            citation = self.sources.get(fact.source, fact.source)
            if " " not in citation.strip():
                faults.append(f"{key}: source {fact.source!r} has no citation: add it to [sources]")
        if faults:
            raise ValueError("\n".join(faults))
        return self


def _impossible(key: str, field: str, value: float, factor: float, allowed: bool) -> list[str]:
    """Why a number cannot be; nothing where it can."""
    bound = RANGES[field]
    if value * factor not in bound and not (allowed and value > 0):
        return [f"{key} = {value:g}: expected {bound.text(factor)}"]
    if field in WHOLE and abs(value * factor - round(value * factor)) > 1e-6 * value * factor:
        return [f"{key} = {value:g}: expected a whole number of {field.removeprefix('max_')}"]
    return []


def _nearest(key: str) -> str:
    import difflib

    near = difflib.get_close_matches(
        key, [*FACTS, *(f.removesuffix(si) + u for f in FACTS for u, (si, _) in UNITS.items() if f.endswith(si))], n=3
    )
    return f"did you mean {', '.join(near)}?" if near else "hwdb/README.md lists them"


def faults(raw: Mapping[str, Any]) -> list[str]:
    """Everything wrong with the content of a file, a line each: field, value, what is allowed."""
    try:
        Document.model_validate(dict(raw))
    except ValidationError as error:
        return [line for entry in error.errors() for line in _lines(raw, entry)]
    return []


def check(path: Path, raw: Mapping[str, Any]) -> None:
    """Raise InputError, one line with the first fault and how many there are."""
    if found := faults(raw):
        more = f" (1 of {len(found)} faults: perfmodel gpus lint {path.stem})" if len(found) > 1 else ""
        raise InputError(f"{path}: {found[0]}{more}")


_EXPECTED = {
    "string_type": "a text in quotes",
    "list_type": "a list of names",
    "dict_type": "a table",
    "float_type": "a number",
    "finite_number": "a finite number",
    "model_type": '{ value = ..., source = "..." }',
    "string_pattern_mismatch": "a text that is not empty",
    "too_short": "at least one rate, such as bf16 = 989.4",
    "literal_error": "a rate of bf16, fp16, fp8, int8, tf32, fp4",
}


def _lines(raw: Mapping[str, Any], entry: Any) -> list[str]:
    """A fault as pydantic tells it, in the file's words."""
    where = [str(part) for part in entry["loc"] if part != "[key]"]
    text: str = entry["msg"].removeprefix("Value error, ")
    if not where:
        return text.splitlines()
    if entry["type"] == "missing":
        return [f'{where[0]} = {cut(raw.get(where[0]))}: {where[-1]} is missing: write {{ value = ..., source = "..." }}']
    if entry["type"] == "extra_forbidden":
        return [f"{'.'.join(where)}: no such entry: a fact has value, source and note"]
    key = where[0] if where[1:2] == ["value"] and len(where) == 2 else ".".join(part for part in where if part != "value")
    return [f"{key} = {cut(entry['input'])}: expected {_EXPECTED.get(entry['type'], text.removeprefix('expected '))}"]


def cut(value: object) -> str:
    """A value as a message shows it."""
    text = f"{value:g}" if isinstance(value, float) and math.isfinite(value) else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
