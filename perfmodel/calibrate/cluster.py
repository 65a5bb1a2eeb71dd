"""A calibration run on several GPUs: which part of the list a process takes, how parts come together, and collectives between the GPUs.

One host: one process, one worker a GPU. Several hosts: `torchrun --nnodes N --nproc-per-node G -m perfmodel.cli.main calibrate ...`; each
rank takes every WORLD_SIZE-th task on its own GPU, and rank 0 fits what all have measured. A run folder of their own is enough.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfmodel.calibrate.run import Device, stored_rows
from perfmodel.errors import InputError
from perfmodel.measure.rows import Row, read

COLLECTIVE_ROWS = "collectives.jsonl"
WAIT_S = 3600


def own_share(here: Sequence[Device], indices: Sequence[int] | None) -> tuple[list[Device], tuple[int, int]]:
    """(devices of this process, (rank, ranks)): under torchrun its own one device, else all that are like the first, or `indices`."""
    if (ranks := int(os.environ.get("WORLD_SIZE", "1"))) > 1 and "RANK" in os.environ:
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= len(here):
            raise InputError(f"LOCAL_RANK {local}, but torch sees {len(here)} GPUs: start one process a GPU")
        return [here[local]], (int(os.environ["RANK"]), ranks)
    if indices is not None:
        return [here[i] for i in indices], (0, 1)
    return like_the_first(here), (0, 1)


def like_the_first(here: Sequence[Device]) -> list[Device]:
    """Devices with the first one's name; others are another GPU and get a run of their own (--devices)."""
    import torch

    names = [torch.cuda.get_device_name(d.index) for d in here]
    if other := sorted(set(names) - {names[0]}):
        print(f"perfmodel: calibrating {names[0]}; for {', '.join(other)} call again with --devices", file=sys.stderr)
    return [d for d, name in zip(here, names, strict=True) if name == names[0]]


def gather(folder: Path, part: tuple[int, int]) -> list[Row]:
    """All rows of the run: this folder's, and under torchrun every rank's, sent to rank 0 over gloo."""
    rank, ranks = part
    rows = stored_rows(folder)
    if ranks == 1:
        return rows
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=WAIT_S))
    try:
        mine = [row for row in rows if int(row.get("rank", 0)) == rank]
        found: list[Any] | None = [None] * ranks if rank == 0 else None
        dist.gather_object(mine, found)
    finally:
        dist.destroy_process_group()
    return [row for members in found or [] for row in members or []]


def collectives(folder: Path, indices: Sequence[int]) -> list[Row]:
    """Time collectives between GPUs of this host (measure/collectives under torchrun), once a run; the rows, or those of before."""
    path = folder / COLLECTIVE_ROWS
    if not path.exists():
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(len(indices))]
        command += ["-m", "perfmodel.measure.collectives", "--out", str(path), "--min-bytes", "1024", "--max-bytes", str(2**28)]
        visible = [v for v in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if v]
        names = ",".join(visible[i] if visible else str(i) for i in indices)
        done = subprocess.run(command, check=False, stdout=sys.stderr, env={**os.environ, "CUDA_VISIBLE_DEVICES": names})
        if done.returncode != 0:
            print("perfmodel: WARNING: collectives were not measured: torchrun's own messages are above", file=sys.stderr)
    return [{"what": "collective", **row} for row in read(path)]
