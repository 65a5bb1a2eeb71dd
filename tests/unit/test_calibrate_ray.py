"""Shares of a run placed by Ray: a real local cluster that claims two GPUs, with a fake timer. Skipped where Ray is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_calibrate_run import H200, Quiet, fake, tiny

from perfmodel.calibrate import cluster_ray
from perfmodel.calibrate.plan import Plan
from perfmodel.errors import InputError, NoAnswerError
from perfmodel.measure.devices import Device

SCRIPT = """
import json, sys
from pathlib import Path
import ray
import test_calibrate_ray as t
from perfmodel.calibrate import cluster_ray
from perfmodel.errors import PerfModelError
ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
here = {"h200": t.here, "a40": t.other}[sys.argv[2]]
try:
    rows = cluster_ray.run_shares(t.tiny(int(sys.argv[3])), Path(sys.argv[1]), cluster_ray.connect("auto"),
                                  here=here, worker=t.fake, monitor=t.Quiet)
    print("ROWS", json.dumps(rows))
except PerfModelError as error:
    print("ERROR", type(error).__name__, error)
"""


def here() -> list[Device]:
    return [Device(0, f"ray-test-{os.environ['CUDA_VISIBLE_DEVICES']}", H200.full_name)]


def other() -> list[Device]:
    return [Device(0, "ray-test", "NVIDIA A40")]


def test_a_share_measures_its_part_and_sends_each_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    known = [{"id": tiny(5).points[2]["id"], "rank": 1, "wall_s": 0.1, "status": "ok"}]
    *rows, states = cluster_ray.share(tiny(5), known, (0, 2), here=here, worker=fake, monitor=Quiet)
    assert [r["m"] for r in rows if isinstance(r, dict)] == [1, 5] and isinstance(states, list)
    with pytest.raises(InputError, match="NVIDIA A40 is not the NVIDIA H200"):
        next(cluster_ray.share(tiny(5), [], (0, 2), here=other))
    broken = Plan(H200, 60.0, 0, (({"what": "gemm", "id": "x", "m": 1},),), ())
    monkeypatch.setattr(cluster_ray, "execute", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(cluster_ray.share(broken, [], (0, 1), here=here))


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(NoAnswerError, match=r"perfmodel\[cluster\]"):
        cluster_ray.connect("auto")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:6379", "no port", "ray://127.0.0.1:1"])
def test_an_address_where_no_cluster_is_is_one_line(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(NoAnswerError, match=f"no Ray cluster at {address} "):
        cluster_ray.connect(address)


def _with_ray(folder: Path, what: str, points: int) -> str:
    pytest.importorskip("ray")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[2])))}
    env |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-c", SCRIPT, str(folder), what, str(points)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


def test_ray_shares_the_list_over_its_gpus_and_the_next_call_goes_on(tmp_path: Path) -> None:
    rows = json.loads(_with_ray(tmp_path / "run", "h200", 7).removeprefix("ROWS "))
    assert [(r["rank"], r["m"]) for r in rows] == [(0, 1), (0, 3), (0, 5), (0, 7), (1, 2), (1, 4), (1, 6)]
    assert (tmp_path / "run" / "state.jsonl").exists()
    more = json.loads(_with_ray(tmp_path / "run", "h200", 9).removeprefix("ROWS "))
    assert sorted(r["m"] for r in more) == list(range(1, 10)) and [r for r in more if r["m"] <= 7] == rows


def test_another_gpu_in_the_cluster_is_one_line(tmp_path: Path) -> None:
    said = _with_ray(tmp_path / "run", "a40", 2)
    assert said.startswith("ERROR InputError NVIDIA A40 is not the NVIDIA H200")
