"""Accuracy of collectives on what the fit did not see; a figure may not worsen, and no row may lose its answer.

Figures are means of |predicted / measured - 1| over all committed rows of that GPU and source.
"""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.calibrate.collective_build import shipped_rows
from perfmodel.hw import gpu
from perfmodel.learn.collective_fit import Rows, held_out_errors, read_rows
from perfmodel.library.collective import model
from perfmodel.predict_collective import collective_model

FOLDS = 3  # each fit sees two thirds of the sizes: a harder question than five folds, at half their price
NCCL = ("nccl", "torch", "torch_graph")


def rows(name: str) -> Rows:
    return read_rows(gpu(name), shipped_rows()[name])


def by_nccl(found: Rows) -> np.ndarray:
    return np.isin(found.stack, NCCL)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("a100_sxm4_80gb", 0.07),
        pytest.param("h100_sxm", 0.06, marks=pytest.mark.slow),
        pytest.param("l40s", 0.12, marks=pytest.mark.slow),
        pytest.param("rtx_pro_6000", 0.07, marks=pytest.mark.slow),
    ],
)
def test_message_sizes_that_the_fit_did_not_see(name: str, limit: float) -> None:
    found = rows(name)
    error = np.abs(np.expm1(-held_out_errors(found, None, FOLDS, 0)))
    assert np.isfinite(error).all()
    assert error[by_nccl(found)].mean() < limit


@pytest.mark.slow
def test_sizes_left_out_of_seven_runs_on_two_h200s() -> None:
    """In a graph two runs differ by 4 %. Call by call by 6 to 33 %: the host takes 33 us a call in one process, 42 us in the next."""
    found = rows("h200_sxm")
    error = np.abs(np.expm1(-held_out_errors(found, collective_model(gpu("h200_sxm"), None).constants, FOLDS, 0)))
    graph = found.stack == "torch_graph"
    assert error[graph].mean() < 0.05 and error[~graph].mean() < 0.12


def test_an_eager_call_takes_what_its_host_takes() -> None:
    frame = shipped_rows()["h200_sxm"]
    small = frame[(frame["stack"] == "torch") & frame["host_us"].notna() & (frame["message_bytes"] <= 2**20)]
    more = small["latency_us"] - small["host_us"]
    assert len(small) > 200 and 0 < more.median() < 3.0 and small["host_us"].between(25, 80).all()


def test_a_gpu_that_was_never_measured() -> None:
    """The H200's spec tier rests on H100 rows of nccl-tests and published figures; 256 B to 1 GiB, six kinds, two GPUs.

    Launched call by call small messages take what the host takes (33 to 44 us in seven runs), which no datasheet says.
    """
    found = rows("h200_sxm")
    error = np.abs(np.expm1(-found.errors(collective_model(gpu("h200_sxm"), None).constants)))
    graph = found.stack == "torch_graph"
    assert error[graph].mean() < 0.10 and error[~graph].mean() < 0.19 and error.mean() < 0.14


def test_every_committed_row_has_an_answer_with_an_interval_around_most() -> None:
    for name in shipped_rows():
        found = rows(name)
        terms = model(found.gpu, found.columns, found.stack, collective_model(found.gpu, "auto").constants)
        assert np.isfinite(terms.latency_s).all() and (terms.latency_s > 0).all()
        inside = np.abs(found.log_latency - np.log(terms.latency_s)) < 1.2816 * terms.log_sigma
        assert 0.6 < inside.mean() < 0.97, name
