"""No row is judged by a model fitted to its shape or, where a GPU is left out, to that GPU: every pair of sets is compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from perfmodel._resources import shipped
from perfmodel.calibrate.operator_rows import sample
from perfmodel.calibrate.operators import shape_folds
from perfmodel.calibrate.recipe import OPERATORS
from perfmodel.evaluate.holdout_report import keys, of_other_shapes, of_part, read_run
from perfmodel.fit.operator_models import load
from perfmodel.hw import gpu, gpus
from perfmodel.kernels import FAMILIES, kernel_family
from perfmodel.learn.calibration import resolve
from perfmodel.library.collective import LAW
from perfmodel.library.registry import MODELS

DATA = shipped("data")
FITTED = sorted(DATA.glob("*/calibration_*.parquet"))
JUDGED = sorted(p for name in ("evaluation", "plain") for p in DATA.glob(f"*/{name}_*.parquet"))
RUNS = sorted((DATA / "runs").glob("*_sxm.parquet"))


def shapes(family: str, frame: pd.DataFrame) -> set[tuple[object, ...]]:
    """Sizes and element type of each problem of a table of Triton configs that ran."""
    ran = frame[frame["status"] == "ok"] if "status" in frame else frame
    columns = [name for name in (*kernel_family(family).SIZES, "dtype") if name in ran]
    return set(map(tuple, ran[columns].drop_duplicates().to_numpy().tolist()))


def test_there_is_something_to_compare() -> None:
    assert {p.parent.name for p in FITTED} == set(FAMILIES) <= {p.parent.name for p in JUDGED} and RUNS


@pytest.mark.parametrize("fitted", FITTED, ids=lambda p: f"{p.parent.name}-{p.stem}")
@pytest.mark.parametrize("judged", JUDGED, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_a_judged_sweep_has_no_shape_of_a_fitted_one(fitted: Path, judged: Path) -> None:
    family = judged.parent.name
    if fitted.parent.name == family:
        common = shapes(family, pd.read_parquet(fitted)) & shapes(family, pd.read_parquet(judged))
        assert not common, f"both in {fitted.name} and in {judged.name}: {sorted(common)[:3]}"


@pytest.mark.parametrize("run", RUNS, ids=lambda p: p.stem)
@pytest.mark.parametrize("judged", JUDGED, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_a_judged_sweep_has_no_shape_of_a_calibration_run(run: Path, judged: Path) -> None:
    family, rows = judged.parent.name, pd.read_parquet(run)
    mine = rows[rows["what"] == f"kernel:{family}"].dropna(axis=1, how="all")
    if len(mine):
        assert not shapes(family, mine) & shapes(family, pd.read_parquet(judged))


@pytest.mark.parametrize("name", gpus())
def test_the_spec_tier_never_saw_the_gpu_that_it_answers_for(name: str) -> None:
    spec = gpu(name)
    models = [resolve(spec, what, None) for what in MODELS]
    models += [resolve(spec, f"kernel_{family}", None) for family in FAMILIES]
    models.append(resolve(spec, "collective", None))
    assert {model.tier for model in models} == {"spec"}
    assert not [model.model_id for model in models if name in model.card.get("gpus", ())]


def test_collectives_of_the_spec_tier_come_from_other_gpus() -> None:
    for path in sorted(shipped("data").glob(f"left_out/{LAW}_without_*")):
        name = path.name.removeprefix(f"{LAW}_without_")
        assert name not in resolve(gpu(name), "collective", None).card["gpus"]


@pytest.mark.parametrize("what", [what for what in MODELS if what != "moe_kernel"])
def test_a_table_is_corrected_and_judged_on_different_shapes(what: str) -> None:
    rows = load(what)
    for name in rows.gpus:
        own = rows.take(rows.gpu == name)
        for folds in (2, 5):
            for train, held in shape_folds(own, folds):
                assert not set(own.shape[train].tolist()) & set(own.shape[held].tolist())
                assert (train ^ held).all()
    few = sample(own, 50)
    assert len(np.unique(keys(few, MODELS[what].shape))) == len(np.unique(few.shape)), "rows of one shape count as one"


@pytest.mark.parametrize("what", OPERATORS)
def test_a_run_is_judged_on_shapes_that_it_does_not_have(what: str) -> None:
    columns = MODELS[what].shape
    for run in RUNS:
        mine, judged = of_part(read_run(run), what, run.stem), load(what)
        judged = judged.take(judged.gpu == run.stem)
        fitted = set(zip(*(mine.columns[name].tolist() for name in columns), strict=True))
        left = of_other_shapes(judged, mine)
        asked = list(zip(*(left.columns[name].tolist() for name in columns), strict=True))
        assert not set(asked) & fitted
        assert len(asked) == sum(row not in fitted for row in zip(*(judged.columns[name].tolist() for name in columns), strict=True))
