"""Questions to the planning part that nobody should ask."""

from __future__ import annotations

import copy
import functools
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import perfmodel as pm
from perfmodel._resources import shipped
from perfmodel.plan.flags import read_command
from perfmodel.plan.prices import prices
from perfmodel.plan.tensors import parameters

from .cases import Case, command

NAN, INF = math.nan, math.inf


class NoText:
    """An object that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 10**6, 10**9, 10**18, 10**400, 2**31, 2**63, 0.5, 1.5, -0.0, 1e-300, 1e300, NAN, INF, -INF,
    "", " ", "x", "nan", "-1", "0", "1e999", "1_0", "a" * 5000, "\0", "\n", "é" * 70, "--tp", "../..", b"x", [], [1], [0, 0], ["a"], [[1]],
    [None], list(range(3000)), (), {}, {"a": 1}, set(), object(), NoText(), np.array(5), np.array([1, 2]), np.array([]), np.float32(3),
    np.int64(4), np.bool_(True), pd.NA, pd.NaT, 1j, len, Path("/dev/zero"), Path("x" * 300),
)  # fmt: skip
TEXTS = ("10" * 40, "1e300", "-inf", "true", "[]", "/dev/zero", "/dev/full", "/", ".")
SHOWN_TEXT = (*(v for v in HOSTILE if isinstance(v, str)), *TEXTS)
TRAFFIC: Mapping[str, Any] = {"isl": 256, "osl": 32}
SMALL = "Qwen3-0.6B"
ENGINE_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "expert_parallel_size", "data_parallel_size")
ENGINE = (*ENGINE_SIZES, "quantization", "kv_cache_dtype", "stack", "memory_fraction", "max_num_batched_tokens", "max_num_seqs")
CALLS: Mapping[str, tuple[Callable[..., Any], Mapping[str, Any], Sequence[str]]] = {
    "estimate": (
        pm.estimate,
        {"model": SMALL, "gpu": "h100_sxm", "concurrency": 2, **TRAFFIC},
        (
            "model", "gpu", "isl", "osl", "concurrency", "request_rate", "arrival_times_s", *ENGINE, "framework_version", "calibration",
            "prefix_cache_hit_rate", "accepted_tokens_per_step", "requests", "topology", "host", "seed",
        ),
    ),
    "plan": (
        pm.plan,
        {"model": SMALL, "gpus": ["l20"], "disaggregated": False, "max_engine_gpus": 2, **TRAFFIC},
        (
            "model", "gpus", "isl", "osl", "ttft_ms", "tpot_ms", "request_rate", "concurrency", "total_gpus", "budget_usd_per_hour",
            "objective", "prefix_cache_hit_rate", "accepted_tokens_per_step", "percentile", "quantization", "kv_cache_dtype", "stack",
            "memory_fraction", "prices", "max_engine_gpus", "calibration",
        ),
    ),
    "memory_ledger": (pm.memory_ledger, {"model": SMALL, "gpu": "h100_sxm"}, ("model", "gpu", *ENGINE)),
    "max_concurrency": (
        pm.max_concurrency,
        {"model": SMALL, "gpus": "l20"},
        ("model", "gpus", "contexts", "tensor_parallel_sizes", "quantization", "kv_cache_dtype", "stack", "memory_fraction"),
    ),
    "gpus_for": (
        pm.gpus_for,
        {"model": SMALL, "gpus": ["l20"], "request_rate": 1.0, "disaggregated": False, "max_engine_gpus": 1, **TRAFFIC},
        ("model", "gpus", "request_rate", "isl", "osl", "ttft_ms", "objective"),
    ),
    "compare": (
        pm.compare,
        {"model": SMALL, "gpus": ["l20"], "disaggregated": False, "max_engine_gpus": 1, **TRAFFIC},
        ("model", "gpus", "isl", "osl", "tpot_ms", "quantization"),
    ),
    "estimate_split": (
        pm.estimate_split,
        {
            "model": SMALL, "gpu": "h100_sxm", "prefill": pm.Pool(), "decode": pm.Pool(), "request_rate": 1.0, "requests": 8, "isl": 64,
            "osl": 8,
        },
        ("model", "gpu", "prefill", "decode", "isl", "osl", "request_rate", "concurrency", "stack", "link_gb_per_s", "requests", "seed"),
    ),
    "load_model": (pm.load_model, {"model": SMALL}, ("model", "quantization")),
}  # fmt: skip


FITTING: Mapping[str, Sequence[Any]] = {
    "model": (SMALL, "Qwen3-30B-A3B", "DeepSeek-V2-Lite", "gpt-oss-20b", "Gemma-2-9B", "Qwen3-Next-80B-A3B"),
    "gpu": ("h200_sxm", "l20", "a100", "l4"),
    "gpus": (["h200_sxm", "l4"], "a100", ["l20", "L20"]),
    "isl": (1, 2, 17, 8000, 100_000, 10**7, [10, 3000], np.array([100, 200]), pm.Lognormal(500, 1.0)),
    "osl": (1, 2, 3, 2000, 30_000, [1, 90], pm.Lognormal(50, 3.0)),
    "concurrency": (1, 3, 500, 5000, None),
    "request_rate": (1e-3, 0.3, 40.0, 1e5, None),
    "arrival_times_s": ([0.0, 0.0, 5.0], [1e9, 1e9], None),
    **dict.fromkeys(ENGINE_SIZES, (1, 2, 4, 8, 16)),
    "quantization": ("fp8", "awq", "nvfp4", "mxfp4", "int8", "auto", ["fp8", None]),
    "kv_cache_dtype": ("auto", "fp8", "int8", "bf16"),
    "stack": ("vllm", "sglang", "trtllm"),
    "memory_fraction": (0.01, 0.5, 1.0),
    "max_num_batched_tokens": (1, 16, 2**20),
    "max_num_seqs": (1, 2**20),
    "framework_version": ("0.11.2", "1.0.0rc3", "latest", "v0.8.5.post1", "abc"),
    "prefix_cache_hit_rate": (0.0, 0.5, 1.0),
    "accepted_tokens_per_step": (1.0, 2.5, 64),
    "requests": (1, 2, 300),
    "topology": ("auto", "nvswitch", "abc"),
    "calibration": ("auto", None),
    "ttft_ms": (1e-6, 500, 1e12),
    "tpot_ms": (1e-6, 30, 1e12),
    "total_gpus": (1, 3, 8, 100_000),
    "budget_usd_per_hour": (0.01, 10, 1e12),
    "objective": ("gpus", "cost", "throughput"),
    "percentile": ("mean", "p99"),
    "prices": ({"l20": 1.0}, {"h100": 1e6}),
    "max_engine_gpus": (1, 4, 8),
    "contexts": ([1, 2**24], (4096,)),
    "tensor_parallel_sizes": ([1, 3, 4096], (2,)),
    "link_gb_per_s": (1e-3, 50.0, 1e6),
    "seed": (0, 1, 2**31 - 1),
}  # fmt: skip
"""Values that may well have an answer."""


def _value(field: str, rng: np.random.Generator) -> Any:
    """A value for an argument: half of the time one that may be right."""
    fitting = FITTING.get(field, ())
    if fitting and rng.random() < 0.5:
        return fitting[rng.integers(len(fitting))]
    return HOSTILE[rng.integers(len(HOSTILE))]


def arguments(rng: np.random.Generator) -> Case:
    """Up to three arguments of every planning call replaced."""
    name = str(rng.choice(list(CALLS)))
    call, base, fields = CALLS[name]
    asked = dict(base)
    for field in rng.choice(fields, size=min(int(rng.integers(1, 4)), len(fields)), replace=False):
        asked[str(field)] = _value(str(field), rng)
    return f"{name}({_shown(asked, base)})", lambda: call(**asked)


@functools.cache
def _small_plan() -> pm.Plan:
    return pm.plan(SMALL, ["l20"], disaggregated=False, max_engine_gpus=1, concurrency=4, **TRAFFIC)


def questions_of_plans(rng: np.random.Generator) -> Case:
    """sensitivity and what_binds, of a plan and of what is none."""
    plan = _small_plan()
    changes = (
        "+20 % traffic",
        "2x context",
        "-100 % osl",
        "fp8",
        "fp8 kv",
        "9" * 400 + "x isl",
        "1e9x osl",
        "+5 % nothing",
        "x kv",
        "0x isl",
    )
    field = str(rng.choice(CALLS["plan"][2]))
    hostile = _value(field, rng)
    pick = int(rng.integers(4))
    if pick == 0:
        return f"what_binds({_text(hostile)})", lambda: pm.what_binds(hostile)
    elif pick == 1:
        return f"sensitivity(plan, {_text(hostile)})", lambda: pm.sensitivity(plan, hostile)
    elif pick == 2:
        change = str(rng.choice(changes))
        return f"sensitivity(plan, [{change[:60]!r}])", lambda: pm.sensitivity(plan, [change])
    else:
        change = {field: hostile}
        return f"sensitivity(plan, [{{{field}: {_text(hostile)}}}])", lambda: pm.sensitivity(plan, [change])


def configs(rng: np.random.Generator) -> Case:
    """Every bundled config with one or two fields replaced, read, counted, and put on a card."""
    files = sorted((shipped("data") / "models").glob("*.json"))
    extra = {
        "layer_types": 5,
        "mlp_only_layers": True,
        "architectures": ["BertModel"],
        "quantization_config": {"quant_method": "fp8"},
        "vision_config": {"hidden_size": 8, "depth": 2},
        "torch_dtype": "bfloat16",
        "sliding_window": 4096,
        "moe_layers": [1],
    }
    kinds = (
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        {"quant_method": "awq", "bits": 4},
        {"quant_method": "mxfp4"},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}}},
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    )
    file = files[rng.integers(len(files))]
    config = copy.deepcopy(json.loads(file.read_text(encoding="utf-8"))["config"])
    if rng.random() < 0.3:
        config["quantization_config"] = copy.deepcopy(kinds[rng.integers(len(kinds))])
    label = []
    for _ in range(int(rng.integers(1, 3))):
        place, name = _field(config, extra, rng)
        place[name] = HOSTILE[rng.integers(len(HOSTILE))]
        label.append(f"{name}={_text(place[name])}")
    return f"{file.stem}: {', '.join(label)}", lambda: _use(config)


def _field(config: dict[str, Any], extra: Mapping[str, Any], rng: np.random.Generator) -> tuple[dict[str, Any], str]:
    """A field of the config or of an object in it, or one that it does not have."""
    name = str(rng.choice(sorted({*config, *extra})))
    inner = config.get(name)
    if isinstance(inner, dict) and inner and rng.random() < 0.8:
        return _field(inner, {}, rng)
    return config, name


def _use(config: Mapping[str, Any]) -> list[float]:
    model = pm.load_model(config, assume_dense=True)
    ledger = pm.memory_ledger(model, "h200_sxm")
    return [float(parameters(model)), ledger.kv_bytes, ledger.weights_bytes]


def price_files(rng: np.random.Generator) -> Case:
    """Files and mappings of prices."""
    heads = ("[h100_sxm]", "[H100]", "[nogpu]", "[[h100_sxm]]", "h100_sxm = 2", "[h100_sxm.more]", "[", "", "\0", "[" + "a" * 5000 + "]")
    keys = ("usd_per_gpu_hour", "usd", "date", "source")
    values = ("2.5", "0", "-1", "nan", "inf", "1e400", "true", "'x'", "[]", "{}", "2026-05-01", "1e300", "'" + "x" * 3000 + "'", "")
    if rng.random() < 0.5:
        text = f"{rng.choice(heads)}\n{rng.choice(keys)} = {rng.choice(values)}\nusd_per_gpu_hour = {rng.choice(values)}\n"
        return f"prices.toml {text[:80]!r}", lambda: _priced(text)
    else:
        given = {str(rng.choice(("h100_sxm", "L20", "nogpu", ""))): HOSTILE[rng.integers(len(HOSTILE))]}
        return f"prices({_text(given)})", lambda: prices(given)


def _priced(text: str) -> object:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prices.toml"
        file.write_bytes(text.encode())
        return prices(file)


FLAGS = (
    "-tp", "--tensor-parallel-size", "--tp-size", "-dp", "--dp-size", "--ep-size", "--enable-expert-parallel", "--enable-dp-attention",
    "--max-num-seqs", "--max-model-len", "--gpu-memory-utilization", "--mem-fraction-static", "--quantization", "--kv-cache-dtype",
    "--enforce-eager", "--speculative-config", "--compilation-config.mode", "-O3", "--port", "--no-such-flag", "--trust-remote-code",
    "--served-model-name", "--max_num_batched_tokens", "--chunked-prefill-size", "--model", "--model-path", "-", "--", "--=", "-x", "'",
)  # fmt: skip
STARTS = ("vllm serve m", "vllm serve", "python -m sglang.launch_server --model-path m", "python -m vllm.entrypoints.openai.api_server",
          "sglang serve --model-path m", "ollama run m", "")  # fmt: skip


def commands(rng: np.random.Generator) -> Case:
    """Start commands of engines."""
    values = ("1", "2", "0", "-1", "8", "0.9", "nan", "1e9", "x" * 5000, "fp8", "{}", "a=b", "", " ", "100000000000000000000")
    words = [str(rng.choice(STARTS))]
    for _ in range(int(rng.integers(0, 6))):
        flag, value = str(rng.choice(FLAGS)), str(rng.choice(values))
        words.append((flag, f"{flag} {value}", f"{flag}={value}", value)[rng.integers(4)])
    text = " ".join(words)
    return f"read_command({text[:100]!r})", lambda: read_command(text)


ENGINE_OPTIONS = ("--model", "--tp", "--pp", "--ep", "--dp", "--quantization", "--kv-cache-dtype", "--stack", "--memory-fraction")
LENGTHS = ("--isl", "256", "--osl", "32")
VERBS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "estimate": (
        ("--model", SMALL, "--gpu", "h100_sxm", "--concurrency", "2", *LENGTHS),
        (
            *ENGINE_OPTIONS, "--gpu", "--isl", "--osl", "--concurrency", "--request-rate", "--prefix-cache-hit-rate",
            "--accepted-tokens-per-step", "--calibration", "--command",
        ),
    ),
    "plan": (
        ("--model", SMALL, "--gpus", "l20", "--no-disagg", "--max-engine-gpus", "1", *LENGTHS),
        (
            "--model", "--gpus", "--isl", "--osl", "--ttft-ms", "--tpot-ms", "--request-rate", "--concurrency", "--total-gpus",
            "--budget-usd-per-hour", "--objective", "--percentile", "--quantization", "--kv-cache-dtype", "--stack", "--memory-fraction",
            "--prices", "--max-engine-gpus", "--html", "--prefix-cache-hit-rate",
        ),
    ),
    "memory": (("--model", SMALL, "--gpu", "h100_sxm"), (*ENGINE_OPTIONS, "--gpu", "--command")),
    "models": ((), ("",)),
}  # fmt: skip


def command_lines(rng: np.random.Generator) -> Case:
    """The planning verbs of the command line, in this process."""
    verb = str(rng.choice(list(VERBS)))
    base, options = VERBS[verb]
    words = [verb, *base]
    for option in rng.choice(options, size=rng.integers(1, 3) if len(options) > 1 else 1, replace=False):
        value = SHOWN_TEXT[rng.integers(len(SHOWN_TEXT))]
        if option in base:
            words[words.index(str(option)) + 1] = value
        else:
            words += [str(option), value] if option else [value]
    words += ([], ["--json"], ["--csv"])[rng.integers(3)]
    return f"perfmodel {' '.join(w[:40] for w in words)!r}", command(*words)


GENERATORS = (arguments, questions_of_plans, configs, price_files, commands, command_lines)


def _text(value: object) -> str:
    try:
        return " ".join(repr(value).split())[:60]
    except (RuntimeError, ValueError):
        return f"<{type(value).__name__}>"


def _shown(asked: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_text(value)}" for name, value in asked.items() if name not in base or value is not base[name])
