"""The command that starts an engine: written for vLLM and SGLang, and read back."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.errors import InputError, plain, shown
from perfmodel.ops.check import size
from perfmodel.plan.engine_flags import SGLANG, TABLES, VLLM, FlagTable
from perfmodel.plan.parallel import Parallel


@dataclass(frozen=True, slots=True)
class Engine:
    """What a start command says of an engine. None leaves it to the stack. `other` are flags as written that fill none of these."""

    model: str
    stack: str = "vllm"
    parallel: Parallel = dataclasses.field(default_factory=Parallel)
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    memory_fraction: float | None = None
    other: tuple[str, ...] = ()


LONGEST_COMMAND = 100_000  # characters
MOST_NAMED = 4  # flags in one line
MOST_SHARES = 4096  # GPUs that share one dimension
_MODULES = {"vllm": "vllm.entrypoints.openai.api_server", "sglang": "sglang.launch_server"}
WRITTEN = ("vllm", "sglang")
"""Stacks whose start command is known."""


def command(engine: Engine) -> str:
    """The start command, one line. vLLM's expert parallelism spans all TP x DP GPUs; SGLang's tp-size counts attention replicas too."""
    p = engine.parallel
    if engine.stack == "vllm":
        words, names = ["vllm", "serve", engine.model], VLLM.read
        values: dict[str, object] = {"tensor_parallel_size": p.tp, "data_parallel_size": p.dp}
        extra = ["--enable-expert-parallel"] if p.ep > 1 else []
    elif engine.stack == "sglang":
        words, names = ["python", "-m", "sglang.launch_server", "--model-path", engine.model], SGLANG.read
        values = {"tensor_parallel_size": p.tp * p.dp, "data_parallel_size": p.dp, "expert_parallel_size": p.ep}
        extra = ["--enable-dp-attention"] if p.dp > 1 else []
    else:
        raise InputError(f"no start command for stack {engine.stack!r}: known are {', '.join(WRITTEN)}")
    values["pipeline_parallel_size"] = p.pp
    for field in ("quantization", "kv_cache_dtype", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "memory_fraction"):
        values[field] = getattr(engine, field)
    if engine.stack == "sglang" and engine.kv_cache_dtype == "fp8":
        values["kv_cache_dtype"] = "fp8_e4m3"
    for field, spellings in names.items():
        value = values.get(field)
        if value is not None and not (field.endswith("parallel_size") and value == 1):
            words += [spellings[0], str(value)]
    return " ".join(shlex.quote(str(word)) for word in [*words, *extra, *engine.other])


def read_command(text: str) -> Engine:
    """The engine of a start command. Raises InputError for a command of another program and for values that cannot be.

    Warns, in one line each, of flags that change the answer and are not modelled, and of flags that the engine is not known to have.
    """
    if not isinstance(text, str):
        raise InputError(f"a start command is text, not {type(text).__name__} {shown(text)}")
    if len(text) > LONGEST_COMMAND:
        raise InputError(f"start command of {len(text)} characters: at most {LONGEST_COMMAND}")
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise InputError(f"start command: {error}") from None
    for stack, start in (("vllm", _after(words, "vllm")), ("sglang", _after(words, "sglang"))):
        if start is not None:
            return _engine(stack, words[start:])
    raise InputError(
        f"start command {shown(text)}: expected `vllm serve MODEL ...` or `python -m sglang.launch_server --model-path MODEL ...`"
    )


def _after(words: Sequence[str], program: str) -> int | None:
    """Where a program's flags begin, None where it is not the one that is started."""
    module = _MODULES[program]
    if module in words:
        return words.index(module) + 1
    if "serve" in words and any(word.rsplit("/", 1)[-1] == program for word in words[: words.index("serve")]):
        return words.index("serve") + 1
    return None


@dataclass(slots=True)
class _Words:
    """What the words of a command were read as: field -> (flag as written, value), switches, and everything else in order."""

    model: str = ""
    values: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    switches: set[str] = dataclasses.field(default_factory=set)
    other: list[str] = dataclasses.field(default_factory=list)
    unmodelled: list[str] = dataclasses.field(default_factory=list)
    unknown: list[str] = dataclasses.field(default_factory=list)


def _engine(stack: str, words: Sequence[str]) -> Engine:
    table = TABLES[stack]
    found = _read(table, words)
    if not found.model.strip():
        raise InputError(f"start command: no model; give it after `serve` or with {table.model[0]}")
    engine = _checked(stack, found)
    if found.unmodelled:
        verb = "changes the answer and is" if len(set(found.unmodelled)) == 1 else "change the answer and are"
        warnings.warn(f"start command: {_named(found.unmodelled)} {verb} not modelled", stacklevel=3)
    if found.unknown:
        verb = "is no flag" if len(set(found.unknown)) == 1 else "are no flags"
        warnings.warn(f"start command: {_named(found.unknown)} {verb} that {stack} is known to have: ignored", stacklevel=3)
    return engine


def _named(flags: Sequence[str]) -> str:
    """Flags in a line: each once, the first few of many."""
    names = list(dict.fromkeys(plain(flag) for flag in flags))
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def _read(table: FlagTable, words: Sequence[str]) -> _Words:
    fields = {spelling: field for field, spellings in table.read.items() for spelling in spellings}
    found, rest = _Words(), deque(words)
    while rest:
        word = rest.popleft()
        flag, equals, value = word.partition("=")
        name = f"--{flag[2:].replace('_', '-')}" if flag.startswith("--") else flag
        if not flag.startswith("-"):
            if found.model:
                found.unknown.append(word)
                found.other.append(word)
            else:
                found.model = word
        elif name in table.sharing:
            found.switches.add(name)
        elif name in fields or name in table.model:
            if not equals:
                if not _is_value(rest):
                    raise InputError(f"start command: {flag} has no value")
                value = rest.popleft()
            if name in fields:
                found.values[fields[name]] = flag, value
            else:
                found.model = value
        else:
            _no_field(table, found, name, word, rest)
    return found


def _no_field(table: FlagTable, found: _Words, name: str, word: str, rest: deque[str]) -> None:
    """Keep a flag that fills no field, with its values, and sort it by what it means to a plan."""
    base = name.partition(".")[0]  # --compilation-config.mode=3
    off = base.startswith("--no-") and f"--{base[5:]}" in table.switches
    known = base in table.without_bearing or base in table.unmodelled or off
    turned_off = off or (base in table.switches and word.partition("=")[2].lower() in ("false", "0"))
    if not known:
        found.unknown.append(name)
    elif base in table.unmodelled or turned_off:
        found.unmodelled.append(name)
    found.other.append(word)
    if "=" in word or base in table.switches or off:
        return
    while _is_value(rest):
        found.other.append(rest.popleft())
        if base not in table.listed:
            return


def _is_value(rest: deque[str]) -> bool:
    """Whether the next word is a value: no flag, or a negative number."""
    return bool(rest) and (not rest[0].startswith("-") or re.fullmatch(r"-\d+(\.\d+)?", rest[0]) is not None)


def _checked(stack: str, found: _Words) -> Engine:
    def number(field: str, high: int = 2**20) -> int | None:
        if field not in found.values:
            return None
        flag, text = found.values[field]
        return size(f"start command: {flag}", text, high=high)

    def text(field: str) -> str | None:
        return found.values[field][1] if field in found.values else None

    tp, pp, dp = (number(f"{kind}_parallel_size", MOST_SHARES) or 1 for kind in ("tensor", "pipeline", "data"))
    ep = number("expert_parallel_size", MOST_SHARES) or 1
    if stack == "vllm":
        ep = tp * dp if found.switches else 1
    elif found.switches:
        if tp % dp:
            raise InputError(f"start command: --dp-size {dp} must divide --tp-size {tp} with --enable-dp-attention")
        tp //= dp
    kv_dtype = text("kv_cache_dtype")
    return Engine(
        found.model,
        stack,
        Parallel(tp, pp, ep, dp),
        text("quantization"),
        "fp8" if kv_dtype in ("fp8_e4m3", "fp8_e5m2") else kv_dtype,
        number("max_num_seqs"),
        number("max_num_batched_tokens"),
        number("max_model_len", 2**31 - 1),
        _share(found),
        tuple(found.other),
    )


def _share(found: _Words) -> float | None:
    if "memory_fraction" not in found.values:
        return None
    flag, text = found.values["memory_fraction"]
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0.0 < share <= 1.0:
        raise InputError(f"start command: {flag} must be a number over 0 and at most 1, got {shown(text)}")
    return share
