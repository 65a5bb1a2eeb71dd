"""The processes of one torchrun: who this one is, and all ranks' rows on rank 0."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.measure.rows import Row

WAIT_S = 3600


@dataclass(frozen=True, slots=True)
class Rank:
    """This process among those of a torchrun: its number, how many there are, its number on this host."""

    rank: int
    ranks: int
    local: int


def rank_here() -> Rank | None:
    """Who torchrun says this process is; None outside it or where it started one process."""
    if (ranks := int(os.environ.get("WORLD_SIZE", "1"))) < 2 or "RANK" not in os.environ:
        return None
    return Rank(int(os.environ["RANK"]), ranks, int(os.environ.get("LOCAL_RANK", "0")))


@contextlib.contextmanager
def together(timeout_s: float = WAIT_S) -> Iterator[None]:
    """The process group of a torchrun: NCCL between GPUs and gloo between hosts' memories; gloo alone without a GPU.

    Inside another `together` it is that one's group: torch cannot make a second one in the same torchrun, it waits for the first's peers.
    """
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout_s))
    try:
        yield
    finally:
        dist.destroy_process_group()


def gather_rows(mine: Sequence[Row], here: Rank) -> list[Row]:
    """Every rank's rows, in order of rank, on rank 0; nothing on the others. Call it inside `together`."""
    import torch.distributed as dist

    found: list[Any] | None = [None] * here.ranks if here.rank == 0 else None
    dist.gather_object(list(mine), found)
    return [row for members in found or [] for row in members or []]
