"""Compiled configs of many kernels in one file, so that what was compiled once need not be compiled again elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfmodel import boundary
from perfmodel.errors import InputError

COLUMNS = ("key", "ttir", "binary", "reason")


def read_pack(path: Path) -> dict[str, dict[str, Any]]:
    """What kernel_compile remembers, by key; raises InputError for a file that is not such a pack."""
    with boundary.parquet():
        from pyarrow import parquet

    try:
        table = parquet.read_table(path, columns=list(COLUMNS)).to_pydict()
        rows = zip(*(table[name] for name in COLUMNS), strict=True)
        return {
            key: {"ttir": ttir, "binary": json.loads(binary) if binary else None, "reason": reason} for key, ttir, binary, reason in rows
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a pack of compiled kernels ({str(error).splitlines()[0]})") from None


def write_pack(path: Path, compiled: Mapping[str, Mapping[str, Any]]) -> None:
    """Write what kernel_compile remembers, sorted by text so that like stands beside like and packs well."""
    with boundary.parquet():
        import pyarrow as arrow
        from pyarrow import parquet

    rows = sorted((d["ttir"], key, "" if d["binary"] is None else json.dumps(d["binary"]), d["reason"]) for key, d in compiled.items())
    columns = {"key": [r[1] for r in rows], "ttir": [r[0] for r in rows], "binary": [r[2] for r in rows], "reason": [r[3] for r in rows]}
    parquet.write_table(arrow.table(columns), path, compression="zstd", compression_level=19)
