"""What Triton's autotuner timed goes to the store, and later ranks know it; through Triton's own Autotuner, without a GPU."""

from __future__ import annotations

import types
import warnings

import pytest

import perfmodel as pm
from perfmodel.tune import listener
from perfmodel.tune.environment import Environment
from perfmodel.tune.store import Store

triton = pytest.importorskip("triton")
from triton.runtime.autotuner import Autotuner  # noqa: E402

from perfmodel.measure.kernels import plain  # noqa: E402

CONFIGS = [triton.Config({"BM": m, "BN": 128, "BK": 64, "GM": 8}, num_warps=8, num_stages=3) for m in (64, 128, 256)]
TENSOR = types.SimpleNamespace(dtype="torch.bfloat16")
SIZES = {"M": 4096, "N": 4096, "K": 4096}


@pytest.fixture(autouse=True)
def an_h200(monkeypatch):
    place = Environment("NVIDIA H200", "1", "3.8", "2")
    monkeypatch.setattr(listener.environment, "current", lambda: place)
    monkeypatch.setattr(listener, "_state", {"path": None, "warned": False})


def tuner(by=None):
    found = Autotuner.__new__(Autotuner)
    found.configs, found.perf_model, found.configs_top_k, found.keys = CONFIGS, None, 1.0, ["M", "N", "K"]
    found.early_config_prune = by and by["early_config_prune"]
    found.fn, found.nargs, found.cache = plain.gemm, {"a_ptr": TENSOR, **SIZES}, {}
    return found


def tuned():
    found = tuner()
    found.configs_timings = {CONFIGS[0]: [0.3, 0.29, 0.31], CONFIGS[1]: [0.4, 0.39, 0.41], CONFIGS[2]: [float("inf")] * 3}
    found.cache[(4096, 4096, 4096, "torch.bfloat16")] = CONFIGS[0]
    return found


def test_record_keeps_the_last_tuning(tmp_path):
    store = tmp_path / "s.sqlite"
    assert listener.record(tuned(), store) == 3
    with Store(store) as book:
        runs = book.history()
    assert {r.status for r in runs} == {"ok", "error"}
    assert runs[0].key.sizes == SIZES and runs[0].key.kernel == "gemm" and runs[0].latency_us == pytest.approx(300)
    assert runs[0].spread == pytest.approx(0.0667, abs=1e-3)
    with pytest.raises(pm.InputError, match="nothing to record"):
        listener.record(plain.gemm, store)


def test_a_triton_without_a_listener_says_so_once(tmp_path, monkeypatch):
    monkeypatch.setattr(triton.knobs, "autotuning", types.SimpleNamespace())
    with pytest.warns(RuntimeWarning, match="no autotuning listener"):
        assert listener.listen(tmp_path / "s.sqlite") is False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert listener.listen(tmp_path / "s.sqlite") is False


def test_listens_keeps_and_calls_the_one_before(tmp_path, monkeypatch):
    heard = []
    knobs = types.SimpleNamespace(listener=lambda **told: heard.append(told["fn"]))
    monkeypatch.setattr(triton.knobs, "autotuning", knobs)
    store = tmp_path / "s.sqlite"
    assert listener.listen(store) and listener.listen(store)
    done = tuned()
    told = {"fn": plain.gemm, "key": next(iter(done.cache)), "best_config": CONFIGS[0], "configs_timings": done.configs_timings}

    class Run:
        fn, configs, keys, nargs = plain.gemm, CONFIGS, ["M"], {"a_ptr": TENSOR, **SIZES, "stride_am": 4096}

        def run(self):
            knobs.listener(**told, duration=1.0, cache_hit=False)

    Run().run()
    assert heard == [plain.gemm]
    with Store(store) as book:
        assert book.history()[0].key.sizes == {**SIZES, "stride_am": 4096} and book.history()[0].key.dtype == "bfloat16"
    with pytest.warns(RuntimeWarning, match="did not keep"):
        knobs.listener(fn=plain.gemm, key=(), best_config=None, configs_timings=None, duration=None, cache_hit=False)


def test_a_timed_config_is_tried_first_again(tmp_path, monkeypatch):
    store = tmp_path / "s.sqlite"
    by = pm.prune(kernel="gemm", top_k=1, gpu="h200_sxm")
    unknown = tuner(by).prune_configs({})
    slow = next(c for c in CONFIGS if c is not unknown[0])
    done = tuned()
    done.configs_timings = {slow: [0.1, 0.1, 0.1]}
    listener.record(done, store)
    assert tuner(by).prune_configs({}) == unknown  # nobody listens: the store is not read in a launch
    monkeypatch.setitem(listener._state, "path", store)
    assert tuner(by).prune_configs({}) == [slow]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"sizes": {"q": "M"}}, "name in sizes"),
        ({"sizes": ["M"]}, "expected"),
        ({"fields": {"block_m": 3}}, "expected"),
        ({"fields": {"rows": "BM"}}, "name in fields"),
        ({"dtype": "complex64"}, "dtype"),
        ({"dtype": "fp8", "gpu": "a100"}, "fp8"),
        ({"calibration": 3}, "calibration"),
        ({"calibration": "/nowhere"}, "no calibration"),
        ({"kernel": "attention"}, "unknown kernel"),
        ({"kernel": "auto", "sizes": {"m": "M"}}, "belong to a kernel family"),
        ({"kernel": "auto", "calibration": "/nowhere"}, "belongs to a kernel family"),
        ({"kernel": 7}, "must be a function decorated"),
    ],
)
def test_misuse_is_told_at_decoration(bad, words):
    with pytest.raises(pm.InputError, match=words):
        pm.prune(**bad)
