"""`perfmodel tune`: time the best-ranked configs on this machine's GPU; asked again, the store answers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perfmodel.cli import options, output
from perfmodel.cli.operators import add_operator
from perfmodel.cli.progress import Progress
from perfmodel.kernels import family_for
from perfmodel.ops.operator import Operator
from perfmodel.tune.profile import TuneResult
from perfmodel.tune.profile import tune as tune_op

app = options.verb("Time only the best-ranked configs on this machine's GPU and remember the answer.")

Gpu = Annotated[str | None, typer.Option("--gpu", help="Must name this machine's GPU; detected when left out.")]
Force = Annotated[bool, typer.Option("--force", help="Time again what the store already holds; nothing stored is lost.")]


@app.command()
def gemm(
    m: options.M,
    n: options.N,
    k: options.K,
    dtype: options.Dtype = "bf16",
    top_k: options.TopK = "8",
    gpu: Gpu = None,
    configs: options.ConfigFile = None,
    calibration: options.Calibration = "auto",
    store: options.StoreFile = None,
    force: Force = False,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """C[m,n] = A[m,k] B[k,n] with the project's own kernel."""
    _tune(options.gemm(m, n, k, dtype), top_k, gpu, configs, calibration, store, force, json_, csv_)


def _tune(
    op: Operator,
    best: options.Best = "8",
    gpu: Gpu = None,
    configs: options.ConfigFile = None,
    calibration: options.Calibration = "auto",
    store: options.StoreFile = None,
    force: Force = False,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    output.check_format(json_, csv_)
    with Progress("ranking") as progress:
        result = tune_op(
            op,
            top_k=options.count("top_k", best),
            gpu=gpu,
            calibration=options.calibration(calibration),
            store=store,
            force=force,
            configs=options.configs(configs),
            progress=progress,
        )
    show(result, options.title(op, family_for(op)), json_=json_, csv_=csv_)


for _word, (_name, _what) in options.KERNEL_OPERATORS.items():
    add_operator(app, _word, _name, _what, _tune)


def show(result: TuneResult, title: str, *, json_: bool, csv_: bool) -> None:
    """Print a result, the candidates it was chosen from, and the library's time."""
    rows = [candidate(c) for c in result.candidates]
    if json_:
        fields = ("gpu", "config", "latency_us", "spread", "predicted_us", "baseline_us", "source", "notes")
        output.write_json({name: getattr(result, name) for name in fields} | {"candidates": rows})
    elif csv_:
        output.write_csv(rows)
    else:
        source = "timed now" if result.source == "measured" else "from the store, nothing was timed"
        head = [f"{title} on {result.gpu}: {output.shown(result.latency_us)} us ({source})", f"best: {output.shown(result.config)}"]
        head += [f"{name}: {output.shown(us)} us, ours / library {result.latency_us / us:.3f}" for name, us in result.baseline_us.items()]
        output.write_table(rows, head=[*head, *(f"note: {line}" for line in result.notes), ""])


def candidate(c: Any) -> dict[str, Any]:
    """One flat row of a candidate."""
    return {**c.config, **{name: getattr(c, name) for name in ("predicted_us", "latency_us", "spread", "unstable", "status", "reason")}}
