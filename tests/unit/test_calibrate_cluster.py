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
from perfmodel.calibrate.run import Device
from perfmodel.errors import InputError
from perfmodel.hw import gpu

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


def test_rank_0_gets_the_rows_of_every_rank(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "ranks.py"
    script.write_text(
        "import json, os, sys\nfrom pathlib import Path\nfrom perfmodel.calibrate.cluster import gather\n"
        "rank, ranks = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
        "folder = Path(sys.argv[1]) / f'host{rank}'\nfolder.mkdir()\n"
        "(folder / f'rows-{rank}.jsonl').write_text(''.join(json.dumps({'rank': rank, 'm': i}) + '\\n' for i in range(rank + 1)))\n"
        "rows = gather(folder, (rank, ranks))\n"
        "(folder / 'all.json').write_text(json.dumps(rows))\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "host0" / "all.json").read_text()) == [{"rank": 0, "m": 0}, {"rank": 1, "m": 0}, {"rank": 1, "m": 1}]
    assert json.loads((tmp_path / "host1" / "all.json").read_text()) == []


def test_collectives_measured_before_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("torchrun was started"))
    (tmp_path / cluster.COLLECTIVE_ROWS).write_text('{"kind": "all_reduce", "status": "ok"}\n')
    assert cluster.collectives(tmp_path, [0, 1]) == [{"what": "collective", "kind": "all_reduce", "status": "ok"}]


def test_collectives_that_cannot_be_measured_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def refuse(command: list[str], **more: object) -> subprocess.CompletedProcess[str]:
        asked.append((command, more["env"]))
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", refuse)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    assert cluster.collectives(tmp_path, [0, 2]) == []
    assert "collectives were not measured" in capsys.readouterr().err
    command, environment = asked[0]
    assert command[command.index("--nproc-per-node") + 1] == "2" and environment["CUDA_VISIBLE_DEVICES"] == "4,7"


def test_collectives_join_the_fit() -> None:
    import pandas as pd

    from perfmodel._resources import shipped

    stored = pd.read_parquet(shipped("data") / "collectives_h200.parquet").drop(columns=["gpu", "source"])
    rows = [{**r, "what": "collective", "status": "ok"} for r in stored.to_dict("records")]
    calibration, (outcome,) = fit_run(gpu("h200_sxm"), rows)
    assert outcome.what == "collective" and outcome.adopted and outcome.after is not None and outcome.after < 0.1
    assert set(calibration.models) == {"collective"}
