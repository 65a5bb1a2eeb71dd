"""A calibration on a real GPU: ceilings that physics allows, operators timed, rows resumed, a second run refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.calibrate.ceilings import datasheet
from perfmodel.calibrate.plan import make_plan
from perfmodel.calibrate.recipe import read_recipe
from perfmodel.calibrate.run import ROWS, execute, read_states
from perfmodel.errors import NoAnswerError
from perfmodel.hw import gpu
from perfmodel.hw.probe import probe_device
from perfmodel.measure.devices import devices_here
from perfmodel.measure.lock import gpu_lock

pytestmark = pytest.mark.gpu


def test_a_short_run(tmp_path: Path) -> None:
    spec = gpu(probe_device().full_name)
    recipe = {name: part for name, part in read_recipe().items() if name != "kernel_gemm"}
    plan = make_plan(spec, budget_s=14.0, recipe=recipe)
    device = devices_here()[0]
    rows = execute(plan, tmp_path / "run", [device])
    good = [r for r in rows if r["status"] == "ok"]
    assert len(good) > 60 and len(good) >= 0.95 * len(rows)
    printed = datasheet(spec)
    ceilings = {r["name"]: r["value"] for r in good if r["what"] == "ceiling"}
    for name in ("dram_copy", "dram_read", "dram_write", "tensor_bf16"):
        assert 0.6 * printed[name] < ceilings[name] < 1.02 * printed[name], name
    assert ceilings["l2_latency"] < 0.75 * ceilings["dram_latency"] < 1.5e-6
    assert ceilings["launch_graph"] < ceilings["launch_eager"] < 1e-4
    sustained = next(r["sustained"] for r in good if r["name"] == "tensor_bf16")
    assert sustained <= 1.05 * ceilings["tensor_bf16"]
    for what in ("gemm", "attention", "memory"):
        assert any(r["what"] == what and 0.5 < r["latency_us"] < 1e6 for r in good), what
    assert read_states(tmp_path / "run" / ROWS) and all(r["clock_mhz"] for r in good[5:])
    again = execute(plan, tmp_path / "run", [device])
    assert [r["id"] for r in again[: len(rows)]] == [r["id"] for r in rows] and len(again) <= len(rows) + 20
    with gpu_lock(device.uuid), pytest.raises(NoAnswerError, match="being calibrated"):
        execute(plan, tmp_path / "other", [device])
