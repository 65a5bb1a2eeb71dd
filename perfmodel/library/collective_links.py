"""From GPU, topology and group size to the links a collective runs over, as arrays beside the operator's columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError
from perfmodel.hw.node import NVLINK, NodeSpec, node
from perfmodel.hw.spec import GpuSpec
from perfmodel.units import GB

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Links:
    """Links of n rows: `rate` is what ring Simple gets out of the path, `wire` the datasheet's rate (bytes/s each way and GPU)."""

    path: npt.NDArray[np.str_]
    rate: Floats
    wire: Floats
    nvlink: Bools
    nvls: Bools
    nic: Floats
    nic_s: Floats


def resolve_links(
    gpu: GpuSpec, topologies: list[str], code: npt.NDArray[np.intp], n_gpus: Floats, nodes: Floats, constants: Mapping[str, float]
) -> Links:
    """Links of each row, whose topology is topologies[code]: names of hwdb/nodes, "auto" for the GPU's usual machine.

    Raises InputError for an unknown topology, more GPUs than the machine holds, and nodes > 1 without a network.
    """
    unique, pick = distinct(np.stack([code.astype(np.float64), n_gpus / nodes, nodes], axis=1))
    machines = {c: node(topologies[int(c)], gpu) for c in set(unique[:, 0].tolist())}
    table = [_one(gpu, machines[c], int(g), int(m), constants) for c, g, m in unique.tolist()]
    path, *facts = (np.array(column)[pick] for column in zip(*table, strict=True))
    return Links(path, *facts)


def distinct(key: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.intp]]:
    """(distinct rows of a matrix, which of them each row is)."""
    if len(key) == 1:
        return key, np.zeros(1, dtype=np.intp)
    import pandas as pd

    combined = np.zeros(len(key), dtype=np.int64)
    for column in key.T:
        codes, found = pd.factorize(column)
        combined = combined * len(found) + codes
    group, values = pd.factorize(combined)
    first = np.empty(len(values), dtype=np.intp)
    first[group[::-1]] = np.arange(len(key))[::-1]  # the last writer is the first row of its group
    return key[first], np.asarray(group, dtype=np.intp)


def _one(
    gpu: GpuSpec, machine: NodeSpec, local: int, nodes: int, k: Mapping[str, float]
) -> tuple[str, float, float, bool, bool, float, float]:
    if nodes > 1 and machine.nic_bytes_per_s <= 0:
        raise InputError(f"{machine.name} has no network to a second node: use nodes=1, or a topology with nic_gb_per_s in hwdb/nodes")
    link = machine.link(local)
    wire = link.wire_bytes_per_s(gpu)
    if link.path in NVLINK:
        rate = wire * k["nvlink_rate"]
    elif link.path == "pcie_sockets":
        rate = min(k["pcie_sockets_gb_per_s"] * GB / local, wire)
    else:
        rate = wire * k[f"{link.path}_rate"]
    nic = machine.nic_bytes_per_s * k["net_rate"]
    return link.path, rate, wire, link.path in NVLINK, machine.nvls and link.path == "nvswitch", nic, machine.nic_s
