"""Hostile arguments of the Python interface: GPUs, operators, predictions, tables, rankings, calibrations."""

# ruff: noqa: E501
from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pandas as pd

import perfmodel as pm

from .cases import Case
from .values import pick, shown, value

GPUS = ("h100_sxm", "l20", "a100_sxm", "b200_sxm")
OPERATORS: dict[Any, dict[str, Any]] = {
    pm.Gemm: {"m": 64, "n": 512, "k": 512, "dtype": "bf16", "batch": 1},
    pm.Attention: {
        "phase": "prefill", "batch": 1, "q_len": 64, "kv_len": 64, "q_heads": 8, "kv_heads": 2, "head_dim": 128, "window": 0, "causal": True,
        "dtype": "bf16", "kv_dtype": "bf16",
    },
    pm.MLA: {"phase": "decode", "batch": 4, "q_len": 1, "kv_len": 512, "num_heads": 16, "dtype": "bf16"},
    pm.MoE: {"tokens": 64, "hidden": 512, "inter": 256, "num_experts": 8, "top_k": 2, "dtype": "bf16", "distribution": "balanced"},
    pm.Collective: {"kind": "all_reduce", "message_bytes": 4096, "n_gpus": 8, "nodes": 1, "dtype": "bf16", "topology": "auto"},
    pm.MemoryBound: {"kind": "rmsnorm", "tokens": 64, "hidden": 512, "dtype": "bf16"},
}  # fmt: skip
TABLES: dict[str, dict[str, Any]] = {
    "gemm": {"m": 64, "n": 512, "k": 512, "dtype": "bf16", "stack": "torch", "batch": 1, "gpu": "l20"},
    "attention": {
        "batch": 1, "q_len": 64, "kv_len": 64, "q_heads": 8, "kv_heads": 2, "head_dim": 128, "phase": "prefill", "window": 0, "causal": 1,
        "dtype": "bf16", "kv_dtype": "bf16", "stack": "vllm", "kernel": "fa3",
    },
    "moe": {
        "tokens": 64, "hidden": 512, "inter": 256, "num_experts": 8, "top_k": 2, "tp": 1, "ep": 1, "dtype": "bf16", "weight": "both",
        "distribution": "balanced", "stack": "vllm", "stack_version": "0.9.1",
    },
    "mla": {"batch": 4, "q_len": 1, "kv_len": 512, "num_heads": 16, "phase": "decode", "dtype": "bf16"},
    "memory": {"kind": "rmsnorm", "tokens": 64, "hidden": 512, "dtype": "bf16", "tp": 1, "source": "x"},
    "collective": {"kind": "all_reduce", "message_bytes": 4096, "n_gpus": 8, "nodes": 1, "dtype": "bf16", "topology": "auto", "stack": "nccl"},
}  # fmt: skip
CONFIG = {"block_m": 128, "block_n": 128, "block_k": 32, "num_warps": 4, "num_stages": 3, "group_m": 8}


def _spoilt(rng: np.random.Generator, fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of which one or two hold something else."""
    found = dict(fields)
    for _ in range(int(rng.integers(1, 3))):
        found[pick(rng, list(found))] = value(rng)
    return found


def gpu_name(rng: np.random.Generator) -> Case:
    name = value(rng)
    return f"gpu({shown(name)})", lambda: pm.gpu(name)


def operator(rng: np.random.Generator) -> Case:
    kind = pick(rng, list(OPERATORS))
    fields = _spoilt(rng, OPERATORS[kind])
    gpu = pick(rng, GPUS)
    return f"predict({kind.__name__}({shown(fields)}), {gpu})", lambda: pm.predict(kind(**fields), gpu)


def _explained(op: Any, gpu: Any, **given: Any) -> Any:
    return str(pm.predict(op, gpu, **given).explain())


def options(rng: np.random.Generator) -> Case:
    kind = pick(rng, list(OPERATORS))
    given = _spoilt(rng, {"gpu": pick(rng, GPUS), "stack": None, "config": None, "calibration": "auto"})
    verb = pick(rng, (pm.predict, _explained))
    return f"{verb.__name__}({kind.__name__}, {shown(given)})", lambda: verb(kind(**OPERATORS[kind]), **given)


def no_operator(rng: np.random.Generator) -> Case:
    op, verb = value(rng), pick(rng, (pm.predict, pm.rank))
    return f"{verb.__name__}({shown(op)})", lambda: verb(op, "l20")


def table(rng: np.random.Generator) -> Case:
    kind = pick(rng, list(TABLES))
    rows = int(rng.integers(1, 5))
    data: dict[Any, Any] = {name: [v] * rows for name, v in TABLES[kind].items()}
    name = pick(rng, list(data))
    bad = value(rng)
    cells: list[Any] = [bad if i == rows - 1 or rng.random() < 0.3 else v for i, v in enumerate(data[name])]
    data[name] = cells
    frame = pd.DataFrame({n: pd.Series(v, dtype=object) if n == name else v for n, v in data.items()})
    frame, how = _reshaped(rng, frame, name)
    return f"predict_table({kind}, {name} = {shown(bad)}, {how})", lambda: pm.predict_table(kind, frame, "l20")


def _reshaped(rng: np.random.Generator, frame: pd.DataFrame, name: str) -> tuple[Any, str]:
    how = pick(
        rng, ("plain",) * 8 + ("category", "twice", "levels", "none", "empty", "index", "string", "float", "list", "numbers", "dropped")
    )
    try:
        if how == "category":
            return frame.astype({name: "category"}), how
        if how == "string":
            return frame.astype({name: "string"}), how
        if how == "float":
            return frame.convert_dtypes(), how
    except Exception:
        return frame, "plain"
    if how == "twice":
        return pd.concat([frame, frame[[name]]], axis=1), how
    if how == "levels":
        return frame.set_axis(pd.MultiIndex.from_product([["a"], frame.columns]), axis=1), how
    if how == "none":
        return frame[[]], how
    if how == "empty":
        return frame.iloc[:0], how
    if how == "index":
        return frame.set_axis(["é"] * len(frame), axis=0), how
    if how == "list":
        return frame.to_dict("list"), how
    if how == "numbers":
        return frame.rename(columns={name: 5}), how
    if how == "dropped":
        return frame.drop(columns=name), how
    return frame, "plain"


def table_call(rng: np.random.Generator) -> Case:
    kind = pick(rng, list(TABLES))
    frame = pd.DataFrame([TABLES[kind]])
    given = _spoilt(rng, {"kind": kind, "frame": frame, "gpu": "l20", "calibration": "auto"})
    return f"predict_table({shown({k: v for k, v in given.items() if k != 'frame'})})", lambda: pm.predict_table(**given)


def sizes(rng: np.random.Generator) -> Case:
    """Sizes that are allowed, however odd: low <= latency <= high, finite."""
    kind = pick(rng, ("gemm", "memory", "moe"))
    rows = 16
    data = {n: [v] * rows for n, v in TABLES[kind].items() if n not in ("source", "tp", "weight")}
    for name in ("m", "n", "k", "tokens", "hidden"):
        if name in data:
            data[name] = [int(2 ** rng.uniform(0, 15)) for _ in range(rows)]
    data["dtype"] = [pick(rng, ("bf16", "fp16", "int8_wo")) for _ in range(rows)]
    gpu = pick(rng, GPUS)
    frame = pd.DataFrame({n: v for n, v in data.items() if n != "gpu"})
    return f"predict_table({kind}, {gpu}, {data})", lambda: pm.predict_table(kind, frame, gpu)


def configs(rng: np.random.Generator) -> Case:
    given: Any = [_spoilt(rng, CONFIG), CONFIG]
    if rng.random() < 0.3:
        given = pick(rng, (value(rng), [value(rng)], pd.DataFrame([given[0]], dtype=object), given[0], [CONFIG, value(rng)]))
    return f"rank(configs={shown(given)})", lambda: pm.rank(pm.Gemm(64, 512, 512), "l20", configs=given)


def one_config(rng: np.random.Generator) -> Case:
    given = _spoilt(rng, CONFIG) if rng.random() < 0.7 else value(rng)
    return f"predict(config={shown(given)})", lambda: pm.predict(pm.Gemm(64, 512, 512), "l20", config=given)


def rank_call(rng: np.random.Generator) -> Case:
    names = ("top_k", "kernel", "calibration", "replayed", "gpu")
    given = {"gpu": "l20", "configs": [CONFIG], pick(rng, names): value(rng)}
    if rng.random() < 0.3:
        given["kernel"] = pick(rng, (lambda: 0, len, "gemm", "attention_prefill", functools.partial(len), GPUS))
    if rng.random() < 0.15:
        given["grid"] = value(rng)
    return f"rank({shown(given)})", lambda: pm.rank(pm.Gemm(64, 512, 512), **given)


def prune_call(rng: np.random.Generator) -> Case:
    given = {"kernel": "gemm", "top_k": 8, pick(rng, ("kernel", "top_k", "calibration", "gpu")): value(rng)}
    return f"prune({shown(given)})", lambda: pm.prune(**given)


def calibration_table(rng: np.random.Generator) -> Case:
    kind = pick(rng, ("gemm", "memory", "moe", "attention", "kernel:gemm"))
    base = {**TABLES["gemm"], **CONFIG} if kind == "kernel:gemm" else TABLES[kind]
    frame = pd.DataFrame([{**base, "latency_us": 10.0}] * 3).drop(columns=["gpu"], errors="ignore").astype(object)
    name, bad = pick(rng, ["latency_us", *frame.columns]), value(rng)
    try:
        frame.at[1, name] = bad
    except Exception:
        frame[name] = [1, "x", None]
    tables: Any = {kind: frame} if rng.random() < 0.85 else pick(rng, (value(rng), {kind: value(rng)}, {5: frame}, {}))
    return f"calibrate_table({kind}, {name} = {shown(bad)})", lambda: pm.calibrate_table("l20", tables)


def calibration_folder(rng: np.random.Generator) -> Case:
    where = value(rng)
    return f"load_calibration({shown(where)})", lambda: pm.load_calibration(where)


GENERATORS = (
    gpu_name, operator, operator, options, no_operator, table, table, table, table_call, sizes, configs, configs, one_config, rank_call,
    prune_call, calibration_table, calibration_folder,
)  # fmt: skip
