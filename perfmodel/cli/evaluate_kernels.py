"""`perfmodel evaluate anykernel` and `published-moe`: kernels that nobody modelled, and configs that others found best."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from perfmodel.cli import options, output
from perfmodel.cli.progress import Progress
from perfmodel.evaluate.ranking import STEADY
from perfmodel.hw import gpu as find_gpu


def add_to(app: typer.Typer) -> None:
    """Give `evaluate` the commands."""
    app.command("anykernel")(anykernel)
    app.command("published-moe")(published_moe)


def anykernel(
    gpu: options.Gpu,
    data: Annotated[Path, typer.Option("--data", help="The sweep's rows: CSV, parquet, JSON or JSON lines.")],
    sweep: Annotated[str, typer.Option("--sweep", help="gemm_bf16, gemm_fp8, attention_prefill or attention_decode.")],
    dtype: Annotated[str | None, typer.Option("--dtype", help="Only rows of this element type.")] = None,
    only_shipped: Annotated[bool, typer.Option("--only-shipped", help="Only configs whose compilation is shipped.")] = False,
    steady: options.Steady = STEADY,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Compiler processes (default: one a core).")] = None,
    per_shape: Annotated[bool, typer.Option("--per-shape", help="One row a shape instead of the summary.")] = False,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Regret@k of a plain kernel's sweep, ranked with the compiler's facts and the datasheet: no measured row is used."""
    output.check_format(json_, csv_)
    from perfmodel.evaluate.any_kernel import evaluate_kernels

    spec = find_gpu(gpu)
    frame = options.read_frame(data)
    if dtype is not None and "dtype" in frame.columns:
        frame = frame[frame["dtype"] == dtype]
    with Progress("evaluating") as progress:
        summary, shapes = evaluate_kernels(sweep, frame, spec, only_shipped=only_shipped, steady=steady, workers=workers, progress=progress)
    rows: list[dict[str, Any]] = [{str(k): v for k, v in row.items()} for row in (shapes if per_shape else summary).to_dict("records")]
    output.write_rows(rows, json_=json_, csv_=csv_, head=[f"{sweep} on {spec.name}, from machine code alone", ""])


def published_moe(
    every: Annotated[int, typer.Option("--every", min=1, metavar="N", help="Only every n-th problem and config.")] = 1,
    per_problem: Annotated[bool, typer.Option("--per-problem", help="One row a near-best problem instead of the summary.")] = False,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Where fused-MoE configs that others found best stand in the ranking of a GPU that was never measured."""
    output.check_format(json_, csv_)
    from perfmodel.evaluate import published_moe as published
    from perfmodel.tune.rank import COLD

    with Progress("evaluating") as progress:
        asked = {what: published.near_best(every=every, progress=progress, replayed=what) for what in (published.REPLAYED, COLD)}
        if per_problem:
            every_row = [frame.assign(replayed=what).to_dict("records") for what, frame in asked.items()]
            rows = [{str(k): v for k, v in row.items()} for part in every_row for row in part]
        else:
            rows = published.summary(asked, published.tuned(every=every, progress=progress))
    head = [
        "near-best: share of problems on which a published config within 1 % of the best, or in its first three, is among ours",
        "replayed projection: as in those runs (one projection over and over, no flush: weights that fit in L2 stay there);",
        "replayed nothing: the same problems asked as a model is served, with cold weights",
        "tuned: place of the shipped config over the length of our ranking, and the time we give it over our first's",
        "",
    ]
    output.write_rows(rows, json_=json_, csv_=csv_, head=head)
