"""Collectives as NCCL and the serving stacks run them: the cheapest legal algorithm and protocol on the links at hand.

`model(gpu, columns)` prices a table of ops/collective.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.bound import link_seconds
from perfmodel.analytic.constants import constant_values
from perfmodel.analytic.network import Cost, nvls, one_shot, two_shot
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.collective_links import distinct
from perfmodel.library.collective_nccl import US, Candidate, candidates
from perfmodel.library.collective_question import Question
from perfmodel.library.collective_stacks import limits
from perfmodel.ops.collective import least_share

LAW = "collective"
REFERENCE_CLOCK_HZ = 1.98e9  # the constants' latencies are those of an SM at this clock (H100)
LONGEST_BYTES = 2**34  # largest message in the evidence
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Strings = npt.NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class CollectiveTerms:
    """Answer for n rows. `seconds` holds steps, bandwidth and launch, which add up to latency_s; log_sigma is the standard deviation of
    log(measured / predicted); an 80 % interval is latency x exp(+-1.2816 log_sigma). least_s: below it no algorithm is, for its links."""

    latency_s: Floats
    seconds: Mapping[str, Floats]
    algorithm: Strings
    protocol: Strings
    path: Strings
    log_sigma: Floats
    in_domain: Bools
    features: Mapping[str, Floats] = field(default_factory=dict)
    least_s: Floats | float = 0.0

    def bound(self) -> Strings:
        """Name of the largest term of each row."""
        winner: Strings = np.array(list(self.seconds))[self.largest()]
        return winner

    def largest(self) -> npt.NDArray[np.intp]:
        """Place in `seconds` of the largest term of each row."""
        place: npt.NDArray[np.intp] = np.argmax(np.vstack(list(self.seconds.values())), axis=0)
        return place


def model(gpu: GpuSpec, columns: Mapping[str, Any], constants: Mapping[str, float] | None = None) -> CollectiveTerms:
    """Latency of each row: launch + the cheapest of the algorithms and protocols that are legal there.

    columns: kind, message_bytes, n_gpus, optional nodes, dtype, topology, stack, version (of it). stack: one of library/stacks that
    communicates, nccl where it is not said, with _graph or _eager at choice. `constants` override the spec-tier ones. Raises InputError
    naming the row for sizes below 1, one GPU, GPUs that do not fit the machine, unknown names.
    """
    k = constant_values(LAW, constants)
    q = Question(gpu, columns, k)
    scale = REFERENCE_CLOCK_HZ / gpu.max_clock_hz
    custom = _custom(gpu, q, k, scale)
    taken = np.logical_or.reduce([c.legal for c in custom])  # a stack that has its own kernel for this size asks no further
    ways = candidates(gpu, q, k, scale)
    index = np.argmin(
        np.stack([np.where(c.legal & ~taken, c.estimate_s, np.inf) for c in ways] + [np.where(c.legal, 0.0, np.inf) for c in custom]),
        axis=0,
    )
    ways, rows = [*ways, *custom], np.arange(q.rows)
    steps = np.stack([c.cost.steps_s for c in ways])[index, rows]
    bandwidth = np.stack([c.cost.bandwidth_s for c in ways])[index, rows]
    bandwidth = bandwidth + np.where(q.eager, 2 * q.message / (gpu.dram_bytes_per_s * k["copy_rate"]), 0.0)
    host = _host_s(q, k)  # hidden behind the GPU's work
    launch = np.maximum(_launch_s(q, k, scale, taken), host - steps - bandwidth)
    latency = steps + bandwidth + launch
    share = bandwidth / latency
    sigma = np.sqrt((share * k["sigma_bandwidth"]) ** 2 + ((1 - share) * np.where(host > 0, k["sigma_eager"], k["sigma_steps"])) ** 2)
    return CollectiveTerms(
        latency_s=latency,
        seconds={"steps": steps, "bandwidth": bandwidth, "launch": launch},
        algorithm=np.array([c.algorithm for c in ways])[index],
        protocol=np.array([c.protocol for c in ways])[index],
        path=q.links.path,
        log_sigma=sigma,
        in_domain=(q.message <= LONGEST_BYTES) & (q.m <= 2),
        features={"log2_bytes": np.log2(q.message), "log2_gpus": np.log2(q.n), "nodes": q.m},
        least_s=_least_s(q, k),
    )


def _launch_s(q: Question, k: Mapping[str, float], scale: float, taken: Bools) -> Floats:
    """Seconds of the launch: less of it in a graph or behind a copy, none beside a kernel of the stack's own (`taken`)."""
    launch = np.where(taken, 0.0, k["launch_us"] * US * scale * np.where(q.graph | q.eager, k["graph_launch_share"], 1.0))
    return launch + np.where(q.graph, q.constant(k, "graph_us", 0.0) * US, 0.0)


def _host_s(q: Question, k: Mapping[str, float]) -> Floats:
    """Seconds that a Python host takes for a call, 0 where none does."""
    shares = {kind: q.constant(k, name, 1.0) for kind, name in (("p2p", "p2p_calls"), ("all_to_all", "grouped_calls"))}
    by_kind = np.where(q.kind == "p2p", shares["p2p"], np.where(q.kind == "all_to_all", shares["all_to_all"], 1.0))
    called = q.constant(k, "call_us", 0.0) * by_kind
    return np.where(q.eager, k["eager_us"], np.where(q.by_python, called, 0.0)) * US


def _least_s(q: Question, k: Mapping[str, float]) -> Floats:
    """Seconds that the links need at the datasheet's rate; with several nodes, a GPU's share of the network beside its link."""
    network = np.where(q.m > 1, q.links.nic / k["net_rate"], 0.0)
    return link_seconds(q.message * least_share(q.kind, q.n, q.links.nvls), q.links.wire + network)


def _custom(gpu: GpuSpec, q: Question, k: Mapping[str, float], scale: float) -> list[Candidate]:
    """One-shot, two-shot and multicast all-reduce kernels of the serving stacks, each where the stack's switch points choose it."""
    paths, path_code = np.unique(q.links.path, return_inverse=True)
    unique, pick = distinct(np.stack([q.stack_code, q.version_code, q.n.astype(np.intp), path_code.reshape(-1)], axis=1))
    rules = [limits(q.stacks[s][0], q.versions[v], gpu, int(n), str(paths[p])) for s, v, n, p in unique]
    small, custom, multi = (np.array([getattr(r, name) for r in rules])[pick] for name in ("one_shot", "custom", "multicast"))
    push = np.where(np.array([r.push for r in rules])[pick], k["push_start"], 1.0)
    able = (q.kind == "all_reduce") & (q.m == 1)
    own = able & (q.message <= custom)
    cast = able & ~own & (q.message <= multi) & q.links.nvls
    unit = US * scale
    rate = np.where(q.links.nvlink, q.links.wire * k["one_shot_rate"], q.links.rate * k["one_shot_pcie_rate"])
    once = one_shot(q.message, q.n, rate, k["one_shot_start_us"] * unit, k["one_shot_peer_us"] * unit)
    twice = two_shot(q.message, q.n, q.links.wire * k["two_shot_rate"], k["two_shot_start_us"] * unit, k["two_shot_peer_us"] * unit)
    start = np.full(q.rows, k["multicast_start_us"] * unit)
    shared = nvls(q.message, q.links.wire * k["multicast_rate"], start, 0.0, 1.0)
    first = own & (q.message <= small)
    once, twice = (Cost(cost.steps_s * push, cost.bandwidth_s) for cost in (once, twice))
    return [
        Candidate("one_shot", "peer", first, once.total_s, once),
        Candidate("two_shot", "peer", own & ~first, twice.total_s, twice),
        Candidate("multicast", "peer", cast, shared.total_s, shared),
    ]
