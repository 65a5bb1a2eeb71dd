"""Commands of one operator: an option for each of its fields, then those of the verb."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import itertools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.models import OptionInfo

from perfmodel.errors import InputError, shown
from perfmodel.ops.collective import KINDS as COLLECTIVES
from perfmodel.ops.kinds import KINDS
from perfmodel.ops.memory import TRAFFIC
from perfmodel.ops.names import DTYPES

MOST_ANSWERS = 10_000
MAY_MISS = ("q_len", "kv_dtype")
WORDS = {
    "phase": "prefill: many new tokens a sequence; decode: one.",
    "q_len": "New tokens of a sequence; 1 in decode, the whole kv_len in prefill where left out.",
    "kv_dtype": "Element type of the KV cache; as --dtype where left out.",
    "dtype": f"Element type of operands: {', '.join(DTYPES)}.",
    "distribution": "How tokens are routed: balanced, or power_law_<exponent>.",
    "topology": "Machine or path of hwdb/nodes; auto: the usual one of the GPU.",
    "causal": "Whether a query sees nothing after it.",
}
"""Help of fields that tables code or derive, and of those with more to say than their meaning."""


def add_operator(
    app: typer.Typer, word: str, name: str, what: str, body: Callable[..., None], *, without: Collection[str] = (), several: bool = False
) -> None:
    """Make the command `word` of the operator class `name` in perfmodel/ops/<word>.py.

    `body` takes the operator first, then the verb's own options: all but those in `without`, less a spelling that is a field's. The
    operator checks its fields. several: values may be lists, and `body` takes the operators of every combination.
    """
    operator = getattr(importlib.import_module(f"perfmodel.ops.{word}"), name)
    shared = [p for p in inspect.signature(body).parameters.values() if p.name not in without]

    def command(**given: Any) -> None:
        values = {f.name: given.pop(f.name) for f in fields}
        asked = [operator(**_whole(each)) for each in (combinations(values) if several else [values])]
        body(asked if several else asked[0], **given)

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
            help=_help_of(word, field.name),
        )
        own.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]))
    parameters = [*own, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in shared[1:])]
    hints = {name: _without({"--" + f.name.replace("_", "-") for f in fields}, hint) for name, hint in _hints(body).items()}
    parameters = [p.replace(annotation=hints.get(p.name, p.annotation)) for p in parameters]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    app.command(word, help=what)(command)


def _whole(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an operator, with what may be left out."""
    found = dict(values)
    if found.get("q_len", "") is None:
        found["q_len"] = 1 if found["phase"] == "decode" else found["kv_len"]
    return found


def combinations(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every combination of values that are lists, such as 1,16,4096; raises InputError for an empty entry and too many combinations."""
    lists = {name: value.split(",") if isinstance(value, str) else [value] for name, value in values.items()}
    for name, entries in lists.items():
        if len(entries) > 1 and not all(entry.strip() for entry in entries):
            raise InputError(f"--{name.replace('_', '-')} {shown(values[name])}: an entry of the list is empty")
    if (count := math.prod(map(len, lists.values()))) > MOST_ANSWERS:
        raise InputError(f"the lists make {count} questions, more than {MOST_ANSWERS}: ask predict_table from Python")
    return [dict(zip(lists, entries, strict=True)) for entries in itertools.product(*lists.values())]


def _help_of(word: str, field: str) -> str:
    """What an option of an operator means: its words, else those of its column in tables."""
    if field in WORDS:
        return WORDS[field]
    if word == "memory" and field == "kind":
        return f"Which operator: {', '.join(TRAFFIC)}."
    if word == "collective" and field == "kind":
        return f"Which collective: {', '.join(COLLECTIVES)}."
    known = next(f for f in KINDS[word].fields if f.name == field)
    return f"{known.meaning[0].upper()}{known.meaning[1:]}{f', {known.unit}' if known.unit not in known.meaning else ''}."


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
