"""`perfmodel evaluate`: how good rankings, operator latencies and collectives are on measured rows, beside baselines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from perfmodel.cli import collectives, evaluate_kernels, evaluate_physics, evaluate_speed, options, output, serving
from perfmodel.cli.progress import Progress
from perfmodel.evaluate.baselines import check_external
from perfmodel.evaluate.cross_validate import cross_validate, predictor
from perfmodel.evaluate.ranking import STEADY, evaluate_ranking, over_library, read_sweeps
from perfmodel.hw import gpu as find_gpu
from perfmodel.learn.calibration import resolve

app = options.verb("Score rankings, operator latencies and collectives against measured rows, beside baselines.")
collectives.add_evaluation(app)
serving.add_evaluation(app)
evaluate_kernels.add_to(app)
evaluate_physics.add_to(app)
evaluate_speed.add_to(app)
MAIN_OPERATORS = ("gemm", "attention_prefill", "attention_decode", "moe")


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
    steady: options.Steady = STEADY,
    per_shape: Annotated[bool, typer.Option("--per-shape", help="One row a shape and method, instead of the summary.")] = False,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Regret@k: the best of the first k ranked over the best of all, geometric mean over whole shapes; latency error and coverage."""
    import numpy as np
    import pandas as pd

    output.check_format(json_, csv_)
    spec = find_gpu(gpu)
    if external:
        check_external(spec)
    with Progress("evaluating"):
        frame = pd.concat([options.read_frame(path) for path in data], ignore_index=True)
        sweeps = read_sweeps(kernel, frame, dtype, steady)
        models = {m.tier: m for m in (resolve(spec, f"kernel_{kernel}", c) for c in (None, options.calibration(calibration)))}
        methods = {f"perfmodel, {tier} tier": predictor(kernel, spec, model) for tier, model in models.items()}
        if fit_rows is not None:
            methods[f"perfmodel, fitted on {fit_rows} rows of other shapes"] = cross_validate(kernel, spec, sweeps, rows=fit_rows)
        summary, shapes = evaluate_ranking(sweeps, spec, methods, external=external)
    rows: list[dict[str, Any]] = (shapes if per_shape else summary).to_dict("records")  # type: ignore[assignment]
    head = [f"{len(sweeps)} shapes of {kernel} on {spec.name}; {', '.join(f'{t}: {m.model_id}' for t, m in models.items())}"]
    left_out = len(read_sweeps(kernel, frame, dtype, math.inf)) - len(sweeps)
    if left_out:
        head.append(f"{left_out} shapes more are not judged: half of their rows or more deviate by over {steady:g} of the latency")
    own = frame[frame["dtype"] == dtype] if dtype is not None and "dtype" in frame.columns else frame
    for library, ratio in over_library(kernel, own).items():
        head.append(
            f"best config measured over {library}: geometric mean {np.exp(np.log(ratio).mean()):.3f} over {len(ratio)} shapes, "
            f"median {np.median(ratio):.3f}, p90 {np.quantile(ratio, 0.9):.3f}, worst {ratio.max():.3f}"
        )
    if "calibrated" in models:
        head.append("the calibrated model may have been fitted on some of these shapes: its card says which rows it rests on")
    output.write_rows(rows, json_=json_, csv_=csv_, head=[*head, ""])


INTERPOLATION = (
    "interpolated between all rows of the stack's other shapes (linear in logs), outside of them the nearest row; inside: error there, "
    "outside: share of the rest; neighbours: error by the two rows next to a row with its own shape; other_stack: how far the stack that "
    "agrees best is from it on the same operator",
)


@app.command()
def operators(
    operator: Annotated[
        list[str] | None, typer.Option("--operator", help="gemm, attention_prefill, attention_decode, moe ...; may be given again.")
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="Only this GPU.")] = None,
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            help="left-out: the GPU was never seen; shapes: its own rows, other shapes; table: given N rows of it; "
            "stack-table: given N rows of each stack alone; interpolated: no model, but all rows of the stack's other shapes.",
        ),
    ] = "left-out",
    rows: Annotated[str, typer.Option("--rows", metavar="COUNT", help="Rows given in modes table and stack-table.")] = "200",
    by: Annotated[str, typer.Option("--by", help="Comma-separated: operator, gpu, stack, dtype, regime.")] = "operator,gpu",
    sample: Annotated[str, typer.Option("--sample", metavar="COUNT", help="At most this many rows of a GPU are scored.")] = "8000",
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Errors of library operators on GPUs or shapes that the model did not see, coverage of the 80 % interval, and two baselines."""
    import pandas as pd

    from perfmodel.calibrate.table import MIN_ROWS
    from perfmodel.errors import InputError, unknown_name
    from perfmodel.evaluate import operators as scoring
    from perfmodel.library.registry import MODELS

    output.check_format(json_, csv_)
    chosen = operator or list(MAIN_OPERATORS)
    for name in chosen:
        if name not in MODELS:
            raise unknown_name("operator", name, MODELS)
    if (given := options.count("rows", rows)) < MIN_ROWS:
        raise InputError(f"rows must be {MIN_ROWS} or more for a correction, got {given}")
    only, at_most = None if gpu is None else find_gpu(gpu).name, options.count("sample", sample)
    with Progress("evaluating operators") as progress:
        pieces = [scoring.evaluate(name, mode, given, at_most, only, progress) for name in chosen]
        table = scoring.summary(pd.concat(pieces, ignore_index=True), [name.strip() for name in by.split(",")])
    found: list[dict[str, Any]] = table.to_dict("records")  # type: ignore[assignment]
    if json_:
        output.write_json(found)
    elif csv_:
        output.write_csv(found)
    else:
        head = [
            f"|predicted / measured - 1| in %, mode {mode}; covered: share within the 80 % interval; roofline: max(flops / peak, bytes / "
            "bandwidth); two_constants: max(flops / peak, bytes / 0.8 bandwidth) + 3 us",
            *(INTERPOLATION if mode == scoring.INTERPOLATED else ()),
            "",
        ]
        output.write_table(found, head=head)


@app.command()
def stacks(
    operator: Annotated[list[str] | None, typer.Option("--operator", help="gemm, attention_prefill ...; may be given again.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="Only this GPU.")] = None,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """How far two stacks are apart on the same operators of one GPU: what no answer can know without the stack."""
    import pandas as pd

    from perfmodel.errors import NoAnswerError, unknown_name
    from perfmodel.evaluate.stacks import apart
    from perfmodel.library.registry import MODELS

    output.check_format(json_, csv_)
    for name in (chosen := operator or list(MAIN_OPERATORS)):
        if name not in MODELS:
            raise unknown_name("operator", name, MODELS)
    only = None if gpu is None else find_gpu(gpu).name
    table = pd.concat([apart(name, only) for name in chosen], ignore_index=True)
    if table.empty:
        raise NoAnswerError(f"no two stacks were measured on the same {', '.join(chosen)} operators{f' of {only}' if only else ''}")
    output.write_rows(table.to_dict("records"), json_=json_, csv_=csv_, head=["apart_percent: mean deviation from the median ratio", ""])  # type: ignore[arg-type]
