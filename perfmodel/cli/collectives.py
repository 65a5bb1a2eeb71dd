"""Collectives on the command line: `predict all_reduce ...`, `evaluate collectives`, and the sizes and modes that they share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from perfmodel.cli import options, output
from perfmodel.cli.progress import Progress
from perfmodel.errors import InputError, shown, unknown_name
from perfmodel.ops import Collective
from perfmodel.ops.collective import KINDS
from perfmodel.units import GIB, KIB, MIB

UNITS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "kb": 10**3, "mb": 10**6, "gb": 10**9, "k": KIB, "m": MIB, "g": GIB}
MODES = ("graph", "eager")
Bytes = Annotated[str, typer.Option("--bytes", metavar="SIZE", help="Whole message: 16MiB, 64KiB, 1GiB (1024s), 16MB (1000s), 4096.")]
NGpus = Annotated[str, typer.Option("--n-gpus", metavar="COUNT", help="GPUs in all.")]
Nodes = Annotated[str, typer.Option("--nodes", metavar="COUNT", help="Machines that they are spread over evenly.")]
Dtype = Annotated[str, typer.Option("--dtype", help="Element type: bf16, fp16, int8 ...")]
Topology = Annotated[str, typer.Option("--topology", help="Machine or path of hwdb/nodes; auto: the usual one of the GPU.")]
Stack = Annotated[str, typer.Option("--stack", help="nccl (as nccl-tests), torch, vllm, sglang, trtllm.")]
Mode = Annotated[
    str | None, typer.Option("--mode", help="graph: replayed from a CUDA graph; eager: launched call by call. Default: usual.")
]


def size_bytes(text: str) -> int | float:
    """Bytes of "16MiB", "64 KB", "4096"; what is no whole number stays one for the operator to refuse."""
    found = re.fullmatch(r"\s*([-+]?[0-9.]+(?:e[0-9]+)?)\s*([a-z]*)\s*", text, re.IGNORECASE)
    if not found or found[2].lower() not in UNITS:
        raise InputError(f"--bytes {shown(text)}: expected a number with B, KiB, MiB, GiB, KB, MB or GB: 16MiB")
    try:
        value = float(found[1]) * UNITS[found[2].lower()]
    except ValueError:
        raise InputError(f"--bytes {shown(text)}: {shown(found[1])} is not a number") from None
    return int(value) if value.is_integer() else value


def stack_name(stack: str, mode: str | None) -> str:
    """The stack with its mode, as the library reads it."""
    if mode is None:
        return stack
    if mode not in MODES:
        raise unknown_name("--mode", mode, MODES)
    return f"{stack.removesuffix('_eager').removesuffix('_graph')}_{mode}"


def add_predictions(app: typer.Typer, answer: Callable[..., None]) -> None:
    """One command a kind of collective."""
    for kind in KINDS:
        app.command(kind, help=f"{kind} of one message between GPUs: algorithm, protocol, and where the time goes.")(_command(kind, answer))


def _command(kind: str, answer: Callable[..., None]) -> Callable[..., None]:
    def command(
        gpu: options.Gpu,
        n_gpus: NGpus,
        message: Bytes,
        nodes: Nodes = "1",
        dtype: Dtype = "bf16",
        topology: Topology = "auto",
        stack: Stack = "nccl",
        mode: Mode = None,
        calibration: options.Calibration = "auto",
        json_: output.Json = False,
        csv_: output.Csv = False,
    ) -> None:
        output.check_format(json_, csv_)
        op = Collective(kind, size_bytes(message), options.count("n_gpus", n_gpus), dtype, options.count("nodes", nodes), topology)  # type: ignore[arg-type]
        answer(op, gpu, stack_name(stack, mode), calibration, json_=json_, csv_=csv_)

    return command


def add_evaluation(app: typer.Typer) -> None:
    """`evaluate collectives`."""
    app.command("collectives")(evaluate_collectives)


def evaluate_collectives(
    left_out: Annotated[
        str,
        typer.Option("--left-out", help="What the fit did not see: sizes (whole message sizes), counts (GPU counts), gpus, spec, none."),
    ] = "sizes",
    gpu: Annotated[str | None, typer.Option("--gpu", help="Only this GPU.")] = None,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Errors of collectives by GPU, stack, number of GPUs and regime, beside the bare link bandwidth (baseline)."""
    output.check_format(json_, csv_)
    from perfmodel.evaluate.collectives import evaluate_shipped

    with Progress("evaluating collectives"):
        found: list[dict[str, Any]] = evaluate_shipped(left_out, gpu).to_dict("records")  # type: ignore[assignment]
    head = [f"|predicted / measured - 1|, left out: {left_out}; coverage of the 80 % interval; baseline: bytes over the link's rate", ""]
    output.write_rows(found, json_=json_, csv_=csv_, head=head)
