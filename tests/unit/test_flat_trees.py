"""Trees in numpy against the library that made them: every shipped one, bit for bit; and what is no tree."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel._resources import shipped
from perfmodel.errors import InputError
from perfmodel.learn import residual
from perfmodel.learn.model import TREE, read_model
from perfmodel.learn.residual import LOADING, Residual, fit_residual, load_residual, load_xgboost
from perfmodel.learn.ubjson import read_ubjson

SINGLE = 2e-6  # sums of some hundred leaves in single precision, in whichever order
MODELS = sorted(shipped("calibration").glob(f"*/*/{TREE}"))


def rows_near_tests(model: Residual, count: int) -> Any:
    """Random rows, half of whose features equal a threshold of the tree: the worst case for a comparison."""
    draw = np.random.default_rng(0)
    rows = np.empty((count, len(model.names)), dtype=np.float32)
    for i in range(rows.shape[1]):
        thresholds = model.flat.threshold[(model.flat.feature == i) & ~np.isnan(model.flat.threshold)]
        rows[:, i] = draw.choice(thresholds, count) if len(thresholds) else 0.0
    return rows + np.where(draw.random(rows.shape) < 0.5, draw.normal(size=rows.shape), 0.0).astype(np.float32)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: f"{path.parent.parent.name}-{path.parent.name}")
def test_numpy_answers_as_the_library_does(path: Path) -> None:
    model = read_model(path.parent).residual
    assert model is not None
    rows = rows_near_tests(model, 200)
    rows[0], rows[1] = np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        assert model.flat.sums(rows) == pytest.approx(model.booster.inplace_predict(rows), rel=SINGLE, abs=SINGLE)
    expected = model.booster.predict(load_xgboost().DMatrix(rows[2:]), pred_leaf=True)
    assert np.array_equal(model.flat.leaves(rows[2:]), expected.reshape(len(rows) - 2, -1))


def test_a_fitted_tree_and_its_stored_form_are_one(tmp_path: Path) -> None:
    features = {name: np.random.default_rng(i).normal(size=300) for i, name in enumerate("ab")}
    fitted = fit_residual(features, features["a"] * features["b"], rounds=30)
    fitted.save(tmp_path / "tree")
    stored = load_residual(tmp_path / "tree", fitted.names)
    few = {name: values[:20] for name, values in features.items()}
    assert np.array_equal(fitted.log_ratio(few, 20), stored.log_ratio(few, 20))
    # the library there, numpy here
    assert fitted.log_ratio(features, 300)[:20] == pytest.approx(stored.log_ratio(few, 20), rel=SINGLE, abs=SINGLE)


def test_a_missing_feature_goes_where_the_library_sends_it() -> None:
    features = {"a": np.where(np.arange(300) % 3 == 0, np.nan, np.random.default_rng(0).normal(size=300))}
    model = fit_residual(features, np.where(np.isnan(features["a"]), 1.0, -features["a"]), rounds=30)
    rows = features["a"][:9, None].astype(np.float32)
    assert model.log_ratio({"a": features["a"][:9]}, 9) == pytest.approx(model.booster.inplace_predict(rows), rel=SINGLE, abs=SINGLE)


def test_questions_and_small_tables_never_import_the_library() -> None:
    script = """
import sys, pandas as pd, perfmodel as pm
pm.predict(pm.Gemm(64, 4096, 4096), "h100_sxm")
pm.predict(pm.Attention("decode", 8, 1, 4096, 32, 8, 128), "h200_sxm", stack="torch")
table = pd.DataFrame({"m": range(1, 501), "n": 4096, "k": 4096})
pm.predict_table("gemm", table, "l20")
assert "xgboost" not in sys.modules
few = pm.predict_table("gemm", table, "h100_sxm")
many = pm.predict_table("gemm", pd.concat([table] * 60), "h100_sxm")
assert "xgboost" in sys.modules
pd.testing.assert_frame_equal(few, many.head(500), rtol=1e-6)
"""
    assert len(range(1, 501)) * 60 > LOADING
    subprocess.run([sys.executable, "-c", script], check=True)


def test_small_tables_are_walked_until_the_import_would_have_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual, "_walked", [])
    monkeypatch.delitem(sys.modules, "xgboost", raising=False)
    rows = np.zeros((LOADING // 2, 1), dtype=np.float32)
    assert [residual._few(rows) for _ in range(3)] == [True, True, False] and residual._few(rows[:64])
    monkeypatch.setitem(sys.modules, "xgboost", residual)
    assert not residual._few(rows[:65]) and residual._few(rows[:64])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"base_scoreSL\0\0\0\0\0\0\0\x05[0E0]", b"base_scoreSL\0\0\0\0\0\0\0\x05[1E0]"),
        (b"\rleft_children[$l#L\0\0\0\0\0\0\0", b"\rleft_childrem[$l#L\0\0\0\0\0\0\0"),
        (b"learner{", b"learner["),
    ],
)
def test_a_tree_that_makes_no_sense_is_one_line(tmp_path: Path, old: bytes, new: bytes) -> None:
    fit_residual({"a": np.arange(99.0)}, np.arange(99.0), rounds=3).save(tmp_path / "tree")
    stored = gzip.decompress((tmp_path / "tree").read_bytes())
    assert old in stored
    (tmp_path / "tree").write_bytes(gzip.compress(stored.replace(old, new)))
    with pytest.raises(InputError, match=r"cannot read the model .*tree: .*; fit it again") as caught:
        load_residual(tmp_path / "tree", ("a",))
    assert "\n" not in str(caught.value)


def test_nodes_that_lead_in_a_circle_are_found(tmp_path: Path) -> None:
    fit_residual({"a": np.arange(99.0)}, np.arange(99.0), rounds=1).save(tmp_path / "tree")
    stored = gzip.decompress((tmp_path / "tree").read_bytes())
    at = stored.index(b"left_children[$l#L") + len(b"left_children[$l#L") + 8
    assert stored[at : at + 4] == b"\0\0\0\1"
    (tmp_path / "tree").write_bytes(gzip.compress(stored[:at] + b"\0\0\0\0" + stored[at + 4 :]))
    with pytest.raises(InputError, match="lead in a circle; fit it again"):
        load_residual(tmp_path / "tree", ("a",))


def test_ubjson_by_hand() -> None:
    assert read_ubjson(b"{i\x01ai\x05i\x01b[TFZ]i\x01c[$d#i\x02\x3f\x80\0\0\xc0\0\0\0i\x01d[#i\x01Si\x02hi}")["a"] == 5
    found = read_ubjson(b"{i\x01b[TFZ]i\x01c[$d#i\x02\x3f\x80\0\0\xc0\0\0\0i\x01d[#i\x01Si\x02hi}")
    assert found["b"] == [True, False, None] and found["c"].tolist() == [1.0, -2.0] and found["d"] == ["hi"]
    for broken in (b"", b"{", b"[[", b"x", b"{i\x01a", b"[$d#i\x02\0", b"[" * 5000, b"[#i\xff", b"Si\x05ab"):
        with pytest.raises(ValueError):
            read_ubjson(broken)
