"""Questions of capacity, each answered by a table with units in its columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.errors import InputError, NoAnswerError, plain, shown, unknown_name
from perfmodel.hw.spec import GpuSpec
from perfmodel.ops.check import size
from perfmodel.plan.memory import known_stack, memory_ledger
from perfmodel.plan.model import ModelSpec, load_model
from perfmodel.plan.parallel import Parallel, refusals
from perfmodel.plan.result import Plan, Row, order
from perfmodel.plan.search import find_gpus, plan
from perfmodel.plan.traffic import MOST_TOKENS
from perfmodel.units import GIB

if TYPE_CHECKING:
    import pandas as pd

Model = str | Path | Mapping[str, Any] | ModelSpec
Gpus = str | GpuSpec | Sequence[str | GpuSpec]
CONTEXTS = (2048, 8192, 32768, 131072)
TENSOR_PARALLEL = (1, 2, 4, 8)
MOST_SHARES = 4096  # GPUs that share one model
MOST_LISTED = 1000
LARGEST_FACTOR = 1e6
_SHOWN = (
    "gpu", "gpus", "mode", "replicas", "parallel", "quantization", "concurrency", "ttft_ms", "tpot_ms", "tpot_low_ms", "tpot_high_ms",
    "requests_per_s", "throughput_tok_s", "tok_s_per_gpu", "tok_s_per_user", "usd_per_hour", "usd_per_m_input_tokens",
    "usd_per_m_output_tokens", "power_limit_w", "tier", "in_domain", "meets", "tightest",
)  # fmt: skip
_CHANGE = re.compile(r"(?P<sign>[+-])\s*(?P<percent>\d+(?:\.\d+)?)\s*%\s*(?P<what>\w+)|(?P<factor>\d+(?:\.\d+)?)\s*x\s*(?P<that>\w+)")
_WHAT = {
    "traffic": ("request_rate", "concurrency"), "rate": ("request_rate",), "concurrency": ("concurrency",), "context": ("isl",),
    "isl": ("isl",), "input": ("isl",), "prompt": ("isl",), "osl": ("osl",), "output": ("osl",), "ttft": ("ttft_ms",), "tpot": ("tpot_ms",),
    "gpus": ("total_gpus",), "budget": ("budget_usd_per_hour",),
}  # fmt: skip
_WHOLE = ("isl", "osl", "concurrency", "total_gpus")


def max_concurrency(
    model: Model,
    gpus: Gpus,
    contexts: Sequence[int] = CONTEXTS,
    *,
    tensor_parallel_sizes: Sequence[int] = TENSOR_PARALLEL,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    stack: str = "vllm",
    memory_fraction: float | None = None,
) -> pd.DataFrame:
    """How many requests of each context length one engine holds at once.

    Parameters
    ----------
    model : str, Path, mapping or ModelSpec
        A bundled name or alias, a Hugging Face config (file, folder, dict, or hub id in the local cache), or a ModelSpec.
    gpus : str, GpuSpec or sequence of them
        Kinds of GPU.
    contexts : sequence of int
        Lengths, tokens.
    tensor_parallel_sizes : sequence of int
        Engines to look at.
    quantization : str, optional
        bf16, fp16, fp8, fp8_block, int8, int8_wo, int4_wo (AWQ, GPTQ), nvfp4, mxfp4 or a usual alias; None: as published.
    kv_cache_dtype : str, optional
        Element type of the KV cache; None: as the model's activations.
    stack : {"vllm", "sglang", "trtllm"}
        The serving engine.
    memory_fraction : float, optional
        As in `memory_ledger`.

    Returns
    -------
    pandas.DataFrame
        A row a GPU, size and context: gpu, tensor_parallel_size, weights_gib_per_gpu, kv_gib_per_gpu, kv_tokens, context_tokens,
        max_concurrency with low and high; 0 where the model does not fit.

    Examples
    --------
    >>> import perfmodel as pm
    >>> bool((pm.max_concurrency("llama-3.1-8b", "l40s", [8192])["max_concurrency"] > 0).any())
    True
    """
    import pandas as pd

    spec, cards, stack = load_model(model, quantization), find_gpus(gpus), known_stack(stack)
    lengths = _whole_numbers("contexts", contexts, MOST_TOKENS)
    sizes = _whole_numbers("tensor_parallel_sizes", tensor_parallel_sizes, MOST_SHARES)
    rows = []
    for card in cards:
        for tp in sizes:
            if refusals(spec, Parallel(tp), stack):
                continue
            ledger = memory_ledger(
                spec,
                card,
                tensor_parallel_size=tp,
                kv_cache_dtype=kv_cache_dtype,
                stack=stack,
                memory_fraction=memory_fraction,
            )
            for length in lengths:
                held = ledger.max_concurrency(length)
                need = ledger.kv_bytes / held if held else 0.0
                rows.append(
                    {
                        "gpu": ledger.gpu.name,
                        "tensor_parallel_size": tp,
                        "weights_gib_per_gpu": ledger.weights_bytes / GIB,
                        "kv_gib_per_gpu": max(ledger.kv_bytes, 0.0) / GIB,
                        "kv_tokens": ledger.kv_tokens,
                        "context_tokens": length,
                        "max_concurrency": held,
                        "max_concurrency_low": int(max(ledger.kv_low_bytes, 0.0) / need) if need else 0,
                        "max_concurrency_high": int(ledger.kv_high_bytes / need) if need else 0,
                    }
                )
    return pd.DataFrame(rows)


def _whole_numbers(name: str, values: Any, high: int) -> list[int]:
    listed = (isinstance(values, Sequence) and not isinstance(values, str | bytes)) or (isinstance(values, np.ndarray) and values.ndim == 1)
    if not listed or not 0 < len(values) <= MOST_LISTED:
        raise InputError(f"{name} is {shown(values)}: expected a list of 1 to {MOST_LISTED} whole numbers")
    return [size(f"{name}: an entry", value, high=high) for value in values]


def gpus_for(model: Model, gpus: Gpus, *, request_rate: float, isl: int, osl: int, **options: Any) -> pd.DataFrame:
    """The fewest GPUs of each kind that carry a request rate within the limits.

    Parameters
    ----------
    model : str, Path, mapping or ModelSpec
        A bundled name or alias, a Hugging Face config (file, folder, dict, or hub id in the local cache), or a ModelSpec.
    gpus : str, GpuSpec or sequence of them
        Kinds of GPU.
    request_rate : float
        Requests a second.
    isl, osl : int
        Tokens in and out of a request.
    **options
        As `plan` takes them (ttft_ms, tpot_ms, quantization, prices ...).

    Returns
    -------
    pandas.DataFrame
        A row a kind; `meets` is False where none does: that row is the nearest, and `tightest` what it misses.

    Examples
    --------
    >>> import perfmodel as pm
    >>> pm.gpus_for("llama-3.1-8b", ["h100_sxm"], request_rate=2, isl=512, osl=128)["meets"].tolist()
    [True]
    """
    return _each_gpu(plan(model, gpus, request_rate=request_rate, isl=isl, osl=osl, **{"objective": "gpus", **options}))


def compare(model: Model, gpus: Gpus, *, isl: int, osl: int, **options: Any) -> pd.DataFrame:
    """The best deployment on each kind of GPU side by side.

    Parameters
    ----------
    model : str, Path, mapping or ModelSpec
        A bundled name or alias, a Hugging Face config (file, folder, dict, or hub id in the local cache), or a ModelSpec.
    gpus : str, GpuSpec or sequence of them
        Kinds of GPU.
    isl, osl : int
        Tokens in and out of a request.
    **options
        As `plan` takes them.

    Returns
    -------
    pandas.DataFrame
        A row a kind; `tok_s_per_gpu_ratio` and `usd_ratio` are against the first row.

    Examples
    --------
    >>> import perfmodel as pm
    >>> len(pm.compare("llama-3.1-8b", ["h100_sxm", "l40s"], isl=512, osl=128))
    2
    """
    frame = _each_gpu(plan(model, gpus, isl=isl, osl=osl, **options))
    for name, column in (("tok_s_per_gpu_ratio", "tok_s_per_gpu"), ("usd_per_m_output_ratio", "usd_per_m_output_tokens")):
        frame[name] = frame[column] / frame[column].iloc[0]
    return frame


def sensitivity(found: Plan, changes: Sequence[str | Mapping[str, Any]]) -> pd.DataFrame:
    """What each change does, to the deployment that was chosen and to the choice.

    Parameters
    ----------
    found : Plan
        What `plan` gave.
    changes : sequence of str or mapping
        Text ("+20 % traffic", "2x context", "-10 % tpot", "fp8", "fp8 kv"), or plan's arguments.

    Returns
    -------
    pandas.DataFrame
        A row a change, the first as planned; same_*: the chosen deployment under it (empty where it cannot carry it);
        best_*: the new choice.

    Raises
    ------
    InputError
        For a change that it cannot read.

    Examples
    --------
    >>> import perfmodel as pm
    >>> found = pm.plan("llama-3.1-8b", "h100_sxm", isl=512, osl=128, concurrency=16)
    >>> len(pm.sensitivity(found, ["+20 % traffic"]))
    2
    """
    import pandas as pd

    if not isinstance(found, Plan):
        raise InputError(f"sensitivity is asked of {shown(found)}: expected a plan, as pm.plan returns it")
    listed = isinstance(changes, Sequence) and not isinstance(changes, str) and len(changes) <= MOST_LISTED
    if not listed or not all(isinstance(c, str | Mapping) for c in changes):
        raise InputError(f"changes is {shown(changes)}: expected a list of at most {MOST_LISTED} texts or mappings of plan's arguments")
    for unknown in (name for c in changes if isinstance(c, Mapping) for name in c if name not in found.asked):
        raise unknown_name("argument of plan", unknown, found.asked)
    kept = found.nearest
    rows = [{"change": "as planned", **_both(found, kept)}]
    for change in changes:
        options = {**found.asked, **_options(change, found)}
        try:
            again = plan(**options)
        except NoAnswerError as error:
            rows.append({"change": str(change), "note": str(error)})
            continue
        rows.append({"change": str(change), **_both(again, kept)})
    return pd.DataFrame(rows)


def what_binds(found: Plan) -> pd.DataFrame:
    """The limits of a plan's choice, and how much of each is used.

    Parameters
    ----------
    found : Plan
        What `plan` gave.

    Returns
    -------
    pandas.DataFrame
        A row a limit.

    Examples
    --------
    >>> import perfmodel as pm
    >>> found = pm.plan("llama-3.1-8b", "h100_sxm", isl=512, osl=128, tpot_ms=20, concurrency=16)
    >>> len(pm.what_binds(found)) > 0
    True
    """
    if not isinstance(found, Plan):
        raise InputError(f"what_binds is asked of {shown(found)}: expected a plan, as pm.plan returns it")
    return found.what_binds()


def _each_gpu(found: Plan) -> pd.DataFrame:
    import pandas as pd

    best: dict[str, Row] = {}
    for row in found.rows:
        held = best.get(row["gpu"])
        better = held is not None and not held["meets"] and not row["meets"] and row["tightest_used"] < held["tightest_used"]
        if held is None or better:
            best[row["gpu"]] = row
    ordered = sorted(best.values(), key=lambda row: order(row, found.goal))
    return pd.DataFrame([{name: row.get(name) for name in _SHOWN} for row in ordered])


def _both(found: Plan, kept: Row) -> dict[str, Any]:
    same = [r for r in found.rows if all(r[n] == kept[n] for n in ("gpu", "mode", "parallel", "replicas"))]
    fits = [r for r in same if r["quantization"] == kept["quantization"]] or same
    row = min(fits, key=lambda r: r["tightest_used"]) if fits else None
    best = found.nearest
    return {
        "same_meets": bool(row["meets"]) if row else False,
        "same_ttft_ms": row["ttft_ms"] if row else None,
        "same_tpot_ms": row["tpot_ms"] if row else None,
        "same_requests_per_s": row["requests_per_s"] if row else None,
        "best_meets": bool(best["meets"]),
        "best_gpus": best["gpus"],
        "best_gpu": best["gpu"],
        "best_parallel": best["parallel"],
        "best_ttft_ms": best["ttft_ms"],
        "best_tpot_ms": best["tpot_ms"],
        "best_requests_per_s": best["requests_per_s"],
        "note": "",
    }


def _options(change: str | Mapping[str, Any], found: Plan) -> dict[str, Any]:
    if isinstance(change, Mapping):
        return dict(change)
    text = change.strip().lower()
    if text.endswith(" kv"):
        return {"kv_cache_dtype": text.removesuffix(" kv").strip()}
    match = _CHANGE.fullmatch(text)
    if match is None:
        load_model(found.model.name if isinstance(found.asked["model"], str) else found.asked["model"], text)  # raises for an unknown type
        return {"quantization": text}
    what = match["what"] or match["that"]
    factor = float(match["factor"]) if match["factor"] else 1.0 + float(f"{match['sign']}{match['percent']}") / 100.0
    names = [name for name in _WHAT.get(what, ()) if found.asked.get(name) is not None]
    if not names:
        raise InputError(
            f"change {shown(change)}: this plan has no {plain(what)} to change: use one of {', '.join(_WHAT)}, or a mapping of arguments"
        )
    if not 0 < factor <= LARGEST_FACTOR:
        raise InputError(f"change {shown(change)}: what is left must be over 0 and at most {LARGEST_FACTOR:g} times as much")
    return {name: round(found.asked[name] * factor) if name in _WHOLE else found.asked[name] * factor for name in names}
