"""The command that starts an engine: written for vLLM and SGLang, and read back."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfmodel.errors import InputError
from perfmodel.ops.check import size
from perfmodel.plan.parallel import Parallel


@dataclass(frozen=True, slots=True)
class Engine:
    """What a start command says of an engine. None leaves it to the stack. `other` are flags that have no bearing on the plan."""

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


_VLLM = {
    "tensor_parallel_size": ("--tensor-parallel-size", "-tp"),
    "pipeline_parallel_size": ("--pipeline-parallel-size", "-pp"),
    "data_parallel_size": ("--data-parallel-size", "-dp"),
    "quantization": ("--quantization", "-q"),
    "kv_cache_dtype": ("--kv-cache-dtype",),
    "max_num_seqs": ("--max-num-seqs",),
    "max_num_batched_tokens": ("--max-num-batched-tokens",),
    "max_model_len": ("--max-model-len",),
    "memory_fraction": ("--gpu-memory-utilization",),
}
_SGLANG = {
    "tensor_parallel_size": ("--tp-size", "--tp", "--tensor-parallel-size"),
    "pipeline_parallel_size": ("--pp-size", "--pp", "--pipeline-parallel-size"),
    "data_parallel_size": ("--dp-size", "--dp", "--data-parallel-size"),
    "expert_parallel_size": ("--ep-size", "--ep", "--expert-parallel-size"),
    "quantization": ("--quantization",),
    "kv_cache_dtype": ("--kv-cache-dtype",),
    "max_num_seqs": ("--max-running-requests",),
    "max_num_batched_tokens": ("--chunked-prefill-size",),
    "max_model_len": ("--context-length",),
    "memory_fraction": ("--mem-fraction-static", "--mem-frac"),
}


WRITTEN = ("vllm", "sglang")
"""Stacks whose start command is known."""


def command(engine: Engine) -> str:
    """The start command, one line. vLLM's expert parallelism spans all TP x DP GPUs; SGLang's tp-size counts attention replicas too."""
    p = engine.parallel
    if engine.stack == "vllm":
        words, names = ["vllm", "serve", engine.model], _VLLM
        values: dict[str, object] = {"tensor_parallel_size": p.tp, "data_parallel_size": p.dp}
        extra = ["--enable-expert-parallel"] if p.ep > 1 else []
    elif engine.stack == "sglang":
        words, names = ["python", "-m", "sglang.launch_server", "--model-path", engine.model], _SGLANG
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
    """The engine of a start command. Raises InputError for a command of another program and for values that cannot be."""
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise InputError(f"start command: {error}") from None
    if "serve" in words and any(w.rsplit("/", 1)[-1] == "vllm" for w in words[: words.index("serve")]):
        return _engine("vllm", words[words.index("serve") + 1 :], _VLLM, "--model")
    if "vllm.entrypoints.openai.api_server" in words:
        return _engine("vllm", words[words.index("vllm.entrypoints.openai.api_server") + 1 :], _VLLM, "--model")
    if "sglang.launch_server" in words:
        return _engine("sglang", words[words.index("sglang.launch_server") + 1 :], _SGLANG, "--model-path")
    raise InputError(
        f"start command {text[:60]!r}: expected `vllm serve MODEL ...` or `python -m sglang.launch_server --model-path MODEL ...`"
    )


def _engine(stack: str, words: Sequence[str], names: Mapping[str, Sequence[str]], model_flag: str) -> Engine:
    spelled = {spelling: field for field, spellings in names.items() for spelling in spellings}
    values: dict[str, str] = {}
    model, switches = "", set()
    other: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in (model_flag, "--model") or name in spelled:
            if not equals:
                if not rest:
                    raise InputError(f"start command: {name} has no value")
                value = rest.pop(0)
            if name in spelled:
                values[spelled[name]] = value
            else:
                model = value
        elif name in ("--enable-expert-parallel", "--enable-dp-attention"):
            switches.add(name)
        elif not word.startswith("-") and not model and not other:
            model = word
        else:
            other.append(word)
    if not model:
        raise InputError(f"start command: no model; give it after `serve` or with {model_flag}")
    return _checked(stack, model, values, switches, tuple(other))


def _checked(stack: str, model: str, values: Mapping[str, str], switches: set[str], other: tuple[str, ...]) -> Engine:
    def number(field: str) -> int | None:
        return size(field, values[field]) if field in values else None

    tp, pp, dp = (number(f"{kind}_parallel_size") or 1 for kind in ("tensor", "pipeline", "data"))
    ep = number("expert_parallel_size") or 1
    if stack == "vllm":
        ep = tp * dp if "--enable-expert-parallel" in switches else 1
    elif "--enable-dp-attention" in switches:
        if tp % dp:
            raise InputError(f"start command: --dp-size {dp} must divide --tp-size {tp} with --enable-dp-attention")
        tp //= dp
    fraction = values.get("memory_fraction")
    try:
        share = None if fraction is None else float(fraction)
    except ValueError:
        raise InputError(f"start command: the memory fraction must be a number, got {fraction!r}") from None
    kv_dtype = values.get("kv_cache_dtype")
    return Engine(
        model,
        stack,
        Parallel(tp, pp, ep, dp),
        values.get("quantization"),
        "fp8" if kv_dtype in ("fp8_e4m3", "fp8_e5m2") else kv_dtype,
        number("max_num_seqs"),
        number("max_num_batched_tokens"),
        number("max_model_len"),
        share,
        other,
    )
