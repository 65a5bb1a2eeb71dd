"""A user's table: bad ones are refused in one line, good ones help, and none makes held-out rows worse."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from perfmodel.calibrate.table import fit_table
from perfmodel.errors import InputError
from perfmodel.hw import gpu
from perfmodel.learn import operators
from perfmodel.learn.calibration import Calibration
from perfmodel.learn.model import TREE_DIGEST, FittedModel
from perfmodel.predict.route import predict_frame


def table(factor: float = 1.0, rows: int = 60, noise: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    sizes = 2 ** rng.integers(6, 13, size=(rows, 3))
    frame = pd.DataFrame(sizes, columns=["m", "n", "k"]).drop_duplicates().assign(stack="vllm")
    truth = predict_frame("gemm", frame, "h200_sxm", calibration=None)["latency_us"]
    return frame.assign(latency_us=factor * truth * np.exp(noise * rng.standard_normal(len(frame))))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lambda t: t.drop(columns="latency_us"), "lacks column latency_us"),
        (lambda t: t.assign(latency_us=t["latency_us"].where(t.index != 3)), "rows 3 are not"),
        (lambda t: t.assign(latency_us=-t["latency_us"]), "positive number of microseconds"),
        (lambda t: t.assign(latency_us=t["latency_us"] * 1e-6), "look like seconds"),
        (lambda t: t.assign(latency_us=t["latency_us"] * 1e-3), "look like milliseconds"),
        (lambda t: t.assign(latency_us=t["latency_us"] * 50), "another unit"),
        (lambda t: t.iloc[:5], "a correction needs 16"),
    ],
)
def test_bad_tables_are_refused(broken: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit_table("gemm", gpu("h200_sxm"), broken(table()), prior=None)  # type: ignore[operator]


def test_duplicates_become_their_median() -> None:
    frame = table()
    twice = pd.concat([frame, frame.assign(latency_us=frame["latency_us"] * 1.02), frame.assign(latency_us=frame["latency_us"] * 50)])
    model = fit_table("gemm", gpu("h200_sxm"), twice, prior=None)["gemm"]
    assert model.card["rows"] == len(frame)
    assert model.card["held_out_error"]["corrected"] < 0.05


def test_a_slower_machine_is_learnt() -> None:
    model = fit_table("gemm", gpu("h200_sxm"), table(1.4), prior=None)
    fresh = table(1.4).iloc[::2]
    answer = predict_frame("gemm", fresh, "h200_sxm", calibration=Calibration("h200_sxm", model))
    before = predict_frame("gemm", fresh, "h200_sxm", calibration=None)
    error = float(np.mean(np.abs(answer["latency_us"] / fresh["latency_us"] - 1)))
    assert error < 0.5 * float(np.mean(np.abs(before["latency_us"] / fresh["latency_us"] - 1)))


def slow(frame: pd.DataFrame, each: int, factor: float) -> pd.DataFrame:
    """The frame with every n-th run slower by a factor."""
    late = np.arange(len(frame)) % each == 0
    return frame.assign(latency_us=frame["latency_us"] * np.where(late, factor, 1.0))


def test_slow_runs_do_not_teach() -> None:
    error = {}
    for name, taught in (("clean", table(1.3, 120, 0.02)), ("slow", slow(table(1.3, 120, 0.02), 9, 4.0))):
        model = fit_table("gemm", gpu("h200_sxm"), taught, prior=None)
        assert (model["gemm"].card["correction"]["slow_runs"] > 0) == (name == "slow")
        assert model["gemm"].card["rows"] == len(taught)
        fresh = table(1.3, 200).iloc[120:]
        answer = predict_frame("gemm", fresh, "h200_sxm", calibration=Calibration("h200_sxm", model))
        error[name] = float(np.mean(np.abs(answer["latency_us"] / fresh["latency_us"] - 1)))
    assert error["slow"] < error["clean"] + 0.01


def test_what_is_slow_of_many_is_no_slow_run() -> None:
    for frame in (slow(table(1.0, 120, 0.02), 2, 3.0), table(2.0, 120, 0.02)):
        assert fit_table("gemm", gpu("h200_sxm"), frame, prior=None)["gemm"].card["correction"]["slow_runs"] == 0


def test_nothing_to_learn_leaves_the_prior_alone() -> None:
    model = fit_table("gemm", gpu("h200_sxm"), table(1.0, noise=0.05), prior=None)["gemm"]
    assert model.card["held_out_error"]["corrected"] <= model.card["held_out_error"]["prior"] + 1e-12
    assert model.card["correction"]["rounds"] == 0


def test_saved_and_read_again_bit_equal(tmp_path: object) -> None:
    from perfmodel.learn.calibration import load_calibration

    calibration = Calibration("h200_sxm", fit_table("gemm", gpu("h200_sxm"), table(1.3), prior=None))
    calibration.save(tmp_path)  # type: ignore[arg-type]
    fresh = table()
    a = predict_frame("gemm", fresh, "h200_sxm", calibration=calibration)
    b = predict_frame("gemm", fresh, "h200_sxm", calibration=load_calibration(tmp_path))  # type: ignore[arg-type]
    pd.testing.assert_frame_equal(a, b)


def test_a_saved_calibration_outlives_the_shipped_ones_that_it_was_fitted_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perfmodel.learn import kriging
    from perfmodel.learn.calibration import load_calibration

    rows = table(1.3, noise=0.05)
    Calibration("h200_sxm", fit_table("gemm", gpu("h200_sxm"), rows, prior=None)).save(tmp_path)
    stored = load_calibration(tmp_path)
    entry = stored.models["gemm"].card[kriging.CARD_KEY]
    shipped = dict(operators.covariate_models(gpu("h200_sxm"), "gemm"))
    assert entry[operators.COVARIATES] == operators.covariate_digests(shipped)
    before = predict_frame("gemm", rows, "h200_sxm", calibration=stored)["latency_us"]
    (gone, _), (name, model), *rest = shipped.items()
    assert model.residual is not None
    refitted = replace(model, residual=model.residual.scaled(0.9), card={**model.card, TREE_DIGEST: "another"})
    monkeypatch.setattr(operators, "covariate_models", lambda asked, model_key: {name: refitted, **dict(rest)})
    after = predict_frame("gemm", rows, "h200_sxm", calibration=load_calibration(tmp_path))["latency_us"]
    assert gone not in operators.covariate_models(gpu("h200_sxm"), "gemm")
    errors = [float(np.mean(np.abs(answer / rows["latency_us"] - 1))) for answer in (before, after)]
    assert not np.allclose(before, after, rtol=1e-6) and np.allclose(before, after, rtol=0.1)
    assert errors[1] < 1.2 * errors[0] < 0.1
    assert len(operators._AGAIN) <= kriging.KEPT
    again = predict_frame("gemm", rows, "h200_sxm", calibration=load_calibration(tmp_path))["latency_us"]
    pd.testing.assert_series_equal(after, again)
    unnamed = {key: value for key, value in entry.items() if key != "table"}
    card = {**stored.models["gemm"].card, kriging.CARD_KEY: unnamed}
    with pytest.raises(InputError, match="make it again from its rows"):
        predict_frame("gemm", rows, "h200_sxm", calibration=Calibration("h200_sxm", {"gemm": replace(stored.models["gemm"], card=card)}))


def by_shape(scatter: float, shapes: int, each: int = 12) -> pd.DataFrame:
    """Rows of few shapes (n, k), each slower or faster than predicted as a whole."""
    rng = np.random.default_rng(4)
    sides = rng.permutation([(n, k) for n in (1024, 2048, 4096, 8192) for k in (1024, 2048, 4096, 8192)])[:shapes]
    frame = pd.DataFrame([(2**i, n, k) for n, k in sides.tolist() for i in range(each)], columns=["m", "n", "k"]).assign(stack="vllm")
    truth = predict_frame("gemm", frame, "h200_sxm", calibration=None)["latency_us"]
    return frame.assign(latency_us=truth * np.exp(np.repeat(scatter * rng.standard_normal(shapes), each)))


def halves(model: FittedModel, frame: pd.DataFrame) -> np.ndarray:
    answer = predict_frame("gemm", frame, "h200_sxm", calibration=Calibration("h200_sxm", {"gemm": model}))
    return np.log(answer["high_us"] / answer["latency_us"]).to_numpy()


def test_widths_are_for_shapes_that_no_row_shows_however_few_those_of_the_table_are(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = by_shape(0.3, 16)
    whole = fit_table("gemm", gpu("h200_sxm"), by_shape(0.3, 6), prior=None)["gemm"]
    assert whole.card["correction"]["interpolation"] > 0
    monkeypatch.setattr(importlib.import_module("perfmodel.calibrate.table"), "_whole_shapes", lambda rows: [])
    rows = fit_table("gemm", gpu("h200_sxm"), by_shape(0.3, 6), prior=None)["gemm"]
    assert rows.card["held_out_error"] == whole.card["held_out_error"]  # the way is chosen as before
    assert np.median(halves(whole, fresh)) > 1.25 * np.median(halves(rows, fresh))
    same = fit_table("gemm", gpu("h200_sxm"), by_shape(0.0, 6), prior=None)["gemm"]
    assert np.median(halves(same, by_shape(0.0, 16))) < 0.05


def test_an_interval_is_wider_far_from_the_rows_of_a_table() -> None:
    model = fit_table("gemm", gpu("h200_sxm"), table(1.3, 120, 0.1), prior=None)["gemm"]
    near = table(1.3, 120)
    far = near.assign(n=near["n"] * 32, k=near["k"] + 8, stack="sglang")
    assert np.median(halves(model, far)) > 1.2 * np.median(halves(model, near))
