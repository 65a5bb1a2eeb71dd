"""Choosing a kernel config: rank by the model, time only the top few on the GPU, remember the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.tune.rank import Ranking, rank

if TYPE_CHECKING:
    from perfmodel.tune.kernel_rank import KernelRanking, rank_kernel
    from perfmodel.tune.listener import listen, record
    from perfmodel.tune.profile import Candidate, TuneResult, tune
    from perfmodel.tune.store import Store
    from perfmodel.tune.triton_hook import prune

__all__ = [
    "Candidate", "KernelRanking", "Ranking", "Store", "TuneResult", "listen", "prune", "rank", "rank_kernel", "record", "tune",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load what needs sqlite or the measuring side on first use, so that ranking starts fast."""
    if name in ("Candidate", "TuneResult", "tune"):
        from perfmodel.tune import profile

        return getattr(profile, name)
    if name in ("KernelRanking", "rank_kernel"):
        from perfmodel.tune import kernel_rank

        return getattr(kernel_rank, name)
    if name in ("listen", "record"):
        from perfmodel.tune import listener

        return getattr(listener, name)
    if name == "prune":
        from perfmodel.tune.triton_hook import prune

        return prune
    if name == "Store":
        from perfmodel.tune.store import Store

        return Store
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
