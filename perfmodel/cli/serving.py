"""`evaluate serving`: estimates against published runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perfmodel.cli import options, output
from perfmodel.cli.progress import Progress
from perfmodel.errors import InputError


def add_evaluation(app: typer.Typer) -> None:
    """`evaluate serving`."""
    app.command("serving")(evaluate_serving)


def evaluate_serving(
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", help="Only served, max_throughput, online, static or first_token runs; may be given again."),
    ] = None,
    per_run: Annotated[bool, typer.Option("--per-run", help="One row a published run, instead of the summary.")] = False,
    nominal: Annotated[
        bool, typer.Option("--nominal", help="Forget what is known of batch limits and of drawn lengths: only what the run's row says.")
    ] = False,
    calibration: options.Calibration = "auto",
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Error of TTFT, TPOT and throughput on published runs (H100, A100), beside a roofline and a peer's published figures."""
    output.check_format(json_, csv_)
    from perfmodel.evaluate.serving import KINDS, PEER, rows, score, summary

    chosen = tuple(kind or KINDS)
    if unknown := [name for name in chosen if name not in KINDS]:
        raise InputError(f"--kind {unknown[0]!r}: choose from {', '.join(KINDS)}")
    table = rows()
    table = table[table["kind"].isin(chosen)]
    with Progress("evaluating") as progress:
        scored = score(table, progress, known=not nominal, calibration=options.calibration(calibration))
    found: list[dict[str, Any]] = scored.to_dict("records") if per_run else summary(scored)  # type: ignore[assignment]
    if json_:
        output.write_json(found)
    elif csv_:
        output.write_csv(found)
    else:
        output.write_table(found, head=[f"{len(scored)} published runs; errors are |predicted / measured - 1|", PEER, ""])
