"""Measured rows on disk: one JSON object a line, appended as they come, so that a killed run loses nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel import boundary
from perfmodel.errors import InputError

Row = dict[str, Any]


def row_key(row: Mapping[str, Any], keys: Sequence[str]) -> tuple[Any, ...]:
    """The values that tell one measurement from another; a missing one and NaN count as None, 4.0 as 4."""
    return tuple(_plain(row.get(k)) for k in keys)


def _plain(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else int(value) if value.is_integer() else value


def read(path: Path) -> list[Row]:
    """All complete rows of a JSONL file (or of a parquet file); a last line cut short by a crash is dropped."""
    if not path.exists():
        return []
    if path.suffix == ".parquet":
        import pandas as pd

        with boundary.parquet():
            frame = pd.read_parquet(path).astype(object)
        return [{str(k): v for k, v in row.items()} for row in frame.where(frame.notna(), None).to_dict("records")]
    lines = path.read_text(encoding="utf-8").splitlines()
    found: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise InputError(f"{path}, line {number} is not JSON: {error}") from None
    return found


class Appender:
    """Appends rows to a JSONL file, each on disk before the next is measured."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and (text := path.read_bytes()) and not text.endswith(b"\n"):
            path.write_bytes(text[: text.rfind(b"\n") + 1])  # what a crash left half-written
        self._file = path.open("a", encoding="utf-8")

    def add(self, row: Mapping[str, Any]) -> None:
        """Write one row."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def export_parquet(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write rows as zstd parquet."""
    import pandas as pd

    with boundary.parquet():
        pd.DataFrame([dict(r) for r in rows]).to_parquet(path, compression="zstd", index=False)
