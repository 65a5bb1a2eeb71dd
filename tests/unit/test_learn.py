"""What is learnt: trees on disk, cards, folds and intervals, regret and baselines, and the fit of a kernel's law to measured rows."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfmodel as pm
from perfmodel._resources import shipped
from perfmodel.calibrate.design import calibration_points, sweep_points, write_plan
from perfmodel.calibrate.kernel import fit_kernel, law, read_rows, take
from perfmodel.errors import InputError
from perfmodel.evaluate.baselines import BASELINES
from perfmodel.evaluate.cross_validate import cross_validate
from perfmodel.evaluate.ranking import KS, Sweep, evaluate_ranking, over_library, random_regret, read_sweeps, regret, steady_rows
from perfmodel.kernels import gemm
from perfmodel.kernels.configs import parse_configs
from perfmodel.kernels.facts import facts_for
from perfmodel.kernels.terms import constant_values
from perfmodel.learn.calibration import PRIOR_CONFIG_INTERVAL, Calibration, load_calibration, resolve, spec_model
from perfmodel.learn.intervals import conformal_bounds, group_folds, out_of_fold
from perfmodel.learn.model import TREE, FittedModel, find_model, read_model
from perfmodel.learn.residual import Residual, fit_residual, load_residual, matrix
from perfmodel.measure.kernels.gemm import illegal
from perfmodel.predict.configs import predict_configs

H200, H100 = pm.gpu("h200_sxm"), pm.gpu("h100_sxm")
FACTS = ["regs", "spills", "shared"]


def table(name: str) -> pd.DataFrame:
    frame = pd.read_parquet(shipped("data") / "gemm" / f"{name}_h200_sxm.parquet")
    return frame[frame["variant"] != "cublas"].drop(columns=FACTS).reset_index(drop=True)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """About 130 rows of 12 shapes."""
    frame = table("calibration")
    frame = frame[frame["dtype"] == "bf16"]
    shapes = frame[["m", "n", "k"]].drop_duplicates().iloc[::2].head(12)
    return frame.merge(shapes, on=["m", "n", "k"])


@pytest.fixture(scope="module")
def tree() -> Residual:
    rng = np.random.default_rng(0)
    features = {name: rng.normal(size=500) for name in ("a", "b", "c")}
    return fit_residual(features, np.sin(features["a"]) + 0.1 * features["b"], rounds=40)


@pytest.fixture
def folder(tree: Residual, tmp_path: Path) -> Path:
    card = {"gpu": "h200_sxm", "note": "x"}
    span = {name: (-1.0, 2.0) for name in tree.names}
    FittedModel("id", "calibrated", {"launch_s": 5e-6}, (-0.1, 0.2), tree, span, card, (-0.3, 0.4)).save(tmp_path / "m")
    return tmp_path / "m"


# trees and cards


def test_a_reloaded_tree_answers_bit_for_bit(tree: Residual, tmp_path: Path) -> None:
    features = {name: np.random.default_rng(i).normal(size=1000) for i, name in enumerate(tree.names)}
    tree.save(tmp_path / "a")
    again = load_residual(tmp_path / "a", tree.names)
    assert np.array_equal(again.log_ratio(features, 1000), tree.log_ratio(features, 1000))
    again.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_same_rows_give_the_same_tree(tmp_path: Path) -> None:
    features = {name: np.random.default_rng(i).normal(size=300) for i, name in enumerate("ab")}
    for name in "xy":
        fit_residual(features, features["a"] * 0.3, np.ones(300), rounds=20, seed=3).save(tmp_path / name)
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_features_are_asked_for_by_name(tree: Residual) -> None:
    assert matrix(("b", "a"), {"a": np.array([1.0, 2.0]), "b": np.array([3.0])}, 2).tolist() == [[3.0, 1.0], [3.0, 2.0]]
    with pytest.raises(InputError, match="wants feature 'c'"):
        tree.log_ratio({"a": np.zeros(2), "b": np.zeros(2)}, 2)


def test_a_card_comes_back_as_it_was(folder: Path, tree: Residual) -> None:
    model = read_model(folder)
    assert (model.model_id, model.tier, model.constants) == ("id", "calibrated", {"launch_s": 5e-6})
    assert (model.interval, model.law_interval) == ((-0.1, 0.2), (-0.3, 0.4))
    assert model.residual is not None and model.residual.names == tree.names
    assert model.card["note"] == "x" and dict(model.envelope) == {name: (-1.0, 2.0) for name in tree.names}
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    model.save(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before and set(before) == {"card.json", TREE}


def test_an_interrupted_save_leaves_no_half_written_card(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    model = read_model(folder)
    monkeypatch.setattr("perfmodel._atomic.os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.save(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_model_without_a_tree_leaves_none_behind(folder: Path) -> None:
    dataclasses.replace(read_model(folder), residual=None).save(folder)
    assert [p.name for p in folder.iterdir()] == ["card.json"]
    assert read_model(folder).correction({}, 3).tolist() == [1.0, 1.0, 1.0]


def test_domain_is_the_training_range_and_a_tenth() -> None:
    model = FittedModel("id", "spec", {}, (0.0, 0.0), envelope={"a": (0.0, 10.0)})
    assert model.in_domain({"a": np.array([-1.1, -1.0, 5.0, 11.0, 11.1])}, 5).tolist() == [False, True, True, True, False]


def edit(**changes: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        path = folder / "card.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def other_tree() -> Residual:
    return fit_residual({name: np.arange(9.0) for name in "abc"}, np.arange(9.0), rounds=2)


@pytest.mark.parametrize(
    ("change", "file"),
    [
        (lambda f: (f / TREE).unlink(), TREE),
        (lambda f: (f / TREE).write_bytes(b""), TREE),
        (lambda f: (f / TREE).write_bytes(b"junk" * 100), TREE),
        (lambda f: (f / TREE).write_bytes((f / TREE).read_bytes()[:-20]), TREE),
        (lambda f: (f / TREE).write_bytes(gzip.compress(b"junk" * 100)), TREE),
        (lambda f: (f / TREE).write_bytes(gzip.compress(gzip.decompress((f / TREE).read_bytes())[:-100])), TREE),
        (lambda f: (f / TREE).write_bytes((f / TREE).read_bytes()[:400] + b"\0\1\2\3" + (f / TREE).read_bytes()[404:]), TREE),
        (lambda f: (f / "card.json").unlink(), "card.json"),
        (lambda f: (f / "card.json").write_text(""), "card.json"),
        (lambda f: (f / "card.json").write_text('{"card_version": 1'), "card.json"),
        (lambda f: (f / "card.json").write_bytes(b"\xff\xfe\x00"), "card.json"),
        (lambda f: (f / "card.json").write_text("[]"), "card.json"),
        (edit(card_version=2), "card version 2"),
        (edit(features=["a", "b"]), "3 features, its card names 2"),
        (edit(interval_log=[1]), "card.json"),
        (edit(constants=[1]), "card.json"),
        (edit(constants={"launch_s": "soon"}), "card.json"),
        (edit(envelope={"a": 3}), "card.json"),
        (edit(envelope={"a": [2.0, -1.0]}), "card.json: envelope.a "),
        (edit(envelope={"a": [float("nan"), 1.0]}), "card.json: envelope.a "),
        (edit(constants={"launch_s": float("nan")}), "card.json: constants.launch_s is nan"),
        (edit(constants={"launch_s": -5e-6}), "card.json: constants.launch_s is -5e-06: expected a positive number"),
        (edit(constants={"launch_s": 0}), "card.json: constants.launch_s "),
        (edit(constants={"launch_s": 10**400}), "card.json: constants.launch_s "),
        (edit(constants={"launch_s": True}), "card.json: constants.launch_s "),
        (edit(interval_log=[0.2, -0.1]), "card.json: interval_log .* low end is above"),
        (edit(interval_log=[float("nan"), 0.1]), "card.json: interval_log "),
        (edit(interval_log=[-1e9, 1e9]), "card.json: interval_log "),
        (edit(law_interval_log=[0.2, -0.1]), "card.json: law_interval_log "),
        (edit(tier="gold"), "card.json: tier is 'gold': expected spec or calibrated"),
        (edit(tier=["spec"]), "card.json: tier "),
        (edit(variants="plain"), "card.json: variants "),
        (edit(variants=5), "card.json: variants "),
        (edit(gpus={"h200_sxm": 1}), "card.json: gpus "),
        (edit(dtype_codes=[99]), "card.json: dtype_codes "),
        (edit(known_names={"mma": [-1]}), "card.json: known_names.mma "),
        (edit(half_widths={"new": [0.1] * 5}), "card.json: half_widths.new "),
        (edit(half_widths={"new": [-0.1] * 6}), "card.json: half_widths.new "),
        (edit(doubt=0.0), "card.json: doubt "),
        (edit(doubt="0.2"), "card.json: doubt "),
        (edit(gpu_counts=4), "card.json: gpu_counts "),
        (edit(gpu_counts=[1]), "card.json: gpu_counts "),
        (edit(features="abc"), "card.json: features "),
        (edit(tree_sha256="0" * 64), "is not the one its card describes"),
        (
            lambda f: Residual.save(fit_residual({n: np.arange(9.0) for n in "abc"}, np.arange(9.0), rounds=2), f / TREE),
            "is not the one its card",
        ),
    ],
)
def test_a_damaged_model_is_one_line_that_names_the_file(folder: Path, change: Callable[[Path], Any], file: str) -> None:
    change(folder)
    with pytest.raises(InputError, match=file) as caught:
        read_model(folder)
    assert "\n" not in str(caught.value) and "fit it again" in str(caught.value)


def test_a_card_that_is_a_folder_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFMODEL_CALIBRATION", str(tmp_path))
    (tmp_path / "h200_sxm" / "kernel_gemm" / "card.json").mkdir(parents=True)
    (tmp_path / "h100_sxm").write_text("x")
    with pytest.raises(InputError, match=r"kernel_gemm/card\.json: a folder, expected a plain file"):
        find_model("h200_sxm", "kernel_gemm")
    with pytest.raises(InputError, match=r"cannot read the model card .*h100_sxm/gemm/card\.json: Not a directory"):
        pm.predict(pm.Gemm(64, 64, 64), "h100_sxm")


@pytest.mark.parametrize("variable", ["PERFMODEL_CALIBRATION", "PERFMODEL_HWDB", "PERFMODEL_HOME"])
def test_a_variable_that_names_no_folder_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", *((tmp_path / "absent",) if variable != "PERFMODEL_HOME" else ())):
        monkeypatch.setenv(variable, str(path))
        with pytest.raises(InputError, match=f"{path}.* is not a folder"):
            pm.predict(pm.Gemm(64, 64, 64), "h100_sxm")


def test_a_calibration_saved_after_the_first_answer_is_found(_own_folders: Path, folder: Path) -> None:
    before = find_model("h200_sxm", "kernel_gemm")
    shutil.copytree(folder, _own_folders / "calibration" / "h200_sxm" / "kernel_gemm")
    after = find_model("h200_sxm", "kernel_gemm")
    assert before is not None and after is not None and (before.model_id != "id") and after.model_id == "id"


def test_a_feature_of_another_version_is_one_line() -> None:
    model = FittedModel("id", "spec", {}, (0.0, 0.0), envelope={"bogus": (0.0, 1.0)})
    with pytest.raises(InputError, match="wants feature 'bogus'"):
        model.in_domain({"a": np.zeros(2)}, 2)
    op = pm.Gemm(64, 4096, 4096)
    stored = find_model("h100_sxm", "gemm")
    assert stored is not None
    own = Calibration("h100_sxm", {"gemm": dataclasses.replace(stored, envelope={"bogus": (0.0, 1.0)})})
    with pytest.raises(InputError, match="wants feature 'bogus'"):
        pm.predict(op, "h100_sxm", calibration=own)


def test_the_users_own_model_comes_before_the_shipped(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own"
    shutil.copytree(folder, own / "h200_sxm" / "kernel_gemm")
    before = find_model("h200_sxm", "kernel_gemm")
    monkeypatch.setenv("PERFMODEL_CALIBRATION", str(own))
    found = find_model("h200_sxm", "kernel_gemm")
    assert before is not None and before.model_id.startswith("h200_sxm:kernel_gemm:")
    assert found is not None and found.model_id == "id" and find_model("h200_sxm", "kernel_conv") is None


# which model answers


def test_tiers() -> None:
    assert resolve(H200, "kernel_gemm", "auto").tier == "calibrated"
    assert resolve(H100, "kernel_gemm", "auto").tier == "spec"
    assert resolve(pm.gpu("l20"), "kernel_gemm", "auto").model_id == "physics:kernel_gemm"


def test_the_spec_tier_never_answers_from_the_gpus_own_rows() -> None:
    assert spec_model(H200, "kernel_gemm").model_id == "physics:kernel_gemm"  # the only universal model has seen it
    universal = spec_model(H100, "kernel_gemm")
    assert universal.tier == "spec" and "h100_sxm" not in universal.card["gpus"]
    assert universal.interval[0] <= PRIOR_CONFIG_INTERVAL[0] and universal.interval[1] >= PRIOR_CONFIG_INTERVAL[1]


def test_calibrations_by_path_and_of_another_gpu(tmp_path: Path) -> None:
    model = FittedModel("mine", "calibrated", {"launch_s": 9e-6}, (-0.1, 0.1), card={"gpu": "h200_sxm"})
    root = Calibration("h200_sxm", {"kernel_gemm": model}).save(tmp_path / "c")
    assert resolve(H200, "kernel_gemm", root).model_id == "mine"
    assert resolve(H200, "kernel_gemm", str(root)).constants == {"launch_s": 9e-6}
    assert resolve(H200, "kernel_conv", load_calibration(root)).tier == "spec"
    with pytest.raises(InputError, match="calibration is of h200_sxm, the question is about h100_sxm"):
        resolve(H100, "kernel_gemm", root)
    with pytest.raises(InputError, match="no calibration at"):
        load_calibration(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot write the calibration"):
        Calibration("h200_sxm", {"kernel_gemm": model}).save(tmp_path / "file")


# folds and intervals


def test_folds_never_split_a_group() -> None:
    groups = np.random.default_rng(1).integers(0, 23, size=400)
    seen = np.zeros(400, dtype=int)
    for train, held in group_folds(groups, 5, seed=2):
        assert not set(groups[train]) & set(groups[held]) and (train ^ held).all()
        seen += held
    assert (seen == 1).all()
    first, second = (np.stack([held for _, held in group_folds(groups, 5, seed=7)]) for _ in range(2))
    assert np.array_equal(first, second)
    assert len(list(group_folds(np.array([3, 3, 9]), 5))) == 2  # no more folds than groups


def test_out_of_fold_puts_every_answer_in_its_row() -> None:
    groups = np.array([0, 1, 2, 0, 1, 2, 5])

    def fit_predict(train: Any, held: Any) -> Any:
        assert not set(groups[train]) & set(groups[held])
        return np.stack([groups[held], 10.0 * np.flatnonzero(held)], axis=1)

    assert out_of_fold(groups, fit_predict, folds=3)[:, 0].tolist() == groups.tolist()
    assert out_of_fold(groups, fit_predict, folds=3)[:, 1].tolist() == [10.0 * i for i in range(7)]


def test_conformal_bounds_by_hand() -> None:
    errors = np.arange(1.0, 100.0)  # 99 of them: the 10th and the 90th leave a tenth of 100 gaps on each side
    assert conformal_bounds(np.random.default_rng(0).permutation(errors)) == (10.0, 90.0)
    assert conformal_bounds(errors, nominal=0.5) == (25.0, 75.0)
    assert conformal_bounds(np.arange(9.0)) == (0.0, 8.0)  # too few to leave any out
    assert conformal_bounds(np.array([0.5])) == (0.5, 0.5)
    weight = np.where(errors > 50, 1e-9, 1.0)
    assert conformal_bounds(errors, weight)[1] < 51  # rows without weight do not count


@pytest.mark.parametrize("count", [9, 24, 31, 40])
def test_intervals_of_few_errors_cover_what_they_say(count: int) -> None:
    """By rank: a new error falls into each of the n + 1 gaps alike, so the ranks of the bounds say how often it lies between them."""
    low, high = conformal_bounds(np.arange(1.0, count + 1))
    assert 0.80 <= (high - low) / (count + 1) < 0.80 + 2 / (count + 1)


@pytest.mark.parametrize("draw", ["normal", "standard_cauchy", "exponential"])
def test_intervals_cover_what_they_say(draw: str) -> None:
    rng = np.random.default_rng(4)
    inside = []
    for _ in range(200):
        low, high = conformal_bounds(getattr(rng, draw)(size=400))
        fresh = getattr(rng, draw)(size=400)
        inside.append(((low <= fresh) & (fresh <= high)).mean())
    assert 0.785 < np.mean(inside) < 0.825


# regret and baselines


def test_regret_by_hand() -> None:
    latency, score = np.array([4.0, 2.0, 1.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0])
    assert regret(latency, score, (1, 2, 3, 9)).tolist() == [4.0, 2.0, 1.0, 1.0]
    assert regret(latency, np.zeros(4), (1, 2)).tolist() == [4.0, 2.0]  # ties keep their order
    assert regret(latency, -score, (1, 2)).tolist() == [3.0, 1.0]
    both = random_regret(np.array([1.0, 4.0]), (1, 2))
    assert 1.5 < both[0] < 2.6 and both[1] == 1.0  # half of the orders start with the one four times as slow
    assert np.array_equal(both, random_regret(np.array([1.0, 4.0]), (1, 2)))


def sweep(m: int, latencies: list[float]) -> Sweep:
    frame = pd.DataFrame({"block_m": 64, "block_n": [32 << i for i in range(len(latencies))], "block_k": 64}).assign(m=m, n=64, k=64)
    return read_sweeps("gemm", frame.assign(latency_us=latencies))[0]


def test_ranking_summary_by_hand() -> None:
    sweeps = [sweep(1, [1.0, 2.0]), sweep(2, [2.0, 4.0]), sweep(4, [4.0, 4.0])]

    def always_second(s: Sweep) -> tuple[Any, Any, Any]:
        guess = np.array([2.0, 1.0]) * s.latency_us.min()
        return guess, guess * 0.9, guess * 1.1

    summary, shapes = evaluate_ranking(sweeps, H200, {"ours": always_second})
    ours = summary.set_index("method").loc["ours"]
    assert ours["@1"] == pytest.approx((2 * 2 * 1) ** (1 / 3)) and ours["@3"] == 1.0 and ours["@3 within 5 %"] == 1.0
    assert ours["error mean"] == pytest.approx((1 + 0.5 + 1 + 0.5 + 1 + 0) / 6) and ours["coverage"] == pytest.approx(1 / 6)
    assert set(summary["method"]) == {"random", *BASELINES, "ours", "static list (other half of the shapes)"}
    assert (shapes.groupby("method").size() == 3).all() and (shapes[[f"@{k}" for k in KS]] >= 1).all().all()


def test_a_static_list_is_chosen_on_one_half_and_scored_on_the_other() -> None:
    train, test = [5.0, 1.0, 9.0], [1.0, 3.0, 2.0]  # on its half the second config is the best, elsewhere it is the worst
    sweeps = [sweep(1, train), sweep(2, test), sweep(4, train), sweep(8, test)]
    _, shapes = evaluate_ranking(sweeps, H200, {})
    scores = shapes[shapes["method"].str.startswith("static")].set_index("shape")["@1"]
    assert scores["bf16 2x64x64"] == 3.0 and scores["bf16 1x64x64"] == 5.0


def test_sweeps_keep_only_what_ran_right() -> None:
    base = {"m": 1, "n": 64, "k": 64, "block_m": 16, "block_n": 64, "block_k": 64, "latency_us": 5.0}
    frame = pd.DataFrame([base, {**base, "block_n": 32}, {**base, "block_n": 128}, {**base, "block_n": 256, "variant": "cublas"}])
    frame = frame.assign(status=["ok", "timeout", "ok", "ok"], correct=[True, True, None, True])
    found = read_sweeps("gemm", frame)
    assert len(found) == 1 and found[0].configs["block_n"].tolist() == [64] and found[0].label == "bf16 1x64x64"
    with pytest.raises(InputError, match="lacks column latency_us"):
        read_sweeps("gemm", frame.drop(columns="latency_us"))
    with pytest.raises(InputError, match="no row that ran correctly with dtype fp8"):
        read_sweeps("gemm", frame.assign(dtype="bf16"), "fp8")
    for bad in (0.0, -1.0, np.nan, np.inf, "fast"):
        broken = frame.assign(latency_us=pd.Series([bad, 1.0, 1.0, 1.0], dtype=object))
        with pytest.raises(InputError, match="latency_us must be a positive number of microseconds: row 0"):
            read_sweeps("gemm", broken)


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("sizes", [(1, 4096, 4096), (17, 1000, 1000), (8192, 8192, 8192)])
def test_baselines_order_any_space(name: str, sizes: tuple[int, int, int]) -> None:
    for gpu in ("a100_sxm", "h200_sxm", "l20", "b200_sxm"):
        spec = pm.gpu(gpu)
        for dtype in ("bf16", "fp8") if "fp8" in spec.tensor_flops else ("bf16",):
            space = gemm.space(spec, dtype, **dict(zip(gemm.SIZES, sizes, strict=True)))
            score = BASELINES[name](spec, dict(zip("mnk", sizes, strict=True)), dtype, space)
            assert score.shape == (len(space),) and np.isfinite(score).all() and len(np.unique(score)) > 3


def test_bare_roofline_by_hand() -> None:
    configs = sweep(1, [1.0]).configs  # 64 x 32 x 64
    spec = dataclasses.replace(H200, dram_bytes_per_s=1e12, tensor_flops={"bf16": 1e15})
    score = BASELINES["bare roofline"](spec, {"m": 100, "n": 100, "k": 100}, "bf16", configs)
    # 2 x 4 tiles, two steps of k: 8 x (64 + 32) x 128 x 2 bytes of operands and 100 x 100 x 2 of output
    assert score[0] == pytest.approx((8 * 96 * 128 * 2 + 20000) / 1e12)


# the fit of a kernel's law


def one_line(frame: Any, message: str, gpu: Any = H200) -> None:
    with pytest.raises(InputError, match=message) as caught:
        fit_kernel("gemm", gpu, frame)
    assert "\n" not in str(caught.value)


def with_cell(frame: pd.DataFrame, column: str, value: Any) -> pd.DataFrame:
    changed = frame.astype({column: object})
    changed.loc[3, column] = value
    return changed


@pytest.mark.parametrize("column", ["m", "k", "latency_us", "block_n"])
def test_a_missing_column(rows: pd.DataFrame, column: str) -> None:
    one_line(rows.drop(columns=column), column)


@pytest.mark.parametrize("value", [0.0, -3.0, np.nan, None, np.inf])
def test_a_latency_that_is_none(rows: pd.DataFrame, value: Any) -> None:
    one_line(with_cell(rows, "latency_us", value), "latency_us must be a positive number: rows 3 of kernel:gemm are not")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("latency_us", "fast", "latency_us of kernel:gemm must be numbers"),
        ("m", "many", "m of kernel:gemm must be numbers"),
        ("m", 1.5, "m must be a whole number from 1 to 2147483647: row 3 of kernel:gemm has 1.5"),
        ("n", 0, "n must be a whole number from 1 to 2147483647: row 3 of kernel:gemm has 0"),
        ("k", np.nan, "k must be a whole number from 1 to 2147483647: row 3"),
        ("block_m", np.nan, "config 3: block_m must be"),
        ("dtype", "bf17", "unknown dtype 'bf17': did you mean bf16"),
        ("dtype", "int4_wo", "unknown dtype of the Triton GEMM kernels 'int4_wo'"),
        ("variant", "magic", "config 3 has variant 'magic'"),
    ],
)
def test_a_bad_cell(rows: pd.DataFrame, column: str, value: Any, message: str) -> None:
    one_line(with_cell(rows, column, value), message)


def test_other_bad_tables(rows: pd.DataFrame) -> None:
    one_line(rows.assign(latency_us=rows["latency_us"] * 1e-6), "latency_us must be microseconds")
    one_line(rows.assign(latency_us=rows["latency_us"] * 1e3), "latency_us must be microseconds")
    one_line(rows.assign(latency_us=rows["latency_us"] * 50), "are 49 times what the model says")
    one_line(rows.assign(latency_us=rows["latency_us"] / 50), "another unit")
    one_line(rows.assign(m=1e15), r"m must be a whole number from 1 to 2147483647: row 0 of kernel:gemm has 1e\+15")
    for column, value in (("block_m", 7777), ("block_k", 48), ("num_warps", 3), ("num_warps", 64)):
        one_line(with_cell(rows, column, value), f"{column} {value} of row 3 cannot have run on h200_sxm: expected a power of two")
    one_line(rows.head(20), "20 usable rows over 2 shapes; a fit needs 24 over 4")
    one_line(rows.head(30), "30 usable rows over 3 shapes; a fit needs 24 over 4")
    one_line(rows.assign(status="timeout"), "0 usable rows")
    one_line(rows.assign(correct=False), "0 usable rows")
    one_line(rows.to_dict("records"), "must be a pandas DataFrame, not list")
    one_line(rows.assign(dtype="fp8"), "a100_sxm4_80gb has no fp8 tensor cores", pm.gpu("a100_sxm"))
    with pytest.raises(InputError, match="no table given"):
        pm.calibrate_table("h200_sxm", {})
    with pytest.raises(InputError, match="unknown kernel 'conv'"):
        pm.calibrate_table("h200_sxm", {"kernel:conv": rows})
    for bad in (rows, [rows]):
        with pytest.raises(InputError, match="no table given"):
            pm.calibrate_table("h200_sxm", bad)  # type: ignore[arg-type]


def test_a_table_without_dtype_says_what_it_is_taken_for(rows: pd.DataFrame) -> None:
    with pytest.warns(UserWarning, match="the kernel:gemm table has no dtype column: its rows are taken as bf16"):
        pm.calibrate_table("h200_sxm", {"kernel:gemm": rows.drop(columns="dtype")})


def test_a_sweep_of_triton_configs_is_no_table_of_an_operator(rows: pd.DataFrame) -> None:
    for name in ("block_m", "BLOCK_SIZE_M"):
        with pytest.raises(InputError, match=f"the gemm table has column {name}, a Triton config: its rows are kernel:gemm"):
            pm.calibrate_table("h200_sxm", {"gemm": rows.rename(columns={"block_m": name}).drop(columns=["block_n", "block_k"])})


def test_failed_rows_and_other_spellings_do_not_matter(rows: pd.DataFrame) -> None:
    broken = rows.head(3).assign(status="timeout", latency_us=np.nan)
    spelt = rows.rename(columns={"block_m": "BLOCK_SIZE_M", "block_n": "BN", "num_warps": "NUM_WARPS"})
    plain, padded = read_rows("gemm", H200, rows), read_rows("gemm", H200, pd.concat([broken, rows], ignore_index=True))
    assert len(plain) == len(padded) == len(rows)
    assert plain.log_latency == pytest.approx(padded.log_latency, rel=1e-9)
    assert np.array_equal(read_rows("gemm", H200, spelt).parts[0].configs["block_m"], plain.parts[0].configs["block_m"])


def test_rows_of_two_dtypes_keep_their_places(rows: pd.DataFrame) -> None:
    mixed = pd.concat([rows, table("calibration").query("dtype == 'fp8'").head(60)]).sample(frac=1.0, random_state=0).reset_index(drop=True)
    together = read_rows("gemm", H200, mixed)
    found = law("gemm", H200, together, {})
    for dtype in ("bf16", "fp8"):
        mask = (mixed["dtype"] == dtype).to_numpy()
        alone = read_rows("gemm", H200, mixed[mask])
        for part in (alone, take(together, mask)):
            assert law("gemm", H200, part, {}).latency_s == pytest.approx(found.latency_s[mask], rel=1e-9)


def test_the_same_rows_give_the_same_card_and_beat_the_spec_tier(rows: pd.DataFrame, tmp_path: Path) -> None:
    models = [fit_kernel("gemm", H200, rows) for _ in range(2)]
    for name, model in zip("xy", models, strict=True):
        model.save(tmp_path / name)
    assert {p.name: p.read_bytes() for p in (tmp_path / "x").iterdir()} == {p.name: p.read_bytes() for p in (tmp_path / "y").iterdir()}
    card = json.loads((tmp_path / "x" / "card.json").read_text())
    assert card["rows"] == len(rows) and card["shapes"] == 12 and card["dtypes"] == ["bf16"] and card["gpus"] == ["h200_sxm"]
    errors = card["held_out_error"]
    assert errors[card["chosen"]] == min(errors.values()) < errors["spec"]
    low, high = card["interval_log"]
    assert -0.5 < low < 0 < high < 0.5
    seen = read_rows("gemm", H200, rows)
    assert models[0].in_domain(law("gemm", H200, seen, models[0].constants).features, len(seen)).all()


def test_a_fit_finds_constants_that_made_the_rows(rows: pd.DataFrame) -> None:
    moved = {"launch_s": 8e-6, "dram_efficiency": 0.7}
    seen = read_rows("gemm", H200, rows)
    made = rows.assign(latency_us=law("gemm", H200, seen, moved).latency_s * 1e6)
    model = fit_kernel("gemm", H200, made)
    spec = constant_values("gemm")
    for name, value in moved.items():
        assert abs(np.log(model.constants[name] / value)) < 0.4 * abs(np.log(spec[name] / value)), name
    assert model.card["held_out_error"][model.card["chosen"]] < 0.02


def test_rows_that_are_the_spec_tier_already_are_refused(rows: pd.DataFrame) -> None:
    seen = read_rows("gemm", H200, rows)
    exact = rows.assign(latency_us=law("gemm", H200, seen, {}).latency_s * 1e6)
    one_line(exact, "does not beat the spec tier on held-out shapes")


def test_somebody_elses_kernel_gets_the_constants_without_the_tree() -> None:
    model = resolve(H200, "kernel_gemm", "auto")
    op = {"m": 512, "n": 4096, "k": 4096}
    config = {"block_m": 128, "block_n": 128, "block_k": 64, "num_warps": 8, "num_stages": 3}
    given = [config, {**config, "variant": "pointer"}]
    both = parse_configs(given, required=gemm.REQUIRED, default_variant=gemm.PLAIN, variants=gemm.VARIANTS)
    found = predict_configs("gemm", H200, op, "bf16", both, facts_for("gemm", H200, "bf16", both), model)
    bare = dataclasses.replace(model, residual=None)
    alone = predict_configs("gemm", H200, op, "bf16", both, facts_for("gemm", H200, "bf16", both), bare)
    assert found.latency_us[0] == alone.latency_us[0] and found.latency_us[1] != alone.latency_us[1]
    assert model.law_interval is not None
    assert found.high_us[0] / found.latency_us[0] == pytest.approx(np.exp(model.law_interval[1]))
    assert found.high_us[1] / found.latency_us[1] == pytest.approx(np.exp(model.interval[1]))


def test_the_shipped_model_rests_on_the_shipped_rows() -> None:
    shipped_card = resolve(H200, "kernel_gemm", "auto").card
    seen = read_rows("gemm", H200, table("calibration"))
    assert shipped_card["rows"] == len(seen) and shipped_card["data"] == "data/gemm/calibration_h200_sxm.parquet"
    digest = hashlib.sha256(np.ascontiguousarray(np.round(seen.log_latency, 9)).tobytes()).hexdigest()[:16]
    assert shipped_card["data_hash"] == digest


def test_no_shape_is_in_both_the_calibration_and_the_evaluation_rows() -> None:
    shapes = [set(table(name)[["m", "n", "k"]].itertuples(index=False, name=None)) for name in ("calibration", "evaluation")]
    assert shapes[0] and shapes[1] and not shapes[0] & shapes[1]


# which points to measure


def test_calibration_points_are_few_legal_and_the_same_again(tmp_path: Path) -> None:
    sizes = {"m": 64, "n": 2048, "k": 8192}
    first, second = (calibration_points("gemm", H200, sizes, "bf16", best=2, spread=3, seed=0) for _ in range(2))
    assert first == second and 5 <= len(first) <= 10
    assert first != calibration_points("gemm", H200, sizes, "bf16", best=2, spread=3, seed=1)
    assert all(illegal({**sizes, "dtype": "bf16"}, c, 90) is None for c in first)
    assert {c["variant"] for c in first} >= {"pointer"}
    write_plan(tmp_path / "plan", [(64, 2048, 8192)], {"64x2048x8192": first})
    assert json.loads((tmp_path / "plan.configs.json").read_text())["64x2048x8192"] == first
    everything = sweep_points("gemm", H200, sizes, "bf16")
    assert len(everything) > 100 and first[0] == everything[0]


def test_crossfit_judges_on_other_shapes() -> None:
    frame = table("evaluation")
    frame = frame[frame["dtype"] == "bf16"]
    few = frame.groupby(["m", "n", "k"]).head(40)
    sweeps = read_sweeps("gemm", few)[::3]
    predictor = cross_validate("gemm", H200, sweeps, rows=80, folds=2)
    latency, low, high = predictor(sweeps[0])
    assert latency.shape == (len(sweeps[0].configs),) and (low < latency).all() and (latency < high).all()
    with pytest.raises(InputError, match="8 or more shapes"):
        cross_validate("gemm", H200, sweeps[:7], rows=80)


# provenance of the rows


@pytest.mark.parametrize(
    "path", sorted(p for p in shipped("data").rglob("*") if p.suffix in (".parquet", ".csv", ".npz")), ids=lambda p: p.name
)
def test_every_data_file_has_a_sidecar_that_describes_it(path: Path) -> None:
    import pyarrow.parquet

    card = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    if path.suffix == ".parquet":
        stored = pyarrow.parquet.read_metadata(path)
        assert card.get("rows", stored.num_rows) == stored.num_rows
        assert set(card.get("columns", stored.schema.names)) == set(stored.schema.names)
    if "sha256" in card:
        assert card["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    notice = (shipped("data") / "NOTICE.md").read_text(encoding="utf-8")
    names = {path.name, path.stem, f"{path.parent.name}/{path.name}", f"{path.parent.name}/{path.stem}"}
    assert any(f"`{name}`" in notice for name in names), f"{path.name} is not in data/NOTICE.md"


def test_rows_whose_repetitions_disagree_are_left_out_and_shapes_of_them() -> None:
    frame = pd.DataFrame({"m": [1, 1, 1, 2, 2, 2], "latency_us": [10.0] * 6, "std_us": [1.0, 1.5, 9.0, 9.0, 9.0, 1.0]})
    assert list(steady_rows(frame, ["m"], 0.15).index) == [0, 1]
    assert len(steady_rows(frame, ["m"], math.inf)) == 6 and len(steady_rows(frame.drop(columns="std_us"), ["m"])) == 6
    assert list(steady_rows(frame.assign(std_us=math.nan), ["m"]).index) == list(range(6)), "not repeated is not unsteady"


def test_best_over_library_is_of_the_shapes_that_have_both() -> None:
    rows = [(128, "tma", 8.0, "ok"), (128, "pointer", 10.0, "ok"), (128, "cublas", 16.0, "ok"), (256, "tma", 3.0, "ok"),
            (512, "tma", 1.0, "wrong_result"), (512, "cublas", 2.0, "ok")]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["m", "variant", "latency_us", "status"]).assign(n=64, k=64)
    assert {name: list(ratio) for name, ratio in over_library("gemm", frame).items()} == {"cublas": [0.5]}
    assert over_library("gemm", frame.drop(columns="variant")) == {}
