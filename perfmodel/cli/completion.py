"""Shell completion: verbs, options, and the values of those that have a list (GPUs, element types, stacks, models)."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

from perfmodel.errors import InputError, shown

VARIABLE = "_PERFMODEL_COMPLETE"  # the words so far, one a line, the one that is being written last
_BASH = f"""\
_perfmodel() {{ local IFS=$'\\n'; COMPREPLY=($({VARIABLE}="${{COMP_WORDS[*]:1:$COMP_CWORD}}" perfmodel)); }}
complete -o default -F _perfmodel perfmodel"""
SCRIPTS = {
    "bash": _BASH,
    "zsh": f"autoload -U +X compinit bashcompinit && compinit && bashcompinit\n{_BASH}",
    "fish": f"complete -c perfmodel -a '(env {VARIABLE}=(string join \\n (commandline -opc)[2..-1] (commandline -ct)"
    " | string collect) perfmodel)'",
}


def script(arguments: Sequence[str]) -> str:
    """What a shell evaluates to complete `perfmodel`; raises InputError for another shell than those of SCRIPTS."""
    name = arguments[0] if arguments else os.path.basename(os.environ.get("SHELL", "bash"))
    if name not in SCRIPTS:
        raise InputError(f"shell {shown(name)}: expected {', '.join(SCRIPTS)}")
    return SCRIPTS[name]


def completions(words: Sequence[str], verbs: Sequence[str]) -> list[str]:
    """What the last word may become."""
    *before, last = words or [""]
    if not before:
        return [verb for verb in verbs if verb.startswith(last)]
    if before[0] not in verbs:
        return []
    import typer

    command: Any = typer.main.get_command(importlib.import_module(f"perfmodel.cli.{before[0]}").app)
    for word in before[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    options = {spelling: option.opts for option in command.params for spelling in (*option.opts, *option.secondary_opts)}
    if before[-1] in options and (values := _values(options[before[-1]])):
        head, comma, tail = last.rpartition(",")  # lists are completed entry by entry
        return [f"{head}{comma}{value}" for value in values if value.startswith(tail)]
    known = [*getattr(command, "commands", {}), *(o for o in options if o.startswith("-")), "--help"]
    return [word for word in known if word.startswith(last)]


def _values(spellings: Sequence[str]) -> list[str]:
    """What an option may be, where there is a list of it."""
    asked = set(spellings)
    if asked & {"--gpu", "--gpus", "--from-gpu", "--to-gpu"}:
        from perfmodel.hw import gpus

        return gpus()
    if "--model" in asked:
        from perfmodel.plan.catalogue import models

        return models()
    if asked & {"--dtype", "--kv-dtype", "--kv-cache-dtype"}:
        from perfmodel.ops.names import DTYPES

        return list(DTYPES)
    if "--stack" in asked:
        from perfmodel.ops.names import STACKS

        return list(STACKS[1:])
    return ["auto", "none"] if "--calibration" in asked else []
