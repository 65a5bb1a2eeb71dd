"""`perfmodel calibrate list`, `show` and `remove`: which calibrations are stored, what one rests on, and deleting one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from perfmodel.cli import output
from perfmodel.learn import stored

_COLUMNS = ("gpu", "part", "whose", "answers", "tier", "rows", "shapes", "error", "coverage", "made", "path")
_LONG = ("constants", "envelope", "features", "kriging", "half_widths", "dtype_codes", "known_names")  # of a card: not for people
Name = Annotated[str, typer.Argument(metavar="GPU[/PART]", help="A GPU, or one part of its calibration: h100_sxm/gemm.")]


def list_(
    gpu: Annotated[str | None, typer.Option("--gpu", help="Only of this GPU.")] = None,
    own: Annotated[bool, typer.Option("--own", help="Only your own, not the shipped ones.")] = False,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """List the calibrations that are stored, your own and the shipped ones."""
    output.check_format(json_, csv_)
    found = [one for one in (stored.find(gpu) if gpu else stored.stored()) if not own or one.whose == stored.OWN]
    head = ["error, coverage: mean |predicted / measured - 1| and share inside the 80 % interval, on shapes held out", ""]
    rows = [{name: getattr(one, name) for name in _COLUMNS} for one in found]
    output.write_rows(rows, _COLUMNS, json_=json_, csv_=csv_, head=head)


def show(name: Name, json_: output.Json = False, csv_: output.Csv = False) -> None:
    """Show what a calibration rests on: rows, shapes, held-out error, which model was kept and why."""
    output.check_format(json_, csv_)
    found = stored.find(name)
    if json_:
        output.write_json([{**{c: getattr(one, c) for c in _COLUMNS}, "card": one.card} for one in found])
        return
    rows = [{"gpu": one.gpu, "part": one.part, "entry": key, "value": value} for one in found for key, value in _entries(one)]
    output.write_rows(rows, ("gpu", "part", "entry", "value"), json_=False, csv_=csv_)


def _entries(one: stored.Stored) -> list[tuple[str, Any]]:
    """What a card says, in words and numbers that fit a line."""
    told = [(name, getattr(one, name)) for name in _COLUMNS[2:]]
    for key, value in sorted(one.card.items()):
        if key in _LONG or key in _COLUMNS:
            continue
        if isinstance(value, Mapping):
            told += [(f"{key}.{inner}", v) for inner, v in value.items() if not isinstance(v, Mapping | list)]
        elif isinstance(value, list):
            told.append((key, ", ".join(map(str, value))[:200]))
        else:
            told.append((key, value))
    return told


def remove(name: Name, json_: output.Json = False, csv_: output.Csv = False) -> None:
    """Delete your own calibration of a GPU, or one part of it, and print what is gone; the shipped one answers again."""
    output.check_format(json_, csv_)
    output.write_rows([{"removed": path} for path in stored.remove(name)], ("removed",), json_=json_, csv_=csv_)
