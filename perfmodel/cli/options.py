"""Options that several verbs share, and how their text becomes what the library takes."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel import boundary
from perfmodel.errors import InputError, plain
from perfmodel.ops import Gemm

if TYPE_CHECKING:
    from perfmodel.ops.operator import Operator

# Sizes are text here: the library's own check names the field, the value and what is allowed, in one line.
Gpu = Annotated[str, typer.Option("--gpu", help="GPU: any name `perfmodel gpus` lists, an alias, or the driver's.")]
M = Annotated[str, typer.Option("-m", metavar="ROWS", help="Rows of A and C: tokens.")]
N = Annotated[str, typer.Option("-n", metavar="COLUMNS", help="Columns of C: output features.")]
K = Annotated[str, typer.Option("-k", metavar="DEPTH", help="Columns of A: what is summed over.")]
Dtype = Annotated[str, typer.Option("--dtype", help="Element type of A and B: bf16, fp16, fp8, int8 ...")]
TopK = Annotated[str, typer.Option("--top-k", metavar="COUNT", help="How many of the best configs.")]
Best = Annotated[str, typer.Option("--best", "--top-k", metavar="COUNT", help="How many of the best configs.")]
Calibration = Annotated[
    str,
    typer.Option("--calibration", help="auto: the user's, else the shipped, else the spec tier; none: the spec tier; or a folder."),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--configs", help="Configs to choose from instead of the kernel's own: JSON list, or CSV with a header.")
]
Steady = Annotated[
    float,
    typer.Option(
        "--steady",
        min=0.0,
        metavar="SHARE",
        help="Leave out rows whose standard deviation (std_us) is over this share of the latency, and shapes that lose half of theirs so.",
    ),
]
StoreFile = Annotated[Path | None, typer.Option("--store", help="Store file (default: PERFMODEL_STORE, else the user's data folder).")]

KERNEL_OPERATORS = {
    "attention": ("Attention", "Attention of one layer, --phase prefill or decode (keys split over programs): one Triton config for it."),
    "moe": ("MoE", "The experts' two grouped GEMMs, the gate and the sum, all with one Triton config."),
}
"""Operators beside gemm that have a Triton kernel: command -> class and help."""


def title(op: Operator, kernel: str) -> str:
    """The problem in one line, as its kernel sees it."""
    from perfmodel.predict.configs import op_sizes

    return " ".join([kernel, *(f"{name}={value}" for name, value in op_sizes(op, kernel).items()), op.dtype])


def single(what: str) -> typer.Typer:
    """The application of a verb that is one command: plain help, no completion script of its own, Python's tracebacks."""
    return typer.Typer(help=what, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def verb(what: str, *, alone: bool = False) -> typer.Typer:
    """The application of a verb with several commands, in the same style. An `alone` one needs no further word."""
    app = typer.Typer(help=what, no_args_is_help=not alone, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(lambda: None)  # so that a verb with one command still names it
    return app


def gemm(m: str, n: str, k: str, dtype: str) -> Gemm:
    """The problem of -m -n -k --dtype."""
    return Gemm(_number(m), _number(n), _number(k), dtype=dtype)  # type: ignore[arg-type]


def count(name: str, text: str) -> int:
    """A whole number of 1 or more."""
    from perfmodel.ops.check import size

    return size(name, _number(text))


def calibration(text: str) -> str | None:
    """The value of --calibration for the library: None for the spec tier."""
    return None if text.lower() == "none" else text


def configs(path: Path | None) -> list[dict[str, Any]] | None:
    """The configs of a file: a JSON list of objects, an object with "configs", or CSV with a header; empty cells are left out."""
    if path is None:
        return None
    text = read_text(path)
    if not text.strip():
        raise InputError(f"{path} is empty: expected a JSON list of configs, or CSV with a header")
    rows = _csv_rows(path, text) if path.suffix.lower() == ".csv" else _json_rows(path, text)
    if not rows:
        raise InputError(f"{path} holds no config: expected a JSON list of configs, or CSV with a header")
    return rows


def read_text(path: Path) -> str:
    """Text of a file; one line for a missing or binary one."""
    return boundary.read_text(path)


def read_frame(path: Path) -> Any:
    """A DataFrame from CSV, parquet, JSON or JSON lines, by the file's ending."""
    import pandas as pd

    readers: dict[str, Callable[[Path], Any]] = {
        ".csv": pd.read_csv,
        ".parquet": pd.read_parquet,
        ".json": pd.read_json,
        ".jsonl": lambda p: pd.read_json(p, lines=True),
    }
    where, reader = boundary.path_shown(path), readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{where}: unknown kind of file; known: {', '.join(readers)}")
    try:
        with boundary.readable(path, boundary.LARGEST_TABLE_BYTES).open("rb"):
            pass
        with boundary.parquet() if path.suffix.lower() == ".parquet" else contextlib.nullcontext():
            frame = reader(path)
    except InputError:
        raise
    except OSError as error:  # pyarrow's own are of this kind too, without an errno
        raise InputError(f"{where}: cannot be read ({plain(error.strerror or error)})") from None
    except (ValueError, ImportError, RecursionError, AttributeError, TypeError, KeyError) as error:  # of a broken file, by its parser
        raise InputError(f"{where}: cannot be read as {path.suffix[1:]} ({plain(error)})") from None
    if not hasattr(frame, "columns") or frame.empty:
        raise InputError(f"{where} holds no row")
    return frame


def number(text: str | None) -> Any:
    """A whole number exactly, another one as float; anything else stays text, for the library to judge. None stays None."""
    if text is None:
        return None
    found = _number(text)
    if isinstance(found, int):
        return found
    try:
        return float(text)
    except ValueError:
        return text


def _number(text: str) -> int | str:
    """A whole number exactly; anything else stays text, for the library to judge."""
    try:
        return int(text)
    except ValueError:
        return text


def _json_rows(path: Path, text: str) -> list[dict[str, Any]]:
    data = boundary.parse_json(text, path)
    rows = data.get("configs") if isinstance(data, dict) else data
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f'{path}: expected a JSON list of objects, one a config, or an object with "configs"')
    return rows


def _csv_rows(path: Path, text: str) -> list[dict[str, Any]]:
    rows = []
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    for row in _csv_lines(path, reader):
        if None in row:
            raise InputError(f"{path}, line {reader.line_num}: more cells than the header has")
        rows.append({name.strip(): cell.strip() for name, cell in row.items() if cell is not None and cell.strip()})
    return rows


def _csv_lines(path: Path, reader: csv.DictReader[str]) -> Iterator[dict[str | Any, str | Any]]:
    """Rows of a CSV; raises InputError for a line that the parser refuses (a field of more than 128 KiB)."""
    try:
        yield from reader
    except csv.Error as error:
        raise InputError(f"{boundary.path_shown(path)}, line {reader.line_num}: {plain(error)}") from None
