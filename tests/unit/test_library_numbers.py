"""A question and its row in a table, and the GEMM law's search for the best tile: fast ways answer as the slow ones do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfmodel.analytic.roofline import overlap
from perfmodel.hw import gpu
from perfmodel.learn.calibration import resolve
from perfmodel.learn.operators import operator_terms, predict_columns
from perfmodel.library import gemm
from perfmodel.library.registry import parts
from perfmodel.ops import OperatorTable
from perfmodel.ops.memory import KINDS as MEMORY_KINDS

GPUS = ("a100_sxm", "h100_sxm", "l20", "b200_sxm")
ROWS = 40
RELATIVE = 1e-9  # numpy's power and exp differ in the last bit between processors and lengths of arrays
DTYPES = ("bf16", "fp16", "int8", "int8_wo", "int4_wo")


def table(kind: str, seed: int) -> pd.DataFrame:
    """Random rows of a kind of operator, over all stacks and the dtypes that every GPU has."""
    draw = np.random.default_rng(seed)
    pick = lambda values: draw.choice(values, ROWS)  # noqa: E731
    decode = pick([0, 1])
    kv_heads, q_len = pick([1, 2, 8]), np.where(decode, 1, pick([1, 77, 512, 4096]))
    frames: Mapping[str, Mapping[str, Any]] = {
        "gemm": {
            "m": pick([1, 5, 64, 129, 4096, 7777]),
            "n": pick([1, 64, 1000, 14336]),
            "k": pick([1, 128, 5120, 28672]),
            "batch": pick([1, 8]),
        },
        "attention": {
            "phase": np.where(decode, "decode", "prefill"),
            "batch": pick([1, 7, 64]),
            "q_len": q_len,
            "kv_len": q_len + pick([0, 1, 3000]),
            "kv_heads": kv_heads,
            "q_heads": kv_heads * pick([1, 5, 8, 48]),
            "head_dim": pick([64, 96, 128, 256]),
            "window": pick([0, 128]),
        },
        "mla": {
            "phase": np.where(decode, "decode", "prefill"),
            "batch": pick([1, 7, 64]),
            "q_len": q_len,
            "kv_len": q_len + pick([0, 3000]),
            "num_heads": pick([8, 16, 128]),
        },
        "moe": {
            "tokens": pick([1, 33, 8192]),
            "hidden": pick([1024, 7168]),
            "inter": pick([176, 2048]),
            "num_experts": pick([8, 64, 256]),
            "top_k": pick([1, 8]),
            "tp": pick([1, 2]),
            "ep": pick([1, 4]),
            "distribution": pick(["balanced", "power_law_1.2"]),
            "weight": pick(["both", "both", "w13", "w2"]),
        },
        "memory": {"kind": pick(MEMORY_KINDS), "tokens": pick([1, 33, 8192]), "hidden": pick([128, 5120])},
    }
    stacks = pick(["", "vllm", "sglang", "trtllm", "torch"])
    return pd.DataFrame({**frames[kind], "dtype": pick(["bf16", "fp16"] if kind != "gemm" else DTYPES), "stack": stacks})


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("kind", ["gemm", "attention", "moe", "mla", "memory"])
def test_one_question_is_answered_as_its_row_in_a_table(name: str, kind: str) -> None:
    spec, columns = gpu(name), OperatorTable.read(kind, table(kind, 3))
    for what, rows in parts(columns):
        part, model = columns.take(rows), resolve(spec, what, "auto")
        whole = operator_terms(spec, what, part, model.constants)
        for row in range(len(part["dtype"])):
            one = predict_columns(spec, what, part.take(slice(row, row + 1)), model)
            assert one.terms.latency_s[0] == pytest.approx(whole.latency_s[row], rel=RELATIVE)
            for mine, all_rows in ((one.terms.seconds, whole.seconds), (one.terms.features, whole.features)):
                assert list(mine) == list(all_rows)
                alike = {n: float(np.broadcast_to(v, whole.latency_s.shape)[row]) for n, v in all_rows.items()}
                assert {n: float(np.broadcast_to(v, (1,))[0]) for n, v in mine.items()} == pytest.approx(alike, rel=RELATIVE, abs=RELATIVE)


@pytest.mark.parametrize("name", GPUS)
def test_tiles_that_are_not_tried_could_not_have_been_the_best(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, frame = gpu(name), pd.concat([table("gemm", seed) for seed in range(60)], ignore_index=True)
    columns, constants = OperatorTable.read("gemm", frame), resolve(spec, "gemm", "auto").constants
    quick = operator_terms(spec, "gemm", columns, constants)
    tried = []

    def all_of_them(power: float, *parts: Any) -> Any:
        tensor, feed, latency, start, extra = parts
        tried.append(np.mean(np.isinf(kept(power, *parts))))
        return overlap(power, tensor, feed, latency) + start + extra

    kept = gemm._totals
    monkeypatch.setattr(gemm, "_totals", all_of_them)
    slow = operator_terms(spec, "gemm", columns, constants)
    assert np.mean(tried) > 0.5  # most tiles are left out
    np.testing.assert_allclose(quick.latency_s, slow.latency_s, rtol=RELATIVE)
    for feature in quick.features:
        np.testing.assert_allclose(quick.features[feature], slow.features[feature], rtol=RELATIVE, atol=RELATIVE, err_msg=feature)
