"""Commands of one operator: an option for each of its fields, then those of the verb."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.models import OptionInfo


def add_operator(app: typer.Typer, word: str, name: str, what: str, body: Callable[..., None]) -> None:
    """Make the command `word` of the operator class `name` in perfmodel/ops/<word>.py.

    `body` takes the operator first, then the verb's own options, which lose a spelling that is a field's. The operator checks its fields.
    """
    operator = getattr(importlib.import_module(f"perfmodel.ops.{word}"), name)
    shared = list(inspect.signature(body).parameters.values())

    def command(**given: Any) -> None:
        values = {f.name: given.pop(f.name) for f in fields}
        body(operator(**values), **given)

    fields = dataclasses.fields(operator)
    own = []
    for field in fields:
        kind: Any = bool if field.type in (bool, "bool") else str | None if field.default is None else str
        flag = "--" + field.name.replace("_", "-")
        required = field.default is dataclasses.MISSING
        default = inspect.Parameter.empty if required else field.default if kind is bool or field.default is None else str(field.default)
        option = typer.Option(f"{flag}/--no-{flag[2:]}" if kind is bool else flag, metavar=None if kind is bool else field.name.upper())
        own.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]))
    parameters = [*own, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in shared[1:])]
    hints = {name: _without({"--" + f.name.replace("_", "-") for f in fields}, hint) for name, hint in _hints(body).items()}
    parameters = [p.replace(annotation=hints.get(p.name, p.annotation)) for p in parameters]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    app.command(word, help=what)(command)


def _hints(body: Callable[..., None]) -> dict[str, Any]:
    return inspect.get_annotations(body, eval_str=True)


def _without(taken: set[str], hint: Any) -> Any:
    """An annotated option without the spellings in `taken`."""
    kind, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    option = next((e for e in extras if isinstance(e, OptionInfo)), None)
    if option is None or not taken & set(option.param_decls or ()):
        return hint
    own = copy.copy(option)
    own.param_decls = tuple(d for d in option.param_decls or () if d not in taken)
    return Annotated[kind, own]
