"""`perfmodel calibrate`: correct the model of a GPU with measured rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel._resources import user_folder
from perfmodel.boundary import expanded
from perfmodel.calibrate import calibrate_table
from perfmodel.calibrate.steps import heard_by
from perfmodel.cli import calibrate_run, calibrate_stored, options, output
from perfmodel.cli.progress import Progress
from perfmodel.hw import gpu as find_gpu

app = options.verb("Calibrate this machine's GPU with one short run, or correct the model of a GPU with measured rows.")
app.callback(invoke_without_command=True, no_args_is_help=False)(calibrate_run.run)
app.command("report")(calibrate_run.report)
app.command("list")(calibrate_stored.list_)
app.command("show")(calibrate_stored.show)
app.command("remove")(calibrate_stored.remove)


@app.command()
def table(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV, parquet, JSON or JSON lines; latency_us in microseconds.")],
    gpu: options.Gpu,
    kind: Annotated[str, typer.Option("--kind", help="What the rows are: kernel:gemm.")] = "kernel:gemm",
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write (default: where --calibration auto looks).")] = None,
    skip_other_gpus: Annotated[
        bool, typer.Option("--skip-other-gpus", help="Where a gpu column names several: use the rows of --gpu alone.")
    ] = False,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Fit a table of measurements, check the fit on held-out shapes, and write it, where it beats what is shipped for the GPU."""
    import pandas as pd

    output.check_format(json_, csv_)
    spec = find_gpu(gpu)
    with Progress(f"fitting {kind}") as progress:
        frame = pd.concat([options.read_frame(path) for path in paths], ignore_index=True)
        with heard_by(progress.bar):
            fitted = calibrate_table(spec, {kind: frame}, skip_other_gpus=skip_other_gpus)
    written = fitted if out else fitted.own()  # into a folder of its own a calibration goes whole
    folder = written.save(expanded(out) if out else user_folder() / "calibration" / spec.name)
    rows = [
        {
            "model_id": model.model_id,
            "rows": fitted.kept.get(what, model.card).get("rows"),
            "shapes": fitted.kept.get(what, model.card).get("shapes"),
            "chosen": model.card.get("chosen"),
            "held_out_error": model.card.get("held_out_error"),
            "kept": fitted.kept[what]["model"] if what in fitted.kept else None,
            "today_error": fitted.kept[what]["today_error"] if what in fitted.kept else None,
            "corrected_error": fitted.kept[what]["corrected_error"] if what in fitted.kept else None,
            "folder": str(folder / what) if what in written.models else None,
        }
        for what, model in fitted.models.items()
    ]
    head = ["held_out_error: mean |log(measured / predicted)| on shapes the fit did not see"]
    head += [f"{what}: {entry['reason']}" for what, entry in fitted.kept.items()]
    output.write_rows(rows, json_=json_, csv_=csv_, head=[*head, ""])
