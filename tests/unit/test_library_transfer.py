"""What trees may know by name, interpolation between a table's rows, and how attention kernels cut their work."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from perfmodel.calibrate.outliers import steady_rows
from perfmodel.errors import InputError
from perfmodel.hw import gpu
from perfmodel.learn import kriging
from perfmodel.learn.boost import CORRECTION, boost
from perfmodel.learn.model import FittedModel
from perfmodel.learn.operators import operator_terms, width_table
from perfmodel.learn.transfer import (
    CARD_KEY,
    HIDDEN,
    NEW_PATH_SHARE,
    PATH_MARGIN,
    TREE_SHARES,
    blank,
    known_pairs,
    tensor_path,
    tree_share,
    visible,
    with_scaled_tree,
)
from perfmodel.library.attention_paths import PATHS
from perfmodel.ops import OperatorTable
from perfmodel.ops.attention import Attention

FEATURES = {"stack": np.array([1.0, 2.0, 0.0]), "kernel": np.array([2.0, 2.0, 0.0]), "log2_m": np.array([3.0, 4.0, 5.0])}


def test_names_measured_on_a_tensor_path_are_shown_and_others_hidden() -> None:
    known = known_pairs(["sm_90", "sm_80", "sm_80"], FEATURES)
    assert set(known) == {"wgmma", "mma"}
    seen = visible({CARD_KEY: known}, "sm_90", FEATURES)
    np.testing.assert_array_equal(seen["stack"], [1.0, HIDDEN, 0.0])
    np.testing.assert_array_equal(seen["log2_m"], FEATURES["log2_m"])
    np.testing.assert_array_equal(visible({CARD_KEY: known}, "sm_100", FEATURES)["kernel"], blank(FEATURES)["kernel"])


def test_models_without_the_entry_see_every_name() -> None:
    assert visible({}, "sm_90", FEATURES) is FEATURES


def test_tensor_paths() -> None:
    assert [tensor_path(a) for a in ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")] == ["mma", "mma", "wgmma", "tcgen05", "mma"]


def test_interpolation_returns_what_rows_agree_on_and_ignores_one_that_does_not() -> None:
    rng = np.random.default_rng(0)
    columns = {"m": 2.0 ** rng.integers(0, 12, 80), "n": 2.0 ** rng.integers(6, 13, 80), "stack": np.ones(80), "dtype": np.zeros(80)}
    law, residual = np.log(columns["m"] * columns["n"]), np.full(80, 0.3)
    residual[7] = 3.0
    where = kriging.place(columns, law, {"dram": np.zeros(80)})
    answer = kriging.log_ratio(kriging.fit(where, residual), where)
    assert np.median(answer) == pytest.approx(0.3, abs=0.03)


def test_interpolation_follows_leaves_and_what_other_gpus_say() -> None:
    rng = np.random.default_rng(1)
    count = 120
    columns = {"m": 2.0 ** rng.uniform(0, 12, count), "stack": rng.integers(1, 3, count) * 1.0, "dtype": np.zeros(count)}
    law = np.log(columns["m"])
    leaves = rng.integers(0, 2, (count, 1)).astype(np.uint16).repeat(20, axis=1)
    said = rng.normal(0.0, 0.3, (count, 1))
    residual = 0.4 * leaves[:, 0] + 0.8 * said[:, 0]
    kept, asked = slice(0, 80), slice(80, count)
    whole = kriging.place(columns, law, {}, said, leaves)
    bare = kriging.place(columns, law, {})
    error = {}
    for name, where in (("whole", whole), ("bare", bare)):
        entry = kriging.fit(where.take(kept), residual[kept])
        error[name] = np.abs(residual[asked] - kriging.log_ratio(entry, where.take(asked))).mean()
    assert error["whole"] < 0.4 * error["bare"]


@pytest.mark.parametrize("apart", kriging.APARTS)
def test_the_part_of_the_leaves_is_the_same_by_sums_and_by_covariance(apart: float) -> None:
    rng = np.random.default_rng(2)
    count = 50
    columns = {"m": 2.0 ** rng.uniform(0, 12, count), "stack": rng.integers(1, 4, count) * 1.0, "dtype": rng.integers(0, 2, count) * 1.0}
    leaves = rng.integers(0, 9, (count, 12)).astype(np.uint16)
    where = kriging.place(columns, np.log(columns["m"]), {}, None, leaves)
    entry = kriging.fit(where.take(slice(0, 30)), rng.normal(0, 0.2, 30), apart=apart)
    asked = where.take(slice(30, count))
    expected = kriging.covariance(asked, where.take(slice(0, 30)), apart) @ np.array(entry["weights"])
    np.testing.assert_allclose(kriging.log_ratio(entry, asked), expected, atol=1e-3)


def test_what_one_stack_says_counts_more_for_another_the_less_they_are_apart() -> None:
    columns = {"m": 2.0 ** np.arange(12.0), "stack": np.ones(12), "dtype": np.zeros(12)}
    where = kriging.place(columns, np.log(columns["m"]), {})
    other = kriging.place({**columns, "stack": np.full(12, 2.0)}, np.log(columns["m"]), {})
    own, near = (kriging.fit(where, np.full(12, 0.3), apart=apart) for apart in kriging.APARTS)
    assert kriging.log_ratio(own, where).mean() == pytest.approx(0.3, abs=0.03)
    assert kriging.log_ratio(near, other).mean() > kriging.log_ratio(own, other).mean() + 0.05


def test_what_one_kernel_of_a_stack_takes_says_less_of_its_other_kernel() -> None:
    rng = np.random.default_rng(4)
    columns = {"m": 2.0 ** rng.uniform(0, 12, 60), "stack": np.ones(60), "dtype": np.zeros(60)}
    variant = (rng.random(60) < 0.2) * 1.0
    law, residual = np.log(columns["m"]), 0.7 * variant
    error = {}
    for known in (True, False):
        where = kriging.place(columns, law, {}, variant=variant if known else None)
        entry = kriging.fit(where.take(slice(0, 40)), residual[:40])
        error[known] = np.abs(residual[40:] - kriging.log_ratio(entry, where.take(slice(40, 60)))).mean()
    assert error[True] < 0.3 * error[False]


def spread_rows(count: int) -> kriging.Place:
    rng = np.random.default_rng(3)
    columns = {"m": 2.0 ** rng.uniform(0, 12, count), "stack": rng.integers(1, 3, count) * 1.0, "dtype": np.zeros(count)}
    leaves = rng.integers(0, 9, (count, 12)).astype(np.uint16)
    return kriging.place(columns, np.log(columns["m"]), {}, rng.normal(0.0, 0.3, (count, 1)), leaves)


@pytest.mark.parametrize("apart", kriging.APARTS)
def test_the_spread_is_that_of_the_gaussian_process(apart: float) -> None:
    where = spread_rows(70)
    known, asked = where.take(slice(0, 60)), where.take(slice(60, 70))
    between, within = (kriging.covariance(part, known, apart, leaves=False) for part in (asked, known))
    own = np.diag(kriging.covariance(asked, asked, apart, leaves=False))
    left = own - np.diag(between @ np.linalg.solve(within + kriging.NOISE * np.eye(60), between.T))
    found = kriging.spread(known, asked, apart)
    np.testing.assert_allclose(found, np.sqrt(left + kriging.NOISE), rtol=1e-6)
    entry = {**kriging.fit(known, np.zeros(60), apart=apart), kriging.SPREAD: 0.25}
    np.testing.assert_allclose(kriging.interpolated(entry, asked)[1], found / 0.25, rtol=1e-3)
    assert kriging.interpolated({**entry, kriging.SPREAD: 0.0}, asked)[1].tolist() == [1.0] * 10
    for damage in (-1.0, float("nan"), "x", None):
        with pytest.raises(InputError, match="damaged"):
            kriging.interpolated({**entry, kriging.SPREAD: damage}, asked)


def test_the_spread_is_wider_far_from_the_rows_and_no_less_by_some_of_many_rows() -> None:
    where = spread_rows(400)
    near = kriging.spread(where, where)
    far = kriging.spread(where, replace(where, near=where.near + 40.0))
    assert far.min() > near.max() and near.min() >= math.sqrt(kriging.NOISE)
    assert np.median(kriging.spread(where.take(slice(0, 20)), where)) > np.median(near)


def test_rows_beside_an_entry_come_back_and_damaged_ones_are_refused() -> None:
    columns = {"m": np.array([1.0, 2.0, 2.0**31]), "stack": np.ones(3), "dtype": np.zeros(3)}
    plain = kriging.fit(kriging.place(columns, np.log(columns["m"]), {}), np.zeros(3))
    entry = kriging.with_rows(plain, columns, np.array([-12.5, -11.0, -3.25]))
    found, log_latency = kriging.rows_of(entry)
    assert {name: values.tolist() for name, values in found.items()} == {name: values.tolist() for name, values in columns.items()}
    assert log_latency.tolist() == [-12.5, -11.0, -3.25]
    for damage in ({"table": "?"}, {"columns": ["m"]}, {"columns": None}, {"share": "x"}, {"share": 7.0}, {"apart": None}, {"rows": 2}):
        with pytest.raises(InputError, match="damaged"):
            kriging.rows_of({**entry, **damage})
    with pytest.raises(InputError, match="damaged"):
        kriging.rows_of(plain)


def latency(op: Attention, name: str, stack: str, kernel: str | None = None) -> float:
    columns = OperatorTable.of(op, stack, kernel)
    return float(operator_terms(gpu(name), f"attention_{op.phase}", columns, {}).latency_s[0])


def test_flash_attention_2_reads_the_cache_once_a_query_head_under_a_window() -> None:
    window, full = (Attention("decode", 256, 1, 128, 32, 4, 128, window=w) for w in (128, 0))
    assert latency(window, "l40s", "vllm", "fa2") > 1.5 * latency(full, "l40s", "vllm", "fa2")
    assert latency(window, "h100_sxm", "vllm", "fa3") == pytest.approx(latency(full, "h100_sxm", "vllm", "fa3"))


def test_one_long_head_is_not_split_by_the_variable_length_call() -> None:
    alone, packed = Attention("decode", 1, 1, 65536, 4, 4, 128), Attention("decode", 1, 1, 65536, 8, 4, 128)
    assert latency(alone, "l40s", "vllm", "fa2") > 3 * latency(packed, "l40s", "vllm", "fa2")


def test_groups_too_wide_for_xqa_run_head_by_head() -> None:
    wide, packed = Attention("decode", 64, 1, 2048, 64, 1, 128), Attention("decode", 64, 1, 2048, 32, 1, 128)
    assert latency(wide, "h100_sxm", "trtllm") > 2 * latency(packed, "h100_sxm", "trtllm")


def test_decode_says_which_of_a_stacks_kernels_runs() -> None:
    def variant(stack: str, q_heads: int, kv_dtype: str, name: str = "l40s") -> float:
        op = Attention("decode", 64, 1, 2048, q_heads, 2, 128, kv_dtype=kv_dtype)
        found = operator_terms(gpu(name), "attention_decode", OperatorTable.of(op, stack, None), {}).variant
        assert found is not None
        return float(found[0])

    assert [variant("trtllm", heads, "fp8") for heads in (2, 4, 64, 66)] == [1.0, 0.0, 0.0, 1.0]
    assert [variant("sglang", heads, "bf16") for heads in (2, 6, 8, 64)] == [2.0, 2.0, 0.0, 0.0]
    assert variant("sglang", 2, "fp8") == variant("sglang", 2, "bf16", "h100_sxm") == variant("vllm", 2, "bf16") == 0.0


def test_a_slower_kernel_of_a_stack_is_no_slow_run() -> None:
    columns = {"stack": np.full(40, 3.0), "kernel": np.zeros(40)}
    variant = (np.arange(40) % 5 == 0) * 1.0
    residual = 0.7 * variant + np.linspace(-0.05, 0.05, 40)
    residual[7] = 1.5
    assert np.flatnonzero(~steady_rows(kriging.names_of(columns, variant), residual)).tolist() == [7]
    assert np.flatnonzero(~steady_rows(kriging.names_of(columns), residual)).tolist() == [0, 5, 7, *range(10, 40, 5)]


def test_sglang_visits_every_block_under_a_window() -> None:
    window, full = (Attention("prefill", 1, 8192, 8192, 32, 8, 128, window=w) for w in (1024, 0))
    assert latency(window, "l40s", "sglang") == pytest.approx(latency(full, "l40s", "sglang"), rel=0.05)
    assert latency(window, "l40s", "vllm") < 0.5 * latency(full, "l40s", "vllm")


def test_every_path_has_its_launches() -> None:
    from perfmodel.analytic.constants import physics

    for law in ("library_attention_decode", "library_attention_prefill"):
        assert {f"launches_{path}" for path in PATHS} <= set(physics(law))


def fitted_tree() -> FittedModel:
    rng = np.random.default_rng(0)
    features = {"a": rng.random(200), "b": rng.random(200)}
    tree = boost(features, 0.4 * (features["a"] > 0.5), None, rounds=30, params=CORRECTION)
    return FittedModel("t", "spec", {}, (-0.3, 0.3), tree, {}, {CARD_KEY: {"mma": [64]}})


def test_an_interval_is_wider_on_a_tensor_path_that_no_row_used() -> None:
    card = {CARD_KEY: {"mma": [64]}, "half_widths": {"known": [0.1] * 6, "new": [0.2] * 6}, "archs": ["sm_80"]}
    assert width_table(card, "sm_80", (0.0, 0.0)).tolist() == [0.1] * 6
    assert width_table(card, "sm_89", (0.0, 0.0)).tolist() == [0.2] * 6
    assert width_table(card, "sm_90", (0.0, 0.0)).tolist() == [0.2] * 6  # a card that says nothing of it
    card[PATH_MARGIN] = 1.5
    np.testing.assert_allclose(width_table(card, "sm_90", (0.0, 0.0)), 0.3)
    assert width_table({**card, "prior": "universal:moe"}, "sm_90", (0.0, 0.0)).tolist() == [0.2] * 6


def test_half_of_a_tree_counts_on_a_tensor_path_that_it_never_saw() -> None:
    model = fitted_tree()
    assert tree_share(model.card, "sm_89") == 1.0 and tree_share(model.card, "sm_100") == NEW_PATH_SHARE
    assert tree_share({}, "sm_100") == 1.0
    assert with_scaled_tree(model, "sm_89") is model
    half = with_scaled_tree(model, "sm_90")
    assert tree_share(half.card, "sm_90") == 1.0
    asked = {"a": np.array([0.1, 0.9]), "b": np.array([0.5, 0.5])}
    assert model.residual is not None and half.residual is not None
    whole, part = model.residual.log_ratio(asked, 2), half.residual.log_ratio(asked, 2)
    np.testing.assert_allclose(part, NEW_PATH_SHARE * whole, rtol=1e-5)
    assert abs(whole[1]) > 0.1


def test_the_share_of_a_tree_depends_on_whether_the_architecture_was_measured() -> None:
    card = {CARD_KEY: {"mma": [64]}, TREE_SHARES: {"known": 1.0, "new": 0.75}, "archs": ["sm_80"]}
    assert (tree_share(card, "sm_80"), tree_share(card, "sm_89"), tree_share(card, "sm_90")) == (1.0, 0.75, NEW_PATH_SHARE)
    model = replace(fitted_tree(), card=card)
    asked = {"a": np.array([0.1, 0.9]), "b": np.array([0.5, 0.5])}
    part = with_scaled_tree(model, "sm_89")
    assert model.residual is not None and part.residual is not None and tree_share(part.card, "sm_89") == 1.0
    np.testing.assert_allclose(part.residual.log_ratio(asked, 2), 0.75 * model.residual.log_ratio(asked, 2), rtol=1e-5)


def test_an_entry_of_another_version_is_refused() -> None:
    columns = {"m": np.array([1.0, 2.0, 4.0]), "stack": np.ones(3), "dtype": np.zeros(3)}
    law = np.log(columns["m"])
    entry = kriging.fit(kriging.place(columns, law, {"dram": np.zeros(3)}), np.zeros(3))
    with pytest.raises(InputError, match="another version"):
        kriging.log_ratio(entry, kriging.place(columns, law, {}))
    with pytest.raises(InputError, match="another version"):
        kriging.log_ratio({**entry, "leaves": "?"}, kriging.place(columns, law, {}))
    with pytest.raises(InputError, match="another version"):
        kriging.log_ratio({"place": entry["place"]}, kriging.place(columns, law, {}))


@pytest.mark.parametrize(
    "damage",
    [
        {"weights": [math.nan] * 3}, {"weights": [1e300] * 3}, {"weights": [0.0] * 2}, {"weights": 1.0}, {"weights": None},
        {"centre": [math.inf] * 3}, {"centre": 1.0}, {"rows": math.inf}, {"rows": 0}, {"rows": 10**9}, {"names": ""}, {"leaves": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_entry_is_refused(damage: dict[str, object]) -> None:
    columns = {"m": np.array([1.0, 2.0, 4.0]), "stack": np.ones(3), "dtype": np.zeros(3)}
    where = kriging.place(columns, np.log(columns["m"]), {"dram": np.zeros(3)})
    entry = kriging.fit(where, np.zeros(3))
    assert np.isfinite(kriging.log_ratio(entry, where)).all()
    with pytest.raises(InputError, match="damaged"):
        kriging.log_ratio({**entry, **damage}, where)


@pytest.mark.parametrize("entry", [None, [], "x", 1, {}, {"trees": -1}, {"trees": 1e30}, {"trees": "3"}, {"trees": True}], ids=str)
def test_what_is_no_entry_is_refused(entry: object) -> None:
    with pytest.raises(InputError, match="damaged"):
        kriging.trees(entry)
