"""Rows slowed down by something else: found by their neighbours, and only they."""

from __future__ import annotations

import itertools

import numpy as np

from perfmodel.calibrate.outliers import outliers
from perfmodel.fit.operator_models import load
from perfmodel.fit.trees import without_outliers

SIZES = (1.0, 2.0, 4.0, 8.0)


def grid() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Columns and log latencies of a smooth table of decode."""
    rows = np.array(list(itertools.product(SIZES, (64.0, 128.0, 256.0, 512.0))))
    columns = {"batch": rows[:, 0], "kv_len": rows[:, 1], "num_heads": np.full(len(rows), 16.0), "q_len": np.ones(len(rows))}
    return columns, np.log(10.0 + 0.01 * rows[:, 0] * rows[:, 1])


def found(columns: dict[str, np.ndarray], latency: np.ndarray) -> list[int]:
    return np.flatnonzero(outliers("mla", columns, np.full(len(latency), "l40s"), latency)).tolist()


def test_a_single_slow_row_is_found_and_nothing_else() -> None:
    columns, latency = grid()
    assert found(columns, latency) == []
    latency[5] += np.log(20.0)
    assert found(columns, latency) == [5]


def test_a_slow_kernel_is_no_disturbance() -> None:
    columns, latency = grid()
    slow = columns["kv_len"] < 256
    assert found(columns, np.where(slow, latency + np.log(3.0), latency)) == []


def test_public_rows_of_latent_attention_have_a_few() -> None:
    rows = load("mla_decode")
    kept = without_outliers(rows)
    assert 5 <= len(rows) - len(kept) <= 30
    assert len(without_outliers(load("memory"))) == len(load("memory"))
