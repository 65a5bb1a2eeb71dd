"""Ceilings of a GPU, one micro-benchmark each: memory, cache, tensor cores on random data, exponentials, launches, PCIe.

Every benchmark returns the median of several timings in SI units. They run in a process of their own on one device; torch and Triton
are imported there.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.hw.spec import GpuSpec
from perfmodel.measure.timing import Policy, Timing, summarise

Call = Callable[[], object]
SIDE = 8192  # of the square products that sustain the tensor rate
SUSTAIN_S, REST_S, BURST = 0.6, 0.4, 10  # the power limit bites after some ten milliseconds and settles in a few hundred
STREAM_BYTES = 2**31  # of each buffer that is streamed: far over any L2
LINE_BYTES = 128
READ_BLOCK = 4096  # int32 a block of the read kernel
EXP_BLOCK, EXP_STEPS = 2048, 4000
LAUNCHES = 400


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One micro-benchmark: its unit, what it takes about (seconds), and the tensor rate that a GPU must have for it."""

    name: str
    unit: str
    cost_s: float
    rate: str = ""


CEILINGS: Mapping[str, Ceiling] = {
    c.name: c
    for c in (
        Ceiling("dram_copy", "bytes/s", 0.3),
        Ceiling("dram_read", "bytes/s", 0.4),
        Ceiling("dram_write", "bytes/s", 0.3),
        Ceiling("l2_read", "bytes/s", 0.3),
        Ceiling("l2_latency", "s", 0.3),
        Ceiling("dram_latency", "s", 0.4),
        Ceiling("tensor_bf16", "flop/s", 1.3, "bf16"),
        Ceiling("launch_graph", "s", 0.2),
        Ceiling("launch_eager", "s", 0.2),
        Ceiling("host_launch", "s", 0.2),
        Ceiling("tensor_fp8", "flop/s", 1.3, "fp8"),
        Ceiling("tensor_fp16", "flop/s", 1.3, "fp16"),
        Ceiling("exp", "1/s", 0.3),
        Ceiling("pcie_to_device", "bytes/s", 0.5),
        Ceiling("pcie_to_host", "bytes/s", 0.5),
        Ceiling("tensor_int8", "flop/s", 1.3, "int8"),
        Ceiling("tensor_tf32", "flop/s", 1.3, "tf32"),
    )
}
"""In order of value."""


def ceilings_of(gpu: GpuSpec) -> list[Ceiling]:
    """Those that this GPU can have."""
    return [c for c in CEILINGS.values() if not c.rate or c.rate in gpu.tensor_flops]


def measure(name: str) -> dict[str, Any]:
    """Value, unit, spread and repetitions of one ceiling on the current device; of a tensor rate also what is sustained."""
    value, timing, *more = _BENCHMARKS[name]()
    sustained = {"sustained": more[0]} if more else {}
    found = {"value": value, "unit": CEILINGS[name].unit, "spread": timing.spread, "reps": timing.reps, "unstable": timing.unstable}
    return found | sustained


def _timed(call: Call, *, reps: int, warm: int = 2) -> Timing:
    """Microseconds of each call, by events, after `warm` untimed ones."""
    import torch

    for _ in range(warm):
        call()
    event: Any = torch.cuda.Event
    marks = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(reps)]
    torch.cuda.synchronize()
    for start, end in marks:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return summarise([float(start.elapsed_time(end)) * 1e3 for start, end in marks], finalist=True, policy=Policy())


def _rate(amount: float, timing: Timing) -> tuple[float, Timing]:
    return amount / (timing.latency_us * 1e-6), timing


def _random_bytes(size: int) -> Any:
    """A buffer that no compression helps with."""
    import torch

    return torch.randint(-(2**31), 2**31 - 1, (size // 4,), dtype=torch.int32, device="cuda")


def _stream_bytes() -> int:
    import torch

    free, _ = torch.cuda.mem_get_info()
    return int(min(STREAM_BYTES, free // 4)) // 2**20 * 2**20


def _dram_copy() -> tuple[float, Timing]:
    import torch

    source = _random_bytes(_stream_bytes())
    target = torch.empty_like(source)
    return _rate(2.0 * source.numel() * 4, _timed(lambda: target.copy_(source), reps=15))


def _dram_write() -> tuple[float, Timing]:
    import torch

    target = torch.empty(_stream_bytes() // 4, dtype=torch.int32, device="cuda")
    return _rate(float(target.numel() * 4), _timed(lambda: target.fill_(1234567), reps=15))


def _reader(size: int, passes: int) -> tuple[float, Call]:
    """(bytes that one call reads, the call): all SMs together read a buffer of `size` bytes `passes` times."""
    import torch

    from perfmodel.measure.kernels.probes import read_kernel

    programs = 8 * torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    rounds = max(1, size // (4 * READ_BLOCK * programs))
    source = _random_bytes(rounds * programs * READ_BLOCK * 4)
    out = torch.empty(programs, dtype=torch.int32, device="cuda")
    launch = read_kernel[(programs,)]
    return float(source.numel() * 4 * passes), lambda: launch(source, out, rounds, passes, 9, BLOCK=READ_BLOCK, num_warps=8)


def _dram_read() -> tuple[float, Timing]:
    amount, call = _reader(_stream_bytes(), 1)
    return _rate(amount, _timed(call, reps=15))


def _l2_read() -> tuple[float, Timing]:
    import torch

    cache = int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
    amount, call = _reader(cache // 4, 64)  # a quarter: what the near half of a two-part L2 holds beside its copies
    return _rate(amount, _timed(call, reps=15))


def _chase(size: int, steps: int) -> tuple[float, Timing]:
    """Seconds a dependent load along a random cycle over `size` bytes, one link a cache line, past L1."""
    import torch

    from perfmodel.measure.kernels.probes import chase_kernel

    links, stride = size // LINE_BYTES, LINE_BYTES // 4
    order = torch.randperm(links, device="cuda") * stride
    chain = torch.zeros(links * stride, dtype=torch.int32, device="cuda")
    chain[order] = order.roll(-1).to(torch.int32)
    place = torch.zeros(1, dtype=torch.int32, device="cuda")
    launch = chase_kernel[(1,)]
    if links <= steps:  # what fits in the L2 is visited once before it is timed; what does not is new at every step
        launch(chain, place, links, num_warps=1)
    timing = _timed(lambda: launch(chain, place, steps, num_warps=1), reps=5)
    return timing.latency_us * 1e-6 / steps, timing


def _exp() -> tuple[float, Timing]:
    import torch

    from perfmodel.measure.kernels.probes import exp_kernel

    programs = 8 * torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    out = torch.empty(programs, dtype=torch.float32, device="cuda")
    launch = exp_kernel[(programs,)]
    timing = _timed(lambda: launch(out, EXP_STEPS, BLOCK=EXP_BLOCK, num_warps=4), reps=9)
    return _rate(float(programs) * EXP_BLOCK * EXP_STEPS, timing)


def _product(dtype: str) -> Call:
    """A square product of random operands in one type."""
    import torch

    from perfmodel.measure.kernels import gemm

    if dtype == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
        a, b = (torch.randn(SIDE, SIDE, device="cuda") for _ in range(2))
        out = torch.empty_like(a)
        return lambda: torch.matmul(a, b.T, out=out)
    prepared = gemm.cublas(gemm.make_inputs({"m": SIDE, "n": SIDE, "k": SIDE, "dtype": dtype}, "cuda", 0))
    return prepared.run


def _tensor(dtype: str) -> tuple[float, Timing, float]:
    """(flop/s of BURST products after a rest, their timing, flop/s over the second half of SUSTAIN_S of them back to back).

    A short benchmark sees the first, at full clocks; power allows the last for long.
    """
    import torch

    call = _product(dtype)
    _timed(call, reps=1)
    time.sleep(REST_S)
    short = _timed(call, reps=BURST, warm=3)
    batch = max(1, round(0.01 / (short.latency_us * 1e-6)))
    event: Any = torch.cuda.Event
    marks = [event(enable_timing=True)]
    began = time.perf_counter()
    marks[0].record()
    while time.perf_counter() - began < SUSTAIN_S:
        for _ in range(batch):
            call()
        marks.append(event(enable_timing=True))
        marks[-1].record()
        if len(marks) > 3:
            marks[-3].synchronize()  # the host stays a little ahead and no more
    torch.cuda.synchronize()
    torch.backends.cuda.matmul.allow_tf32 = False
    each = [float(a.elapsed_time(b)) * 1e3 / batch for a, b in itertools.pairwise(marks)]
    long = summarise(each[len(each) // 2 :], finalist=True, policy=Policy())
    return 2.0 * SIDE**3 / (short.latency_us * 1e-6), short, 2.0 * SIDE**3 / (long.latency_us * 1e-6)


def _empty() -> Call:
    import torch

    from perfmodel.measure.kernels.probes import empty_kernel

    out, launch = torch.zeros(1, device="cuda"), empty_kernel[(1,)]
    return lambda: launch(out, num_warps=1)


def _launch_graph() -> tuple[float, Timing]:
    import torch

    call = _empty()
    call()
    new_stream: Any = torch.cuda.Stream
    graph, stream = torch.cuda.CUDAGraph(), new_stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        for _ in range(LAUNCHES):
            call()
        graph.capture_end()
    timing = _timed(graph.replay, reps=9)
    return timing.latency_us * 1e-6 / LAUNCHES, timing


def _launch_eager() -> tuple[float, Timing]:
    """Device seconds a launch of a framework's smallest kernel, call by call: its floor or the host's pace."""
    import torch

    x = torch.zeros(1, device="cuda")

    def calls() -> None:
        for _ in range(LAUNCHES):
            x.add_(1.0)

    timing = _timed(calls, reps=9)
    return timing.latency_us * 1e-6 / LAUNCHES, timing


def _host_launch() -> tuple[float, Timing]:
    """Host seconds a call that launches one kernel, while the device is behind."""
    import torch

    x = torch.zeros(1, device="cuda")
    found = []
    for _ in range(9):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(LAUNCHES):
            x.add_(1.0)
        found.append((time.perf_counter() - began) * 1e6)
    torch.cuda.synchronize()
    timing = summarise(found, finalist=True, policy=Policy())
    return statistics.median(found) * 1e-6 / LAUNCHES, timing


def _pcie(to_device: bool) -> tuple[float, Timing]:
    import torch

    host = torch.empty(2**28, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    call = (lambda: device.copy_(host, non_blocking=True)) if to_device else (lambda: host.copy_(device, non_blocking=True))
    return _rate(2.0**28, _timed(call, reps=5))


_BENCHMARKS: Mapping[str, Callable[[], tuple[Any, ...]]] = {
    "dram_copy": _dram_copy,
    "dram_read": _dram_read,
    "dram_write": _dram_write,
    "l2_read": _l2_read,
    "l2_latency": lambda: _chase(2**21, 20_000),
    "dram_latency": lambda: _chase(2**29, 20_000),
    "tensor_bf16": lambda: _tensor("bf16"),
    "tensor_fp8": lambda: _tensor("fp8"),
    "tensor_fp16": lambda: _tensor("fp16"),
    "tensor_int8": lambda: _tensor("int8"),
    "tensor_tf32": lambda: _tensor("tf32"),
    "launch_graph": _launch_graph,
    "launch_eager": _launch_eager,
    "host_launch": _host_launch,
    "exp": _exp,
    "pcie_to_device": lambda: _pcie(True),
    "pcie_to_host": lambda: _pcie(False),
}
