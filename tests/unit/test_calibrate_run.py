"""Calibration runs without a GPU: the plan, resuming after Ctrl-C and kill -9, workers that hang or die, the lock, bad states."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfmodel.calibrate import plan as plans
from perfmodel.calibrate.plan import Plan, make_plan, point_id
from perfmodel.calibrate.run import ROWS, STATE, execute, set_aside, stored_rows
from perfmodel.errors import InputError, NoAnswerError
from perfmodel.hw import gpu
from perfmodel.measure import pool
from perfmodel.measure.devices import Device
from perfmodel.measure.lock import gpu_lock
from perfmodel.measure.state import Monitor, Sample, averages, bad_state, parse_line, reasons_of

H200 = gpu("h200_sxm")
RECIPE: dict[str, Any] = {  # small, so that planning takes no time
    "ceilings": {"use": 1.0},
    "gemm": {"use": 0.5, "longest_us": 2000.0, "m": list(range(1, 2000, 7)), "n": [512, 1024, 4096], "k": [512, 4096]},
    "memory": {"use": 0.1, "longest_us": 2000.0, "tokens": list(range(1, 4096, 9)), "hidden": [1024, 8192]},
}


def fake(index: int, setup: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A worker that answers at once, or as the environment says: hang, die or raise at a point."""

    def measure(point: dict[str, Any]) -> dict[str, Any]:
        mischief = os.environ.get(f"FAKE_{point.get('m', '')}", "")
        if mischief == "hang":
            time.sleep(60)
        if mischief == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if mischief == "raise":
            raise ValueError("no such\nkernel")
        time.sleep(float(os.environ.get("FAKE_S", "0.002")))
        return {"value": 1.0} if point["what"] == "ceiling" else {"latency_us": 10.0, "spread": 0.01, "unstable": False, "gpu_name": "Fake"}

    return measure


class Quiet(Monitor):
    """Watches nothing."""

    def __init__(self, device: Device) -> None:
        super().__init__(device.uuid, read=lambda: Sample(time.time(), clock_mhz=1500.0, max_clock_mhz=1500.0, power_w=300.0))


def tiny(count: int = 12, cost_s: float = 0.01) -> Plan:
    points = [{"what": "gemm", "dtype": "bf16", "m": m, "n": 64, "k": 64, "cost_s": cost_s} for m in range(1, count + 1)]
    return Plan(H200, 60.0, 0, tuple(({**p, "id": point_id(p)},) for p in points), ())


def go(plan: Plan, folder: Path, devices: int = 1, **more: Any) -> list[dict[str, Any]]:
    here = [Device(i, f"test-{os.getpid()}-{folder.name}-{i}") for i in range(devices)]
    return execute(plan, folder, here, worker=fake, monitor=Quiet, **more)


def test_the_plan_is_the_same_for_the_same_seed_and_within_the_budget() -> None:
    one, two = (make_plan(H200, budget_s=20.0, seed=3, recipe=RECIPE) for _ in range(2))
    assert one.digest == two.digest and [p["id"] for p in one.points] == [p["id"] for p in two.points]
    assert make_plan(H200, budget_s=20.0, seed=4, recipe=RECIPE).digest != one.digest
    assert [p["what"] for p in one.points][:3] == ["ceiling"] * 3
    assert sum(p.cost_s for p in one.parts) <= 20.0
    assert len({p["id"] for p in one.points}) == len(one.points)
    assert {p.name for p in one.parts} == {"ceilings", "gemm", "memory"}


def test_a_larger_budget_explains_more() -> None:
    small, large = (make_plan(H200, budget_s=b, recipe={"gemm": RECIPE["gemm"]}).parts[0] for b in (10.0, 20.0))
    assert 0 < small.explained <= large.explained < 1 and small.points < large.points


def test_rankings_are_judged_on_other_shapes_than_a_run_was_fitted_to() -> None:
    import pandas as pd

    from perfmodel.evaluate.holdout_report import without_shapes_of

    run = pd.DataFrame({"m": [1, 2, 3], "n": 8, "k": 8, "latency_us": 1.0})
    sweeps = [pd.DataFrame({"m": [2, 2], "n": 8, "k": 8}), pd.DataFrame({"m": [3], "n": 9, "k": 8})]
    assert without_shapes_of(run, sweeps)["m"].tolist() == [1, 3]


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan"), 1e9])
def test_a_senseless_budget_is_refused(budget: float) -> None:
    with pytest.raises(InputError, match="budget must be 10 to 3600"):
        make_plan(H200, budget_s=budget, recipe=RECIPE)


def test_greedy_takes_the_point_that_tells_most_a_second() -> None:
    import numpy as np

    from perfmodel.calibrate.points import greedy

    covariance = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    order, explained = greedy(covariance, np.ones(3), np.ones(3), 2.0)
    assert order[0] in (0, 1) and order[1] == 2  # the other of the pair is known by then
    assert explained[0] == pytest.approx(1.81 / 3 / 1.02, rel=1e-3) and explained[1] > 0.9
    assert greedy(covariance, np.ones(3), np.array([10.0, 1.0, 1.0]), 3.0)[0] == [1, 2]  # what does not fit is left out
    assert greedy(covariance, np.array([0.1, 0.1, 1.0]), np.ones(3), 1.0)[0] == [2]  # width counts


def test_a_run_measures_everything_once_and_stores_the_state_with_the_rows(tmp_path: Path) -> None:
    rows = go(tiny(), tmp_path / "run")
    assert [r["m"] for r in rows] == list(range(1, 13)) and {r["status"] for r in rows} == {"ok"}
    again = go(tiny(), tmp_path / "run")
    assert again == stored_rows(tmp_path / "run") and len(again) == 12
    assert {"clock_mhz", "power_w", "reasons", "other_processes", "wall_s", "run", "rank"} <= set(again[0])
    assert set(json.loads((tmp_path / "run" / "run.json").read_text())) == {"gpu", "budget_s", "seed", "plan"}


def test_failures_are_rows_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "SILENCE_S", 1.0)
    for m, mischief in ((2, "hang"), (4, "die"), (6, "raise")):
        monkeypatch.setenv(f"FAKE_{m}", mischief)
    rows = {r["m"]: r for r in go(tiny(8), tmp_path / "run")}
    assert {m: r["status"] for m, r in rows.items() if r["status"] != "ok"} == {2: "timeout", 4: "crash", 6: "error"}
    assert rows[6]["reason"] == "ValueError: no such kernel" and len(rows) == 8


def test_a_device_whose_worker_keeps_dying_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for m in range(1, 13):
        monkeypatch.setenv(f"FAKE_{m}", "die")
    rows = go(tiny(), tmp_path / "run")
    assert [r["status"] for r in rows] == ["crash"] * pool.PATIENCE


def test_several_devices_share_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_S", "0.2")
    rows = go(tiny(16), tmp_path / "run", devices=2)
    assert sorted(r["m"] for r in rows) == list(range(1, 17))
    assert {r["device"] for r in rows} == {0, 1}


def test_ranks_take_different_parts_and_read_all_rows(tmp_path: Path) -> None:
    first, second = (go(tiny(9), tmp_path / "run", part=(rank, 2)) for rank in (0, 1))
    assert [r["m"] for r in first] == [1, 3, 5, 7, 9]
    assert sorted(r["m"] for r in second) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_the_budget_holds_over_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_S", "0.1")
    plan = tiny(40, cost_s=0.1)
    short = Plan(plan.gpu, 1.0, 0, plan.tasks, ())
    rows = go(short, tmp_path / "run")
    assert 5 <= len(rows) <= 10 and sum(r["wall_s"] for r in rows) <= 1.1
    assert len(go(short, tmp_path / "run")) <= len(rows) + 1
    assert len(go(Plan(plan.gpu, 2.0, 0, plan.tasks, ()), tmp_path / "run")) > len(rows)  # a larger budget adds to it


def _start(folder: Path, uuid: str) -> subprocess.Popen[bytes]:
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]);"
        "import test_calibrate_run as t; from perfmodel.calibrate.run import execute; from perfmodel.measure.devices import Device;"
        "execute(t.tiny(200), Path(sys.argv[2]), [Device(0, sys.argv[3])], worker=t.fake, monitor=t.Quiet)"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(folder), uuid]
    return subprocess.Popen(command, env={**os.environ, "FAKE_S": "0.05"}, stderr=subprocess.DEVNULL)


def _wait_for(path: Path, lines: int) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        count = path.read_bytes().count(b"\n") if path.exists() else 0
        if count >= lines:
            return count
        time.sleep(0.02)
    raise AssertionError(f"{path} never had {lines} lines")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path, how: signal.Signals) -> None:
    folder, uuid = tmp_path / "run", f"kill-{os.getpid()}-{how.name}"
    process = _start(folder, uuid)
    _wait_for(folder / ROWS, 5)
    process.send_signal(how)
    process.wait(20)
    kept = stored_rows(folder)
    assert 5 <= len(kept) < 200 and [r["m"] for r in kept] == list(range(1, len(kept) + 1))
    time.sleep(0.3)
    assert len(stored_rows(folder)) == len(kept)  # its worker is gone too
    rows = execute(tiny(len(kept) + 3), folder, [Device(0, uuid)], worker=fake, monitor=Quiet)
    assert [r["m"] for r in rows] == list(range(1, len(kept) + 4))  # at most the point being timed was lost: none twice, none missing


def test_two_calibrations_of_one_gpu_are_refused(tmp_path: Path) -> None:
    uuid = f"double-{os.getpid()}"
    process = _start(tmp_path / "run", uuid)
    _wait_for(tmp_path / "run" / ROWS, 1)
    try:
        with pytest.raises(NoAnswerError, match=f"being calibrated by process {process.pid}"):
            execute(tiny(), tmp_path / "other", [Device(0, uuid)], worker=fake, monitor=Quiet)
        assert not (tmp_path / "other").exists()
    finally:
        process.kill()
        process.wait()
    with gpu_lock(uuid, wait_s=5.0):
        pass


def test_a_folder_keeps_one_gpu(tmp_path: Path) -> None:
    go(tiny(2), tmp_path / "run")
    plan = tiny(2)
    with pytest.raises(InputError, match="holds a run of h200_sxm, not of h100_sxm"):
        go(Plan(gpu("h100_sxm"), 60.0, 0, plan.tasks, ()), tmp_path / "run")
    assert set_aside(tmp_path / "run") and not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(InputError, match="half-written"):
        go(tiny(2), tmp_path / "run")


def test_a_half_written_last_row_is_measured_again(tmp_path: Path) -> None:
    go(tiny(3), tmp_path / "run")
    path = tmp_path / "run" / ROWS
    path.write_text(path.read_text()[:-40])
    assert [r["m"] for r in go(tiny(3), tmp_path / "run")] == [1, 2, 3]
    assert len(stored_rows(tmp_path / "run")) == 3


def test_what_nvidia_smi_prints_is_read() -> None:
    line = "1755, 1980, 695.31, 700.00, 700.00, 61, 0, 0x0000000000000004"
    sample = parse_line(line, 5.0, 0)
    assert sample is not None
    assert (sample.clock_mhz, sample.max_clock_mhz, sample.power_w, sample.reasons) == (1755.0, 1980.0, 695.31, ("power cap",))
    other = parse_line("[N/A], 1980, [N/A], 700, 700, 61, [N/A], [N/A]", 5.0)
    assert other is not None and other.clock_mhz is None and other.ecc_uncorrected is None and other.reasons == ()
    assert parse_line("No devices were found", 5.0) is None
    assert reasons_of(0x48) == ("hardware slowdown", "hardware thermal slowdown")
    assert Sample.from_row({**sample.as_row(), "device": 0}) == sample


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({}, ""),
        ({"reasons": ("power cap",)}, ""),  # how a card works under heavy arithmetic
        ({"reasons": ("hardware thermal slowdown",)}, "hardware thermal slowdown in 100 % of the run"),
        ({"clock_mhz": 1410.0}, "clocks capped: never above 1410 MHz of 1980"),
        ({"power_limit_w": 500.0}, "power limit lowered to 500 W of 700"),
        ({"temperature_c": 91.0}, "hot: 91 C"),
        ({"other_processes": 2}, "2 other processes on the GPU"),
        ({"ecc_uncorrected": 3}, "3 uncorrected ECC errors"),
    ],
)
def test_a_bad_state_is_named(change: dict[str, Any], complaint: str) -> None:
    good = {"clock_mhz": 1980.0, "max_clock_mhz": 1980.0, "power_limit_w": 700.0, "power_default_w": 700.0, "temperature_c": 60.0}
    found = bad_state([Sample(0.0, **{**good, "ecc_uncorrected": 0, "other_processes": 0, **change})])
    assert found == [] if not complaint else len(found) == 1 and found[0].startswith(complaint)


def test_unsteady_rows_are_a_complaint() -> None:
    rows = [{"status": "ok", "unstable": True}, {"status": "ok", "unstable": False}, {"status": "error"}]
    assert bad_state([], rows) == ["spread above 5 % in 1 of 2 rows"]
    assert bad_state([], [*rows, *[{"status": "ok"}] * 10]) == []


def test_samples_of_a_row_are_those_taken_during_it() -> None:
    watch = Monitor("none", read=lambda: None)
    watch.samples = [Sample(float(t), clock_mhz=1000.0 + t, reasons=("power cap",) if t == 3 else ()) for t in range(6)]
    assert [s.time_s for s in watch.during(2.0, 4.0)] == [2.0, 3.0, 4.0]
    assert [s.time_s for s in watch.during(4.2, 4.4)] == [4.0]
    assert averages(watch.during(2.0, 4.0)) == {
        "clock_mhz": 1003.0, "power_w": None, "temperature_c": None, "reasons": ["power cap"], "other_processes": None,
    }  # fmt: skip


def test_the_monitor_samples_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_S", "0.4")
    go(tiny(3), tmp_path / "run")
    states = [json.loads(line) for line in (tmp_path / "run" / STATE).read_text().splitlines()]
    assert len(states) >= 3 and {s["clock_mhz"] for s in states} == {1500.0}


def test_schedules_cost_less_for_less_work() -> None:
    from perfmodel.measure.operators import cost_s, schedule

    assert schedule(3.0)[2] > schedule(300.0)[2] >= 2 and schedule(1e3) == (3, 6, 1) and schedule(1e5) == (1, 3, 1)
    assert plans.LEAST_BUDGET_S > cost_s("gemm", 10.0) > 0
    assert cost_s("gemm", 1e5) > cost_s("gemm", 1e3) > cost_s("gemm", 10.0)
