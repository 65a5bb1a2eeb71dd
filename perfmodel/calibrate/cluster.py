"""A calibration run on several GPUs: which part of the list a process takes, how parts come together, and collectives between the GPUs.

One host: one process, one worker a GPU. Several hosts: `torchrun --nnodes N --nproc-per-node G -m perfmodel.cli.main calibrate ...`; each
rank takes every WORLD_SIZE-th task on its own GPU, and rank 0 fits what all have measured. A run folder of their own is enough.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from perfmodel.calibrate.run import stored_rows
from perfmodel.errors import InputError
from perfmodel.measure.collectives import Plan, run
from perfmodel.measure.devices import Device
from perfmodel.measure.lock import gpu_lock
from perfmodel.measure.ranks import gather_rows, rank_here, together
from perfmodel.measure.rows import Row, read

COLLECTIVE_ROWS = "collectives.jsonl"


def own_share(here: Sequence[Device], indices: Sequence[int] | None) -> tuple[list[Device], tuple[int, int]]:
    """(devices of this process, (rank, ranks)): under torchrun its own one device, else all that are like the first, or `indices`."""
    if me := rank_here():
        if me.local >= len(here):
            raise InputError(f"LOCAL_RANK {me.local}, but torch sees {len(here)} GPUs: start one process a GPU")
        return [here[me.local]], (me.rank, me.ranks)
    if indices is not None:
        return [here[i] for i in indices], (0, 1)
    return like_the_first(here), (0, 1)


def like_the_first(here: Sequence[Device]) -> list[Device]:
    """Devices with the first one's name; others are another GPU and get a run of their own (--devices)."""
    first = here[0].name
    if other := sorted({d.name for d in here} - {first}):
        print(f"perfmodel: calibrating {first}; for {', '.join(other)} call again with --devices", file=sys.stderr)
    return [d for d in here if d.name == first]


def gather(folder: Path, devices: Sequence[Device], collectives_plan: Plan | None = None) -> list[Row]:
    """All rows of the run, collectives between its GPUs included where it has two or more.

    Every rank of a torchrun calls this; rank 0 gets the rows, the others none.
    """
    rows, me = stored_rows(folder), rank_here()
    if me is None:
        return rows + (collectives(folder, devices, collectives_plan) if len(devices) > 1 else [])
    with together():
        every = gather_rows([row for row in rows if int(row.get("rank", 0)) == me.rank], me)
        return every + collectives(folder, devices, collectives_plan)


def collectives(folder: Path, devices: Sequence[Device], plan: Plan | None = None) -> list[Row]:
    """Time collectives between all GPUs of the run, each once a run; all rows.

    On one host torchrun is started for it, with a process for each of `devices`; under torchrun the processes are there already.
    """
    path, plan = folder / COLLECTIVE_ROWS, plan or Plan()
    with contextlib.ExitStack() as held:
        for device in devices:
            held.enter_context(gpu_lock(device.uuid))
        if rank_here():
            good = run(path, plan, resume=True) > 0
        else:
            good = not plan.left("cuda", read(path)) or _start_torchrun(path, [d.index for d in devices])
    if not good:
        print("perfmodel: WARNING: collectives were not measured: torch's own messages are above", file=sys.stderr)
    return [{"what": "collective", **row} for row in read(path)]


def _start_torchrun(path: Path, indices: Sequence[int]) -> bool:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(len(indices))]
    command += ["-m", "perfmodel.measure.collectives", "--resume", "--out", str(path)]
    visible = [v for v in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if v]
    names = ",".join(visible[i] if visible else str(i) for i in indices)
    done = subprocess.run(command, check=False, stdout=sys.stderr, env={**os.environ, "CUDA_VISIBLE_DEVICES": names})
    return done.returncode == 0
