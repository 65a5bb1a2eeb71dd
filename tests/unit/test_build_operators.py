"""Which universal model answers for a GPU: judged on GPUs left out in turn, never on the one that is asked about."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.calibrate.build_operators import _better_alone
from perfmodel.calibrate.operators import alike, choose_shares, mean_error, with_widths
from perfmodel.hw import gpu
from perfmodel.learn.model import FittedModel
from perfmodel.learn.operators import operator_model
from perfmodel.learn.transfer import TREE_SHARES

ARCHS = {"a": "sm_80", "b": "sm_90", "c": "sm_90", "d": "sm_89", "e": "sm_86", "f": "sm_90"}


def errors(size: float, tree: float = 0.0) -> np.ndarray:
    """Rows of (error, log latency, stack, log ratio of the tree)."""
    signs = np.tile([1.0, -1.0], 200)
    return np.stack([size * signs, np.log(np.tile([5e-6, 50e-6, 500e-6, 50e-6], 100)), np.ones(400), tree * signs])


def test_the_share_is_the_one_that_errs_least() -> None:
    exact = errors(-0.05, 0.2)  # a quarter of the tree too much
    assert choose_shares({"known": [errors(0.0, 0.2)] * 2, "new": [exact] * 2}) == {"known": 1.0, "new": 0.75}
    assert choose_shares({"known": [errors(0.0, 0.2)], "new": [exact] * 2}) == {"known": 0.75, "new": 0.75}  # one GPU alone has no say
    assert choose_shares({"known": [], "new": [exact]}) == {"known": 0.75, "new": 0.75}
    assert choose_shares({"known": [], "new": []}) == {"known": 1.0, "new": 1.0}
    assert mean_error([exact], 0.75) == pytest.approx(0.0, abs=1e-12)


def test_shares_and_widths_come_from_the_others_by_whether_their_architecture_was_measured() -> None:
    found = {"a": errors(0.30, 0.0), "b": errors(0.02, 0.1), "c": errors(0.02, 0.1), "d": errors(-0.10, 0.2), "e": errors(-0.10, 0.2)}
    model = with_widths(FittedModel("m", "spec", {}, (-1.0, 1.0)), found, ARCHS, "a")
    assert model.card[TREE_SHARES] == {"known": 1.0, "new": 0.5}
    assert max(model.card["half_widths"]["known"]) == pytest.approx(0.02) and max(model.card["half_widths"]["new"]) < 0.02
    other = with_widths(FittedModel("m", "spec", {}, (-1.0, 1.0)), found, ARCHS, "d")
    assert min(other.card["half_widths"]["new"]) > 0.3
    assert alike(ARCHS, ARCHS, "b") and not alike(ARCHS, ARCHS, "d")


def test_an_architecture_alone_answers_only_where_other_gpus_say_so() -> None:
    shared = dict.fromkeys("abcdf", errors(0.10))
    alone = {"b": errors(0.05), "c": errors(0.30), "f": errors(0.05)}
    assert _better_alone(ARCHS, "sm_90", "c", shared, alone) == alone  # c has no say about itself, b and f are better alone
    assert _better_alone(ARCHS, "sm_90", "b", shared, alone) == {}
    assert _better_alone(ARCHS, "sm_90", None, shared, alone) == {}  # 13 % on average
    assert _better_alone(ARCHS, "sm_90", "c", shared, {"b": alone["b"], "c": alone["c"]}) == {}  # b alone is chance
    assert _better_alone(ARCHS, "sm_80", None, shared, alone) == {}


def test_hopper_gpus_are_answered_by_hopper_rows_and_none_by_its_own() -> None:
    for name in ("h100_sxm", "h200_sxm", "a100_sxm4_80gb", "l40s", "rtx_pro_6000"):
        assert name not in operator_model(gpu(name), "gemm", None).card["gpus"]
    assert set(operator_model(gpu("h20"), "gemm", None).card["gpus"]) == {"h100_sxm", "h200_sxm"}
    assert operator_model(gpu("l20"), "gemm", None).card["gpus"] == ["a100_sxm4_80gb", "h100_sxm", "h200_sxm", "l40s", "rtx_pro_6000"]
