"""`perfmodel gpus`: list the known GPUs, show one with the source of every number, lint the database."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from perfmodel.errors import InputError
from perfmodel.hw.lint import lint, lint_all
from perfmodel.hw.registry import files, gpu, load
from perfmodel.hw.schema import FACTS
from perfmodel.hw.spec import GpuSpec

app = typer.Typer(help="Known GPUs and where every number comes from.", no_args_is_help=False)

Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, SI units.")]
Csv = Annotated[bool, typer.Option("--csv", help="CSV on stdout.")]
Row = dict[str, Any]
_PIPE_WIDTH = 200  # columns of a table that goes to a file or a pipe

# GpuSpec's unit at the end of a field -> the unit people read, and its factor.
_SHOWN = {
    "_bytes_per_s": ("GB/s", 1e9),
    "_flops": ("TFLOP/s", 1e12),
    "_hz": ("MHz", 1e6),
    "_s": ("ns", 1e-9),
    "_w": ("W", 1.0),
}


@app.callback(invoke_without_command=True)
def main(context: typer.Context, json_: Json = False, csv_: Csv = False) -> None:
    """List the known GPUs."""
    if context.invoked_subcommand is None:
        list_(json_, csv_)


@app.command("list")
def list_(json_: Json = False, csv_: Csv = False) -> None:
    """List the known GPUs with their main numbers."""
    rows, broken = [], []
    for path in files().values():
        try:
            rows.append(_summary(load(path)))
        except InputError as error:  # one bad file must not hide the others
            broken.append(str(error))
    _emit(sorted(rows, key=lambda row: str(row["name"])), json_, csv_)
    for line in broken:
        typer.echo(line, err=True)


@app.command()
def show(name: str, json_: Json = False, csv_: Csv = False) -> None:
    """Show one GPU: each number with its source."""
    spec = gpu(name)
    if json_ and not csv_:
        typer.echo(json.dumps(dataclasses.asdict(spec), indent=2))
        return
    rows = _facts(spec)
    if csv_:
        _emit(rows, json_, csv_)
        return
    citations = {row["source"]: n for n, row in enumerate({row["source"]: row for row in rows}.values(), start=1)}
    numbered = [{**row, "source": f"[{citations[row['source']]}]"} for row in rows]
    _table(numbered, list(rows[0]), f"{spec.name}: {spec.full_name} ({spec.arch}; also {', '.join(spec.aliases)})")
    for citation, number in citations.items():
        typer.echo(f"[{number}] {citation}")


@app.command("lint")
def lint_command(names: Annotated[list[str] | None, typer.Argument()] = None, json_: Json = False, csv_: Csv = False) -> None:
    """Check GPUs, all by default, for physical plausibility; exit 1 where something is wrong."""
    problems = {spec.name: lint(spec) for spec in map(gpu, names)} if names else lint_all()
    rows = [{"name": name, "problem": line} for name, lines in problems.items() for line in lines]
    if json_ or csv_ or rows:
        _emit(rows, json_, csv_, columns=("name", "problem"))
    if rows:
        raise typer.Exit(1)
    typer.echo(f"{len(problems)} GPUs, nothing wrong", err=True)


def _summary(spec: GpuSpec) -> Row:
    return {
        "name": spec.name,
        "full_name": spec.full_name,
        "arch": spec.arch,
        "sms": spec.sms,
        "bf16_tflops": _round(spec.tensor_flops.get("bf16", 0) / 1e12),
        "fp8_tflops": _round(spec.tensor_flops["fp8"] / 1e12) if "fp8" in spec.tensor_flops else None,
        "dram_gib": _round(spec.dram_bytes / 2**30),
        "dram_gb_per_s": _round(spec.dram_bytes_per_s / 1e9),
        "l2_mib": _round(spec.l2_bytes / 2**20),
        "nvlink_gb_per_s": _round(spec.nvlink_bytes_per_s / 1e9),
        "power_w": _round(spec.power_w),
    }


def _facts(spec: GpuSpec) -> list[Row]:
    rows: list[Row] = []
    for field in FACTS:
        value = getattr(spec, field)
        entries = {f"{field}.{k}": v for k, v in value.items()} if field == "tensor_flops" else {field: value}
        rows += [_fact(key, number, field, spec.sources[field]) for key, number in entries.items()]
    return rows + [{"field": k, "value": None, "unit": "", "source": v} for k, v in spec.sources.items() if k.startswith("allow.")]


def _fact(key: str, value: float, field: str, source: str) -> Row:
    """One number in the unit people read, which stands beside it: the field keeps GpuSpec's name."""
    sizes = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))
    if field.endswith("_bytes"):
        unit, factor = next(size for size in sizes if value >= size[1])
    else:
        unit, factor = next((shown for ending, shown in _SHOWN.items() if field.endswith(ending)), ("", 1.0))
    return {"field": key, "value": _round(value / factor), "unit": unit, "source": source}


def _round(value: float) -> float | int:
    number = float(f"{value:.5g}")
    return int(number) if number.is_integer() else number


def _emit(rows: Sequence[Row], json_: bool, csv_: bool, *, columns: Sequence[str] = ()) -> None:
    """Rows as JSON, CSV or a table."""
    columns = columns or list(rows[0] if rows else ())
    if json_ and csv_:
        raise InputError("--json and --csv: choose one")
    if json_:
        typer.echo(json.dumps(list(rows), indent=2))
    elif csv_:
        writer = csv.DictWriter(sys.stdout, fieldnames=columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        _table(rows, columns)


def _table(rows: Sequence[Row], columns: Sequence[str], title: str = "") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    if title:
        console.print(Text(title))
    table = Table()
    for column in columns:
        numbers = all(isinstance(row[column], int | float | None) for row in rows)
        narrow = column in ("name", "field", "value", "unit")
        table.add_column(column, justify="right" if numbers else "left", overflow="fold", no_wrap=narrow)
    for row in rows:
        table.add_row(*(Text("-" if row[c] is None else str(row[c])) for c in columns))
    console.print(table)
