"""`perfmodel gpus`: list the known GPUs, show one with the source of every number, lint the database."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated, Any

import typer

from perfmodel._resources import folders
from perfmodel.cli import options, output
from perfmodel.errors import InputError
from perfmodel.hw.lint import lint_all
from perfmodel.hw.probe import probe_device, write_draft
from perfmodel.hw.registry import files, gpu, left_out, load
from perfmodel.hw.schema import FACTS
from perfmodel.hw.spec import GpuSpec
from perfmodel.hw.template import add_template

app = options.verb("Known GPUs and where every number comes from.", alone=True)

Row = dict[str, Any]

# GpuSpec's unit at the end of a field -> the unit people read, and its factor.
_SHOWN = {
    "_bytes_per_s": ("GB/s", 1e9),
    "_flops": ("TFLOP/s", 1e12),
    "_hz": ("MHz", 1e6),
    "_s": ("ns", 1e-9),
    "_w": ("W", 1.0),
}


Name = Annotated[str, typer.Argument(help="A GPU, by any of its names.")]


@app.callback(invoke_without_command=True)
def main(context: typer.Context, json_: output.Json = False, csv_: output.Csv = False) -> None:
    """List the known GPUs."""
    output.check_format(json_, csv_)
    context.obj = (json_, csv_)  # `gpus --json show l20` is `gpus show l20 --json`
    if context.invoked_subcommand is None:
        list_(context)


def _format(context: typer.Context, json_: bool, csv_: bool) -> tuple[bool, bool]:
    """The format asked for, before or behind the subcommand."""
    both = context.obj[0] or json_, context.obj[1] or csv_
    output.check_format(*both)
    return both


@app.command("list")
def list_(context: typer.Context, json_: output.Json = False, csv_: output.Csv = False) -> None:
    """List the known GPUs with their main numbers."""
    json_, csv_ = _format(context, json_, csv_)
    rows, broken = [], []
    for path in files().values():
        try:
            rows.append(_summary(load(path)))
        except InputError as error:  # one bad file must not hide the others
            broken.append(error)
    output.write_rows(sorted(rows, key=lambda row: str(row["name"])), json_=json_, csv_=csv_)
    for fault in broken:
        left_out(fault)


@app.command()
def show(context: typer.Context, name: Name, json_: output.Json = False, csv_: output.Csv = False) -> None:
    """Show one GPU: each number with its source."""
    json_, csv_ = _format(context, json_, csv_)
    spec = gpu(name)
    rows = _facts(spec)
    if json_:
        output.write_json(dataclasses.asdict(spec))
        return
    if csv_:
        output.write_csv(rows)
        return
    citations = {row["source"]: n for n, row in enumerate({row["source"]: row for row in rows}.values(), start=1)}
    numbered = [{**row, "value": output.exact(row["value"]), "source": f"[{citations[row['source']]}]"} for row in rows]
    output.write_table(numbered, head=[f"{spec.name}: {spec.full_name} ({spec.arch}; also {', '.join(spec.aliases)})", ""])
    print("\n".join(["", *(f"[{number}] {citation}" for citation, number in citations.items())]))


@app.command("lint")
def lint_command(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="GPUs to check; all without a name.")] = None,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Check GPUs, all by default, for physical plausibility; exit 1 where something is wrong."""
    json_, csv_ = _format(context, json_, csv_)
    problems = lint_all()
    if names:
        problems = {found: problems[found] for found in [name if name in problems else gpu(name).name for name in names]}
    rows = [{"name": name, "problem": line} for name, lines in problems.items() for line in lines]
    if json_ or csv_ or rows:
        output.write_rows(rows, ("name", "problem"), json_=json_, csv_=csv_)
    if rows:
        raise typer.Exit(1)
    print(f"perfmodel: {len(problems)} GPUs, nothing wrong", file=sys.stderr)


@app.command()
def add(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the new GPU: lower case letters, digits, underscores.")],
    arch: Annotated[str | None, typer.Option("--arch", help="Compute capability, such as sm_90.")] = None,
    like: Annotated[str | None, typer.Option("--like", metavar="GPU", help="Start from the numbers of a known GPU.")] = None,
    from_device: Annotated[bool, typer.Option("--from-device", help="Ask the GPU in this machine; needs torch.")] = False,
    device: Annotated[int, typer.Option("--device", min=0, help="Which one, with --from-device.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace a file of that name.")] = False,
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Write a draft of a GPU's file to your own folder, to be completed from its datasheet and checked with `gpus lint`."""
    json_, csv_ = _format(context, json_, csv_)
    if from_device:
        if arch or like:
            raise InputError("--from-device asks the GPU itself: give it without --arch and --like")
        path = write_draft(dataclasses.replace(probe_device(device), name=name), folders("hwdb")[0], overwrite=force)
    else:
        path = add_template(name, arch, gpu(like) if like else None, overwrite=force)
    rows = [{"name": name, "file": str(path)}]
    output.write_rows(rows, json_=json_, csv_=csv_)
    print(f"perfmodel: correct the numbers in {path}, then: perfmodel gpus lint {name}", file=sys.stderr)


def _summary(spec: GpuSpec) -> Row:
    return {
        "name": spec.name,
        "full_name": spec.full_name,
        "arch": spec.arch,
        "sms": spec.sms,
        "bf16_tflops": _round(spec.tensor_flops.get("bf16", 0) / 1e12),
        "fp8_tflops": _round(spec.tensor_flops["fp8"] / 1e12) if "fp8" in spec.tensor_flops else None,
        "dram_gib": _round(spec.dram_bytes / 2**30),
        "dram_gb_per_s": _round(spec.dram_bytes_per_s / 1e9),
        "l2_mib": _round(spec.l2_bytes / 2**20),
        "nvlink_gb_per_s": _round(spec.nvlink_bytes_per_s / 1e9),
        "power_w": _round(spec.power_w),
    }


def _facts(spec: GpuSpec) -> list[Row]:
    rows: list[Row] = []
    for field in FACTS:
        value = getattr(spec, field)
        entries = {f"{field}.{k}": v for k, v in value.items()} if field == "tensor_flops" else {field: value}
        rows += [_fact(key, number, field, spec.sources[field]) for key, number in entries.items()]
    return rows + [{"field": k, "value": None, "unit": "", "source": v} for k, v in spec.sources.items() if k.startswith("allow.")]


def _fact(key: str, value: float, field: str, source: str) -> Row:
    """One number in the unit people read, which stands beside it: the field keeps GpuSpec's name."""
    sizes = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))
    if field.endswith("_bytes"):
        unit, factor = next(size for size in sizes if value >= size[1])
    else:
        unit, factor = next((shown for ending, shown in _SHOWN.items() if field.endswith(ending)), ("", 1.0))
    return {"field": key, "value": _round(value / factor), "unit": unit, "source": source}


def _round(value: float) -> float | int:
    number = float(f"{value:.5g}")
    return int(number) if number.is_integer() else number
