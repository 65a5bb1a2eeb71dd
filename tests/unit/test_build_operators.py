"""Which universal model answers for a GPU: judged on GPUs left out in turn, never on the one that is asked about."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from perfmodel.fit.operator_models import _better_alone
from perfmodel.fit.trees import LEARNT_LOG, NEW_ARCH_MARGIN, ONE_GPU_LEAST, ONE_GPU_MARGIN, alike, choose_shares, mean_error, with_widths
from perfmodel.hw import gpu
from perfmodel.learn.calibration import resolve
from perfmodel.learn.card import UNCERTAINTY_KEY
from perfmodel.learn.model import FittedModel
from perfmodel.learn.operators import half_widths, non_roofline_share
from perfmodel.learn.transfer import TREE_SHARES

ARCHS = {"a": "sm_80", "b": "sm_90", "c": "sm_90", "d": "sm_89", "e": "sm_86", "f": "sm_90"}


def errors(
    size: float, tree: float = 0.0, *, rows: int = 400, inside: bool = True, new: bool = False, beyond: float = 0.0, stack: float = 1.0
) -> np.ndarray:
    """Rows of (error, log latency, stack, log ratio of the tree, inside the domain, new kernel, share beyond known rates)."""
    signs, seconds = np.tile([1.0, -1.0], rows // 2), np.tile([5e-6, 50e-6, 500e-6, 50e-6], rows // 4)
    same = [np.full(rows, float(value)) for value in (stack, inside, new, beyond)]
    return np.stack([size * signs, np.log(seconds), same[0], tree * signs, *same[1:]])


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
    sure = 0.02 / math.hypot(1.0, 0.1 / LEARNT_LOG)
    assert widths(found, "a") == {"known": pytest.approx([sure] * 3, abs=1e-4), "new": pytest.approx([0.0] * 3, abs=1e-9)}
    other = with_widths(FittedModel("m", "spec", {}, (-1.0, 1.0)), found, ARCHS, "d")
    assert min(other.card["half_widths"]["new"]) > 0.3
    assert alike(ARCHS, ARCHS, "b") and not alike(ARCHS, ARCHS, "d")


def widths(found: dict[str, np.ndarray], left_out: str | None = None) -> dict[str, list[float]]:
    card = with_widths(FittedModel("m", "spec", {}, (-1.0, 1.0)), found, ARCHS, left_out).card
    return {name: each[:3] for name, each in card["half_widths"].items()}


def test_a_gpu_counts_once_however_many_rows_it_has() -> None:
    many, few = errors(0.05, rows=4000), errors(0.20, rows=400)
    assert widths({"a": many, "d": few})["new"] == pytest.approx([NEW_ARCH_MARGIN * 0.20] * 3)  # half of the GPUs err by 0.20
    assert widths({"a": many, "d": errors(0.05), "e": errors(0.05), "f": errors(0.05), "b": errors(0.05), "c": few})["known"][0] < 0.21


def test_rows_of_new_kernels_and_rows_outside_the_domain_do_not_speak_for_measured_ones() -> None:
    measured, fresh, outside = errors(0.02), errors(0.30, new=True), errors(0.90, inside=False)
    found = {"b": np.concatenate([measured, fresh, outside], axis=1), "c": np.concatenate([measured, fresh], axis=1)}
    assert widths(found) == {"known": pytest.approx([0.02] * 3), "new": pytest.approx([NEW_ARCH_MARGIN * 0.30] * 3)}
    only_new = widths({"b": fresh, "c": fresh, "a": errors(0.30)})
    assert only_new["known"] == only_new["new"] == pytest.approx([NEW_ARCH_MARGIN * 0.30] * 3)  # nothing says that they are better


def test_one_gpu_of_an_architecture_is_believed_less_than_two() -> None:
    alone = widths({"b": errors(0.02), "c": errors(0.02), "a": errors(0.30)}, "c")
    assert alone["known"] == pytest.approx([max(ONE_GPU_MARGIN * 0.02, ONE_GPU_LEAST * alone["new"][0])] * 3, abs=1e-4)


def test_a_width_is_that_of_a_row_without_doubt_and_a_doubtful_row_gets_more_of_it() -> None:
    doubtful = dict.fromkeys("ad", errors(-0.13, 0.4, beyond=0.5))
    model = with_widths(FittedModel("m", "spec", {}, (-1.0, 1.0)), doubtful, ARCHS, None)
    share = model.card[TREE_SHARES]["new"]
    factor = math.sqrt(1.0 + (share * 0.4 / LEARNT_LOG) ** 2 + 0.5**2)
    error = abs(-0.13 + (1.0 - share) * 0.4)
    assert share == 0.75 and model.card["half_widths"]["new"][:3] == pytest.approx([NEW_ARCH_MARGIN * error / factor] * 3, abs=1e-4)
    features = {"dram": np.log([0.5, 0.3, 0.5]), "tensor": np.log([0.1, 1.0, 0.1]), "stack": np.array([1.0, 1.0, 0.0])}
    latency_us, learnt = np.array([50.0, 50.0, 50.0]), np.array([share * 0.4, 0.0, share * 0.4])
    found = half_widths(model, gpu("l40s"), latency_us, features, learnt)
    sure = model.card["half_widths"]["new"]
    np.testing.assert_allclose(found, [sure[1] * factor, sure[1], sure[4]])  # the last one's stack is not named
    plain = replace(model, card={key: value for key, value in model.card.items() if key != UNCERTAINTY_KEY})
    np.testing.assert_allclose(half_widths(plain, gpu("l40s"), latency_us, features, learnt), [sure[1], sure[1], sure[4]])


def test_regimes_have_widths_of_their_own_only_where_no_stack_is_named() -> None:
    def by_regime(stack: float) -> np.ndarray:
        found = errors(0.10, rows=800, stack=stack)
        found[0] = np.where(found[1] > np.log(100e-6), 0.30, 0.10)
        return found

    both = np.concatenate([by_regime(1.0), by_regime(0.0)], axis=1)
    table = with_widths(FittedModel("m", "spec", {}, (-1.0, 1.0)), {"a": both, "d": both}, ARCHS, None).card["half_widths"]["new"]
    assert table == pytest.approx([NEW_ARCH_MARGIN * width for width in (0.3, 0.3, 0.3, 0.1, 0.1, 0.3)])


def test_the_share_beyond_known_rates_is_what_neither_memory_nor_tensor_cores_explain() -> None:
    features = {"dram": np.log([0.2, 0.9]), "tensor": np.log([0.6, 0.1])}
    np.testing.assert_allclose(non_roofline_share(features), [0.4, 0.1])
    np.testing.assert_allclose(non_roofline_share({"dram": features["dram"]}), [0.8, 0.1])  # operators that do not multiply


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
        assert name not in resolve(gpu(name), "gemm", None).card["gpus"]
    assert set(resolve(gpu("h20"), "gemm", None).card["gpus"]) == {"h100_sxm", "h200_sxm"}
    assert resolve(gpu("l20"), "gemm", None).card["gpus"] == ["a100_sxm4_80gb", "h100_sxm", "h200_sxm", "l40s", "rtx_pro_6000"]
