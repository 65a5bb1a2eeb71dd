"""`perfmodel rank --triton-file my_kernel.py:kernel`: rank a kernel of one's own, from its machine code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from perfmodel.cli import options, output
from perfmodel.cli.progress import Progress
from perfmodel.errors import InputError, shown
from perfmodel.tune.triton_file import FileRanking, rank_file

_COLUMNS = ("latency_us", "low_us", "high_us", "bound", "waves", "blocks_per_sm", "limiter", "tier", "regs", "spill_bytes", "shared_bytes")


def add_to(app: typer.Typer) -> None:
    """Give `rank` its options for a kernel in a file."""
    app.callback(invoke_without_command=True)(file_kernel)


def file_kernel(
    context: typer.Context,
    triton_file: Annotated[str | None, typer.Option("--triton-file", metavar="FILE.py:KERNEL", help="A kernel of your own.")] = None,
    run_file: Annotated[bool, typer.Option("--run-file", help="Yes, run that file (in a process of its own).")] = False,
    gpu: Annotated[str | None, typer.Option("--gpu", help="With --triton-file: the GPU to ask about.")] = None,
    argument: Annotated[
        list[str] | None, typer.Option("--arg", metavar="NAME=VALUE", help="An argument of the kernel: M=4096, a_ptr='*bf16'; repeat.")
    ] = None,
    grid: Annotated[str | None, typer.Option("--grid", help="Programs of a launch: 'cdiv(M, BLOCK_M), heads'.")] = None,
    configs: options.ConfigFile = None,
    trip_count: Annotated[str | None, typer.Option("--trip-count", help="Iterations of loops whose bounds depend on data.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="Element type of pointers that no --arg describes.")] = None,
    top_k: options.TopK = "8",
    time_limit: Annotated[str, typer.Option("--time-limit", metavar="SECONDS", help="For running the file and compiling.")] = "600",
    pruned: Annotated[bool, typer.Option("--pruned", help="List every pruned config with its reason.")] = False,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Rank Triton configs for a problem by predicted latency; needs no GPU."""
    if triton_file is None:
        if context.invoked_subcommand is None:
            raise InputError("say which kernel: `perfmodel rank gemm ...`, or --triton-file FILE.py:KERNEL")
        return
    if context.invoked_subcommand is not None:
        raise InputError(f"--triton-file ranks a kernel of your own: leave {context.invoked_subcommand} out")
    rank_triton_file(
        triton_file, gpu=gpu, run_file=run_file, arguments=argument or [], grid=grid, configs=configs, trip_count=trip_count, dtype=dtype,
        top_k=top_k, limit=time_limit, pruned=pruned, json_=json_, csv_=csv_,
    )  # fmt: skip


def rank_triton_file(
    where: str,
    *,
    gpu: str | None,
    run_file: bool,
    arguments: list[str],
    grid: str | None,
    configs: Path | None,
    trip_count: str | None,
    dtype: str | None,
    top_k: str,
    limit: str,
    pruned: bool,
    json_: bool,
    csv_: bool,
) -> None:
    """Rank and print."""
    output.check_format(json_, csv_)
    if gpu is None:
        raise InputError("--triton-file needs --gpu, like --gpu l20")
    if grid is None:
        raise InputError("--triton-file needs --grid, like --grid 'cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)'")
    given = numbers(arguments)
    with Progress("compiling"):
        found = rank_file(
            where,
            gpu,
            run=run_file,
            grid=grid,
            arguments=given,
            configs=whole(options.configs(configs)),
            trip_count=trip_count,
            dtype=dtype,
            top_k=options.count("top_k", top_k),
            limit_s=_seconds(limit),
        )
    show(found, pruned=pruned, json_=json_, csv_=csv_)


def numbers(texts: list[str]) -> dict[str, Any]:
    """`M=4096`, `eps=1e-5`, `a_ptr=*bf16` as a mapping."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier() or not value.strip():
            raise InputError(f"--arg {shown(text)}: expected NAME=VALUE, like M=4096 or a_ptr='*bf16'")
        found[name.strip()] = number(value.strip())
    return found


def number(text: str) -> Any:
    """A whole number, a fraction, true or false; else the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def whole(rows: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Configs from a file with the cells of a CSV as numbers."""
    if rows is None:
        return None
    return [{k: number(v) if isinstance(v, str) else v for k, v in row.items()} for row in rows]


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--time-limit {shown(text)}: expected seconds") from None


def show(found: FileRanking, *, pruned: bool, json_: bool, csv_: bool) -> None:
    """Print a ranking, or with `pruned` in CSV only what was pruned."""
    lost = [{**config, "reason": reason} for config, reason in found.pruned]
    if json_:
        about = {"kernel": found.kernel, "gpu": found.gpu, "ranked": found.ranked, "pruned_count": len(lost), "notes": found.notes}
        output.write_json(about | {"configs": found.rows} | ({"pruned": lost} if pruned else {}))
        return
    if csv_:
        output.write_csv(lost if pruned else found.rows)
        return
    head = [
        f"{found.kernel} on {found.gpu}: {found.ranked} configs ranked, {len(lost)} pruned",
        "from its machine code, compiled for this GPU; nothing was measured on it (rows of tier measured: your own timings)",
        *found.notes,
    ]
    output.write_table([cells(row) for row in found.rows], head=[*head, ""])
    if pruned:
        output.write_table(lost, head=["", "pruned:"])


def cells(row: dict[str, Any]) -> dict[str, Any]:
    """One row for people."""
    config = {k: v for k, v in row.items() if k not in (*_COLUMNS, "position")}
    return config | {
        "us": row["latency_us"],
        "80 % within": f"{output.shown(row['low_us'])}-{output.shown(row['high_us'])}",
        "bound by": row["bound"],
        "waves": round(row["waves"], 2),
        "blocks/SM": row["blocks_per_sm"],
        "limited by": row["limiter"],
        "registers": row["regs"],
        "spilled": row["spill_bytes"],
        "shared": row["shared_bytes"],
    }
