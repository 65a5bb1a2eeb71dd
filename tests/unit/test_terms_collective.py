"""Every way to run a collective by hand: NCCL's rings, trees, NVLS and sends, the stacks' own kernels, launches and hosts.

Eight GPUs of a host with NVLink of 1e11 B/s and a switch that reduces; an SM clock of 1.98 GHz, at which the constants' latencies stand.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from fictional import US, card, close

from perfmodel.analytic.constants import physics
from perfmodel.hw import gpu
from perfmodel.library import collective
from perfmodel.library.collective_nccl import candidates
from perfmodel.library.collective_question import Question
from perfmodel.library.collective_stacks import _limit

MB = 1e6
NVLINK = dataclasses.replace(card("sm_90", nvlink_bytes_per_s=1e11, nvlink_generation=4), max_clock_hz=1.98e9)
PCIE = dataclasses.replace(gpu("l40s"), max_clock_hz=1.98e9, pcie_bytes_per_s=2e10)


def constants(**values: float) -> dict[str, float]:
    """Latencies and gains 0, rates and factors 1, pipelines without fill."""
    zero = [n for n in physics("collective") if n.endswith(("_us", "_gain", "_fill", "gain_bytes", "first_bytes", "cache_bytes"))]
    base = {n: 0.0 if n in zero else 1.0 for n in physics("collective")}
    base |= {n: 1e-3 for n in base if n.endswith("longest_us")}
    found = {**base, "own_rate": 1e99, "direct_own_rate": 1e99, "warp_full_bytes": 4096.0, "direct_ll_bytes": 16384.0, **values}
    assert set(found) == set(physics("collective"))
    return found


def ways(kind: str, size: float, n: int, c: dict[str, float] | None = None, on: Any = NVLINK, stack: str = "nccl", **more: Any) -> Any:
    """{(algorithm, protocol): (steps us, bandwidth us, tuner's estimate us)} of the legal ones."""
    k = c or constants()
    more = {"topology": "hgx_h100" if on is NVLINK else "pcie_switch", **more}
    q = Question(on, {"kind": kind, "message_bytes": size, "n_gpus": n, "stack": stack, **more}, k)
    return {
        (w.algorithm, w.protocol): tuple(float(np.broadcast_to(v, 1)[0]) / US for v in (w.cost.steps_s, w.cost.bandwidth_s, w.estimate_s))
        for w in candidates(on, q, k, 1.98e9 / on.max_clock_hz)
        if bool(np.broadcast_to(w.legal, 1)[0])
    }


def total(kind: str, size: float, n: int, c: dict[str, float] | None = None, on: Any = NVLINK, stack: str = "nccl", **more: Any) -> Any:
    more = {"topology": "hgx_h100" if on is NVLINK else "pcie_switch", **more}
    found = collective.model(on, {"kind": kind, "message_bytes": size, "n_gpus": n, "stack": stack, **more}, c or constants())
    return {name: float(v[0]) / US for name, v in found.seconds.items()}, found


# Rings


def test_ring_all_reduce() -> None:
    # 14 hops of 2 us and a start of 5; 2 x 7/8 of 8 MB at 1e11 B/s: 140 us
    found = ways("all_reduce", 8 * MB, 8, constants(simple_hop_us=2.0, simple_start_us=5.0))[("ring", "Simple")]
    assert found[:2] == close((33.0, 140.0))
    assert ways("all_reduce", 8 * MB, 8, constants(nvlink_rate=0.5))[("ring", "Simple")][1] == close(280.0)


@pytest.mark.parametrize(
    ("kind", "hop", "rate", "wire"),
    [
        ("all_gather", "gather_hop", "gather_rate", 70.0),
        ("reduce_scatter", "scatter_hop", "scatter_rate", 70.0),
        ("broadcast", "cast_hop", "stream_rate", 80.0),
    ],
)
def test_other_rings(kind: str, hop: str, rate: str, wire: float) -> None:
    # seven hops; 7/8 of 8 MB, a broadcast all of it
    c = constants(simple_hop_us=2.0)
    assert ways(kind, 8 * MB, 8, c)[("ring", "Simple")][:2] == close((14.0, wire))
    assert ways(kind, 8 * MB, 8, constants(simple_hop_us=2.0, **{hop: 3.0}))[("ring", "Simple")][0] == close(42.0)
    assert ways(kind, 8 * MB, 8, constants(**{rate: 0.5}))[("ring", "Simple")][1] == close(2 * wire)


def test_protocols() -> None:
    c = constants(ll_hop_us=1.0, ll_start_us=3.0, ll_share=0.5, ll128_hop_us=2.0, ll128_start_us=4.0, ll128_share=0.8)
    found = ways("all_reduce", 8 * MB, 8, c)
    assert found[("ring", "LL")][:2] == close((17.0, 280.0)) and found[("ring", "LL128")][:2] == close((32.0, 175.0))


def test_low_latency_hops_grow_with_the_chunk() -> None:
    # 32 KiB over 8: chunks of 4096 bytes: half of the gain; old NCCL's LL costs twice
    c = constants(ll_hop_us=1.0, ll_start_us=3.0, warp_gain=0.8)
    assert ways("all_reduce", 32768, 8, c)[("ring", "LL")][0] == close(17 * 1.4)
    c = constants(ll_hop_us=1.0, ll_start_us=3.0, old_ll=2.0)
    assert ways("all_reduce", 32768, 8, c, version="2.19")[("ring", "LL")][0] == close(34.0)
    assert ways("all_reduce", 32768, 8, c, version="2.27.3")[("ring", "LL")][0] == close(17.0)


def test_flags_ride_on_hops_already_paid_for() -> None:
    # 14 us of hops and 140 on the wire in quadrature
    found = ways("all_reduce", 8 * MB, 8, constants(ll_hop_us=1.0, ll_overlap=2.0))[("ring", "LL")]
    assert found[0] + found[1] == close((14.0**2 + 140.0**2) ** 0.5)


def test_own_copy_and_fill() -> None:
    # an eighth of 8 MB at 2e11 B/s: 5 us; 2 x 0.5 x sqrt(33 us x 140 x 60 / 200 us)
    c = constants(own_rate=2.0)
    assert ways("all_reduce", 8 * MB, 8, c)[("ring", "Simple")][1] == close(145.0)
    assert ways("broadcast", 8 * MB, 8, c)[("ring", "Simple")][1] == close(80.0)
    c = constants(simple_hop_us=2.0, simple_start_us=5.0, simple_fill=0.5, simple_longest_us=60.0)
    assert ways("all_reduce", 8 * MB, 8, c)[("ring", "Simple")][0] == close(33 + (33 * 42) ** 0.5)
    c = constants(simple_hop_us=2.0, simple_start_us=5.0, stream_fill=0.5, simple_longest_us=60.0)
    assert ways("broadcast", 8 * MB, 8, c)[("ring", "Simple")][0] == close(19 + (19 * 80 * 60 / 140) ** 0.5)


def test_one_byte_reductions() -> None:
    c = constants(byte_reduce_rate=0.5)
    assert ways("all_reduce", 8 * MB, 8, c, dtype="fp8")[("ring", "Simple")][1] == close(280.0)
    assert ways("reduce_scatter", 8 * MB, 8, c, dtype="fp8")[("ring", "Simple")][1] == close(140.0)
    assert ways("all_gather", 8 * MB, 8, c, dtype="fp8")[("ring", "Simple")][1] == close(70.0)
    assert ("nvls", "Simple") not in ways("all_reduce", 8 * MB, 8, c, dtype="fp8")


def test_latencies_follow_the_clock() -> None:
    slow = dataclasses.replace(NVLINK, max_clock_hz=0.99e9)
    q = Question(slow, {"kind": "all_reduce", "message_bytes": 8 * MB, "n_gpus": 8, "topology": "hgx_h100"}, constants())
    c = constants(simple_hop_us=2.0, simple_start_us=5.0)
    ring = next(w for w in candidates(slow, q, c, 2.0) if (w.algorithm, w.protocol) == ("ring", "Simple"))
    assert float(ring.cost.steps_s[0]) / US == close(66.0)


# Several machines: 16 GPUs in two, a card of 5e10 B/s a GPU


def test_two_machines() -> None:
    # 28 hops inside, 2 between; 2 x 15/16 of 8 MB over what eight GPUs' cards carry, 5e10 x 16 / 2, or the link at 1e11
    c = constants(simple_hop_us=1.0, net_simple_hop_us=10.0)
    assert ways("all_reduce", 8 * MB, 16, c, nodes=2)[("ring", "Simple")][:2] == close((48.0, 150.0))
    c = constants(net_rate=0.125)
    assert ways("all_reduce", 8 * MB, 16, c, nodes=2)[("ring", "Simple")][1] == close(300.0)
    # a tree: 14 hops inside, up and down one level; every byte twice
    c = constants(ll_hop_us=1.0, ll_start_us=3.0, net_tree_hop_us=10.0, tree_rate=0.5)
    assert ways("all_reduce", 8 * MB, 16, c, nodes=2)[("tree", "LL")][:2] == close((37.0, 320.0))
    assert ("tree", "LL") not in ways("all_reduce", 8 * MB, 8, c) and ("tree", "LL") not in ways("all_gather", 8 * MB, 16, c, nodes=2)
    assert ("nvls", "Simple") not in ways("all_reduce", 8 * MB, 16, c, nodes=2)


# The switch, and sends


def test_nvls() -> None:
    # each byte once: 80 us at 1e11
    c = constants(nvls_start_us=11.0, nvls_rate=0.5)
    assert ways("all_reduce", 8 * MB, 8, c)[("nvls", "Simple")][:2] == close((11.0, 160.0))
    c = constants(nvls_start_us=10.0, nvls_fill=0.5, nvls_longest_us=80.0)
    assert ways("all_reduce", 8 * MB, 8, c)[("nvls", "Simple")][0] == close(10 + (10 * 40) ** 0.5)
    assert ("nvls", "Simple") not in ways("all_reduce", 8 * MB, 4, constants(nvls_min_gpus=5.0))
    assert ("nvls", "Simple") in ways("all_reduce", 8 * MB, 4, constants(nvls_min_gpus=4.0))


def test_all_to_all() -> None:
    # 6 us, five... six peers beyond the first at half a us; 7/8 of 8 MB
    c = constants(direct_start_us=6.0, direct_peer_us=0.5)
    assert ways("all_to_all", 8 * MB, 8, c)[("direct", "Simple")][:2] == close((9.0, 70.0))
    assert ways("all_to_all", 8 * MB, 8, constants(direct_rate=0.5))[("direct", "Simple")][1] == close(140.0)
    assert ways("all_to_all", 8 * MB, 8, constants(direct_own_rate=2.0))[("direct", "Simple")][1] == close(75.0)
    old = constants(direct_start_us=6.0, direct_old_start=0.5)
    assert ways("all_to_all", 8 * MB, 8, old, version="2.19")[("direct", "Simple")][0] == close(3.0)
    # a grown start, of calls that are not in a graph: 1 MB a peer and as much again: half of the gain
    grown = constants(direct_start_us=6.0, direct_gain=1.0, direct_gain_bytes=1e6)
    assert ways("all_to_all", 8 * MB, 8, grown)[("direct", "Simple")][0] == close(9.0)
    assert ways("all_to_all", 8 * MB, 8, grown, stack="torch_graph")[("direct", "Simple")][0] == close(6.0)
    # small ones: one channel a peer, at 6 GB/s each
    low = constants(direct_ll_start_us=3.0, direct_peer_us=0.5, direct_ll_gb_per_s=6.0)
    assert ways("all_to_all", 8 * 16384, 8, low)[("direct", "LL")][:2] == close((6.0, 7 * 16384 / 42e9 / US))
    assert ("direct", "LL") not in ways("all_to_all", 8 * 16385, 8, low)


def test_point_to_point() -> None:
    # the whole message one way
    assert ways("p2p", 8 * MB, 2, constants(direct_start_us=6.0, stream_rate=0.5))[("direct", "Simple")][:2] == close((6.0, 160.0))
    assert ways("p2p", 8 * MB, 2, constants(direct_own_rate=2.0))[("direct", "Simple")][1] == close(80.0)


def test_sends_between_machines() -> None:
    # 16 GPUs in two: 8/16 of 8 MB over a card of 5e10, a hop of 10 us; a pair: all of it
    c = constants(net_simple_hop_us=10.0, net_ll_hop_us=4.0, direct_start_us=6.0)
    assert ways("all_to_all", 8 * MB, 16, c, nodes=2)[("direct", "Simple")][:2] == close((16.0, 80.0))
    assert ways("p2p", 8 * MB, 2, c, nodes=2)[("direct", "Simple")][:2] == close((16.0, 160.0))
    assert ways("all_to_all", 16 * 1024, 16, constants(net_ll_hop_us=4.0, direct_ll_start_us=3.0), nodes=2)[("direct", "LL")][0] == close(
        7.0
    )


# PCIe: two GPUs under a switch, 2e10 B/s


def test_pcie() -> None:
    c = constants(pcie_switch_rate=0.5, pcie_switch_simple_hop_us=3.0, pcie_simple_start_us=5.0, simple_start_us=99.0)
    assert ways("all_reduce", 2 * MB, 2, c, PCIE)[("ring", "Simple")][:2] == close((11.0, 200.0))
    c = constants(pcie_switch_ll_hop_us=3.0, ll_start_us=5.0, pcie_switch_ll_share=0.25)
    assert ways("all_reduce", 2 * MB, 2, c, PCIE)[("ring", "LL")][:2] == close((11.0, 400.0))
    assert ("ring", "LL128") not in ways("all_reduce", 2 * MB, 2, c, PCIE)
    c = constants(pcie_gather_rate=0.5, pcie_scatter_rate=0.25)
    assert ways("all_gather", 2 * MB, 2, c, PCIE)[("ring", "Simple")][1] == close(100.0)
    assert ways("reduce_scatter", 2 * MB, 2, c, PCIE)[("ring", "Simple")][1] == close(200.0)
    c = constants(pcie_direct_start_us=7.0, pcie_direct_rate=0.5)
    assert ways("all_to_all", 2 * MB, 2, c, PCIE)[("direct", "Simple")][:2] == close((7.0, 100.0))
    c = constants(pcie_simple_start_us=5.0, pcie_simple_fill=0.5, simple_longest_us=100.0)
    assert ways("all_reduce", 2 * MB, 2, c, PCIE)[("ring", "Simple")][0] == close(5 + (5 * 50) ** 0.5)


def test_staged_through_two_sockets() -> None:
    # 12 GB/s that two GPUs share; twice as fast while 2 MB beside 2 MB of cache: 1 + 1 x 2 / 4
    c = constants(pcie_sockets_gb_per_s=12.0)
    assert ways("all_reduce", 2 * MB, 2, c, PCIE, topology="pcie_sockets")[("ring", "Simple")][1] == close(2e6 / 6e9 / US)
    c = constants(pcie_sockets_gb_per_s=12.0, sockets_cache_gain=1.0, sockets_cache_bytes=2e6)
    assert ways("all_reduce", 2 * MB, 2, c, PCIE, topology="pcie_sockets")[("ring", "Simple")][1] == close(2e6 / 9e9 / US)
    c = constants(pcie_sockets_gb_per_s=12.0, sockets_gather_rate=0.5, sockets_scatter_rate=0.25, sockets_direct_rate=0.125)
    for kind, way, share in (("all_gather", "ring", 0.5), ("reduce_scatter", "ring", 0.25), ("all_to_all", "direct", 0.125)):
        found = ways(kind, 2 * MB, 2, c, PCIE, topology="pcie_sockets")[(way, "Simple")]
        assert found[1] == close(1e6 / (6e9 * share) / US), kind


# What NCCL's tuner expects


def test_the_tuners_opinion() -> None:
    c = constants(
        tuner_base_simple_us=8.0, tuner_nvlink_simple_us=3.0, tuner_base_ll_us=6.0, tuner_nvlink_ll_us=0.5, tuner_base_ll128_us=14.0,
        tuner_nvlink_ll128_us=2.0, tuner_nvlink_rate=0.8, tuner_ll_hopper_gb_per_s=141.0, tuner_nvls_us=25.0, tuner_nvls_rate=0.5,
    )  # fmt: skip
    found = ways("all_reduce", 8 * MB, 8, c)
    assert found[("ring", "Simple")][2] == close(8 + 14 * 3 + 14 * MB / 8e10 / US)
    assert found[("ring", "LL")][2] == close(6 + 14 * 0.5 + 14 * MB / 4e10 / US)
    assert found[("ring", "LL128")][2] == close(14 + 14 * 2 + 14 * MB / (8e10 * 0.92) / US)
    assert found[("nvls", "Simple")][2] == close(25 + 8 * MB / 5e10 / US)
    capped = ways("all_reduce", 8 * MB, 8, {**c, "tuner_ll_hopper_gb_per_s": 10.0})
    assert capped[("ring", "LL")][2] == close(6 + 14 * 0.5 + 14 * MB / 1e10 / US)
    two = ways("all_reduce", 8 * MB, 16, {**c, "net_rate": 0.125, "net_simple_hop_us": 10.0}, nodes=2)
    assert two[("ring", "Simple")][2] == close(8 + 28 * 3 + 2 * 10 + 15 * MB / 5e10 / US)


# Launches, hosts, and the stacks' own kernels


def test_launch() -> None:
    c = constants(launch_us=5.0, graph_launch_share=0.6, torch_graph_us=4.0, torch_eager_us=0.0)
    assert total("all_reduce", 8 * MB, 8, c)[0]["launch"] == close(5.0)
    assert total("all_reduce", 8 * MB, 8, c, stack="torch_graph")[0]["launch"] == close(3.0 + 4.0)
    assert total("all_gather", 8 * MB, 8, c, stack="vllm")[0]["launch"] == close(3.0)
    assert total("all_reduce", 8 * MB, 8, c, stack="torch")[0]["launch"] == close(5.0)


def test_a_python_host_hides_behind_the_gpu() -> None:
    # 1 KiB: next to nothing on the wire; the host takes 33 us
    c = constants(launch_us=5.0, torch_eager_us=33.0, torch_p2p_eager=2.0, torch_grouped_eager=3.0, simple_hop_us=1.0)
    for kind, host in (("all_gather", 33.0), ("all_to_all", 99.0)):
        seconds, found = total(kind, 1024, 8, c, stack="torch")
        assert sum(seconds.values()) == close(host), kind
        assert float(found.latency_s[0]) / US == close(host)
    assert sum(total("p2p", 1024, 2, c, stack="torch")[0].values()) == close(66.0)
    large = total("all_gather", 80 * MB, 8, c, stack="torch")[0]
    assert large["launch"] == close(5.0) and large["bandwidth"] == close(700.0)


def test_an_eager_serving_stack_copies() -> None:
    # in and out of its buffer: 2 x 8 MB at half of 1e12 B/s
    c = constants(copy_rate=0.5, launch_us=5.0, graph_launch_share=0.6)
    seconds = total("all_gather", 8 * MB, 8, c, stack="vllm_eager")[0]
    assert seconds["bandwidth"] == close(70.0 + 32.0) and seconds["launch"] == close(3.0)
    assert sum(total("all_gather", 1024, 8, constants(eager_us=500.0), stack="vllm_eager")[0].values()) == close(500.0)


def test_one_shot() -> None:
    # every other's whole 64 KiB at 5e10 B/s; peers beyond the first half a us each; a kernel of the second generation starts in half
    # the time
    c = constants(one_shot_start_us=4.0, one_shot_peer_us=0.5, one_shot_rate=0.5, launch_us=5.0, push_start=0.5)
    for stack, n, steps in (("vllm", 2, 4.0), ("sglang", 8, 3.5), ("trtllm", 8, 3.5)):
        seconds, found = total("all_reduce", 65536, n, c, stack=stack)
        assert found.algorithm[0] == "one_shot" and seconds == close(
            {"steps": steps, "bandwidth": (n - 1) * 65536 / 5e10 / US, "launch": 0.0}
        ), stack
    assert total("all_reduce", 65536, 8, c, stack="vllm", version="0.6")[0]["steps"] == close(7.0)
    assert total("all_reduce", 65536, 2, constants(one_shot_pcie_rate=0.5), PCIE, stack="vllm")[0]["bandwidth"] == close(65536 / 1e10 / US)


def test_two_shot() -> None:
    # 2 x 7/8 of the message at 5e10 B/s, six peers beyond the first
    c = constants(two_shot_start_us=9.0, two_shot_peer_us=0.5, two_shot_rate=0.5, push_start=0.5)
    seconds, found = total("all_reduce", 2**20, 8, c, stack="vllm", version="0.6")
    assert found.algorithm[0] == "two_shot" and seconds == close({"steps": 12.0, "bandwidth": 1.75 * 2**20 / 5e10 / US, "launch": 0.0})
    assert total("all_reduce", 2**20, 8, c, stack="sglang")[0]["steps"] == close(6.0)
    # a message of the limit is still the stack's own, one more byte is NCCL's
    ends = [total("all_reduce", size, 8, c, stack="vllm", version="0.6")[1].algorithm[0] for size in (8388608, 8388609)]
    assert ends[0] == "two_shot" != ends[1]


def test_multicast() -> None:
    c = constants(multicast_start_us=7.0, multicast_rate=0.5)
    seconds, found = total("all_reduce", 2**20, 8, c, stack="vllm")
    assert found.algorithm[0] == "multicast" and seconds == close({"steps": 7.0, "bandwidth": 2**20 / 5e10 / US, "launch": 0.0})


def test_spread_of_the_answer() -> None:
    # bandwidth 3/4 of the time: sqrt((3/4 x 0.4)^2 + (1/4 x 0.8)^2)
    c = constants(simple_start_us=70.0 / 3, ll_start_us=1e6, ll128_start_us=1e6, sigma_bandwidth=0.4, sigma_steps=0.8)
    c = {**c, "tuner_base_ll_us": 1e6, "tuner_base_ll128_us": 1e6}
    _, found = total("all_gather", 8 * MB, 8, c)
    assert found.protocol[0] == "Simple"
    assert found.log_sigma[0] == close((0.3**2 + 0.2**2) ** 0.5)
    assert found.in_domain[0] and not total("all_gather", 2.0**35, 8)[1].in_domain[0]
    assert total("all_gather", 2.0**34, 8)[1].in_domain[0] and not total("all_gather", MB, 24, nodes=3)[1].in_domain[0]


def test_limits_by_number_of_gpus() -> None:
    # the next larger number that is named, none beyond the last; "*" is up to 8
    assert [_limit({"2": 10.0, "4": 5.0}, n) for n in (2, 3, 4, 5)] == [10.0, 5.0, 5.0, 0.0]
    assert [_limit({"2": 10.0, "*": 3.0}, n) for n in (2, 8, 9)] == [10.0, 3.0, 0.0]
