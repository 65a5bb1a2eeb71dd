"""What a GPU costs an hour: the user's price file over the shipped examples. No price is ever guessed."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfmodel._resources import shipped, user_folder
from perfmodel.errors import InputError
from perfmodel.hw import gpu as find_gpu

FILE = "prices.toml"


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars of one GPU an hour, and where that comes from. `example`: shipped with perfmodel, not the user's own."""

    usd_per_gpu_hour: float
    date: str
    source: str
    example: bool


def prices(file: str | Path | Mapping[str, float] | None = None) -> dict[str, Price]:
    """Price of each GPU by canonical name: of `file` (TOML) or mapping alone, else the user's own prices.toml over the shipped examples.

    Raises InputError for a file that cannot be read, an unknown GPU, and a price that is not a positive number.
    """
    if isinstance(file, Mapping):
        return {find_gpu(name).name: Price(_positive(value, "prices", name), "", "given", False) for name, value in file.items()}
    if file is not None:
        if not isinstance(file, str | Path):
            raise InputError(f"prices is {file!r}: expected a TOML file, or a mapping from GPU to US dollars an hour")
        return _read(Path(file).expanduser(), example=False)
    own = user_folder() / FILE
    return _read(shipped("data") / FILE, example=True) | (_read(own, example=False) if own.is_file() else {})


def _read(path: Path, *, example: bool) -> dict[str, Price]:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}: write one table a GPU, with usd_per_gpu_hour = 2.5") from None
    found: dict[str, Price] = {}
    for name, entry in raw.items():
        if not isinstance(entry, Mapping) or "usd_per_gpu_hour" not in entry:
            raise InputError(f"{path}: [{name}] needs usd_per_gpu_hour = <US dollars>")
        value = _positive(entry["usd_per_gpu_hour"], str(path), name)
        found[find_gpu(name).name] = Price(value, str(entry.get("date", "")), str(entry.get("source", "")), example)
    return found


def _positive(value: object, where: str, name: str) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not (math.isfinite(number) and number > 0):
        raise InputError(f"{where}: usd_per_gpu_hour of {name} must be a positive number, got {value!r}")
    return number
