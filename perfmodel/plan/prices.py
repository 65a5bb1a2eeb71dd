"""What a GPU costs an hour: the user's price file over the shipped examples. No price is ever guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from perfmodel._resources import shipped, user_folder
from perfmodel.boundary import path_shown, read_toml, validated
from perfmodel.errors import InputError, plain, shown
from perfmodel.hw import gpu as find_gpu
from perfmodel.ops.check import is_flag

FILE = "prices.toml"
MOST_USD = 1e6  # of one GPU an hour
MOST_PRICES = 10_000


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars of one GPU an hour, and where that comes from. `example`: shipped with perfmodel, not the user's own."""

    usd_per_gpu_hour: float
    date: str
    source: str
    example: bool


def _no_bool(value: object) -> object:
    if is_flag(value):
        raise ValueError("must be a number of US dollars")
    return value


class _Entry(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    usd_per_gpu_hour: Annotated[float, BeforeValidator(_no_bool), Field(gt=0, le=MOST_USD, allow_inf_nan=False)]
    date: str = ""
    source: str = ""

    @field_validator("date", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, date) else value  # TOML has dates of its own


def prices(file: str | Path | Mapping[str, float] | None = None) -> dict[str, Price]:
    """Price of each GPU by canonical name: of `file` (TOML) or mapping alone, else the user's own prices.toml over the shipped examples.

    Raises InputError for a file that cannot be read, an unknown GPU, and a price that is not a positive number.
    """
    if isinstance(file, Mapping):
        return _checked({name: {"usd_per_gpu_hour": value, "source": "given"} for name, value in file.items()}, "prices", example=False)
    if file is not None:
        if not isinstance(file, str | Path):
            raise InputError(f"prices is {shown(file)}: expected a TOML file, or a mapping from GPU to US dollars an hour")
        return _read(Path(file), example=False)
    own = user_folder() / FILE
    return _read(shipped("data") / FILE, example=True) | (_read(own, example=False) if own.is_file() else {})


def _read(path: Path, *, example: bool) -> dict[str, Price]:
    try:
        found = path.expanduser()
    except RuntimeError:  # no home
        found = path
    return _checked(read_toml(found), path_shown(path), example=example)


def _checked(raw: Mapping[str, Any], where: str, *, example: bool) -> dict[str, Price]:
    if len(raw) > MOST_PRICES:
        raise InputError(f"{where}: {len(raw)} prices: at most {MOST_PRICES}")
    found: dict[str, Price] = {}
    for name, fields in raw.items():
        if not isinstance(fields, Mapping):
            raise InputError(f"{where}: {shown(name)} is no table: write [<GPU>] with usd_per_gpu_hour = <US dollars> under it")
        entry = validated(_Entry, fields, f"{where}: {plain(str(name))}")
        found[find_gpu(name).name] = Price(entry.usd_per_gpu_hour, entry.date, entry.source, example)
    return found
