"""The two reference pages as Markdown: every verb of the command line, and every public name of the package."""

from __future__ import annotations

import importlib
from typing import Any

import perfmodel
from perfmodel.cli.main import VERBS

CHAPTERS = {
    "GPUs": ("gpus", "gpu"),
    "Operators": ("Gemm", "Attention", "MLA", "MoE", "MemoryBound", "Collective"),
    "Prediction": ("predict", "predict_table", "Prediction"),
    "Ranking and tuning": ("rank", "Ranking", "tune", "prune"),
    "Calibration": ("calibrate_table", "Calibration", "load_calibration"),
    "Deployments": ("models", "load_model", "plan", "Plan", "estimate", "ServingEstimate", "memory_ledger", "Parallel", "Lognormal"),
    "Deployments: studies": ("compare", "gpus_for", "max_concurrency", "sensitivity", "what_binds", "estimate_split", "Pool"),
    "Errors": ("PerfModelError", "InputError", "NoAnswerError"),
}
OTHER = "Everything else"
FORMATS = ("json_", "csv_")


def chapters() -> dict[str, list[str]]:
    """Public names by chapter; a name that no chapter claims stands in the last one, so that none is left out."""
    public = [name for name in perfmodel.__all__ if name != "__version__"]
    found = {title: [name for name in names if name in public] for title, names in CHAPTERS.items()}
    claimed = {name for names in found.values() for name in names}
    rest = [name for name in public if name not in claimed]
    return found | ({OTHER: rest} if rest else {})


def python() -> str:
    """The page of the Python interface: one mkdocstrings block a public name, under the name that users write."""
    lines = ["# Python interface", "", "Everything here is reached as `pm.NAME` after `import perfmodel as pm`.", ""]
    for title, names in chapters().items():
        lines += [f"## {title}", ""]
        for name in names:
            value = getattr(perfmodel, name)
            lines += [f"::: {value.__module__}.{value.__qualname__}"]
            lines += ["    options:", f"      heading: pm.{name}", f"      toc_label: pm.{name}", ""]
    return "\n".join(lines)


def command_line() -> str:
    """The page of the command line, from the options that the parser itself has."""
    lines = [
        "# Command line",
        "",
        "`perfmodel VERB --help` prints the same in a terminal. Options marked *formats* are `--json` and `--csv`.",
        "",
    ]
    lines += ["| verb | what it does |", "|---|---|"]
    lines += [f"| [`perfmodel {verb}`](#{anchor(f'perfmodel {verb}')}) | {cell(what)} |" for verb, what in VERBS.items()] + [""]
    for verb in VERBS:
        lines += command(f"perfmodel {verb}", click_command(verb), level=2)
    return "\n".join(lines)


def click_command(verb: str) -> Any:
    """The parser of a verb."""
    import typer

    return typer.main.get_command(importlib.import_module(f"perfmodel.cli.{verb}").app)


def command(path: str, parser: Any, level: int) -> list[str]:
    """Heading, help and options of a command, then of its subcommands."""
    lines = [
        f"{'#' * min(level, 4)} {path} {{ #{anchor(path)} }}",
        "",
        str(parser.help or parser.short_help or "").replace("\b", "").strip(),
        "",
    ]
    rows = [row for parameter in parser.params if (row := option(parameter))]
    if any(parameter.name in FORMATS for parameter in parser.params):
        rows.append("| *formats* | JSON or CSV on stdout instead of a table. | |")
    if rows:
        lines += ["| option | what it is | default |", "|---|---|---|", *rows, ""]
    for name, child in getattr(parser, "commands", {}).items():
        if not child.hidden:
            lines += command(f"{path} {name}", child, level + 1)
    return lines


def option(parameter: Any) -> str:
    """A row of the table of options; empty for those that every command has."""
    if parameter.name in ("help", *FORMATS) or getattr(parameter, "hidden", False):
        return ""
    flags = [*parameter.opts, *parameter.secondary_opts]
    if parameter.param_type_name == "argument":
        names = f"`{placeholder(parameter)}`"
    else:
        value = "" if parameter.is_flag else f" {placeholder(parameter)}"
        names = ", ".join(f"`{flag}{value}`" for flag in flags)
    default = parameter.default
    shown = "required" if parameter.required else "" if default in (None, False, ()) or callable(default) else f"`{default}`"
    return f"| {cell(names)} | {cell(getattr(parameter, 'help', None) or '')} | {shown} |"


def placeholder(parameter: Any) -> str:
    """What stands for the value of an option."""
    return str(parameter.metavar or parameter.name.strip("_").replace("_", "-").upper())


def anchor(path: str) -> str:
    """The id of a heading."""
    return path.replace(" ", "-")


def cell(text: str) -> str:
    """Text that may stand in a cell of a table."""
    return " ".join(text.replace("|", "\\|").split())
