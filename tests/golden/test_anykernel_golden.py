"""Reviewed values of the law of any kernel: what shipped compilations have to do, read from their TTIR, and what that costs on two GPUs.

Written by `python tests/golden/rewrite.py anykernel`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens import differences, number, read

from perfmodel._resources import shipped
from perfmodel.hw import gpu
from perfmodel.kernels.anykernel import ir, law
from perfmodel.kernels.anykernel.facts import Binary
from perfmodel.kernels.anykernel.work import Work, analyse
from perfmodel.measure.kernel_pack import read_pack

FILE = Path(__file__).with_name("anykernel.json")
ARGUMENTS: dict[str, dict[str, float]] = {
    "gemm": {"M": 500, "N": 10240, "K": 8192, "stride_am": 8192, "stride_bn": 8192, "stride_cm": 10240},
    "attention": {"scale": 0.1, "seq": 2000, "heads": 16, "group": 2},
    "decode": {"scale": 0.1, "seq": 8000, "kv_heads": 4, "group": 8, "splits": 8, "per_split": 1024},
    "combine": {},
}
GRIDS = {"gemm": (1280, 1, 1), "attention": (16, 32, 1), "decode": (8, 4, 3), "combine": (300, 1, 1)}
LARGE = (40000, 1, 1)  # more programs than are looked at one by one
TAKEN = 9  # compilations of a kernel, spread over the file
GPUS = ("h100_sxm", "a100_sxm4_80gb", "l40s")


@cache
def compiled() -> dict[str, list[tuple[str, dict[str, Any]]]]:
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {name: [] for name in ARGUMENTS}
    for key, entry in sorted(read_pack(shipped("data") / "anykernel" / "compiled_sm_90.parquet").items()):
        if entry["binary"]:
            name = entry["ttir"].split("@", 1)[1].split("(", 1)[0]
            found[name].append((key, entry))
    return {name: [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, TAKEN).astype(int))] for name, rows in found.items()}


def described(work: Work) -> dict[str, Any]:
    """What was read from the TTIR."""
    out: dict[str, Any] = {"programs": work.programs, "looked at": work.looked_at, "active": number(work.active.mean())}
    out["unique"] = [number(x) for x in work.unique_bytes({})]
    out["window"] = number(work.window_bytes(132))
    for at, s in enumerate(work.segments):
        accesses = {
            f"{kind} {i}": [a.base, *(number(x) for x in (a.tile_bytes, a.request_bytes, a.run_bytes, a.lines, a.stream_bytes))]
            for kind, group in (("load", s.loads), ("store", s.stores))
            for i, a in enumerate(group)
        }
        counts = {"steps": s.steps.mean(), "special": s.special, "plain": s.plain, "reduced": s.reduced, "reductions": s.reductions}
        dots = [[d.rows, d.cols, d.depth, d.operand_bytes, d.element] for d in s.dots]
        out[f"segment {at}"] = {"path": "/".join(s.path), **{k: number(v) for k, v in counts.items()}, "dots": dots, **accesses}
    return out


def cases(kernel: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, entry in compiled()[kernel]:
        work = analyse(ir.parse(entry["ttir"]), ARGUMENTS[kernel], GRIDS[kernel])
        raw = entry["binary"] if isinstance(entry["binary"], dict) else json.loads(entry["binary"])
        binary = Binary.from_dict(raw)
        found: dict[str, Any] = {"work": described(work)}
        for name in GPUS:
            e = law.estimate(gpu(name), work, binary, law.constants())
            found[name] = {
                "latency_us": number(e.latency_s * 1e6), **{k: number(v * 1e6) for k, v in e.seconds.items()}, "waves": number(e.waves),
                "blocks": e.blocks_per_sm, "limiter": e.limiter, "bound": e.bound, "reason": law.reasons(gpu(name), binary),
            }  # fmt: skip
        out[f"{kernel} {key[:16]}"] = found
        if kernel == "gemm" and len(out) < 4:
            large = {**ARGUMENTS[kernel], "M": 64000, "N": 40000}
            found["large"] = described(analyse(ir.parse(entry["ttir"]), large, LARGE))
    return out


def figures() -> dict[str, Any]:
    return {name: found for kernel in ARGUMENTS for name, found in cases(kernel).items()}


@pytest.mark.parametrize("kernel", ARGUMENTS)
def test_every_kernel_is_as_reviewed(kernel: str) -> None:
    lines = differences({name: found for name, found in read(FILE).items() if name.startswith(f"{kernel} ")}, cases(kernel))
    assert not lines, "\n".join(lines[:20])
