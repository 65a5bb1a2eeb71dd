"""Laws of communication: what each algorithm and protocol costs on given links. Pure, broadcasting, no stack and no topology names.

Each law returns a Cost, split into steps (latencies that grow with the number of hops, not with bytes) and bandwidth (bytes over a
rate). n is the number of GPUs, m the number of machines they are spread over, S the message in bytes, times in seconds, rates in
bytes/s. The host's launch is added by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of one algorithm: steps_s + bandwidth_s, arrays of the same shape."""

    steps_s: Floats
    bandwidth_s: Floats

    @property
    def total_s(self) -> Floats:
        """Their sum."""
        return self.steps_s + self.bandwidth_s


def ring_hops(n: Floats, m: Floats, rounds: Floats) -> tuple[Floats, Floats]:
    """(hops inside machines, hops between machines) of a ring that goes round `rounds` times: rounds (n-1) in all, rounds (m-1) between.

    rounds is 2 for all_reduce, 1 for all_gather, reduce_scatter and broadcast.
    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69, 2009, section 4;
    NCCL's tuner counts the same steps.
    """
    between = rounds * (m - 1)
    return rounds * (n - 1) - between, between


def warp_gain(chunk_bytes: Floats, gain: float, full_bytes: float) -> Floats:
    """Growth of a low-latency hop with the chunk it carries: 1 + gain c / (c + full_bytes).

    A chunk below full_bytes leaves most warps of the channel's block idle, and fewer warps synchronise faster; above it more channels
    share the work and the hop no longer grows. Valid for flag protocols (LL). full_bytes starts at 512 threads x 8 bytes = 4 KiB.
    Evidence: without it the best fit of 8 and 32 KiB is off by 12-21 % on A100 and 6-11 % on H100 at 8 GPUs, with it by 6 and 9 %.
    """
    gained: Floats = 1.0 + gain * chunk_bytes / (chunk_bytes + full_bytes)
    return gained


def fill(start_s: Floats, wire_s: Floats, share: float | Floats, longest_s: float, first_s: float | Floats = 0.0) -> Floats:
    """Time to fill and drain a pipeline whose chunk size the library grows with the message: 2 share sqrt(start x), x = w L / (w + L).

    With chunks of c bytes, n steps cost n (a + c/B) and the rest streams: the best c gives the square root of start times wire time
    (Hockney pipelining). Chunks stop growing at the library's buffer, so x saturates at longest_s (L). share is 1 for the optimum.
    first_s is the wire time of the first chunk of every channel: what fits in there has no pipeline to fill, w becomes w^2 / (w + first_s).
    Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19, 2005, section 3.
    Evidence: NCCL Simple on A100 and H100, 1-64 MiB: residual 3 % with it, 20-40 % without.
    """
    beyond = wire_s * wire_s / np.maximum(wire_s + first_s, 1e-12)
    streamed = beyond * longest_s / (beyond + longest_s)
    extra: Floats = 2.0 * share * np.sqrt(start_s * streamed)
    return extra


def ring(
    message_bytes: Floats,
    n: Floats,
    m: Floats,
    rounds: Floats,
    wire_share: Floats,
    rate: Floats,
    start_s: Floats,
    hop_s: Floats,
    net_hop_s: float,
    own_s: Floats,
    fill_share: float | Floats = 0.0,
    fill_longest_s: float = 1.0,
    overlap: float = 1.0,
) -> Cost:
    """Ring all_reduce, all_gather, reduce_scatter or broadcast: start + hops + fill, and wire_share S / rate + own_s.

    overlap p joins hops H and wire X as (H^p + X^p)^(1/p): 1 adds them; above 1 for flag protocols, which add channels as the message
    grows, so that the first bytes ride on hops already paid for (A100, 8 GPUs: flat from 32 to 512 KiB). steps_s carries the gain.

    wire_share is `bus_factor` (ops/collective); rate the slowest link's protocol rate per GPU; own_s what no transfer hides: a ring of
    n - 1 sends has n operations on a channel's threads, the last of which only copies S/n bytes in the GPU's own memory. Its rate is
    that of the channels' threads, hence a multiple of the link's, not DRAM's.
    Source: as `ring_hops`, and nccl-tests doc/PERFORMANCE.md. Valid for any n >= 2.
    Evidence: A100 and H100 large messages at 2 and 8 GPUs give one link rate within 3 % once own_s is taken out (12-25 % apart before).
    """
    inside, between = ring_hops(n, m, rounds)
    hops = inside * hop_s + between * net_hop_s
    wire = wire_share * message_bytes / rate
    extra = fill(start_s + hops, wire, fill_share, fill_longest_s)
    joined = hops + wire if overlap == 1.0 else (hops**overlap + wire**overlap) ** (1.0 / overlap)
    return Cost(start_s + joined - wire + extra, wire + own_s)


def tree(message_bytes: Floats, n: Floats, m: Floats, rate: Floats, start_s: Floats, hop_s: Floats, net_hop_s: float) -> Cost:
    """Double binary tree all_reduce over machines, a chain inside each: start + 2 (n/m - 1) hop + 2 log2(m) net_hop, and 2 S / rate.

    Source: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35,
    2009; NCCL's tuner counts the same steps. Valid for m >= 2: in one machine the chain equals the ring and moves more bytes.
    Evidence: none at hand on InfiniBand.
    """
    latency = start_s + 2 * (n / m - 1) * hop_s + 2 * np.log2(m) * net_hop_s
    return Cost(latency, 2.0 * message_bytes / rate)


def nvls(message_bytes: Floats, rate: Floats, start_s: Floats, fill_share: float, fill_longest_s: float) -> Cost:
    """All_reduce by the switch: every GPU sends its buffer once and receives the sum, whatever n: start + fill, and S / rate.

    Source: Klenk et al., "An in-network architecture for accelerating shared-memory multiprocessor collectives", ISCA 2020.
    Valid for NVSwitch of NVLink 4 and later and types the switch adds (bf16, fp16, fp32).
    Evidence: H100, 8 GPUs, 1 MiB-512 MiB: error under 7 % each.
    """
    wire = message_bytes / rate
    return Cost(start_s + fill(start_s, wire, fill_share, fill_longest_s), wire)


def direct(
    message_bytes: Floats,
    n: Floats,
    m: Floats,
    rate: Floats,
    nic_rate: Floats,
    start_s: Floats,
    peer_s: float | Floats,
    net_hop_s: float,
    own_s: Floats,
    fill_share: float | Floats = 0.0,
    fill_longest_s: float = 1.0,
    fill_first_s: float | Floats = 0.0,
) -> Cost:
    """Each GPU sends to every other at once (all_to_all): start + (n-2) peer + fill, and the slower of link and network, + own_s.

    Inside: S (n/m - 1)/n over the link; to other machines: S (n - n/m)/n over the GPU's share of the network.
    Source: Thakur et al. 2005, section 3.3 (all-to-all by direct exchange). Evidence: A100, H100 at 2 and 8 GPUs, 8 KiB-512 MiB.
    """
    local = n / m
    latency = start_s + np.maximum(n - 2, 0) * peer_s + np.where(m > 1, net_hop_s, 0.0)
    outside = np.where(m > 1, message_bytes * (n - local) / n / nic_rate, 0.0)
    wire = np.maximum(message_bytes * (local - 1) / n / rate, outside)
    return Cost(latency + fill(latency, wire, fill_share, fill_longest_s, fill_first_s), wire + own_s)


def one_shot(message_bytes: Floats, n: Floats, rate: Floats, start_s: float, peer_s: float) -> Cost:
    """All_reduce in one kernel: each GPU reads every other's whole buffer after one barrier: start + (n-2) peer, and (n-1) S / rate.

    Source: the published custom all-reduce kernels of vLLM, SGLang and TensorRT-LLM (peer reads under a flag barrier).
    Evidence: A100, H100 in CUDA graphs, 8-256 KiB.
    """
    return Cost(start_s + np.maximum(n - 2, 0) * peer_s, (n - 1) * message_bytes / rate)


def two_shot(message_bytes: Floats, n: Floats, rate: Floats, start_s: float, peer_s: float) -> Cost:
    """All_reduce in one kernel: reduce own 1/n, barrier, gather the rest: start + (n-2) peer, and 2 (n-1)/n S / rate.

    Source and evidence: as `one_shot`, 256 KiB-16 MiB.
    """
    return Cost(start_s + np.maximum(n - 2, 0) * peer_s, 2.0 * (n - 1) / n * message_bytes / rate)
