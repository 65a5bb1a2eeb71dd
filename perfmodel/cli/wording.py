"""Errors of the library in the words of the command line: names of arguments become the options that they were given by."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from perfmodel.errors import PerfModelError


@contextmanager
def as_options(names: Mapping[str, str]) -> Iterator[None]:
    """Raise the library's errors again with arguments named as options. `names`: argument -> option ("isl" -> "--isl").

    A name with an underscore is an argument wherever it stands; a plain word ("concurrency") only where it begins the line.
    """
    try:
        yield
    except PerfModelError as error:
        raise type(error)(reworded(str(error), names)) from error.__cause__


def reworded(text: str, names: Mapping[str, str]) -> str:
    """`text` with arguments named as options, each once: "prices (--prices)" becomes "--prices"."""
    for name, option in names.items():
        start = "" if "_" in name else "^"
        bilingual = rf"\b{re.escape(name)} \({re.escape(option)}\)"
        text = re.sub(rf"{bilingual}|{start}\b{re.escape(name)}\b(?![-.\w(/])", option, text)
    return text


ENGINE = {
    "tensor_parallel_size": "--tp", "pipeline_parallel_size": "--pp", "expert_parallel_size": "--ep", "data_parallel_size": "--dp",
    "quantization": "--quantization", "kv_cache_dtype": "--kv-cache-dtype", "stack": "--stack", "memory_fraction": "--memory-fraction",
    "model": "--model", "assume_dense": "--assume-dense", "calibration": "--calibration",
}  # fmt: skip
"""Arguments that say what an engine is, and their options."""
TRAFFIC = {
    "isl": "--isl", "osl": "--osl", "concurrency": "--concurrency", "request_rate": "--request-rate",
    "prefix_cache_hit_rate": "--prefix-cache-hit-rate", "accepted_tokens_per_step": "--accepted-tokens-per-step",
}  # fmt: skip
"""Arguments that say what traffic there is."""
GOAL = {
    "ttft_ms": "--ttft-ms", "tpot_ms": "--tpot-ms", "total_gpus": "--total-gpus", "budget_usd_per_hour": "--budget-usd-per-hour",
    "max_engine_gpus": "--max-engine-gpus", "percentile": "--percentile", "objective": "--objective", "prices": "--prices",
    "gpus": "--gpus",
}  # fmt: skip
"""Arguments of plan alone."""
