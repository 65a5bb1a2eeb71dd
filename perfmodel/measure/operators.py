"""Time library operators as torch calls them: products, attention, memory-bound operators, in a steady state and without launch cost.

One measurement is a CUDA graph of a few calls on random data, replayed between two events: the protocol of the public tables that the
operator models are fitted to. Weights of a product rotate, so that they come from DRAM unless several fit in the L2 together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfmodel.errors import InputError
from perfmodel.measure.timing import Policy, Timing, summarise

Point = Mapping[str, Any]
Call = Callable[[], object]
WHATS = ("gemm", "attention", "memory")
CALLS = 6  # in one graph
GROUPS, GROUP_US = 5, 800.0  # timings of one point, and how long each lasts at least
LONG_US, LONGEST_US = 2000.0, 50_000.0  # of one replay: from here on a timing is one replay; then three timings after one warm-up do
MEMORY_KINDS = ("rmsnorm", "layernorm", "add", "copy", "gelu", "softmax")
ATTENTION_KERNELS = ("torch_flash", "torch_cudnn")
OVERHEAD_S = {"gemm": 0.006, "memory": 0.004, "torch_flash": 0.004, "torch_cudnn": 0.17}
"""Host work of one point, by operator or attention kernel: capture, and for cuDNN a plan that is built or compiled for each shape."""
POOL_SHARE, POOL_BYTES = 0.3, 12 * 2**30


def schedule(latency_us: float) -> tuple[int, int, int]:
    """(warm-up replays, timings, replays a timing) of a graph of CALLS calls of `latency_us` microseconds each."""
    replay = max(CALLS * latency_us, 1.0)
    if replay > LONG_US:
        return (3, GROUPS + 1, 1) if replay <= LONGEST_US else (1, 3, 1)
    return 3, GROUPS, max(2, math.ceil(GROUP_US / replay))


def cost_s(name: str, latency_us: float) -> float:
    """Seconds that timing a point takes on the device and the host; `name` is a key of OVERHEAD_S."""
    warm, groups, replays = schedule(latency_us)
    return OVERHEAD_S[name] + 1e-6 * latency_us * (2 + CALLS * (warm + groups * replays))


class OperatorMeter:
    """Times points on the current CUDA device. All operands are views of one pool of random numbers, so that a point costs no set-up."""

    def __init__(self) -> None:
        import torch

        free, _ = torch.cuda.mem_get_info()
        self._elements = int(min(POOL_BYTES, POOL_SHARE * free)) // 2
        source = torch.Generator(device="cuda").manual_seed(0)
        self._pool = torch.empty(self._elements, dtype=torch.bfloat16, device="cuda")
        block = 2**28
        for start in range(0, self._elements, block):
            self._pool[start : start + block].normal_(generator=source)
        new_stream: Any = torch.cuda.Stream
        self._stream = new_stream()
        self._points = 0

    def measure(self, point: Point) -> dict[str, Any]:
        """latency_us (of one call: median over the timings), min_us, spread, reps, unstable. Raises for what torch cannot run."""
        import torch

        make = {"gemm": self._gemm, "attention": self._attention, "memory": self._memory}[point["what"]]
        timing = self._time(make(point))
        self._points += 1
        if self._points % 32 == 0:
            torch.cuda.empty_cache()
        return {
            "latency_us": timing.latency_us,
            "min_us": timing.min_us,
            "spread": timing.spread,
            "reps": timing.reps,
            "unstable": timing.unstable,
        }

    def _view(self, *shape: int, copy: int = 0) -> Any:
        """A contiguous view of the pool; copies of a shape do not overlap while the pool is large enough for them."""
        size = math.prod(shape)
        if size > self._elements:
            raise InputError(f"an operand of {2 * size / 2**30:.1f} GiB is larger than the {2 * self._elements / 2**30:.1f} GiB set aside")
        room = self._elements - size
        start = copy * size % (room + 1) // 64 * 64
        return self._pool[start : start + size].view(*shape)

    def _gemm(self, point: Point) -> list[Call]:
        import torch

        m, n, k = (int(point[name]) for name in ("m", "n", "k"))
        a, out = self._view(m, k), torch.empty((m, n), dtype=torch.bfloat16, device="cuda")
        weights = [self._view(n, k, copy=i + 1).t() for i in range(CALLS)]
        return [lambda w=w: torch.mm(a, w, out=out) for w in weights]  # type: ignore[misc]

    def _attention(self, point: Point) -> list[Call]:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        batch, heads, kv_heads, dim = (int(point[name]) for name in ("batch", "q_heads", "kv_heads", "head_dim"))
        q_len, kv_len = int(point["q_len"]), int(point["kv_len"])
        backend = SDPBackend.CUDNN_ATTENTION if point["kernel"] == "torch_cudnn" else SDPBackend.FLASH_ATTENTION
        q = self._view(batch, heads, q_len, dim)
        k, v = (self._view(batch, kv_heads, kv_len, dim, copy=i) for i in (1, 2))
        attend: Any = torch.nn.functional.scaled_dot_product_attention
        causal, grouped = q_len > 1, heads != kv_heads

        def call() -> object:
            with sdpa_kernel(backend):
                return attend(q, k, v, is_causal=causal, enable_gqa=grouped)

        return [call] * CALLS

    def _memory(self, point: Point) -> list[Call]:
        import torch

        tokens, hidden, kind = int(point["tokens"]), int(point["hidden"]), str(point["kind"])
        x, y = self._view(tokens, hidden), self._view(tokens, hidden, copy=1)
        weight, out = self._view(hidden), torch.empty((tokens, hidden), dtype=torch.bfloat16, device="cuda")
        functional: Any = torch.nn.functional
        calls: Mapping[str, Call] = {
            "rmsnorm": lambda: functional.rms_norm(x, (hidden,), weight),
            "layernorm": lambda: functional.layer_norm(x, (hidden,), weight, weight),
            "add": lambda: torch.add(x, y, out=out),
            "copy": lambda: out.copy_(x),
            "gelu": lambda: functional.gelu(x),
            "softmax": lambda: torch.softmax(x, dim=-1),
        }
        return [calls[kind]] * CALLS

    def _time(self, calls: Sequence[Call]) -> Timing:
        import torch

        event: Any = torch.cuda.Event
        with torch.cuda.stream(self._stream):
            calls[0]()  # heuristics, plans and module loads
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
            try:
                for call in calls:
                    call()
            finally:
                graph.capture_end()
            first, second = event(enable_timing=True), event(enable_timing=True)
            graph.replay()
            first.record()
            graph.replay()
            second.record()
            second.synchronize()
            warm, groups, replays = schedule(float(first.elapsed_time(second)) * 1e3 / len(calls))
            for _ in range(warm - 1):
                graph.replay()
            marks = [event(enable_timing=True)]
            marks[0].record()
            for _ in range(groups):
                for _ in range(replays):
                    graph.replay()
                marks.append(event(enable_timing=True))
                marks[-1].record()
            marks[-1].synchronize()
        each = [float(a.elapsed_time(b)) * 1e3 / (replays * len(calls)) for a, b in itertools.pairwise(marks)]
        timing = summarise(each, finalist=True, policy=Policy())
        return Timing(timing.latency_us, timing.min_us, timing.spread, groups * replays * len(calls), True, timing.unstable)
