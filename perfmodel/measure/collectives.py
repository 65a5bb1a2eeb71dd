"""Time collectives of torch.distributed on the machines at hand, as rows that calibration reads.

    torchrun --nproc-per-node 8 -m perfmodel.measure.collectives --out rows.jsonl

Run it once per number of GPUs (and with torchrun's --nnodes for several machines). Backend nccl on GPUs, gloo on a CPU. Each size is
timed launched call by call (eager, stack torch) and, on a GPU, replayed from a CUDA graph (stack torch_graph). Nothing of NCCL's
environment is set or cleared here: what runs is what your jobs run, and NVLink multicast stays as the machine's owner has it.
Timing starts behind untimed calls on the same stream: they bring the ranks into step, and what the host queues meanwhile costs nothing.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.errors import InputError, NoAnswerError
from perfmodel.measure.ranks import rank_here, together
from perfmodel.measure.rows import Appender, read
from perfmodel.ops.collective import KINDS, bus_factor, collective_kind

SMALLEST_BYTES, LARGEST_BYTES = 256, 2**30
DTYPES = {"bf16": ("bfloat16", 2), "fp16": ("float16", 2), "fp32": ("float32", 4), "int8": ("int8", 1)}
MODES = ("eager", "graph")
PATHS = {"PIX": "pcie_switch", "PXB": "pcie_switch", "PHB": "pcie_root", "NODE": "pcie_root", "SYS": "pcie_sockets"}
TIMEOUT_S = 120
TIMING = "aligned, sum"  # how a row was timed; rows of before ("cold, max") start at a host barrier and reduce by maximum


@dataclass(frozen=True, slots=True)
class Plan:
    """What to time: kinds, message sizes (bytes), modes, element type, calls a timing (`batch`, fewer for large messages), timings."""

    kinds: tuple[str, ...] = KINDS
    sizes: tuple[int, ...] = tuple(2**p for p in range(8, 31))
    modes: tuple[str, ...] = MODES
    dtype: str = "bf16"
    batch: int = 20
    repeats: int = 5
    warmup: int = 5

    def left(self, device: str, rows: Iterable[Mapping[str, Any]] = ()) -> list[tuple[str, str, int]]:
        """(kind, mode, bytes) in order, those without a row in `rows`; graphs only on a GPU."""
        known = {(r.get("kind"), r.get("mode"), r.get("message_bytes")) for r in rows}
        modes = [m for m in self.modes if device == "cuda" or m != "graph"]
        every = [(kind, mode, size) for kind in self.kinds for mode in modes for size in self.sizes]
        return [point for point in every if point not in known]


def sizes_between(low: int, high: int) -> tuple[int, ...]:
    """Powers of two from `low` to `high` bytes; raises InputError outside 256 B to 1 GiB."""
    if not SMALLEST_BYTES <= low <= high <= LARGEST_BYTES:
        raise InputError(f"sizes {low} to {high} bytes: must rise and lie from {SMALLEST_BYTES} to {LARGEST_BYTES}")
    return tuple(2**p for p in range((low - 1).bit_length(), high.bit_length()) if low <= 2**p <= high)


def batch_for(message_bytes: int, batch: int) -> int:
    """Calls in one timing: `batch` for small messages, down to 2 where one call lasts milliseconds."""
    return max(2, min(batch, batch * 2**24 // message_bytes))


def classify(matrix: str, gpus: Sequence[int]) -> str:
    """Path between the GPUs, from the text of `nvidia-smi topo -m`: the worst pair decides; "unknown" where the text does not say.

    All pairs on NVLink are an nvswitch (two GPUs: either, named nvswitch); NVLink on some pairs only is an nvlink_pair host.
    """
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).split("\t") for line in matrix.splitlines()]
    header = next((line for line in lines if any(cell.strip() == "GPU0" for cell in line) and line[0].strip() != "GPU0"), [])
    names = [cell.strip() for cell in header]
    table = {line[0].strip(): [cell.strip() for cell in line] for line in lines if line[0].strip().startswith("GPU")}
    labels = set()
    for a in gpus:
        for b in gpus:
            row = table.get(f"GPU{a}", [])
            if a == b:
                continue
            if f"GPU{b}" not in names or names.index(f"GPU{b}") >= len(row):
                return "unknown"
            labels.add(row[names.index(f"GPU{b}")])
    linked = {x for x in labels if x.startswith("NV")}
    if not labels or not labels <= linked | set(PATHS):
        return "unknown"
    if linked == labels:
        return "nvswitch"
    return "nvlink_pair" if linked else max((PATHS[x] for x in labels), key=list(PATHS.values()).index)


def environment(device: str, gpus: Sequence[int]) -> dict[str, Any]:
    """Device, path between the GPUs and versions: what tells two runs apart. The machine's name is nobody's business."""
    import torch

    found: dict[str, Any] = {
        "device": platform.processor() or platform.machine(),
        "topology": "loopback",
        "torch": torch.__version__,
        "timing": TIMING,
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    if device == "cuda":
        nccl: Any = torch.cuda.nccl
        found |= {
            "device": torch.cuda.get_device_name(),
            "version": ".".join(map(str, nccl.version())),
            "cuda": torch.version.cuda,
            "topology": _topology(gpus),
        }
    return found


def _topology(gpus: Sequence[int]) -> str:
    try:
        text = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return classify(text, gpus)


def _call(kind: str, message_bytes: int, world: int, rank: int, dtype: str, device: str) -> Callable[[], Any]:
    """One call of a collective on buffers of its own; raises InputError where the message does not divide over the ranks."""
    import torch
    import torch.distributed as dist

    name, width = DTYPES[dtype]
    count = message_bytes // width
    if message_bytes % width or (kind in ("all_gather", "reduce_scatter", "all_to_all") and count % world):
        raise InputError(f"{message_bytes} bytes do not divide into {world} equal parts of {dtype}")
    full = torch.zeros(count, dtype=getattr(torch, name), device=device)  # zeros: repeated sums do not overflow
    if kind == "all_reduce":
        return lambda: dist.all_reduce(full)  # a sum: NCCL has no kernel of its own for other reductions, and small ones take longer
    if kind == "broadcast":
        return lambda: dist.broadcast(full, src=0)
    if kind == "p2p":
        if rank > 1:
            return lambda: None
        return (lambda: dist.send(full, 1)) if rank == 0 else (lambda: dist.recv(full, 0))
    other = torch.empty_like(full)
    part = torch.zeros(count // world, dtype=full.dtype, device=device)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(full, part)
    if kind == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, full)
    return lambda: dist.all_to_all_single(other, full)


def _timings(call: Callable[[], Any], mode: str, calls: int, plan: Plan, device: str) -> tuple[list[float], list[float]]:
    """Microseconds a call, one value a timing, on this rank: `calls` back to back behind as many untimed ones (one, where eager).

    The second list is what the host took to launch one of them.
    """
    import torch
    import torch.distributed as dist

    event: Any = torch.cuda.Event
    for _ in range(plan.warmup):
        call()
    run: Callable[[], Any] = lambda: [call() for _ in range(calls)]  # noqa: E731
    if mode == "graph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        graph.replay()
        run = graph.replay
    found, host = [], []
    for _ in range(plan.repeats):
        dist.barrier()
        if device == "cuda":
            torch.cuda.synchronize()
            begin, end = event(enable_timing=True), event(enable_timing=True)
            if mode == "graph":
                run()  # ranks arrive apart, and a graph takes the host tens of microseconds to launch: this one hides both
            else:
                call()
            begin.record()
            start = time.perf_counter()
            run()
            host.append((time.perf_counter() - start) * 1e6 / calls)
            end.record()
            torch.cuda.synchronize()
            found.append(begin.elapsed_time(end) * 1e3 / calls)
        else:
            start = time.perf_counter()
            run()
            found.append((time.perf_counter() - start) * 1e6 / calls)
            host.append(found[-1])
    return found, host


def time_one(kind: str, message_bytes: int, mode: str, plan: Plan, device: str) -> dict[str, Any]:
    """One row, the same on every rank: each timing is that of the slowest rank; latency_us is their median. A failure is a row too.

    On a GPU, eager rows also have host_us: what the slowest rank's host takes to launch a call. Where it is latency_us, the host decides.
    """
    import torch
    import torch.distributed as dist

    world, rank = dist.get_world_size(), dist.get_rank()
    calls = batch_for(message_bytes, plan.batch)
    reason = ""
    values, host = [0.0] * plan.repeats, [0.0] * plan.repeats
    try:
        values, host = _timings(_call(kind, message_bytes, world, rank, plan.dtype, device), mode, calls, plan, device)
    except InputError as error:
        reason = str(error)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0] if lines else ''}"
    shared = torch.tensor([*values, *host, 1.0 if reason else 0.0], dtype=torch.float64, device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    *both, failed = shared.tolist()
    slowest, launching = both[: plan.repeats], both[plan.repeats :]
    row: dict[str, Any] = {"kind": kind, "message_bytes": message_bytes, "n_gpus": world, "dtype": plan.dtype, "mode": mode}
    if failed:
        return {**row, "status": "failed", "reason": reason or "failed on another rank"}
    latency = statistics.median(slowest)
    bus = float(bus_factor(kind, world)) * message_bytes / (latency * 1e-6)
    row |= {"status": "ok", "latency_us": latency, "min_us": min(slowest), "bus_bytes_per_s": bus, "calls": calls}
    return row | ({"host_us": statistics.median(launching)} if device == "cuda" and mode == "eager" else {})


def sweep(plan: Plan, device: str, known: Iterable[Mapping[str, Any]] = ()) -> Iterator[dict[str, Any]]:
    """Rows of the plan that are not `known`, in the same order on every rank."""
    for kind, mode, message_bytes in plan.left(device, known):
        yield time_one(kind, message_bytes, mode, plan, device)


def run(out: Path, plan: Plan, *, resume: bool = False) -> int:
    """Time the plan in a process started by torchrun; rank 0 appends rows to `out`. Returns the number of rows that are ok.

    With `resume` what rank 0 finds in `out` is not timed again, and counts; without, a second run adds rows to the first.
    Raises NoAnswerError outside torchrun or with fewer than two processes.
    """
    import torch
    import torch.distributed as dist

    if (me := rank_here()) is None:
        raise NoAnswerError(
            "start this with torchrun and two processes or more: torchrun --nproc-per-node 2 -m perfmodel.measure.collectives"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", me.ranks))
    if device == "cuda":
        torch.cuda.set_device(me.local)
    done = 0
    with together(TIMEOUT_S):
        first = me.rank == 0
        nodes = me.ranks // local_world
        shared = {**environment(device, _visible(local_world)), "nodes": nodes, "stack": "torch" if device == "cuda" else "gloo"}
        stored: list[Any] = [read(out) if first and resume else []]
        dist.broadcast_object_list(stored, src=0)
        done = sum(row.get("status") == "ok" for row in stored[0])
        writer = Appender(out) if first else None
        for row in sweep(plan, device, stored[0]):
            done += row["status"] == "ok"
            if writer is not None:
                stack = "torch_graph" if row["mode"] == "graph" else shared["stack"]
                writer.add({**row, **shared, "stack": stack})
        if writer is not None:
            writer.close()
    return done


def _visible(count: int) -> list[int]:
    names = [x for x in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if x.strip().isdigit()]
    return [int(x) for x in names[:count]] if names else list(range(count))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line under torchrun; 0 when at least one row is ok, 1 when none is, 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="perfmodel.measure.collectives", description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else ""
    )
    parser.add_argument("--out", type=Path, required=True, help="JSONL file to append to")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    parser.add_argument("--min-bytes", type=int, default=SMALLEST_BYTES)
    parser.add_argument("--max-bytes", type=int, default=LARGEST_BYTES)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--resume", action="store_true", help="go on with what is in --out; without, a second run adds to it")
    given = parser.parse_args(argv)
    try:
        kinds = tuple(collective_kind(k) for k in given.kinds)
        plan = Plan(kinds, sizes_between(given.min_bytes, given.max_bytes), tuple(given.modes), given.dtype, given.batch, given.repeats)
        return 0 if run(given.out, plan, resume=given.resume) else 1
    except (InputError, NoAnswerError) as error:
        parser.exit(error.exit_code, f"perfmodel: {error}\n")


if __name__ == "__main__":
    raise SystemExit(main())
