"""Numerics of the attention and fused-MoE kernels in Triton's interpreter on the CPU, against torch in fp32.

As for the GEMM kernels (test_kernels_interpret.py) the cases run in one child process, on fp16 operands.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

TOLERANCE = 2e-3
Case = tuple[str, str, dict[str, Any], dict[str, Any]]


def prefill(variant: str, q_len: int, kv_len: int, causal: int, heads: tuple[int, int] = (4, 2), bm: int = 32, bn: int = 16) -> Case:
    problem = {"batch": 2, "q_len": q_len, "kv_len": kv_len, "q_heads": heads[0], "kv_heads": heads[1], "head_dim": 32, "causal": causal}
    config = {"variant": variant, "block_m": bm, "block_n": bn, "num_warps": 4, "num_stages": 2}
    return f"prefill-{variant}-{q_len}x{kv_len}-{causal}-{heads[0]}h{heads[1]}-{bm}x{bn}", "attention_prefill", problem, config


def decode(kv_len: int, splits: int, heads: tuple[int, int] = (6, 2), bn: int = 32) -> Case:
    problem = {"batch": 2, "kv_len": kv_len, "q_heads": heads[0], "kv_heads": heads[1], "head_dim": 32}
    config = {"variant": "pointer", "block_n": bn, "num_splits": splits, "num_warps": 4, "num_stages": 2}
    return f"decode-{kv_len}-{splits}-{heads[0]}h{heads[1]}-{bn}", "attention_decode", problem, config


def moe(tokens: int, hidden: int, inter: int, experts: int, top_k: int, bm: int = 16, bk: int = 32, group: int = 2) -> Case:
    drawn = tokens % 2  # one half of the cases is routed at random, the other evenly
    problem = {"tokens": tokens, "hidden": hidden, "inter": inter, "num_experts": experts, "top_k": top_k, "random": drawn}
    config = {"variant": "pointer", "block_m": bm, "block_n": 32, "block_k": bk, "group_m": group, "num_warps": 4, "num_stages": 2}
    return f"moe-{tokens}-{hidden}x{inter}-{experts}e{top_k}-{bm}x{bk}-{group}", "fused_moe", problem, config


CASES = [
    *(prefill(v, q, k, c) for v in ("pointer", "banded", "tma") for q, k in ((48, 48), (37, 37), (5, 70)) for c in (1, 0)),
    prefill("banded", 40, 40, 1, (3, 1), bm=16, bn=64),  # every block is on the diagonal
    prefill("tma", 1, 33, 1, (2, 2), bm=16, bn=32),
    *(decode(kv, s) for kv, s in ((32, 1), (100, 1), (100, 3), (97, 4))),
    decode(161, 5, (16, 1)),  # 6 blocks shared out 2 each: the last shares are empty
    decode(64, 2, (2, 2), bn=16),
    decode(50, 2, (20, 1)),  # more heads than one small multiply has rows
    moe(5, 32, 48, 4, 2),
    moe(33, 64, 32, 8, 3, bm=32, group=1),
    moe(1, 48, 80, 6, 1, bk=64, group=8),  # k is no multiple of block_k
    moe(40, 32, 32, 2, 2, bm=64),
]


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", [c[0] for c in CASES])
def test_agrees_with_torch(results: dict[str, Any], name: str) -> None:
    assert results[name]["error"] < TOLERANCE, results[name]
    assert results[name]["finite"], "some output was never written"


def test_the_reference_is_torchs_own_attention(results: dict[str, Any]) -> None:
    assert results["sdpa"] < 1e-3


@pytest.mark.parametrize(
    ("family", "problem", "config", "reason"),
    [
        ("attention_prefill", {"head_dim": 80}, {}, "head_dim must be a power of two from 16 to 256, got 80"),
        ("attention_prefill", {}, {"block_m": 48}, "powers of two"),
        ("attention_prefill", {}, {"variant": "swap"}, "unknown variant"),
        ("attention_prefill", {"batch": 70_000}, {}, "more than 65535 heads"),
        ("attention_decode", {}, {"num_splits": 9}, "more splits than blocks"),
        ("attention_decode", {}, {"block_n": 8}, "power of two from 16"),
        ("fused_moe", {"inter": 24}, {}, "multiples of 16"),
        ("fused_moe", {}, {"block_k": 8}, "powers of two from 16"),
    ],
)
def test_configs_that_cannot_run_say_why(family: str, problem: dict[str, Any], config: dict[str, Any], reason: str) -> None:
    from perfmodel.measure.kernels import family as find

    base = {"attention_prefill": prefill("tma", 64, 64, 1), "attention_decode": decode(100, 1), "fused_moe": moe(4, 32, 32, 2, 1)}[family]
    assert find(family).illegal(base[2], base[3], 90) is None
    assert reason in str(find(family).illegal({**base[2], **problem}, {**base[3], **config}, 90))


def test_the_accelerator_needs_hopper() -> None:
    from perfmodel.measure.kernels.attention_prefill import illegal

    _, _, problem, config = prefill("tma", 64, 64, 1)
    assert "9.0" in str(illegal(problem, config, 89)) and illegal(problem, {**config, "variant": "banded"}, 80) is None


@pytest.mark.parametrize(("block_m", "experts"), [(16, 5), (32, 3)])
def test_rows_are_sorted_by_expert(block_m: int, experts: int) -> None:
    import torch

    from perfmodel.measure.kernels.fused_moe import sort_rows

    chosen = torch.randint(0, experts, (29, 2), generator=torch.Generator().manual_seed(1))
    rows, tile_expert, used, slots = sort_rows(chosen, experts, block_m)
    assert len(rows) == slots and slots % block_m == 0 and int(used) <= slots and len(tile_expert) == slots // block_m
    real = rows[rows < chosen.numel()]
    assert sorted(real.tolist()) == list(range(chosen.numel()))
    for slot in torch.nonzero(rows < chosen.numel()).flatten().tolist():
        assert int(tile_expert[slot // block_m]) == int(chosen.reshape(-1)[rows[slot]]) and slot < int(used)


def _measure(name: str, problem: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    import torch

    from perfmodel.measure.kernels import family

    found = family(name)
    inputs = found.make_inputs({**problem, "dtype": "fp16"}, "cpu", 0)
    prepared = found.prepare(inputs, config)
    prepared.output.fill_(float("nan"))
    prepared.run()
    expected = found.reference(inputs)
    error = ((prepared.output.float() - expected).norm() / expected.norm()).item()
    return {"error": error, "finite": bool(torch.isfinite(prepared.output).all())}


def _sdpa() -> float:
    from perfmodel.measure.kernels import attention

    _, _, problem, _ = prefill("pointer", 48, 48, 1)
    inputs = attention.make_inputs({**problem, "dtype": "fp16"}, "cpu", 0)
    library = attention.sdpa(inputs)
    library.run()
    expected = attention.reference(inputs)
    return float((library.output.float() - expected).norm() / expected.norm())


def _main() -> None:
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_count(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))  # numpy 2.4 refuses range() over 1-element arrays

    interpreter._patch_lang_tensor = patch_and_count
    answers: dict[str, Any] = {name: _measure(family, problem, config) for name, family, problem, config in CASES}
    print(json.dumps({**answers, "sdpa": _sdpa()}))


if __name__ == "__main__":
    _main()
