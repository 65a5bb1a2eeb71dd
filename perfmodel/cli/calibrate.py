"""`perfmodel calibrate`: correct the model of a GPU with measured rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel._resources import user_folder
from perfmodel.calibrate import calibrate_table
from perfmodel.calibrate.steps import heard_by
from perfmodel.cli import calibrate_run, options, output
from perfmodel.cli.progress import Progress
from perfmodel.hw import gpu as find_gpu

app = options.verb("Calibrate this machine's GPU with one short run, or correct the model of a GPU with measured rows.")
app.callback(invoke_without_command=True, no_args_is_help=False)(calibrate_run.run)
app.command("report")(calibrate_run.report)


@app.command()
def table(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV, parquet, JSON or JSON lines; latency_us in microseconds.")],
    gpu: options.Gpu,
    kind: Annotated[str, typer.Option("--kind", help="What the rows are: kernel:gemm.")] = "kernel:gemm",
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write (default: where --calibration auto looks).")] = None,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Fit a table of measurements, check the fit on held-out shapes, and write it."""
    import pandas as pd

    output.check_format(json_, csv_)
    spec = find_gpu(gpu)
    with Progress(f"fitting {kind}") as progress:
        frame = pd.concat([options.read_frame(path) for path in paths], ignore_index=True)
        with heard_by(progress.bar):
            fitted = calibrate_table(spec, {kind: frame})
    folder = fitted.save(out.expanduser() if out else user_folder() / "calibration" / spec.name)
    rows = [
        {
            "model_id": model.model_id,
            "rows": model.card.get("rows"),
            "shapes": model.card.get("shapes"),
            "chosen": model.card.get("chosen"),
            "held_out_error": model.card.get("held_out_error"),
            "folder": str(folder / what),
        }
        for what, model in fitted.models.items()
    ]
    head = ["held_out_error: mean |log(measured / predicted)| on shapes the fit did not see", ""]
    output.write_rows(rows, json_=json_, csv_=csv_, head=head)
