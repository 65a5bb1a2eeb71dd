"""What trees may know by name, interpolation between a table's rows, and how attention kernels cut their work."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.hw import gpu
from perfmodel.learn import kriging
from perfmodel.learn.operators import operator_terms
from perfmodel.learn.transfer import CARD_KEY, HIDDEN, blank, known_pairs, tensor_path, visible
from perfmodel.library.attention_paths import PATHS
from perfmodel.library.columns import read_operator
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
    entry = kriging.fit(columns, law, residual)
    answer = kriging.log_ratio(entry, columns, law)
    assert np.median(answer) == pytest.approx(0.3, abs=0.03)
    half = kriging.log_ratio(kriging.fit(columns, law, residual, 0.5), columns, law)
    np.testing.assert_allclose(half, answer / 2, atol=1e-3)


def latency(op: Attention, name: str, stack: str, kernel: str | None = None) -> float:
    columns = read_operator("attention", op, stack, kernel)
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


def test_sglang_visits_every_block_under_a_window() -> None:
    window, full = (Attention("prefill", 1, 8192, 8192, 32, 8, 128, window=w) for w in (1024, 0))
    assert latency(window, "l40s", "sglang") == pytest.approx(latency(full, "l40s", "sglang"), rel=0.05)
    assert latency(window, "l40s", "vllm") < 0.5 * latency(full, "l40s", "vllm")


def test_every_path_has_its_launches() -> None:
    from perfmodel.analytic.constants import physics

    for law in ("library_attention_decode", "library_attention_prefill"):
        assert {f"launches_{path}" for path in PATHS} <= set(physics(law))
