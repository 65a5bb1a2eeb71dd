"""Constants drawn towards subsets of a table: what moves, what stays, and that no subset hears of another's latencies."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from perfmodel.analytic.constants import physics
from perfmodel.calibrate.operator_rows import Rows, law_of, read_rows
from perfmodel.calibrate.operators import fit_constants
from perfmodel.calibrate.refit import Refit
from perfmodel.calibrate.steps import heard_by
from perfmodel.calibrate.table import correct
from perfmodel.hw import gpu
from perfmodel.learn.model import FittedModel
from perfmodel.library.registry import MODELS


def memory(copies: float = 1.0) -> Rows:
    """128 rows of rmsnorm whose latency is the law's, with one constant another."""
    import pandas as pd

    frame = pd.DataFrame([(2**i, 256 * j) for i in range(16) for j in (2, 5, 9, 16, 23, 31, 48, 64)], columns=["tokens", "hidden"])
    rows = read_rows("memory", frame.assign(kind="rmsnorm", stack="torch", gpu="h200_sxm", latency_us=1.0))
    return dataclasses.replace(rows, log_latency=law_of(rows, {NAME: copies * physics(MODELS["memory"].law)[NAME].value})[0])


NAME = "dram_efficiency"


def test_a_constant_is_found_and_those_that_move_no_row_stay() -> None:
    assert physics(MODELS["memory"].law)[NAME].high >= 0.95
    rows = memory(0.9)
    start = {name: c.value for name, c in physics(MODELS["memory"].law).items()}
    found = Refit(rows, start, 10, 0.01).constants(np.ones(len(rows), dtype=bool))
    assert found[NAME] == pytest.approx(0.9 * start[NAME], rel=0.02)
    assert set(found) == set(start)


def test_it_agrees_with_a_fit_of_each_subset_alone() -> None:
    rows = memory(0.9)
    start = {name: c.value for name, c in physics(MODELS["memory"].law).items()}
    keep = np.arange(len(rows)) % 3 > 0
    shared = {**start, **Refit(rows, start, 10, 10.0).constants(keep)}
    alone = {**start, **fit_constants(rows.take(keep), 10, start, 10.0)}
    left = [np.abs(rows.log_latency - law_of(rows, constants)[0]).mean() for constants in (start, shared, alone)]
    assert left[1] < 0.7 * left[0] and left[1] == pytest.approx(left[2], rel=0.1, abs=2e-3)


def test_rows_outside_of_a_subset_say_nothing() -> None:
    rows = memory(0.9)
    keep = np.arange(len(rows)) % 3 > 0
    other = dataclasses.replace(rows, log_latency=np.where(keep, rows.log_latency, rows.log_latency + 1.0))
    assert Refit(rows, {}, 10, 10.0).constants(keep) == Refit(other, {}, 10, 10.0).constants(keep)


def test_a_correction_says_its_steps() -> None:
    rows, said = memory(0.9), []
    prior = FittedModel("p", "spec", {name: c.value for name, c in physics(MODELS["memory"].law).items()}, (-0.3, 0.3))
    with heard_by(lambda *step: said.append(step)):
        model = correct(gpu("h200_sxm"), rows, prior)
    assert said[0] == ("memory, constants kept, shapes held out", 0, 5) and ("memory, all rows", 5, 5) in said
    assert model.card["held_out_error"]["corrected"] < 0.7 * model.card["held_out_error"]["prior"]
