"""`perfmodel export`: files of tuned configs that vLLM, SGLang and Inductor load, for a GPU that one need not have."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from perfmodel._atomic import write_atomically
from perfmodel.boundary import expanded
from perfmodel.cli import options, output
from perfmodel.cli.progress import Progress
from perfmodel.errors import InputError
from perfmodel.tune.exports import Experts, fp8_gemm_file, inductor_table, moe_file, parse_pair, read_experts
from perfmodel.tune.tuned_files import TOKENS, TunedFile, read

app = options.verb("Write tuned configs as vLLM, SGLang and Inductor load them.")

Out = Annotated[Path, typer.Option("--out", help="Folder to write to; vLLM reads the one in VLLM_TUNED_CONFIG_FOLDER.")]
Tokens = Annotated[
    str | None, typer.Option("--tokens", metavar="1,2,4", help="Token counts (default: those of the files that vLLM ships).")
]
Block = Annotated[str | None, typer.Option("--block-shape", metavar="128,128", help="Blocks of weights that share a scale.")]


@app.command("vllm-moe")
def vllm_moe(
    gpu: options.Gpu,
    model: Annotated[Path | None, typer.Option("--model", help="The model's config.json, or its folder.")] = None,
    tp: Annotated[str, typer.Option("--tp", help="Tensor parallelism.")] = "1",
    ep: Annotated[str, typer.Option("--ep", help="Expert parallelism.")] = "1",
    hidden: Annotated[str | None, typer.Option("--hidden", help="Without --model: hidden size.")] = None,
    inter: Annotated[str | None, typer.Option("--inter", help="Without --model: intermediate size of one expert.")] = None,
    num_experts: Annotated[str | None, typer.Option("--num-experts", help="Without --model: experts of the layer.")] = None,
    experts_per_token: Annotated[str | None, typer.Option("--experts-per-token", help="Without --model: experts a token goes to.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="fp8_w8a8, int8_w8a8, or none for 16 bit; else the model's.")] = None,
    block_shape: Block = None,
    tokens: Tokens = None,
    style: Annotated[str, typer.Option("--style", help="vllm or sglang.")] = "vllm",
    triton_version: Annotated[str, typer.Option("--triton-version", help="SGLang's folder, or noted in vLLM's file.")] = "",
    calibration: options.Calibration = "auto",
    out: Out = Path(),
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """The fused-MoE file of a model on a GPU: E=..,N=..,device_name=...json."""
    output.check_format(json_, csv_)
    layer = _experts(model, {"hidden": hidden, "inter": inter, "num_experts": num_experts, "experts_per_token": experts_per_token})
    if dtype is not None:
        word = "" if dtype.lower() in ("none", "bf16", "fp16", "auto", "") else dtype
        layer = Experts(layer.hidden, layer.inter, layer.num_experts, layer.top_k, word, layer.block_shape if word else None)
    if block_shape is not None:
        pair = parse_pair(block_shape, "block_shape")
        layer = Experts(layer.hidden, layer.inter, layer.num_experts, layer.top_k, layer.dtype, pair)
    with Progress("ranking") as progress:
        file = moe_file(
            layer,
            gpu,
            tp=options.count("tp", tp),
            ep=options.count("ep", ep),
            tokens=_counts(tokens),
            style=style,
            triton=triton_version,
            calibration=options.calibration(calibration),
            progress=progress,
        )
    _finish(file, out, json_=json_, csv_=csv_)


@app.command("fp8-gemm")
def fp8_gemm(
    gpu: options.Gpu,
    n: options.N,
    k: options.K,
    block_shape: Block = "128,128",
    tokens: Tokens = None,
    style: Annotated[str, typer.Option("--style", help="vllm or sglang.")] = "vllm",
    calibration: options.Calibration = "auto",
    out: Out = Path(),
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """The block-scaled fp8 GEMM file of a weight (n, k) on a GPU: N=..,K=..,device_name=..,dtype=fp8_w8a8,block_shape=[..].json."""
    output.check_format(json_, csv_)
    with Progress("ranking") as progress:
        file = fp8_gemm_file(
            options.count("n", n),
            options.count("k", k),
            gpu,
            block_shape=parse_pair(block_shape or "128,128", "block_shape"),
            tokens=_counts(tokens),
            style=style,
            calibration=options.calibration(calibration),
            progress=progress,
        )
    _finish(file, out, json_=json_, csv_=csv_)


@app.command("inductor")
def inductor(
    gpu: options.Gpu,
    m: options.M,
    n: options.N,
    k: options.K,
    dtype: options.Dtype = "bf16",
    top_k: options.TopK = "1",
    plain: Annotated[bool, typer.Option("--row-major", help="The second operand is (k, n) row by row, not a weight (n, k).")] = False,
    any_device: Annotated[bool, typer.Option("--any-device", help="A key without the GPU's name.")] = False,
    calibration: options.Calibration = "auto",
    out: Annotated[Path | None, typer.Option("--out", help="File to write; stdout when left out.")] = None,
) -> None:
    """Entries of Inductor's lookup table for C[m,n] = A[m,k] B[k,n] (torch.mm)."""
    table = inductor_table(
        [options.gemm(m, n, k, dtype)],
        gpu,
        top_k=options.count("top_k", top_k),
        transposed=not plain,
        device_key=not any_device,
        calibration=options.calibration(calibration),
    )
    if out is None:
        output.write_json(table)
        return
    try:
        write_atomically(expanded(out), json.dumps(table, indent=2) + "\n")
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror or error})") from None
    print(f"perfmodel: {out} written", file=sys.stderr)


@app.command("show")
def show(
    path: Annotated[Path, typer.Argument(help="A file of tuned configs of vLLM or SGLang.")],
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Read such a file as rows under perfmodel's names, which `rank --configs` takes."""
    output.check_format(json_, csv_)
    _rows(read(path).rows(), [], json_=json_, csv_=csv_)


def _experts(model: Path | None, sizes: dict[str, str | None]) -> Experts:
    given = {name: value for name, value in sizes.items() if value is not None}
    if model is not None:
        if given:
            raise InputError(f"--model has the sizes: leave {', '.join('--' + n.replace('_', '-') for n in given)} out")
        return read_experts(model)
    missing = ["--" + name.replace("_", "-") for name, value in sizes.items() if value is None]
    if missing:
        raise InputError(f"give --model config.json, or {', '.join(missing)}")
    hidden, inter, num_experts, top_k = (options.count(name, str(value)) for name, value in sizes.items())
    return Experts(hidden, inter, num_experts, top_k)


def _counts(text: str | None) -> tuple[int, ...]:
    return TOKENS if text is None else tuple(options.count("--tokens", part.strip()) for part in text.split(","))


def _finish(file: TunedFile, out: Path, *, json_: bool, csv_: bool) -> None:
    path = file.write(out)
    print(f"perfmodel: {path} written", file=sys.stderr)
    _rows(file.rows(), [str(path), "first ranked config at each token count; none of them was timed", ""], json_=json_, csv_=csv_)


def _rows(rows: list[dict[str, Any]], head: list[str], *, json_: bool, csv_: bool) -> None:
    if json_:
        output.write_json(rows)
    elif csv_:
        output.write_csv(rows)
    else:
        output.write_table(rows, head=head)
