"""Rows on stdout: JSON, CSV, a rich table on a terminal, plain columns in a pipe."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from perfmodel.errors import InputError

Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
Csv = Annotated[bool, typer.Option("--csv", help="CSV on stdout.")]
Row = Mapping[str, Any]
WIDE = "PERFMODEL_WIDE"  # set by `--wide`: a table on a terminal keeps all its columns


def check_format(json_: bool, csv_: bool) -> None:
    """Refuse --json together with --csv, before any work is done."""
    if json_ and csv_:
        raise InputError("--json and --csv: choose one")


def write_rows(rows: Sequence[Row], columns: Sequence[str] = (), *, json_: bool, csv_: bool, head: Sequence[str] = ()) -> None:
    """Rows in the format asked for: JSON, CSV, or a table under the lines of `head`."""
    if json_:
        write_json(rows)
    elif csv_:
        write_csv(rows, columns)
    else:
        write_table(rows, columns, head=head)


def write_json(value: Any) -> None:
    """One JSON document; numbers JSON lacks become null."""
    _write(json.dumps(_plain(value), indent=2, allow_nan=False) + "\n")


def write_csv(rows: Sequence[Row], columns: Sequence[str] = ()) -> None:
    """Rows under a header; a missing value is empty, a mapping is JSON."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = columns or list(rows[0] if rows else ())
    writer.writerow(columns)
    for row in rows:
        values = (_plain(row.get(c)) for c in columns)
        writer.writerow(["" if v is None else json.dumps(v) if isinstance(v, dict | list) else v for v in values])
    _write(out.getvalue())


def write_table(rows: Sequence[Row], columns: Sequence[str] = (), *, head: Sequence[str] = ()) -> None:
    """Lines of `head`, then a table for people to read; numbers to three digits."""
    columns = columns or list(rows[0] if rows else ())
    cells = [[shown(row.get(c)) for c in columns] for row in rows]
    right = [all(isinstance(row.get(c), int | float | None) for row in rows) for c in columns]
    lines = list(head)
    if sys.stdout.isatty():
        _rich(lines, columns, cells, right)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for row_cells in [list(columns), *cells] if columns else []:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row_cells, widths, right, strict=True))
        lines.append("  ".join(padded).rstrip())
    _write("\n".join(lines) + "\n")


def shown(value: Any) -> str:
    """A cell of a table."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        digits = 2 - math.floor(math.log10(abs(value))) if value else 0
        return f"{value:.{min(max(digits, 0), 6)}f}"
    if isinstance(value, Mapping):
        return " ".join(f"{k}={shown(v)}" for k, v in value.items())
    return str(value)


def exact(value: Any) -> str:
    """A cell with every digit."""
    return "-" if value is None else str(value)


def _rich(lines: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    widths = [max(map(len, column)) + 2 for column in zip(columns, *cells, strict=True)]
    console = Console()
    shown_columns = len(columns) if os.environ.get(WIDE) else fitting(widths, console.width)
    console.width = max(console.width, sum(widths[:shown_columns]))  # cells cut in two are unreadable: the terminal wraps whole lines
    for line in lines:
        console.print(Text(line))
    if not columns:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column, number in zip(columns[:shown_columns], right, strict=False):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in cells:
        table.add_row(*map(Text, row[:shown_columns]))
    console.print(table)
    if shown_columns < len(columns):
        console.print(Text(f"not shown: {', '.join(columns[shown_columns:])} (--wide shows all)"))


def fitting(widths: Sequence[int], room: int) -> int:
    """How many columns, from the left, fit a terminal of `room` characters, one at least: the first ones say most."""
    used = 0
    for count, width in enumerate(widths):
        used += width
        if count and used - 2 > room:
            return count
    return len(widths)


def _plain(value: Any) -> Any:
    """Numpy scalars and arrays as Python's, NaN and infinity as None."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
