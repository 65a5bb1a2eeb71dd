"""`perfmodel evaluate physics`: real questions in thousands, and how many answers no card could give."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.cli import options, output
from perfmodel.cli.progress import Progress


def add_to(app: typer.Typer) -> None:
    """Give `evaluate` the command."""
    app.command("physics")(physics)


def physics(
    questions: Annotated[str, typer.Option("--questions", metavar="COUNT", help="Questions to ask, about.")] = "20000",
    seed: Annotated[int, typer.Option("--seed", help="Which questions.")] = 0,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Answers faster than flops, DRAM or links allow, intervals that miss their own point, numbers that are not finite: none is right.

    The shapes are those of measured rows, the GPUs all of the database, at both tiers, in tables, one by one and as rankings.
    """
    output.check_format(json_, csv_)
    from perfmodel.errors import NoAnswerError
    from perfmodel.evaluate.physics import check

    with Progress("asking") as progress:
        rows = check(options.count("questions", questions), seed, progress)
    output.write_rows(rows, json_=json_, csv_=csv_)
    wrong = sum(rows[-1][name] for name in ("beyond_bound", "outside_own_interval", "not_finite"))
    if wrong:
        raise NoAnswerError(f"{wrong} of {rows[-1]['questions']} answers cannot be: see the table")
