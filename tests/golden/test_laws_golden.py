"""Reviewed values of every operator law: latency, what each resource alone takes, and the features, for cases that reach its branches.

Of the laws and their constants alone: no fitted model answers here. Written by `python tests/golden/rewrite.py laws`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from goldens import differences, number, read

from perfmodel.hw import gpu
from perfmodel.learn.operators import operator_terms
from perfmodel.library.collective import model
from perfmodel.library.least import least_s
from perfmodel.library.registry import parts
from perfmodel.ops import OperatorTable
from perfmodel.ops.collective import KINDS
from perfmodel.ops.memory import TRAFFIC
from perfmodel.ops.names import KERNELS

FILE = Path(__file__).with_name("laws.json")
GPUS = ("a100_sxm4_80gb", "h100_sxm", "b200_sxm", "l40s", "l20", "h20", "rtx_pro_6000")
ROWS = 14  # a GPU and operator
MORE_ROWS = 80  # of which the latency alone is held
STACKS = ("any", "vllm", "sglang", "trtllm", "torch")
ATTENTION_KERNELS = ("", *KERNELS[1:8])


def _attention(pick: random.Random, phase: str, fp8: bool) -> dict[str, Any]:
    kv_heads, group = pick.choice((1, 2, 8)), pick.choice((1, 2, 4, 8, 16, 40))
    q_len = 1 if phase == "decode" else pick.choice((1, 17, 128, 1000, 4096))
    kv_len = q_len + pick.choice((0, 0, 64, 300, 5000, 40000))
    return {
        "phase": phase, "batch": pick.choice((1, 3, 16, 128, 1000)) if phase == "decode" else pick.choice((1, 4, 20)), "q_len": q_len,
        "kv_len": max(kv_len, 2), "q_heads": kv_heads * group, "kv_heads": kv_heads, "head_dim": pick.choice((64, 80, 128, 192, 256, 512)),
        "window": pick.choice((0, 0, 128, 1024)), "dtype": "bf16", "kv_dtype": pick.choice(("bf16", "bf16",
        "fp8" if fp8 or phase == "decode" else "bf16")),
        "stack": pick.choice(STACKS), "kernel": pick.choice(ATTENTION_KERNELS),
    }  # fmt: skip


def _row(operator: str, pick: random.Random, fp8: bool) -> dict[str, Any]:
    narrow = ["fp8", "fp8_block"] if fp8 else ["int8"]
    stack = pick.choice(STACKS)
    if operator == "gemm":
        return {
            "m": pick.choice((1, 5, 32, 100, 500, 4096, 20000)), "n": pick.choice((48, 512, 3000, 8192, 28672)),
            "k": pick.choice((64, 600, 4096, 14336)), "batch": pick.choice((1, 1, 1, 8)), "stack": stack,
            "dtype": pick.choice(["bf16", "bf16", "fp16", "int8_wo", "int4_wo", *narrow]),
        }  # fmt: skip
    if operator.startswith("attention"):
        return _attention(pick, operator.split("_")[1], fp8)
    if operator.startswith("mla"):
        phase = operator.split("_")[1]
        q_len = 1 if phase == "decode" else pick.choice((16, 100, 1024, 5000))
        return {
            "phase": phase, "batch": pick.choice((1, 4, 60, 300)) if phase == "decode" else pick.choice((1, 3)), "q_len": q_len,
            "kv_len": q_len + pick.choice((0, 33, 900, 9000, 50000)) + (phase == "decode"), "num_heads": pick.choice((1, 8, 20, 128)),
            "dtype": "bf16", "kv_dtype": pick.choice(("bf16", "fp8")), "stack": stack,
        }  # fmt: skip
    if operator == "memory":
        return {
            "kind": pick.choice(tuple(TRAFFIC)), "tokens": pick.choice((1, 7, 64, 800, 9000, 70000)), "hidden": pick.choice((128, 1000,
            4096, 16384)),
            "dtype": pick.choice(("bf16", "fp32")), "stack": pick.choice(("torch", "any", "vllm")), "source": pick.choice(("", "vidur")),
        }  # fmt: skip
    experts = pick.choice((8, 32, 128, 256))
    return {
        "tokens": pick.choice((1, 6, 40, 200, 900, 9000)), "hidden": pick.choice((2688, 4096, 7168)), "inter": pick.choice((1856, 704,
        1536, 2048)),
        "num_experts": experts, "top_k": pick.choice((1, 2, 8)), "tp": pick.choice((1, 1, 8)), "ep": pick.choice((1, 4)),
        "dtype": pick.choice(["bf16", "bf16", "int4_wo", *narrow]), "stack": stack, "framework_version": pick.choice(("0.4.1", "0.14",
        "9.9")),
        "kernel_source": pick.choice(("", "", "cutlass", "deepgemm", "nongated")), "distribution": pick.choice(("balanced",
        "power_law_1.01", "power_law_1.2")),
        "weight": pick.choice(("", "", "", "w13", "w2")),
    }  # fmt: skip


OPERATORS = ("gemm", "attention_prefill", "attention_decode", "mla_prefill", "mla_decode", "memory", "moe")


def cases(operator: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(name, GPU, row) of an operator; the same on every machine."""
    for name in GPUS:
        pick = random.Random(f"{operator} {name}")
        for _ in range(ROWS):
            row = _row(operator, pick, fp8=not name.startswith("a100"))
            yield f"{operator} {name} " + " ".join(f"{k}={v}" for k, v in row.items() if v != ""), name, row


def terms_of(operator: str) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    for name, on, row in cases(operator):
        kind = operator.split("_", maxsplit=1)[0]
        columns = OperatorTable.read(kind, pd.DataFrame([row]))
        ((what, rows),) = parts(columns)
        t = operator_terms(gpu(on), what, columns.take(rows), {})
        out[name] = {
            "latency_us": number(t.latency_s[0] * 1e6), "least_us": number(np.ravel(t.least_s)[0] * 1e6),
            "seconds": {k: number(np.broadcast_to(v, 1)[0] * 1e6) for k, v in t.seconds.items()},
            "features": {k: number(np.broadcast_to(v, 1)[0]) for k, v in t.features.items()},
            "variant": None if t.variant is None else number(np.broadcast_to(t.variant, 1)[0]),
        }  # fmt: skip
    return out


HOSTS = (
    ("a100_sxm4_80gb", "auto", 8), ("h100_sxm", "auto", 8), ("b200_sxm", "auto", 8), ("l40s", "pcie_switch", 4),
    ("l40s", "pcie_sockets", 2), ("l40s", "pcie_root", 2), ("rtx_pro_6000", "pcie_8gpu", 8),
)  # fmt: skip
"""GPU, topology, and the most GPUs that are asked about."""
COLLECTIVE_STACKS = ("nccl", "torch", "torch_graph", "vllm", "vllm_eager", "sglang", "sglang_eager", "trtllm")


def collectives() -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    for name, topology, most in HOSTS:
        pick = random.Random(f"collective {name} {topology}")
        for _ in range(40):
            nodes = pick.choice((1, 1, 1, 2)) if topology == "auto" else 1
            row = {
                "kind": pick.choice((*KINDS, *["all_reduce"] * 6)), "message_bytes": 2 ** pick.choice((8, 12, 14, 16, 18, 20, 22, 25, 28,
                30)), "nodes": nodes,
                "n_gpus": pick.choice([n for n in (2, 4, 8) if n <= most]) * nodes, "dtype": pick.choice(("bf16", "bf16", "fp8")),
                "topology": topology, "version": pick.choice(("", "0.5.0", "2.19", "2.27.3", "1.0")),
                "stack": pick.choice(COLLECTIVE_STACKS),
            }  # fmt: skip
            columns = OperatorTable.read("collective", pd.DataFrame([row]))
            t = model(gpu(name), columns)
            out[f"collective {name} " + " ".join(f"{k}={v}" for k, v in row.items() if v != "")] = {
                **{k: number(v[0] * 1e6) for k, v in t.seconds.items()}, "sigma": number(t.log_sigma[0]), "in_domain": bool(t.in_domain[0]),
                "way": f"{t.algorithm[0]} {t.protocol[0]} {t.path[0]}", **{k: number(v[0]) for k, v in t.features.items()},
            }  # fmt: skip
    return out


def more_of(operator: str) -> dict[str, Any]:
    """Latency and least time of many rows of each GPU, microseconds."""
    out: dict[str, Any] = {}
    for name in GPUS:
        pick = random.Random(f"more {operator} {name}")
        rows = [_row(operator, pick, fp8=not name.startswith("a100")) for _ in range(MORE_ROWS)]
        table = OperatorTable.read(operator.split("_", maxsplit=1)[0], pd.DataFrame(rows))
        latency, least = np.empty(len(rows)), least_s(gpu(name), table) * 1e6
        for what, mine in parts(table):
            latency[mine] = operator_terms(gpu(name), what, table.take(mine), {}).latency_s * 1e6
        out[f"more {operator} {name}"] = {"latency_us": [number(v) for v in latency], "least_us": [number(v) for v in least]}
    return out


def figures() -> dict[str, dict[str, Any]]:
    each = {name: found for operator in OPERATORS for name, found in terms_of(operator).items()}
    more = {name: found for operator in OPERATORS for name, found in more_of(operator).items()}
    return {**each, **more, **collectives()}


def test_collectives_are_as_reviewed() -> None:
    lines = differences({name: found for name, found in read(FILE).items() if name.startswith("collective ")}, collectives())
    assert not lines, "\n".join(lines[:20])


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_law_is_as_reviewed(operator: str) -> None:
    expected = {name: found for name, found in read(FILE).items() if name.startswith(f"{operator} ")}
    lines = differences(expected, terms_of(operator))
    assert not lines, "\n".join(lines[:20])


@pytest.mark.parametrize("operator", OPERATORS)
def test_many_rows_take_as_long_as_reviewed(operator: str) -> None:
    expected = {name: found for name, found in read(FILE).items() if name.startswith(f"more {operator} ")}
    lines = differences(expected, more_of(operator))
    assert not lines, "\n".join(lines[:20])


def test_one_operator_has_the_terms_of_its_row() -> None:
    """A table of one row: what a single question asks."""
    expected = read(FILE)
    for operator in OPERATORS:
        for name, on, row in list(cases(operator))[:6]:
            kind = operator.split("_")[0]
            columns = OperatorTable.read(kind, pd.DataFrame([row]))
            ((what, _),) = parts(columns)
            t = operator_terms(gpu(on), what, columns, {})
            assert float(t.latency_s[0]) * 1e6 == pytest.approx(expected[name]["latency_us"], rel=1e-6), name
