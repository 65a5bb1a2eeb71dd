"""Tuning without a GPU: rows are replayed, or a fake child times; what is asked of the timer, kept, and answered from the store."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfmodel as pm
from perfmodel.errors import InputError, NoAnswerError
from perfmodel.hw import GpuSpec
from perfmodel.measure import sweep
from perfmodel.measure.kernels import family, gemm
from perfmodel.measure.replay import ReplayRunner
from perfmodel.tune import TuneResult, environment, profile, tune
from perfmodel.tune.environment import Environment
from perfmodel.tune.store import Store

OP = pm.Gemm(512, 4096, 4096)
PROBLEM = {"m": 512, "n": 4096, "k": 4096, "dtype": "bf16"}
HERE = Environment("NVIDIA H200", "570.1", environment.version("triton"), environment.version("torch"))
GEMM = family("gemm")
REAL_DEVICE = environment._device
Change = Callable[[int, dict[str, Any]], dict[str, Any]]


@pytest.fixture(autouse=True)
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_device", lambda: (HERE.gpu, HERE.driver))


def ranked(op: pm.Gemm = OP) -> list[dict[str, Any]]:
    ranking = pm.rank(op, "h200_sxm")
    top = ranking.configs.take(np.array(ranking.shortlist(60))).rows()
    return [{k: c[k] for k in GEMM.config_keys} for c in top]


def replay(change: Change = lambda i, row: row) -> ReplayRunner:
    """Every ranked config measured: the model's fourth choice is the fastest; `change` edits a row by its rank."""
    rows = []
    for i, config in enumerate(ranked()):
        row = {"kernel": "gemm", **PROBLEM, **config, "status": "ok", "reason": "", "spread": 0.01, "clock_mhz": 1980, "power_w": 500.0}
        rows.append(change(i, row | {"latency_us": 100.0 + abs(i - 3)}))
    rows.append({"kernel": "gemm", **PROBLEM, **dict.fromkeys(GEMM.config_keys), "variant": "cublas", "status": "ok", "latency_us": 90.0})
    return ReplayRunner(rows, GEMM.problem_keys, GEMM.config_keys)


def failing(i: int, row: dict[str, Any]) -> dict[str, Any]:
    reasons = {0: ("compile_error", "no registers"), 3: ("wrong_result", "relative error 0.5"), 4: ("timeout", "no answer for 25 s")}
    status, reason = reasons.get(i, ("ok", ""))
    return row | ({} if status == "ok" else {"status": status, "reason": reason, "latency_us": None})


def test_times_only_the_top_k_and_the_library() -> None:
    runner = replay()
    seen: list[tuple[str, int, int]] = []
    result = tune(OP, top_k=5, runner=runner, progress=lambda *step: seen.append(step))
    assert runner.asked == 6 and seen[-1] == ("timing", 6, 6)
    assert (result.gpu, result.source, result.latency_us, result.spread) == ("h200_sxm", "measured", 100.0, 0.01)
    assert result.config == ranked()[3] and result.baseline_us == {"cublas": 90.0}
    assert result.predicted_us == pytest.approx(pm.predict(OP, "h200_sxm", config=result.config).latency_us)
    assert [c.latency_us for c in result.candidates] == [100.0, 101.0, 101.0, 102.0, 103.0]
    assert list(result.frame["latency_us"]) == [c.latency_us for c in result.candidates]


def test_asked_again_the_store_answers() -> None:
    runner = replay()
    first = tune(OP, top_k=5, runner=runner)
    again = tune(OP, top_k=5, runner=runner)
    assert runner.asked == 6 and again.source == "store"
    assert dataclasses.replace(again, source="measured") == first
    fewer = tune(OP, top_k=2, runner=runner)
    assert runner.asked == 6 and fewer.config == first.config  # a measured better one is not forgotten


def test_a_larger_question_times_only_what_is_new() -> None:
    runner = replay()
    tune(OP, top_k=5, runner=runner)
    wider = tune(OP, top_k=9, runner=runner)
    assert runner.asked == 10 and wider.source == "measured" and len(wider.candidates) == 9
    known, new = ranked()[:3], ranked()[20]
    mine = tune(OP, runner=runner, configs=[*known, new])
    assert runner.asked == 11 and {c.config["block_m"] for c in mine.candidates} <= {c["block_m"] for c in [*known, new]}
    assert mine.config in known and mine.latency_us == 101.0  # the best of the caller's own list, not of the store


def test_force_times_again_and_keeps_the_history() -> None:
    tune(OP, top_k=2, runner=replay())
    faster = tune(OP, top_k=2, runner=replay(lambda i, row: row | {"latency_us": 50.0 + i}), force=True)
    assert faster.latency_us == 50.0 and faster.source == "measured"
    slower = tune(OP, top_k=2, runner=replay(), force=True)
    assert slower.latency_us == 102.0
    with Store(create=False) as store:
        assert len(store.history()) == 9 and len(store.latest(store.history()[0].key)) == 2


@pytest.mark.parametrize("changed", [{"gpu": "NVIDIA H200 NVL"}, {"driver": "580.2"}, {"triton": "9.0"}, {"torch": "9.0"}])
def test_another_environment_is_a_miss(changed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    runner = replay()
    tune(OP, top_k=3, runner=runner)
    monkeypatch.setattr(environment, "current", lambda device=None: dataclasses.replace(HERE, **changed))
    assert tune(OP, top_k=3, runner=runner, gpu="h200_sxm").source == "measured"
    assert runner.asked == 8


def test_another_kernel_source_is_a_miss_and_a_row_of_another_source_is_not_taken_for_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = replay()
    tune(OP, top_k=3, runner=runner)
    monkeypatch.setattr(gemm, "FAMILY", dataclasses.replace(GEMM, source_hash=lambda: "another"))
    assert tune(OP, top_k=3, runner=runner).source == "measured" and runner.asked == 8
    old = replay(lambda i, row: row | {"source_hash": "ancient"})
    assert tune(pm.Gemm(512, 4096, 4096), top_k=4, runner=old, force=True).latency_us == 100.0
    assert tune(OP, top_k=4, runner=old).source == "measured"  # the replayed rows went under `ancient`


def test_failures_are_candidates_with_reasons_and_stored_rows() -> None:
    runner = replay(failing)
    result = tune(OP, top_k=6, runner=runner)
    assert result.latency_us == 101.0
    assert {(c.status, c.reason) for c in result.candidates if c.latency_us is None} == {
        ("compile_error", "no registers"),
        ("wrong_result", "relative error 0.5"),
        ("timeout", "no answer for 25 s"),
    }
    assert any("3 of 6 candidates gave no time" in note for note in result.notes)
    assert tune(OP, top_k=6, runner=runner).source == "store" and runner.asked == 7
    with Store(create=False) as store:
        assert sorted(r.status for r in store.history()) == ["compile_error", "ok", "ok", "ok", "ok", "timeout", "wrong_result"]


def test_nothing_ran_is_no_answer_and_only_passing_failures_are_tried_again() -> None:
    def all_fail(i: int, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"status": "compile_error" if i else "crash", "reason": f"because {min(i, 1)}", "latency_us": None}

    runner = replay(all_fail)
    with pytest.raises(NoAnswerError, match="none of 3 candidates ran on h200_sxm") as error:
        tune(OP, top_k=3, runner=runner)
    assert "crash: because 0" in str(error.value) and "compile_error: because 1" in str(error.value)
    assert runner.asked == 4
    with pytest.raises(NoAnswerError):
        tune(OP, top_k=3, runner=runner)
    assert runner.asked == 5  # the crashed one


def test_what_a_replay_never_measured_is_not_stored() -> None:
    other = pm.Gemm(256, 4096, 4096)
    with pytest.raises(NoAnswerError, match="never measured"):
        tune(other, top_k=3, runner=replay())
    with Store(create=False) as store:
        assert store.history() == []


def test_notes_tell_of_unstable_timings_and_other_processes() -> None:
    runner = replay(lambda i, row: row | {"unstable": True, "spread": 0.2, "other_processes": 2})
    notes = " ".join(tune(OP, top_k=2, runner=runner).notes)
    assert "spread is 20 %: unstable" in notes and "2 other processes" in notes


@pytest.mark.parametrize("top_k", [0, -1, 2.5, math.nan, "x"])
def test_bad_top_k(top_k: Any) -> None:
    with pytest.raises(InputError, match="top_k"):
        tune(OP, top_k=top_k, runner=replay())


def test_a_config_the_kernel_does_not_have_is_refused() -> None:
    config = {"block_m": 64, "block_n": 64, "block_k": 64}
    with pytest.raises(InputError, match="variant 'plain'"):
        tune(OP, configs=[{**config, "variant": "plain"}], runner=replay())
    pointer = {**config, "variant": "pointer", "group_m": 1, "split_k": 1, "num_warps": 4, "num_stages": 3}
    rows = ReplayRunner([{**PROBLEM, **pointer, "status": "ok", "latency_us": 7.0}], GEMM.problem_keys, GEMM.config_keys)
    assert tune(OP, configs=[{**config, "regs": 90}], runner=rows).config == pointer


def test_no_gpu_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_device", lambda: None)
    with pytest.raises(NoAnswerError, match="perfmodel rank"):
        tune(OP)
    assert tune(OP, gpu="h200_sxm", runner=replay()).gpu == "h200_sxm"  # a replay needs none


def test_a_gpu_that_is_not_here_is_refused() -> None:
    with pytest.raises(InputError, match="this machine has NVIDIA H200, not h100_sxm"):
        tune(OP, gpu="h100_sxm")


def test_an_unusable_store_is_told_before_any_timing(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("not a store " * 100)
    runner = replay()
    with pytest.raises(InputError, match="cannot be used as a store"):
        tune(OP, runner=runner, store=tmp_path / "s")
    assert runner.asked == 0


def test_an_unknown_gpu_gets_a_draft(monkeypatch: pytest.MonkeyPatch, _own_folders: Path) -> None:
    def probed(index: int = 0) -> GpuSpec:
        return dataclasses.replace(pm.gpu("h200_sxm"), name="h999", full_name="NVIDIA H999", aliases=())

    monkeypatch.setattr(environment, "_device", lambda: ("NVIDIA H999", "570.1"))
    monkeypatch.setattr("perfmodel.hw.probe.probe_device", probed)
    result = tune(OP, top_k=3, runner=replay())
    assert result.gpu == "h999" and "NVIDIA H999 was unknown" in result.notes[0]
    assert (_own_folders / "hwdb" / "h999.toml").is_file() and pm.gpu("H999").sms == 132
    monkeypatch.setattr("perfmodel.hw.probe.probe_device", lambda: pytest.fail("known by now"))
    assert tune(OP, top_k=3, runner=replay()).source == "store"


def fake_child(kernel: str, facts: Mapping[str, Any], work: list[sweep.Work], deadline: float, policy: Any, pipe: Connection) -> None:
    """Times by the shape of the tile; crashes on the first config of all."""
    for item in work:
        for name in item.baselines:
            pipe.send(("start", item.problem, {"variant": name}))
            pipe.send(("row", {**item.problem, **dict.fromkeys(GEMM.config_keys), "variant": name, "status": "ok", "latency_us": 9.0}))
        for config in item.configs:
            pipe.send(("start", item.problem, config))
            if item.baselines:
                time.sleep(0.2)
                os._exit(3)
            pipe.send(("row", {**item.problem, **config, "status": "ok", "reason": "", "latency_us": 10.0 + config["num_stages"]}))
    pipe.send(("done",))


def test_live_path_compiles_for_real_and_survives_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_child", fake_child)
    main = dict(vars(sys.modules["__main__"]))
    configs = [dict(ranked()[0], variant="tma", block_m=64, block_n=64, block_k=64, split_k=1, num_warps=4, num_stages=s) for s in (3, 4)]
    steps: list[tuple[str, int, int]] = []
    result = tune(OP, configs=configs, progress=lambda *step: steps.append(step))
    statuses = {c.status: c for c in result.candidates}
    assert set(statuses) == {"ok", "crash"} and result.config == statuses["ok"].config
    assert ("compiling", 2, 2) in steps and ("timing", 3, 3) in steps
    assert result.latency_us == 10.0 + result.config["num_stages"] and result.baseline_us == {"cublas": 9.0}
    assert vars(sys.modules["__main__"]).get("__file__") == main.get("__file__") and sys.modules["__main__"].__name__ == "__main__"
    assert tune(OP, configs=configs).source == "store"


def test_version_needs_no_import() -> None:
    ask = "print(version('torch'), version('absent_package'), 'torch' in sys.modules)"
    code = f"import sys; from perfmodel.tune.environment import version; {ask}"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    import torch

    assert out == [torch.__version__, "none", "False"]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, "NVIDIA H200"), ("1", "NVIDIA H200"), ("", None), ("-1", None), ("GPU-bbb", "NVIDIA H200")],
)
def test_device_of_a_machine_with_equal_gpus(monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: str | None) -> None:
    listed = [("NVIDIA H200", "GPU-aaaa", "570.1"), ("NVIDIA H200", "GPU-bbbb", "570.1")]
    monkeypatch.setattr(environment, "_from_nvml", lambda: [])
    monkeypatch.setattr(environment, "_from_command", lambda: listed)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = REAL_DEVICE()
    assert (found and found[0]) == expected


def test_result_is_frozen() -> None:
    result = tune(OP, top_k=2, runner=replay())
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.latency_us = 1.0  # type: ignore[misc]
    assert isinstance(result, TuneResult) and profile.TuneResult is TuneResult


@pytest.mark.gpu
def test_on_a_real_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the timing process says of GPU, driver and versions is what the store is asked with."""
    monkeypatch.setattr(environment, "_device", REAL_DEVICE)
    first = tune(OP, top_k=3)
    assert first.source == "measured" and first.latency_us > 0 and first.baseline_us["cublas"] > 0
    again = tune(OP, top_k=3)
    assert again.source == "store" and again.config == first.config and again.latency_us == first.latency_us
    with Store(create=False) as store:
        assert len({run.key.values() for run in store.history()}) == 1
