"""Tables and arguments that are not what they should be: one InputError line, never a traceback."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfmodel as pm

OP = pm.Gemm(64, 64, 64)
TILE = {"block_m": 64, "block_n": 64, "block_k": 64}
GEMM = pd.DataFrame({"m": [64], "n": [64], "k": [64]})
ATTENTION = pd.DataFrame({"batch": [1], "kv_len": [64], "q_heads": [8], "kv_heads": [8], "head_dim": [64]})
MEMORY = pd.DataFrame({"kind": ["rmsnorm"], "tokens": [1], "hidden": [64]})
COLLECTIVE = pd.DataFrame({"kind": ["all_reduce"], "message_bytes": [64], "n_gpus": [2]})
LEVELS = pd.DataFrame([[1, 2, 3]], columns=pd.MultiIndex.from_tuples([("m", "a"), ("n", "a"), ("k", "a")]))


def one_line(ask: Any, message: str) -> None:
    with pytest.raises(pm.InputError, match=message) as caught:
        ask()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "frame", "message"),
    [
        ("gemmx", GEMM, "unknown kind of table 'gemmx': did you mean gemm"),
        (None, GEMM, "unknown kind of table None"),
        ("gemm", {"m": [1], "n": [1], "k": [1]}, "gemm table must be a pandas DataFrame, not dict"),
        ("gemm", GEMM["m"], "must be a pandas DataFrame, not Series"),
        ("gemm", pd.DataFrame([[1, 2, 3, 4]], columns=["m", "m", "n", "k"]), "gemm table has column 'm' more than once"),
        ("collective", COLLECTIVE[["kind", "n_gpus", "n_gpus", "message_bytes"]], "collective table has column 'n_gpus' more than once"),
        ("gemm", LEVELS, "columns of 2 levels"),
        ("gemm", GEMM.assign(m=1j), "column m must hold numbers, it holds complex128"),
        ("gemm", GEMM.assign(m=pd.Timestamp("2020-01-01")), "column m must hold numbers"),
        ("gemm", GEMM.assign(m="x"), "column m must hold numbers"),
        ("gemm", GEMM.assign(m=[10**400]), "column m must hold numbers"),
        ("gemm", GEMM.assign(dtype=[["bf16"]]), r"row 0 has \['bf16'\] in column dtype: expected one name"),
        ("gemm", GEMM.assign(stack=[{"a": 1}]), "in column stack"),
        ("memory", MEMORY.assign(tp="x"), "memory table: column tp must hold numbers"),
        ("memory", MEMORY.assign(tp=2, n_expanded_embd="x"), "column n_expanded_embd must hold numbers"),
        ("attention", ATTENTION.assign(phase=[["decode"]]), "in column phase"),
        ("collective", COLLECTIVE.assign(kind=[["all_reduce"]]), r"row 0 has \['all_reduce'\]"),
        ("collective", COLLECTIVE.assign(stack=[[1]]), r"row 0 has \[1\]"),
        ("collective", COLLECTIVE.assign(n_gpus="x"), "collective table: column n_gpus must hold numbers"),
        ("collective", COLLECTIVE.assign(n_gpus=np.nan), "row 0: n_gpus must be a whole number"),
    ],
)
def test_bad_tables(kind: Any, frame: Any, message: str) -> None:
    one_line(lambda: pm.predict_table(kind, frame, "l20"), message)


def test_a_gpu_column_of_lists() -> None:
    one_line(lambda: pm.predict_table("gemm", GEMM.assign(gpu=[["l20"]])), "in column gpu: expected one name")


@pytest.mark.parametrize(("kind", "frame"), [("gemm", GEMM), ("collective", COLLECTIVE), ("attention", ATTENTION.assign(phase="decode"))])
def test_an_empty_table_has_an_empty_answer(kind: str, frame: pd.DataFrame) -> None:
    answer = pm.predict_table(kind, frame.iloc[:0], "l20")
    assert len(answer) == 0 and "latency_us" in answer


@pytest.mark.parametrize("op", ["gemm", None, 5, {"m": 1}])
def test_what_is_no_operator(op: Any) -> None:
    for ask in (lambda: pm.predict(op, "l20"), lambda: pm.predict(op, "l20", config=TILE), lambda: pm.rank(op, "l20"), lambda: pm.tune(op)):
        one_line(ask, "expected an operator such as Gemm")


@pytest.mark.parametrize("calibration", [5, {}, [], 1.5, object()])
def test_what_is_no_calibration(calibration: Any) -> None:
    ring = pm.Collective("all_reduce", 64, 2)
    for ask in (
        lambda: pm.predict(OP, "l20", calibration=calibration),
        lambda: pm.predict(OP, "l20", calibration=calibration, config=TILE),
        lambda: pm.predict(ring, "l20", calibration=calibration),
        lambda: pm.rank(OP, "l20", calibration=calibration),
        lambda: pm.predict_table("gemm", GEMM, "l20", calibration=calibration),
        lambda: pm.load_calibration(calibration),
    ):
        one_line(ask, "expected 'auto', None, a Calibration, or the path of one")


def test_a_topology_that_is_no_name() -> None:
    one_line(lambda: pm.Collective("all_reduce", 64, 2, topology=["x"]), "topology must be a name")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["collective", "memory"])
@pytest.mark.parametrize(("value", "message"), [("x", "column latency_us must hold numbers"), (0.0, "rows 0, 1, 2, 3, 4 are not .20")])
def test_latencies_of_a_table_to_fit(kind: str, value: Any, message: str) -> None:
    frame = pd.concat([COLLECTIVE if kind == "collective" else MEMORY] * 20, ignore_index=True).assign(dtype="bf16", latency_us=value)
    one_line(lambda: pm.calibrate_table("l20", {kind: frame}), message)


def test_names_of_tables_to_fit() -> None:
    one_line(lambda: pm.calibrate_table("l20", {5: GEMM}), "the name of a table is 5")  # type: ignore[dict-item]
    one_line(lambda: pm.calibrate_table("l20", {"gemm": [1]}), "gemm table must be a pandas DataFrame")  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "ask",
    [
        lambda most: pm.Gemm(most, most, 1),
        lambda most: pm.Attention("prefill", most, 64, 64, 8, 8, most),
        lambda most: pm.MLA("decode", most, 1, most, 16),
        lambda most: pm.MoE(1, most, most, 8, 2),
        lambda most: pm.MemoryBound("rmsnorm", most, most),
    ],
)
def test_what_no_gpu_holds(ask: Any) -> None:
    one_line(lambda: ask(2**31 - 1), "has a tensor of .* elements, more than 70368744177664: no GPU holds it")


def test_one_config_of_one_problem() -> None:
    batched = pm.Gemm(64, 64, 64, batch=2)
    one_line(lambda: pm.predict(batched, "l20", config=TILE), "has no batch dimension, got batch=2")
    one_line(lambda: pm.rank(batched, "l20"), "has no batch dimension, got batch=2")
    one_line(lambda: pm.predict(OP, "l20", config=[TILE, TILE]), "config holds 2 configs: predict takes one")
    assert pm.predict(OP, "l20", config=[TILE]) == pm.predict(OP, "l20", config=TILE)


@pytest.mark.parametrize("models", [None, {"gemm": 5}, [1]])
def test_a_calibration_of_no_models(models: Any) -> None:
    one_line(lambda: pm.Calibration("l20", models), "must map names to fitted models")
