"""`perfmodel evaluate anykernel`: how well kernels that nobody modelled are ranked from their machine code alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from perfmodel.cli import options, output
from perfmodel.cli.progress import Progress
from perfmodel.hw import gpu as find_gpu


def add_to(app: typer.Typer) -> None:
    """Give `evaluate` the command."""
    app.command("anykernel")(anykernel)


def anykernel(
    gpu: options.Gpu,
    data: Annotated[Path, typer.Option("--data", help="The sweep's rows: CSV, parquet, JSON or JSON lines.")],
    sweep: Annotated[str, typer.Option("--sweep", help="gemm_bf16, gemm_fp8, attention_prefill or attention_decode.")],
    dtype: Annotated[str | None, typer.Option("--dtype", help="Only rows of this element type.")] = None,
    only_shipped: Annotated[bool, typer.Option("--only-shipped", help="Only configs whose compilation is shipped.")] = False,
    steady: Annotated[float | None, typer.Option("--steady", help="Only rows whose deviation is within this share of the latency.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Compiler processes (default: one a core).")] = None,
    per_shape: Annotated[bool, typer.Option("--per-shape", help="One row a shape instead of the summary.")] = False,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Regret@k of a plain kernel's sweep, ranked with the compiler's facts and the datasheet: no measured row is used."""
    output.check_format(json_, csv_)
    from perfmodel.tune.kernel_evaluate import evaluate_kernels

    spec = find_gpu(gpu)
    frame = options.read_frame(data)
    if dtype is not None and "dtype" in frame.columns:
        frame = frame[frame["dtype"] == dtype]
    with Progress("evaluating") as progress:
        summary, shapes = evaluate_kernels(sweep, frame, spec, only_shipped=only_shipped, steady=steady, workers=workers, progress=progress)
    rows: list[dict[str, Any]] = [{str(k): v for k, v in row.items()} for row in (shapes if per_shape else summary).to_dict("records")]
    if json_:
        output.write_json(rows)
    elif csv_:
        output.write_csv(rows)
    else:
        output.write_table(rows, head=[f"{sweep} on {spec.name}, from machine code alone", ""])
