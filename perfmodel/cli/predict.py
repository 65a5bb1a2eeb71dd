"""`perfmodel predict`: how long one operator takes on a GPU, as a library runs it or with one Triton config."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated, Any

import typer

from perfmodel.boundary import parse_json
from perfmodel.cli import collectives, options, output
from perfmodel.cli.operators import add_operator, combinations
from perfmodel.errors import InputError, NoAnswerError, shown
from perfmodel.ops.operator import Operator
from perfmodel.predict import predict as predict_op
from perfmodel.predict.prediction import Prediction

Show = Callable[..., None]  # prints a Prediction: show(found, title, json_=, csv_=)
Config = Annotated[
    str | None, typer.Option("--config", help='One Triton config: "block_m=128,block_n=256,block_k=64,num_warps=8" or a JSON object.')
]
Stack = Annotated[str | None, typer.Option("--stack", help="Library that runs it: torch, vllm, sglang, trtllm, nccl ...")]


OPERATORS = {
    "attention": ("Attention", "Attention of one layer: softmax(Q K^T) V over a KV cache."),
    "mla": ("MLA", "Latent attention as DeepSeek has it: prefill with expanded heads, decode over the compressed cache."),
    "moe": ("MoE", "The expert layers of a mixture of experts: routing, two grouped GEMMs, combining."),
    "collective": ("Collective", "One collective between GPUs, every field by its name; predict all_reduce ... reads 16MiB too."),
    "memory": ("MemoryBound", "An operator that only moves memory: rmsnorm, rope, silu_mul, add ..."),
}


def commands(app: typer.Typer, present: Show) -> None:
    """One command an operator; each answers a question and presents the prediction."""
    app.command("gemm")(_gemm(present))
    for verb, (name, what) in OPERATORS.items():
        add_operator(app, verb, name, what, _library(present), several=True)
    collectives.add_predictions(app, functools.partial(answer, present=present))


def _gemm(present: Show) -> Callable[..., None]:
    def gemm(
        gpu: options.Gpu,
        m: options.M,
        n: options.N,
        k: options.K,
        dtype: options.Dtype = "bf16",
        config: Config = None,
        stack: Stack = None,
        calibration: options.Calibration = "auto",
        json_: output.Json = False,
        csv_: output.Csv = False,
    ) -> None:
        """C[m,n] = A[m,k] B[k,n], by the library or, with --config, by one config of a Triton kernel."""
        asked = combinations({"m": m, "n": n, "k": k, "dtype": dtype})
        _library(present)([options.gemm(**each) for each in asked], gpu, config, stack, calibration, json_, csv_)

    return gemm


def _library(present: Show) -> Callable[..., None]:
    def ask(
        ops: list[Operator],
        gpu: options.Gpu,
        config: Config = None,
        stack: Stack = None,
        calibration: options.Calibration = "auto",
        json_: output.Json = False,
        csv_: output.Csv = False,
    ) -> None:
        output.check_format(json_, csv_)
        one = None if config is None else one_config(config)
        gpus = [each["gpu"] for each in combinations({"gpu": gpu})]
        if len(ops) * len(gpus) == 1:
            answer(ops[0], gpu, stack, calibration, json_=json_, csv_=csv_, present=present, config=one)
        elif present is not show:
            raise InputError("explain answers one question at a time: give one GPU and one value of each option")
        else:
            found = [
                (op, each, predict_op(op, each, stack=stack, config=one, calibration=options.calibration(calibration)))
                for each in gpus
                for op in ops
            ]
            show_all(found, json_=json_, csv_=csv_)

    return ask


def answer(
    op: Operator, gpu: str, stack: str | None, calibration: str, *, json_: bool, csv_: bool, present: Show, config: Any = None
) -> None:
    """Predict and print."""
    try:
        found = predict_op(op, gpu, stack=stack, config=config, calibration=options.calibration(calibration))
    except ImportError as error:
        if config is not None or not str(error.name or "").startswith("perfmodel.library"):
            raise
        raise NoAnswerError(
            f"this version has no library model of {op.kind}: perfmodel predict gemm --config predicts one Triton config"
        ) from None
    present(found, f"{op.kind} on {gpu}", json_=json_, csv_=csv_)


def one_config(text: str) -> dict[str, Any]:
    """A config from `name=value,...` or a JSON object."""
    if text.lstrip().startswith("{"):
        return dict(parse_json(text, "--config"))  # starts with a brace: an object, or refused
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if not pairs or not all(name.strip() and value.strip() for name, _, value in pairs):
        raise InputError(f'--config {shown(text)}: expected "block_m=128,block_n=256,block_k=64,num_warps=8" or a JSON object')
    found = {name.strip(): value.strip() for name, _, value in pairs}
    if len(found) < len(pairs):
        raise InputError(f"--config {shown(text)} gives a field twice")
    return found


def show(found: Prediction, title: str, *, json_: bool, csv_: bool) -> None:
    """Print a prediction: the time, what binds it, what each resource alone would take."""
    names = ("latency_us", "low_us", "high_us", "bound", "tier", "in_domain", "model_id")
    row = {name: getattr(found, name) for name in names}
    if json_:
        output.write_json(row | {"outside": list(found.outside), "terms_us": found.terms, "detail": found.detail})
    elif csv_:
        row["outside"] = "; ".join(found.outside)
        output.write_csv([row | {f"alone_{name.replace(' ', '_')}_us": us for name, us in found.terms.items()} | dict(found.detail)])
    else:
        interval = f"{output.shown(found.low_us)} .. {output.shown(found.high_us)}"
        head = [f"{title}: {output.shown(found.latency_us)} us, 80 % within {interval}, bound by {found.bound}"]
        head.append(f"{found.tier} tier, model {found.model_id}" + ("" if found.in_domain else "; extrapolates"))
        head += [f"outside: {'; '.join(found.outside)}"] if found.outside else []
        head += [output.shown(found.detail)] if found.detail else []
        terms = sorted(found.terms.items(), key=lambda item: -item[1])
        output.write_table([{"alone": name, "us": us} for name, us in terms], head=[*head, ""])


def show_all(found: list[tuple[Operator, str, Prediction]], *, json_: bool, csv_: bool) -> None:
    """Print the answers to lists: a row each, with the GPU and the fields that differ."""
    fields = [f.name for f in dataclasses.fields(found[0][0]) if len({getattr(op, f.name) for op, *_ in found}) > 1]  # type: ignore[arg-type]
    rows = []
    for op, gpu, one in found:
        asked = {"gpu": gpu, **{name: getattr(op, name) for name in fields}}
        answer_ = {name: getattr(one, name) for name in ("latency_us", "low_us", "high_us", "bound", "tier", "in_domain")}
        rows.append({**asked, **answer_, "outside": "; ".join(one.outside)})
    output.write_rows(rows, json_=json_, csv_=csv_)


app = options.verb("Predict one operator, or one Triton config, on a GPU.")
commands(app, show)
