"""A run on several hosts and GPUs: which part a process takes, how rows come together, collectives in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.calibrate import cluster
from perfmodel.calibrate.fit import fit_run
from perfmodel.errors import InputError, NoAnswerError
from perfmodel.hw import gpu
from perfmodel.measure.collectives import Plan
from perfmodel.measure.devices import Device
from perfmodel.measure.lock import gpu_lock

HERE = [Device(0, "GPU-a"), Device(1, "GPU-b")]


def test_under_torchrun_a_process_takes_its_own_device_and_part(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WORLD_SIZE", "4"), ("RANK", "3"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert cluster.own_share(HERE, None) == ([HERE[1]], (3, 4))
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(InputError, match="LOCAL_RANK 2, but torch sees 2 GPUs"):
        cluster.own_share(HERE, None)


def test_alone_a_process_takes_the_devices_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert cluster.own_share(HERE, [1]) == ([HERE[1]], (0, 1))


def _torchrun(script: Path, *words: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    env["PYTHONPATH"] = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[2])))
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]


def test_two_hosts_under_torchrun_share_the_list_and_time_collectives_between_them(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "host.py"
    script.write_text(
        "import json, os, sys\nfrom pathlib import Path\n"
        "from test_calibrate_run import Quiet, fake, tiny\n"
        "from perfmodel.calibrate import cluster\nfrom perfmodel.calibrate.run import execute\n"
        "from perfmodel.measure.collectives import Plan\nfrom perfmodel.measure.devices import Device\n"
        "if __name__ == '__main__':\n"
        "    here = [Device(i, f'{sys.argv[1]}-{i}'.replace('/', '-')) for i in range(2)]\n"
        "    mine, part = cluster.own_share(here, None)\n"
        "    folder = Path(sys.argv[1]) / f'host{part[0]}'\n"  # two hosts share no folder
        "    execute(tiny(9), folder, mine, part=part, worker=fake, monitor=Quiet)\n"
        "    rows = cluster.gather(folder, mine, Plan(('all_reduce',), (256, 1024), dtype='fp32', batch=2, repeats=2))\n"
        "    (folder / 'all.json').write_text(json.dumps(rows))\n"
    )
    _torchrun(script, str(tmp_path))
    rows = json.loads((tmp_path / "host0" / "all.json").read_text())
    assert [(r["rank"], r["m"]) for r in rows[:9]] == [(0, 1), (0, 3), (0, 5), (0, 7), (0, 9), (1, 2), (1, 4), (1, 6), (1, 8)]
    assert [(r["kind"], r["message_bytes"], r["n_gpus"], r["status"]) for r in rows[9:]] == [
        ("all_reduce", 256, 2, "ok"),
        ("all_reduce", 1024, 2, "ok"),
    ]
    assert json.loads((tmp_path / "host1" / "all.json").read_text()) == []
    _torchrun(script, str(tmp_path))  # nothing is left
    assert json.loads((tmp_path / "host0" / "all.json").read_text()) == rows


def test_collectives_measured_before_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("torchrun was started"))
    plan = Plan(("all_reduce",), (256,), ("graph",))
    (tmp_path / cluster.COLLECTIVE_ROWS).write_text('{"kind": "all_reduce", "mode": "graph", "message_bytes": 256, "status": "ok"}\n')
    assert [r["what"] for r in cluster.collectives(tmp_path, HERE, plan)] == ["collective"]


def test_collectives_that_cannot_be_measured_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def refuse(command: list[str], **more: object) -> subprocess.CompletedProcess[str]:
        asked.append((command, more["env"]))
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", refuse)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    assert cluster.collectives(tmp_path, [HERE[0], Device(2, "GPU-c")]) == []
    assert "collectives were not measured" in capsys.readouterr().err
    command, environment = asked[0]
    assert command[command.index("--nproc-per-node") + 1] == "2" and environment["CUDA_VISIBLE_DEVICES"] == "4,7"
    with gpu_lock("GPU-c"), pytest.raises(NoAnswerError, match="GPU-c is being calibrated"):
        cluster.collectives(tmp_path, [HERE[0], Device(2, "GPU-c")])


def test_other_gpus_than_the_first_get_a_run_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    here = [Device(0, "a", "NVIDIA L40S"), Device(1, "b", "NVIDIA A40"), Device(2, "c", "NVIDIA L40S")]
    assert cluster.like_the_first(here) == [here[0], here[2]]
    assert "calibrating NVIDIA L40S; for NVIDIA A40 call again" in capsys.readouterr().err


def test_two_real_gpus_shared_a_list_that_was_killed_twice() -> None:
    """The committed run of two H200s: every point once, either GPU a good half, and a dead worker cost the one point it was timing."""
    import pandas as pd

    from perfmodel._resources import shipped
    from perfmodel.calibrate.plan import KEYS
    from perfmodel.evaluate.holdout_report import of_part, read_run

    path = shipped("data") / "runs" / "again" / "h200_sxm.parquet"
    rows = pd.read_parquet(path)
    assert not rows.duplicated([k for k in KEYS if k in rows]).any()
    assert rows["status"].value_counts().to_dict() == {"ok": len(rows) - 1, "crash": 1}
    assert rows["device"].value_counts(normalize=True).between(0.45, 0.55).all() and rows.groupby("device")["wall_s"].sum().max() < 120.0
    assert len(of_part(read_run(path), "attention_decode", "h200_sxm")) > 700
    with pytest.raises(InputError, match="no such file"):
        read_run(path.with_name("nothing.parquet"))


def test_collectives_join_the_fit() -> None:
    import pandas as pd

    from perfmodel._resources import shipped

    stored = pd.read_parquet(shipped("data") / "collectives_h200.parquet").drop(columns=["gpu", "source"])
    stored = stored.drop_duplicates(["kind", "stack", "message_bytes"])  # as many as one run has
    rows = [{**r, "what": "collective", "status": "ok"} for r in stored.to_dict("records")]
    calibration, (outcome,) = fit_run(gpu("h200_sxm"), rows)
    assert outcome.what == "collective" and outcome.adopted and outcome.after is not None and outcome.after < 0.1
    assert set(calibration.models) == {"collective"}
