"""Every command and option says what it is, every command has an example that reads, and completion offers what there is."""

from __future__ import annotations

import importlib
import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from perfmodel.cli.completion import completions, script
from perfmodel.cli.examples import EXAMPLES, add_examples
from perfmodel.cli.main import VERBS, run
from perfmodel.cli.output import fitting
from perfmodel.errors import InputError

Capture = pytest.CaptureFixture[str]


def commands() -> Iterator[tuple[str, Any]]:
    for verb in VERBS:
        command = typer.main.get_command(importlib.import_module(f"perfmodel.cli.{verb}").app)
        add_examples(command, verb)
        yield from _below(verb, command)


def _below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, sub in getattr(command, "commands", {}).items():
        yield from _below(f"{path} {name}", sub)


ALL = dict(commands())


@pytest.mark.parametrize("path", ALL)
def test_a_command_and_its_options_say_what_they_are(path: str) -> None:
    command = ALL[path]
    assert (command.help or "").strip()
    assert [o.name for o in command.params if o.name != "help" and not getattr(o, "help", None)] == []
    assert getattr(command, "commands", None) or (command.epilog or "").startswith("\b\nExamples:")


def test_no_example_is_of_a_command_that_is_gone() -> None:
    assert set(EXAMPLES) <= set(ALL)


@pytest.mark.parametrize(("path", "line"), [(path, line) for path, lines in EXAMPLES.items() for line in lines])
def test_an_example_reads(path: str, line: str) -> None:
    program, *words = shlex.split(line)
    assert program == "perfmodel" and words[: len(path.split())] == path.split()
    command, rest = ALL[path], words[len(path.split()) :]
    if not getattr(command, "commands", None):
        command.make_context(path, rest, resilient_parsing=False)


QUICK = [
    lines[0] for path, lines in EXAMPLES.items() if path.split()[0] in ("predict", "explain", "models") or path in ("gpus", "gpus show")
]


@pytest.mark.parametrize("line", QUICK)
def test_an_example_runs(line: str, capsys: Capture) -> None:
    assert run(shlex.split(line)[1:]) == 0
    assert capsys.readouterr().out


def test_lists_are_every_combination(capsys: Capture) -> None:
    assert run(shlex.split("predict gemm --gpu h100_sxm,l20 -m 1,64 -n 4096 -k 4096 --json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["gpu"], row["m"]) for row in found] == [("h100_sxm", 1), ("h100_sxm", 64), ("l20", 1), ("l20", 64)]
    assert run(shlex.split("predict gemm --gpu l20 -m 64 -n 4096 -k 4096 --json")) == 0
    assert json.loads(capsys.readouterr().out)["latency_us"] == found[3]["latency_us"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("predict gemm --gpu h100_sxm -m 1,,4 -n 4096 -k 4096", "--m '1,,4': an entry of the list is empty"),
        ("predict gemm --gpu h100_sxm -m 1,x -n 4096 -k 4096", "m must be a whole number of 1 or more, got 'x'"),
        ("predict gemm --gpu h100_sxm,h999 -m 1 -n 4096 -k 4096", "h999"),
        ("explain gemm --gpu h100_sxm,l20 -m 1 -n 4096 -k 4096", "explain answers one question at a time"),
        (f"predict gemm --gpu l20 -m {','.join(map(str, range(1, 102)))} -n {','.join(map(str, range(1, 102)))} -k 1", "10201 questions"),
        ("rank gemm --gpu l20 -m 64 -n 64 -k 64 --as yaml", "--as"),
    ],
)
def test_a_bad_list_is_refused_in_a_line(line: str, said: str, capsys: Capture) -> None:
    assert run(shlex.split(line)) == 2
    shown = capsys.readouterr().err
    assert said in shown and shown.count("\n") == 1


def test_configs_to_paste_into_autotune(capsys: Capture) -> None:
    assert run(shlex.split("rank gemm --gpu l20 -m 512 -n 4096 -k 4096 --top-k 3 --as triton")) == 0

    class Config:
        def __init__(self, meta: dict[str, int], num_warps: int, num_stages: int) -> None:
            self.meta, self.num_warps, self.num_stages = meta, num_warps, num_stages

    class triton:
        pass

    triton.Config = Config  # type: ignore[attr-defined]
    found = eval(f"[{capsys.readouterr().out}]", {"triton": triton})
    assert len(found) == 3 and all(c.meta["BLOCK_M"] >= 16 and c.num_warps in (1, 2, 4, 8, 16) for c in found)


def test_columns_that_fit() -> None:
    assert fitting([12, 10, 10], 40) == 3 and fitting([12, 10, 10], 30) == 3 and fitting([12, 10, 10], 29) == 2
    assert fitting([50, 10], 40) == 1


def test_completion() -> None:
    verbs = list(VERBS)
    assert completions(["pl"], verbs) == ["plan"] and completions([""], verbs) == verbs
    assert completions(["predict", "ge"], verbs) == ["gemm"]
    assert completions(["predict", "gemm", "--gpu", "h100"], verbs) == ["h100_pcie", "h100_sxm"]
    assert completions(["plan", "--gpus", "l20,h20"], verbs) == ["l20,h20", "l20,h200_sxm"]
    assert completions(["predict", "gemm", "--ca"], verbs) == ["--calibration"]
    assert completions(["predict", "gemm", "--calibration", ""], verbs) == ["auto", "none"]
    assert completions(["estimate", "--model", "Qwen3-32"], verbs) == ["Qwen3-32B"] and completions(["nothing", ""], verbs) == []
    assert all("perfmodel" in script([shell]) for shell in ("bash", "zsh", "fish"))
    with pytest.raises(InputError, match="csh"):
        script(["csh"])
