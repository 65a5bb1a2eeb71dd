"""Accuracy of collectives on what the fit did not see; a figure may not worsen, and no row may lose its answer.

Figures are means of |predicted / measured - 1| over all committed rows of that GPU and source. tests/accuracy/collective.json holds the
reviewed ones, which only tighten (tightening.py). `python tests/accuracy/test_collective_gate.py` writes them anew; a worse one is refused,
or taken with `--accept-worse "reason"`.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tightening import rewrite, stored

from perfmodel.fit.collective_models import shipped_rows
from perfmodel.hw import gpu
from perfmodel.learn.calibration import resolve
from perfmodel.learn.collective_fit import Rows, held_out_errors, read_rows
from perfmodel.library.collective import model

FIGURES = Path(__file__).with_name("collective.json")
BETTER: Any = {"mean": "lower", "graph": "lower", "eager": "lower", "rows": "higher", "covered": "nominal"}
LOOSEST = 1.05
FOLDS = 3  # each fit sees two thirds of the sizes: a harder question than five folds, at half their price
NCCL = ("nccl", "torch", "torch_graph")
LIMITS = {"a100_sxm4_80gb": 0.07, "h100_sxm": 0.06, "l40s": 0.12, "rtx_pro_6000": 0.07}


def rows(name: str) -> Rows:
    return read_rows(gpu(name), shipped_rows()[name])


@cache
def unseen_sizes(name: str) -> dict[str, float]:
    """Of NCCL, whose message sizes were left out of the fit."""
    found = rows(name)
    error = np.abs(np.expm1(-held_out_errors(found, None, FOLDS, 0)))
    assert np.isfinite(error).all()
    nccl = np.isin(found.columns["stack"], NCCL)
    return {"mean": float(error[nccl].mean()), "rows": int(nccl.sum())}


@cache
def two_h200s(left_out: bool) -> dict[str, float]:
    """Seven runs on two H200s: sizes left out of their fit, or answered by the spec tier."""
    found, constants = rows("h200_sxm"), resolve(gpu("h200_sxm"), "collective", None).constants
    error = np.abs(np.expm1(-(held_out_errors(found, constants, FOLDS, 0) if left_out else found.errors(constants))))
    graph = found.columns["stack"] == "torch_graph"
    return {"graph": float(error[graph].mean()), "eager": float(error[~graph].mean()), "mean": float(error.mean()), "rows": len(error)}


@cache
def covered(name: str) -> float:
    """Share of a GPU's rows within the law's own 80 % interval."""
    found = rows(name)
    terms = model(found.gpu, found.columns, resolve(found.gpu, "collective", "auto").constants)
    assert np.isfinite(terms.latency_s).all() and (terms.latency_s > 0).all()
    return float((np.abs(found.log_latency - np.log(terms.latency_s)) < 1.2816 * terms.log_sigma).mean())


def hold(found: dict[str, float], wanted: dict[str, float]) -> None:
    for name, figure in wanted.items():
        if BETTER[name] == "higher":
            assert found[name] >= figure, name
        elif BETTER[name] == "lower":
            assert found[name] <= LOOSEST * figure, name
        else:
            assert abs(found[name] - figure) <= 0.05, name


@pytest.mark.parametrize("name", [n if n == "a100_sxm4_80gb" else pytest.param(n, marks=pytest.mark.slow) for n in LIMITS])
def test_message_sizes_that_the_fit_did_not_see(name: str) -> None:
    assert unseen_sizes(name)["mean"] < LIMITS[name]
    hold(unseen_sizes(name), stored(FIGURES)["unseen sizes"][name])


@pytest.mark.slow
def test_sizes_left_out_of_seven_runs_on_two_h200s() -> None:
    """In a graph two runs differ by 4 %. Call by call by 6 to 33 %: the host takes 33 us a call in one process, 42 us in the next."""
    found = two_h200s(True)
    assert found["graph"] < 0.05 and found["eager"] < 0.12
    hold(found, stored(FIGURES)["two H200s"]["unseen sizes"])


def test_an_eager_call_takes_what_its_host_takes() -> None:
    frame = shipped_rows()["h200_sxm"]
    small = frame[(frame["stack"] == "torch") & frame["host_us"].notna() & (frame["message_bytes"] <= 2**20)]
    more = small["latency_us"] - small["host_us"]
    assert len(small) > 200 and 0 < more.median() < 3.0 and small["host_us"].between(25, 80).all()


def test_a_gpu_that_was_never_measured() -> None:
    """The H200's spec tier rests on H100 rows of nccl-tests and published figures; 256 B to 1 GiB, six kinds, two GPUs.

    Launched call by call small messages take what the host takes (33 to 44 us in seven runs), which no datasheet says.
    """
    found = two_h200s(False)
    assert found["graph"] < 0.10 and found["eager"] < 0.19 and found["mean"] < 0.14
    hold(found, stored(FIGURES)["two H200s"]["spec tier"])


def test_every_committed_row_has_an_answer_with_an_interval_around_most() -> None:
    wanted = stored(FIGURES)["intervals"]
    assert set(wanted) <= set(shipped_rows())
    for name in shipped_rows():
        assert 0.6 < covered(name) < 0.97, name
        hold({"covered": covered(name)}, wanted[name])


def measure() -> dict[str, Any]:
    return {
        "unseen sizes": {name: unseen_sizes(name) for name in LIMITS},
        "two H200s": {"unseen sizes": two_h200s(True), "spec tier": two_h200s(False)},
        "intervals": {name: {"covered": covered(name)} for name in shipped_rows()},
    }


def rounded(figures: Any) -> Any:
    return {k: rounded(v) for k, v in figures.items()} if isinstance(figures, dict) else round(figures, 4)


if __name__ == "__main__":
    sys.exit(rewrite(FIGURES, rounded(measure()), BETTER))
