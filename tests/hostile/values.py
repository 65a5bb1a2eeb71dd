"""Values that no question should hold, texts that no option should get, and files that are broken."""

# ruff: noqa: E501
from __future__ import annotations

import datetime
import decimal
import fractions
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

FOLDER = Path(tempfile.mkdtemp(prefix="hostile-"))


class NoText:
    """An object that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 64, 4096, 2**31 - 1, 2**31, 2**63, 10**400, 0.0, -0.0, 0.5, 1.5, 1e-300, 1e300,
    float("nan"), float("inf"), -float("inf"), "", " ", "x", "nan", "-1", "4096", "1e999", "x" * 100_000, "\0", "\n", "é" * 90, "\ud800",
    b"x", [], [1], [[1]], ["bf16"], (), {}, {"a": 1}, set(), object(), NoText(), len, np.array(5), np.array([1, 2]), np.array([]),
    np.float32(3), np.float64("nan"), np.int64(4), np.bool_(True), np.str_("bf16"), np.datetime64("2020"), pd.NA, pd.NaT,
    decimal.Decimal("64"), decimal.Decimal("NaN"), decimal.Decimal("sNaN"), fractions.Fraction(7, 2), 1j, datetime.datetime(2020, 1, 1),
    Path("/dev/zero"), Path("x" * 300), int, Exception("x"), pd.DataFrame(), pd.Series([1]), range(3), slice(1),
)  # fmt: skip
TEXTS = (
    "", " ", "x", "-1", "0", "1", "64", "4096", "1.5", "1e3", "1e999", "nan", "inf", "-inf", "true", "none", "auto", "bf16", "fp8", "9" * 5000,
    "x" * 100_000, "é" * 90, "\n", "a\tb", "--", "-", "--json", "--help", "[]", "{}", "{" * 5000, "=", ",", "a=b", "block_m=", "/dev/zero",
    "/dev/full", "/", ".", "/nope/nope", "~nobody/x", "../..", "h100_sxm", "l20", "h100,l20", "prefill", "decode", "16MiB", "torch", "\udcc3",
)  # fmt: skip


def pick(rng: np.random.Generator, choices: Any) -> Any:
    """One of them."""
    return choices[int(rng.integers(len(choices)))]


def value(rng: np.random.Generator) -> Any:
    """One hostile value."""
    return pick(rng, VALUES)


def shown(values: Any) -> str:
    """A label; some values cannot be shown."""
    try:
        return repr(values)[:160]
    except Exception:
        return type(values).__name__


def broken(rng: np.random.Generator, content: bytes) -> bytes:
    """A file as a bad disk, a cut transfer or a wrong editor leaves it."""
    kind = int(rng.integers(9))
    at = int(rng.integers(len(content) + 1))
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + b"\0" + content[at:]
    if kind == 2:
        return content[:at] + bytes([int(rng.integers(256))]) + content[at + 1 :]
    if kind == 3:
        return content.decode("utf-8", "replace").encode("utf-16")
    if kind == 4:
        return b"[" * 100_000
    if kind == 5:
        return content[:at] + b"9" * 5000 + content[at:]
    if kind == 6:
        return b""
    if kind == 7:
        return content[:at] + b"\xff\xfe" + content[at:]
    return content[:at] + content[at + int(rng.integers(1, 50)) :]


def swapped(rng: np.random.Generator, data: Any) -> Any:
    """JSON data with one place, however deep, replaced by something else."""
    junk = (None, True, -1, 0, 1e300, float("nan"), "x" * 5000, "", [], [[]], {}, {"a": 1}, 10**30, "\ud800")
    if isinstance(data, dict) and data and rng.random() < 0.85:
        key = pick(rng, list(data))
        if rng.random() < 0.15:
            return {k: v for k, v in data.items() if k != key}
        return {**data, key: swapped(rng, data[key])}
    if isinstance(data, list) and data and rng.random() < 0.85:
        at = int(rng.integers(len(data)))
        return [*data[:at], swapped(rng, data[at]), *data[at + 1 :]]
    return pick(rng, junk)


def mutated(rng: np.random.Generator, data: Any) -> bytes:
    """A JSON file with a wrong place or a broken byte."""
    if rng.random() < 0.6:
        return json.dumps(swapped(rng, data)).encode()
    return broken(rng, json.dumps(data).encode())


def written(rng: np.random.Generator, name: str, content: bytes) -> Path:
    """A file of that content; a few names are used again and again."""
    path = FOLDER / f"{int(rng.integers(4))}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
