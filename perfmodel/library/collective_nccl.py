"""NCCL: what each of its algorithms and protocols costs on the links at hand, and which one its tuner takes.

NCCL does not run the fastest algorithm but the one that its built-in tuner thinks fastest, from constants in its source. Both are
modelled: `Candidate.estimate_s` is the tuner's opinion and decides, `Candidate.cost` is our law and answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.network import Cost, direct, nvls, ring, ring_hops, tree, warp_gain
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.collective_question import Question
from perfmodel.ops.collective import least_share
from perfmodel.units import GB

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
US = 1e-6


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run a row: where it is legal, what the library believes it takes (seconds), and what it does take."""

    algorithm: str
    protocol: str
    legal: Bools
    estimate_s: Floats
    cost: Cost


def candidates(gpu: GpuSpec, q: Question, k: Mapping[str, float], scale: float) -> list[Candidate]:
    """Every algorithm and protocol of NCCL. The launch is not in the costs; `scale` multiplies latencies (clock of the GPU)."""
    s, n, m, links = q.message, q.n, q.m, q.links
    reduce_all, gather, scatter = (q.kind == x for x in ("all_reduce", "all_gather", "reduce_scatter"))
    cast = q.kind == "broadcast"
    single, nv = m == 1, links.nvlink
    rounds = np.where(reduce_all, 2.0, 1.0)
    share = least_share(q.kind, n, in_switch=False)
    hop_factor = np.where(gather, k["gather_hop"], np.where(scatter, k["scatter_hop"], np.where(cast, k["cast_hop"], 1.0)))
    inside = np.where(cast & nv, links.wire * k["stream_rate"], links.rate * _rate_factor(q, k))
    rate = np.where(single, inside, np.minimum(inside, links.nic * n / m)) * _cached(q, k)
    unit = US * scale
    launch = k["launch_us"] * unit
    own = np.where(cast | ~nv, 0.0, s / n / (links.wire * k["own_rate"]))
    gain = warp_gain(s / n, k["warp_gain"], k["warp_full_bytes"]) * np.where(q.old, k["old_ll"], 1.0)
    fill_share = np.where(nv, np.where(cast, k["stream_fill"], k["simple_fill"]), k["pcie_simple_fill"])
    ringed = reduce_all | gather | scatter | cast
    found: list[Candidate] = []
    for label, name, legal, hop, grown, part in (
        ("LL", "ll", ringed, _by_path(q, k, "ll_hop_us"), gain, _by_path(q, k, "ll_share")),
        ("LL128", "ll128", ringed & nv, np.full(q.rows, k["ll128_hop_us"]), np.ones(q.rows), np.full(q.rows, k["ll128_share"])),
        ("Simple", "simple", ringed, _by_path(q, k, "simple_hop_us"), np.ones(q.rows), np.ones(q.rows)),
    ):
        start = launch + np.where(nv | (name != "simple"), k[f"{name}_start_us"], k["pcie_simple_start_us"]) * unit * grown
        net_hop = k[f"net_{name}_hop_us"] * US
        fill_of, longest = (fill_share, k["simple_longest_us"] * US) if name == "simple" else (0.0, 1.0)
        joined = k["ll_overlap"] if name == "ll" else 1.0
        per_hop = hop * hop_factor * grown * unit
        cost = ring(s, n, m, rounds, share, rate * part, start, per_hop, net_hop, own, fill_of, longest, joined)
        opinion = _opinion(gpu, q, k, name, rounds, share)
        found.append(Candidate("ring", label, legal, opinion, Cost(cost.steps_s - launch, cost.bandwidth_s)))
        if name != "simple":
            branch = tree(s, n, m, rate * part * k["tree_rate"], start, hop * grown * unit, k["net_tree_hop_us"] * US)
            tree_legal = legal & reduce_all & ~single
            found.append(Candidate("tree", label, tree_legal, branch.total_s, Cost(branch.steps_s - launch, branch.bandwidth_s)))
    start = np.full(q.rows, (k["launch_us"] + k["nvls_start_us"]) * unit)
    by_switch = links.wire * k["nvls_rate"] * (k["nvls_blackwell"] if gpu.capability >= (10, 0) else 1.0)
    cost = nvls(s, by_switch, start, k["nvls_fill"], k["nvls_longest_us"] * US)
    legal = reduce_all & links.nvls & single & ~q.one_byte & (n >= k["nvls_min_gpus"])
    opinion = k["tuner_nvls_us"] * US + s / (links.wire * k["tuner_nvls_rate"])
    found.append(Candidate("nvls", "Simple", legal, opinion, Cost(cost.steps_s - launch, cost.bandwidth_s)))
    return found + _send_recv(gpu, q, k, scale)


def _by_path(q: Question, k: Mapping[str, float], name: str) -> Floats:
    """A constant that each class of link has its own of: `name` on NVLink, `<path>_<name>` on PCIe."""
    values = np.full(q.rows, k[name])
    for path in ("pcie_switch", "pcie_root", "pcie_sockets"):
        values[q.links.path == path] = k[f"{path}_{name}"]
    return values


def _rate_factor(q: Question, k: Mapping[str, float]) -> Floats:
    """Ring rate of a kind over all_reduce's, by class of link, and of one-byte reductions over two-byte ones."""
    gather, scatter = q.kind == "all_gather", q.kind == "reduce_scatter"
    staged = q.links.path == "pcie_sockets"
    by_class = [
        np.where(q.links.nvlink, k[f"{kind}_rate"], np.where(staged, k[f"sockets_{kind}_rate"], k[f"pcie_{kind}_rate"]))
        for kind in ("gather", "scatter")
    ]
    factor = np.where(gather, by_class[0], np.where(scatter, by_class[1], 1.0))
    reduced: Floats = factor * np.where(q.one_byte & ((q.kind == "all_reduce") | scatter), k["byte_reduce_rate"], 1.0)
    return reduced


def _cached(q: Question, k: Mapping[str, float]) -> Floats:
    """Gain of a staged path while its staging buffers stay in the host's cache: 1 + gain c / (c + S)."""
    size = k["sockets_cache_bytes"]
    gain: Floats = np.where(q.links.path == "pcie_sockets", 1.0 + k["sockets_cache_gain"] * size / (size + q.message), 1.0)
    return gain


def _opinion(gpu: GpuSpec, q: Question, k: Mapping[str, float], name: str, rounds: Floats, share: Floats) -> Floats:
    """What NCCL's tuner expects of a ring with protocol `name`: base + hops x hop + wire bytes over its nominal bandwidth, seconds.

    Source: NVIDIA/nccl, src/graph/tuning.cc (baseLatencies, hwLatencies, llMaxBws, the 0.5 of LL and 0.92 of LL128).
    """
    links, nv = q.links, q.links.nvlink
    nominal = np.where(nv, links.wire * k["tuner_nvlink_rate"], 0.0)
    for path in ("pcie_switch", "pcie_root", "pcie_sockets"):
        nominal = np.where(links.path == path, k[f"tuner_{path}_gb_per_s"] * GB, nominal)
    nominal = np.where(q.m > 1, np.minimum(nominal, links.nic * q.n / q.m), nominal)
    if name == "ll":
        newest = "blackwell" if gpu.capability >= (10, 0) else "hopper" if gpu.capability >= (9, 0) else "ampere"
        nominal = np.minimum(nominal * 0.5, k[f"tuner_ll_{newest}_gb_per_s"] * GB)
    elif name == "ll128":
        nominal = nominal * 0.92
    inside, between = ring_hops(q.n, q.m, rounds)
    hops = inside * np.where(nv, k[f"tuner_nvlink_{name}_us"], k[f"tuner_pcie_{name}_us"]) + between * k[f"net_{name}_hop_us"]
    expected: Floats = (k[f"tuner_base_{name}_us"] + hops) * US + share * q.message / nominal
    return expected


def _send_recv(gpu: GpuSpec, q: Question, k: Mapping[str, float], scale: float) -> list[Candidate]:
    """Grouped send and receive: all_to_all, and p2p as a pair that sends its whole message one way. LL up to a size a peer."""
    pair, links = q.kind == "p2p", q.links
    legal = pair | (q.kind == "all_to_all")
    s, n, m = np.where(pair, 2 * q.message, q.message), np.where(pair, 2.0, q.n), np.where(pair, np.minimum(q.m, 2), q.m)
    nic = np.maximum(links.nic, 1.0)
    unit, launch = US * scale, k["launch_us"] * US * scale
    own = np.where(pair | ~links.nvlink, 0.0, s / n / (links.wire * k["direct_own_rate"]))
    by_pcie = np.where(links.path == "pcie_sockets", k["sockets_direct_rate"], k["pcie_direct_rate"])
    rate = links.rate * np.where(links.nvlink, k["direct_rate"], by_pcie) * _cached(q, k)
    rate = np.where(pair & links.nvlink, links.wire * k["stream_rate"], rate)
    peer = np.where(links.nvlink, k["direct_peer_us"], k["pcie_direct_peer_us"]) * unit
    small = s / n <= k["direct_ll_bytes"]
    fill_share = np.where(links.nvlink, np.where(pair, k["stream_fill"], k["direct_fill"]), k["pcie_direct_fill"])
    start_us = np.where(links.nvlink, k["direct_start_us"], k["pcie_direct_start_us"]) * np.where(q.old, k["direct_old_start"], 1.0)
    recent = links.nvlink & ~q.old  # NCCL 2.27 spreads small messages over more channels; its host plans each anew, a graph has the plan
    start_us = start_us * np.where(recent & ~q.graph, warp_gain(s / n, k["direct_gain"], k["direct_gain_bytes"]), 1.0)
    ll_rate = np.where(links.nvlink, k["direct_ll_gb_per_s"] * GB * (n - 1), rate * _by_path(q, k, "ll_share"))
    low = direct(
        s,
        n,
        m,
        ll_rate,
        nic * k["ll_share"],
        launch + np.full(q.rows, k["direct_ll_start_us"] * unit),
        peer + np.where(q.old, k["direct_old_peer_us"], 0.0) * unit,
        k["net_ll_hop_us"] * US,
        own,
    )
    streamed = (fill_share, k["direct_longest_us"] * US, np.where(recent, k["direct_first_bytes"] / rate, 0.0))
    high = direct(s, n, m, rate, nic, launch + start_us * unit, peer, k["net_simple_hop_us"] * US, own, *streamed)
    return [
        Candidate("direct", label, legal & chosen, cost.total_s, Cost(cost.steps_s - launch, cost.bandwidth_s))
        for label, chosen, cost in (("LL", small, low), ("Simple", ~small, high))
    ]
