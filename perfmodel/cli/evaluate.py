"""`perfmodel evaluate`: how good rankings are on measured sweeps, beside baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from perfmodel.calibrate.crossfit import crossfit
from perfmodel.cli import collectives, evaluate_kernels, options, output
from perfmodel.cli.progress import Progress
from perfmodel.hw import GpuSpec
from perfmodel.hw import gpu as find_gpu
from perfmodel.kernels.facts import facts_for
from perfmodel.learn.calibration import resolve
from perfmodel.learn.evaluate import Predictor, Sweep, evaluate_ranking, read_sweeps
from perfmodel.learn.model import FittedModel
from perfmodel.predict import predict_configs

app = options.verb("Score rankings against measured sweeps, beside baselines.")
collectives.add_evaluation(app)
evaluate_kernels.add_to(app)


@app.command()
def ranking(
    gpu: options.Gpu,
    data: Annotated[list[Path], typer.Option("--data", help="Measured rows: CSV, parquet, JSON or JSON lines; may be given again.")],
    kernel: Annotated[str, typer.Option("--kernel", help="Kernel family of the rows.")] = "gemm",
    dtype: Annotated[str | None, typer.Option("--dtype", help="Only rows of this element type.")] = None,
    calibration: options.Calibration = "auto",
    fit_rows: Annotated[
        int | None, typer.Option("--fit-rows", min=24, help="Also fit on this many rows of up to 30 shapes, judge on the others.")
    ] = None,
    external: Annotated[bool, typer.Option("--external", help="Also NVIDIA's own heuristics, where that package is installed.")] = False,
    per_shape: Annotated[bool, typer.Option("--per-shape", help="One row a shape and method, instead of the summary.")] = False,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Regret@k: the best of the first k ranked over the best of all, geometric mean over whole shapes; latency error and coverage."""
    import pandas as pd

    output.check_format(json_, csv_)
    spec = find_gpu(gpu)
    with Progress("evaluating"):
        sweeps = read_sweeps(kernel, pd.concat([options.read_frame(path) for path in data], ignore_index=True), dtype)
        models = {m.tier: m for m in (resolve(spec, f"kernel_{kernel}", c) for c in (None, options.calibration(calibration)))}
        methods = {f"perfmodel, {tier} tier": predictor(kernel, spec, model) for tier, model in models.items()}
        if fit_rows is not None:
            methods[f"perfmodel, fitted on {fit_rows} rows of other shapes"] = crossfit(kernel, spec, sweeps, rows=fit_rows)
        summary, shapes = evaluate_ranking(sweeps, spec, methods, external=external)
    rows: list[dict[str, Any]] = (shapes if per_shape else summary).to_dict("records")  # type: ignore[assignment]
    if json_:
        output.write_json(rows)
    elif csv_:
        output.write_csv(rows)
    else:
        head = [f"{len(sweeps)} shapes of {kernel} on {spec.name}; {', '.join(f'{t}: {m.model_id}' for t, m in models.items())}"]
        if "calibrated" in models:
            head.append("the calibrated model may have been fitted on some of these shapes: its card says which rows it rests on")
        output.write_table(rows, head=[*head, ""])


def predictor(kernel: str, gpu: GpuSpec, model: FittedModel) -> Predictor:
    """What evaluate_ranking calls: latency, low and high of a sweep's configs by one model."""

    def predict(sweep: Sweep) -> tuple[Any, Any, Any]:
        facts = facts_for(kernel, gpu, sweep.dtype, sweep.configs, sweep.sizes)
        found = predict_configs(kernel, gpu, sweep.sizes, sweep.dtype, sweep.configs, facts, model)
        return found.latency_us, found.low_us, found.high_us

    return predict
