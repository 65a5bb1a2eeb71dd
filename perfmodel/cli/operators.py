"""Commands of one operator: an option for each of its fields, then those of the verb."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.models import OptionInfo

MAY_MISS = {"q_len": "Default: 1 in decode, the whole kv_len in prefill."}


def add_operator(app: typer.Typer, word: str, name: str, what: str, body: Callable[..., None], *, without: Collection[str] = ()) -> None:
    """Make the command `word` of the operator class `name` in perfmodel/ops/<word>.py.

    `body` takes the operator first, then the verb's own options: all but those in `without`, less a spelling that is a field's. The
    operator checks its fields.
    """
    operator = getattr(importlib.import_module(f"perfmodel.ops.{word}"), name)
    shared = [p for p in inspect.signature(body).parameters.values() if p.name not in without]

    def command(**given: Any) -> None:
        values = {f.name: given.pop(f.name) for f in fields}
        if values.get("q_len", "") is None:
            values["q_len"] = 1 if values["phase"] == "decode" else values["kv_len"]
        body(operator(**values), **given)

    fields = dataclasses.fields(operator)
    own = []
    for field in fields:
        stated = None if field.name in MAY_MISS else field.default
        kind: Any = bool if field.type in (bool, "bool") else str | None if stated is None else str
        flag = "--" + field.name.replace("_", "-")
        required = stated is dataclasses.MISSING
        default = inspect.Parameter.empty if required else stated if kind is bool or stated is None else str(stated)
        option = typer.Option(
            f"{flag}/--no-{flag[2:]}" if kind is bool else flag,
            metavar=None if kind is bool else field.name.upper(),
            help=MAY_MISS.get(field.name),
        )
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
