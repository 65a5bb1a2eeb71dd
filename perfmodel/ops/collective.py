"""Collective communication: one message shared, gathered, scattered or exchanged among GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError, plain, shown, unknown_name
from perfmodel.ops.cells import plain_numbers
from perfmodel.ops.check import size
from perfmodel.ops.kinds import Columns, Field, OperatorKind, register
from perfmodel.ops.work import Work

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p")
ALIASES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "alltoall": "all_to_all",
    "bcast": "broadcast", "sendrecv": "p2p", "pointtopoint": "p2p",
}  # fmt: skip
MAX_BYTES = 2**44
MAX_GPUS = 2**16
Floats = npt.NDArray[np.float64]

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of `n_gpus` GPUs in all, spread evenly over `nodes` machines.

    Parameters
    ----------
    kind : str
        all_reduce, all_gather, reduce_scatter, all_to_all, broadcast or p2p, or a usual spelling.
    message_bytes : int
        The whole message, as nccl-tests counts its "size" column: for all_reduce, broadcast and p2p the buffer of one rank; for all_gather
        the gathered result; for reduce_scatter the input of one rank; for all_to_all what one rank sends in all, its own part included.
    n_gpus, nodes : int
        GPUs in all, and machines.
    dtype : str
        Element type.
    topology : str
        A machine or path of hwdb/nodes; "auto": the usual machine of the GPU.

    Raises
    ------
    InputError
        For an unknown kind or element type, sizes below 1, fewer than two GPUs, and GPUs that do not divide over the machines.

    Examples
    --------
    >>> import perfmodel as pm
    >>> pm.Collective("allreduce", message_bytes=2**20, n_gpus=8).kind
    'all_reduce'
    """

    kind: str
    message_bytes: int
    n_gpus: int
    dtype: str = "bf16"
    nodes: int = 1
    topology: str = "auto"

    operator: ClassVar[str] = "collective"

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", collective_kind(self.kind))
        object.__setattr__(self, "message_bytes", size("message_bytes", self.message_bytes, high=MAX_BYTES))
        object.__setattr__(self, "n_gpus", size("n_gpus", self.n_gpus, high=MAX_GPUS))
        object.__setattr__(self, "nodes", size("nodes", self.nodes, high=MAX_GPUS))
        object.__setattr__(self, "dtype", parse_dtype(self.dtype).name)
        if not isinstance(self.topology, str):
            raise InputError(f"topology must be a name of hwdb/nodes or auto, got {shown(self.topology)}")
        if self.n_gpus == 1:
            raise InputError("n_gpus is 1: a collective needs at least 2 GPUs (one GPU has nobody to talk to)")
        if self.n_gpus % self.nodes:
            raise InputError(f"{self.n_gpus} GPUs do not divide evenly over {self.nodes} nodes: give a multiple")

    def work(self) -> Work:
        """Bytes that one GPU must receive (read_bytes) and send (write_bytes), whatever the algorithm, and its additions (flops)."""
        return collective_work(self.kind, self.message_bytes, self.n_gpus, self.dtype)


def collective_kind(name: object) -> str:
    """Canonical kind for a usual spelling ("alltoall", "send_recv", "AllReduce"); raises InputError for anything else."""
    text = plain(name).lower().replace("-", "_")
    if text in KINDS:
        return text
    bare = text.replace("_", "").replace(" ", "")
    if bare in ALIASES:
        return ALIASES[bare]
    raise unknown_name("kind of collective", name, (*KINDS, "alltoall", "send_recv"))


def bus_factor(kind: str, n_gpus: npt.ArrayLike) -> Floats:
    """Bytes that each GPU's link must carry, over message_bytes: bus bandwidth = bus_factor x message_bytes / latency.

    all_reduce 2 (n-1)/n; all_gather, reduce_scatter, all_to_all (n-1)/n; broadcast, p2p 1.
    Source: NVIDIA, nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".
    """
    n = np.asarray(n_gpus, dtype=np.float64)
    share = (n - 1) / n
    return {"all_reduce": 2 * share, "broadcast": np.ones_like(n), "p2p": np.ones_like(n)}.get(kind, share)


def least_share(kind: npt.ArrayLike, n_gpus: npt.ArrayLike, in_switch: npt.ArrayLike) -> Floats:
    """Bytes that each GPU's link must carry one way, over message_bytes, whatever the algorithm; `in_switch`: a switch may add up.

    As `bus_factor`, but a switch that reduces and multicasts (NVLS) spares an all-reduce one of its two passes: (n-1)/n.
    """
    n = np.asarray(n_gpus, dtype=np.float64)
    share, kind = (n - 1) / n, np.asarray(kind)
    once = (kind == "broadcast") | (kind == "p2p")
    return np.where(once, 1.0, np.where((kind == "all_reduce") & ~np.asarray(in_switch, dtype=bool), 2.0 * share, share))


def collective_work(kind: str, message_bytes: npt.ArrayLike, n_gpus: npt.ArrayLike, dtype: str = "bf16") -> Work:
    """Compulsory traffic of one GPU, broadcast over arrays: bus_factor x message_bytes each way; (n-1)/n additions an element to reduce.

    Source: as `bus_factor`. In-switch reduction (NVLS) sends less than this.
    """
    total = np.asarray(message_bytes, dtype=np.float64)
    n = np.asarray(n_gpus, dtype=np.float64)
    wire = total * bus_factor(kind, n)
    adds = total / parse_dtype(dtype).a_bytes * (n - 1) / n if kind in ("all_reduce", "reduce_scatter") else np.zeros_like(wire)
    return Work(adds, wire, wire)


_FIELDS = (
    Field("kind", "", "which collective", also=("op",)),
    Field("message_bytes", "bytes", "the whole message, as nccl-tests counts it", also=("size",)),
    Field("n_gpus", "GPUs", "GPUs in all", least=2, also=("num_gpus",)),
    Field("nodes", "machines", "machines that they are spread over", 1.0, also=("num_nodes",)),
    Field("dtype", "", "element type", 0.0),
    Field("topology", "", "machine or path of hwdb/nodes", 0.0),
    Field("version", "", "release of the stack", 0.0, also=("framework_version",)),
    Field("stack", "", "library or serving stack that runs it, and how (nccl, vllm_graph ...)", 0.0, also=("impl",)),
)
_NUMBERS = ("message_bytes", "n_gpus", "nodes")


def _read(frame: pd.DataFrame) -> dict[str, Any]:
    """The columns that a table has, under the field's name or that of public tables; names as they are.

    Raises InputError naming the missing column.
    """
    spelt = {field.name: next((c for c in (field.name, *field.also) if c in frame.columns), None) for field in _FIELDS}
    if missing := [field.name for field in _FIELDS if field.default is None and spelt[field.name] is None]:
        raise InputError(f"a table of collectives needs kind, message_bytes and n_gpus: {', '.join(missing)} is not there")
    there = {name: frame[column] for name, column in spelt.items() if column is not None}
    return {n: plain_numbers("collective", n, v) if n in _NUMBERS else v.to_numpy(dtype=object) for n, v in there.items()}


def _of(op: Any) -> dict[str, Any]:
    numbers = {name: float(getattr(op, name)) for name in _NUMBERS}
    return {"kind": op.kind, **numbers, "dtype": op.dtype, "topology": op.topology}


def _work(columns: Columns) -> Work:
    kinds, total, n = (np.asarray(columns[name]) for name in ("kind", "message_bytes", "n_gpus"))
    dtypes = np.broadcast_to(np.asarray(columns.get("dtype", "bf16"), dtype=object), kinds.shape)
    found = np.empty((3, len(total)))
    for kind, dtype in {(kind, dtype) for kind, dtype in zip(kinds.tolist(), dtypes.tolist(), strict=True)}:
        rows = (kinds == kind) & (dtypes == dtype)
        work = collective_work(collective_kind(kind), total[rows], n[rows], dtype or "bf16")
        found[:, rows] = work.flops, work.read_bytes, work.write_bytes
    return Work(*found)


register(OperatorKind("collective", _FIELDS, _work, _of, read=_read))
