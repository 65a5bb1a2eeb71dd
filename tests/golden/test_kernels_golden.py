"""Reviewed values of the Triton kernel families: space, rules, facts without compiling, and every term and feature of some configs.

Of the laws and their constants alone: no fitted model answers here. Written by `python tests/golden/rewrite.py kernels`.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens import differences, number, read

from perfmodel.analytic.constants import constant_values
from perfmodel.hw import gpu
from perfmodel.kernels import kernel_family
from perfmodel.kernels.configs import Configs
from perfmodel.kernels.facts import Facts, facts_for

FILE = Path(__file__).with_name("kernels.json")
GPUS = ("a100_sxm4_80gb", "h100_sxm", "b200_sxm", "l40s", "rtx_pro_6000")
SIZES: dict[str, list[dict[str, Any]]] = {
    "gemm": [dict(zip("mnk", s, strict=True)) for s in ((16, 4096, 4096), (300, 6144, 1000), (4096, 8192, 4096), (20000, 9000, 700))],
    "attention_prefill": [
        {"batch": b, "q_len": q, "kv_len": kv, "q_heads": h, "kv_heads": 4, "head_dim": d, "causal": c}
        for b, q, kv, h, d, c in ((1, 4096, 4096, 32, 128, 1), (2, 1000, 3000, 8, 64, 1), (16, 512, 512, 8, 256, 0),
            (1, 100, 100, 4, 128, 1))
    ],
    "attention_decode": [
        {"batch": b, "kv_len": kv, "q_heads": h, "kv_heads": g, "head_dim": d}
        for b, kv, h, g, d in ((1, 8192, 32, 8, 128), (64, 3000, 64, 4, 64), (300, 500, 8, 8, 128))
    ],
    "fused_moe": [
        {"tokens": t, "hidden": h, "inter": i, "num_experts": e, "top_k": k, "random": r}
        for t, h, i, e, k, r in ((16, 4096, 1536, 128, 8, 1), (1000, 2048, 768, 64, 8, 1), (4096, 4096, 14336, 8, 2, 0))
    ],
}  # fmt: skip
DTYPES = {"gemm": ("bf16", "fp8", "int8"), "attention_prefill": ("bf16",), "attention_decode": ("bf16",), "fused_moe": ("bf16", "fp8")}
ODD: dict[str, list[dict[str, int]]] = {
    "gemm": [
        {"block_m": m, "block_n": n, "block_k": k, "group_m": g, "split_k": s, "num_warps": w, "num_stages": st}
        for (m, n, k), g, s, w, st in zip(
            itertools.product((16, 64, 192, 256, 512), (8, 64, 256), (16, 64)), itertools.cycle((1, 8)), itertools.cycle((1, 3, 64)),
            itertools.cycle((2, 4, 8, 64)), itertools.cycle((1, 2, 3, 7)),
        )
    ],
}  # fmt: skip
TAKEN = 4  # configs of a question, spread over the space


def _facts_without_compiling(family: str, on: Any, dtype: str, configs: Configs, sizes: dict[str, Any]) -> Facts:
    guess = kernel_family(family).formula(on, dtype, configs, sizes)
    values = {name: np.broadcast_to(np.asarray(v, dtype=np.float64), (len(configs),)) for name, v in guess.items()}
    zero = np.zeros(len(configs))
    return Facts(
        values["shared_bytes"].astype(np.int64), np.clip(values["regs"], 16, 255).astype(np.int64), values["spill_bytes"],
        values["loop_instructions"], values["multiplies"], values["warpgroup"] > 0, values["rate_share"], values["serialised"],
        values["fragment_bytes"], values.get("special", zero), zero > 0,
    )  # fmt: skip


def question(family: str, name: str, sizes: dict[str, Any], dtype: str) -> dict[str, Any]:
    module, on = kernel_family(family), gpu(name)
    found: dict[str, Any] = {}
    spaces = (
        {"space": module.space} if module.portable_space is module.space else {"space": module.space, "portable": module.portable_space}
    )
    for label, space in spaces.items():
        configs = space(on, **sizes, dtype=dtype)
        facts = facts_for(family, on, dtype, configs, sizes)
        rules = module.rules(on, **sizes, dtype=dtype, configs=configs, facts=facts)
        found[label] = {"configs": len(configs), **{r.reason: int(np.sum(r.mask)) for r in rules if np.any(r.mask)}}
        found[label] |= {f"sum of {n}": int(np.sum(v)) for n, v in configs.columns.items()}
        at = np.unique(np.linspace(0, len(configs) - 1, TAKEN).astype(int))
        some = configs.take(at)
        for kind, chosen in (("compiled", facts.take(at)), ("formula", _facts_without_compiling(family, on, dtype, some, sizes))):
            t = module.terms(on, **sizes, dtype=dtype, configs=some, facts=chosen, constants=constant_values(family))
            table = {"latency_us": t.latency_s * 1e6, "waves": t.waves, "blocks": t.blocks_per_sm}
            table |= {f"{k}, us": np.broadcast_to(v, t.latency_s.shape) * 1e6 for k, v in t.seconds.items()}
            table |= {k: np.broadcast_to(v, t.latency_s.shape) for k, v in t.features.items()}
            found[f"{label}, {kind}"] = {k: [number(x) for x in v] for k, v in table.items()}
            found[f"{label}, {kind}"]["limiter"] = [str(x) for x in t.limiter]
        guess = module.formula(on, dtype, some, sizes)
        found[f"{label}, facts"] = {k: [number(x) for x in np.broadcast_to(v, (len(some),))] for k, v in guess.items()}
    return found


def odd_rules(family: str, name: str) -> dict[str, Any]:
    """Which rule prunes configs that break some."""
    module, on, sizes = kernel_family(family), gpu(name), SIZES[family][1]
    out: dict[str, Any] = {}
    rows = ODD[family]
    columns = {n: np.array([row[n] for row in rows], dtype=np.int64) for n in rows[0]}
    for code, variant in enumerate(module.VARIANTS):
        configs = Configs(columns, np.full(len(rows), code, dtype=np.int8), module.VARIANTS)
        facts = _facts_without_compiling(family, on, "bf16", configs, sizes)
        for rule in module.rules(on, **sizes, dtype="bf16", configs=configs, facts=facts):
            out[f"{variant}: {rule.reason}"] = "".join("x" if m else "." for m in np.broadcast_to(rule.mask, len(rows)))
    return out


def cases(family: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for at, sizes in enumerate(SIZES[family]):
        for name, dtype in itertools.product(GPUS, DTYPES[family]):
            if (dtype == "fp8" and name.startswith("a100")) or (at + GPUS.index(name) + DTYPES[family].index(dtype)) % 2:
                continue  # half of them
            out[f"{family} {name} {dtype} " + " ".join(f"{k}={v}" for k, v in sizes.items())] = question(family, name, sizes, dtype)
    for name in GPUS if family in ODD else ():
        out[f"{family} {name} rules"] = odd_rules(family, name)
    return out


def figures() -> dict[str, Any]:
    return {name: found for family in SIZES for name, found in cases(family).items()}


@pytest.mark.parametrize("family", SIZES)
def test_every_family_is_as_reviewed(family: str) -> None:
    expected = {name: found for name, found in read(FILE).items() if name.startswith(f"{family} ")}
    lines = differences(expected, cases(family))
    assert not lines, "\n".join(lines[:20])
