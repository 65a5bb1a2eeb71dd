"""`perfmodel store`: show what was timed, export it, import somebody else's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from perfmodel._atomic import write_atomically
from perfmodel.boundary import expanded
from perfmodel.cli import options, output
from perfmodel.errors import InputError
from perfmodel.tune.store import Run, Store, read_export

app = options.verb("Show, export and import what was timed.")


@app.command()
def show(
    history: Annotated[bool, typer.Option("--history", help="Every run, failures included, instead of the best of each problem.")] = False,
    store: options.StoreFile = None,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Show the best config of each problem, or every run."""
    output.check_format(json_, csv_)
    with Store(store, create=False) as book:
        runs = book.history() if history else book.best()
    rows = [flat(run) for run in runs]
    columns = flat_columns()
    if not csv_:
        columns = [name for name in columns if name not in ("source_hash", "driver", "triton", "torch", "predicted_us", "clock_mhz")]
    output.write_rows(rows, columns, json_=json_, csv_=csv_, head=[f"{book.path}: {len(rows)} {'runs' if history else 'answers'}", ""])


@app.command("export")
def export_(
    path: Annotated[str, typer.Argument(help="File to write, or - for stdout.")],
    store: options.StoreFile = None,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Write every run as JSON that import reads, whole or not at all; --json and --csv say what was written."""
    output.check_format(json_, csv_)
    if path == "-" and csv_:
        raise InputError("export - writes JSON: leave --csv out, or use store show --history --csv")
    with Store(store, create=False) as book:
        data = book.export()
    if path == "-":
        output.write_json(data)
        return
    try:
        write_atomically(expanded(path), json.dumps(data, indent=1) + "\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    _report([{"file": path, "runs": len(data["runs"])}], f"{len(data['runs'])} runs written to {path}", json_, csv_)


@app.command("import")
def import_(
    paths: Annotated[list[Path], typer.Argument(help="Files that `store export` wrote.")],
    store: options.StoreFile = None,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Add the runs of exports; those already there are skipped. With a bad file among them nothing is added."""
    output.check_format(json_, csv_)
    exports = [(str(path), read_export(path)) for path in paths]
    with Store(store) as book:
        counts = book.import_all(exports)
    rows = [{"file": path, "new": new, "already_there": known} for (path, _), (new, known) in zip(exports, counts, strict=True)]
    _report(rows, "; ".join(f"{r['file']}: {r['new']} new runs, {r['already_there']} already there" for r in rows), json_, csv_)


def _report(rows: list[dict[str, Any]], text: str, json_: bool, csv_: bool) -> None:
    """What was done: on stdout in a format that was asked for, else one line on stderr."""
    if json_ or csv_:
        output.write_rows(rows, json_=json_, csv_=csv_)
    else:
        print(f"perfmodel: {text}", file=sys.stderr)


@app.command("import-autotune")
def import_autotune(
    paths: Annotated[list[Path], typer.Argument(help="KERNEL.autotune.json files of Triton's cache.")],
    gpu: options.Gpu,
    keys: Annotated[str, typer.Option("--keys", metavar="M,N,K", help="Names of the whole numbers in the autotuner's key, in order.")] = "",
    store: options.StoreFile = None,
) -> None:
    """Add what Triton's own autotuner timed and cached; the files do not say on which GPU."""
    from perfmodel.tune.imports import read_autotune

    names = [name.strip() for name in keys.split(",") if name.strip()]
    files = [(path, read_autotune(path, gpu=gpu, keys=names)) for path in paths]
    with Store(store) as book:
        for path, runs in files:
            print(f"perfmodel: {path}: {book.add(runs)} of {len(runs)} runs added", file=sys.stderr)


def flat(run: Run) -> dict[str, Any]:
    """One flat row of a run."""
    key = {name: getattr(run.key, name) for name in ("kernel", "sizes", "dtype", "gpu", "driver", "triton", "torch", "source_hash")}
    return key | {name: getattr(run, name) for name in flat_columns()[len(key) :]}


def flat_columns() -> list[str]:
    """Columns of `show`."""
    key = ["kernel", "sizes", "dtype", "gpu", "driver", "triton", "torch", "source_hash"]
    return [*key, "config", "role", "status", "reason", "latency_us", "spread", "predicted_us", "clock_mhz", "at"]
