"""The timing protocol: how many repetitions a kernel gets, and when it has earned more.

One repetition is: overwrite a buffer of at least twice the L2 (so the kernel starts cold), event, kernel, event. All
repetitions of a batch are queued before the host waits, and a repetition whose kernel the device reached before the host had
queued it is thrown away: such a one would carry the host's delay. See DESIGN: a late host made 2-4 % of small rows wrong by 2-4x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.hw import nvml

Sample = Callable[[int], Sequence[float]]
"""Times a kernel cold the given number of times; microseconds each."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When to stop repeating. Ratios are of the fastest repetition to the best median so far.

    A kernel over `hopeless` times the best is left after `reps_first` repetitions, one over `poor` after `reps_second`, and one
    within `finalist` gets `reps_final`; the rest get `reps_middle`. `budget_us` bounds the device time of one kernel, never
    below `reps_floor` repetitions of a finalist. A spread (interquartile range over median) above `unstable` is flagged.
    """

    reps_first: int = 1
    reps_second: int = 3
    reps_middle: int = 7
    reps_final: int = 25
    reps_floor: int = 20
    hopeless: float = 4.0
    poor: float = 1.5
    finalist: float = 1.15
    unstable: float = 0.05
    budget_us: float = 400_000.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Latency of one kernel, microseconds: median and minimum, spread = interquartile range / median, and repetitions."""

    latency_us: float
    min_us: float
    spread: float
    reps: int
    finalist: bool
    unstable: bool


def summarise(samples: Sequence[float], *, finalist: bool, policy: Policy) -> Timing:
    """Median, minimum and spread of cold repetitions (microseconds)."""
    values = np.asarray(samples, dtype=float)
    low, median, high = np.percentile(values, (25, 50, 75))
    spread = float((high - low) / median) if median > 0 else math.inf
    return Timing(float(median), float(values.min()), spread, len(values), finalist, len(values) > 2 and spread > policy.unstable)


def time_cold(sample: Sample, *, best_us: float = math.inf, policy: Policy | None = None) -> Timing:
    """Time one kernel with as many repetitions as it deserves beside the best one so far.

    Early stops look at the minimum, which a disturbance cannot lower.
    """
    policy = policy or Policy()
    samples = list(sample(policy.reps_first))
    if min(samples) > policy.hopeless * best_us:
        return summarise(samples, finalist=False, policy=policy)
    samples += sample(max(1, policy.reps_second - len(samples)))
    if min(samples) > policy.poor * best_us:
        return summarise(samples, finalist=False, policy=policy)
    allowed = max(policy.reps_floor, int(policy.budget_us / max(min(samples), 1e-3)))
    samples += sample(max(1, min(policy.reps_middle, allowed) - len(samples)))
    if min(samples) > policy.finalist * best_us:
        return summarise(samples, finalist=False, policy=policy)
    wanted = min(policy.reps_final, allowed) - len(samples)
    if wanted > 0:
        samples += sample(wanted)
    return summarise(samples, finalist=True, policy=policy)


class CudaMeter:
    """Makes cold samples on the current CUDA device."""

    def __init__(self, *, flush_factor: float = 2.0, lead_us: float = 200.0, max_lead_us: float = 3000.0) -> None:
        import torch

        self._torch = torch
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.l2_bytes = int(properties.L2_cache_size)
        size = max(int(self.l2_bytes * flush_factor), 1 << 25)
        self._buffer = torch.empty(size // 4, dtype=torch.int32, device="cuda")
        self._max_lead_us = max_lead_us
        self.late = 0
        self._flush_us = self._measure_flush()
        self._flushes = self._least = max(1, math.ceil(lead_us / self._flush_us))

    def _measure_flush(self) -> float:
        torch = self._torch
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(3):
            self._buffer.zero_()
        start.record()
        for _ in range(10):
            self._buffer.zero_()
        end.record()
        torch.cuda.synchronize()
        return max(float(start.elapsed_time(end)) * 100.0, 1.0)

    def sampler(self, run: Callable[[], object]) -> Sample:
        """The sample function of one ready kernel."""
        return lambda reps: self.sample(run, reps)

    def sample(self, run: Callable[[], object], reps: int) -> list[float]:
        """Time `run` cold `reps` times, microseconds; repeats what the host queued too late, with a longer lead.

        A lead that was long enough is shortened again, so that one slow moment of the host does not slow the rest.
        """
        kept: list[float] = []
        for attempt in range(6):
            kept += self._batch(run, reps - len(kept))
            if len(kept) >= reps:
                if attempt == 0:
                    self._flushes = max(self._least, self._flushes * 3 // 4)
                return kept
            if self._flushes * self._flush_us < self._max_lead_us:
                self._flushes *= 2
        if not kept:
            raise RuntimeError("the host never queued a launch in time; is the machine overloaded?")
        return kept

    def _batch(self, run: Callable[[], object], reps: int) -> list[float]:
        torch = self._torch
        marks = []
        for _ in range(3):  # a head start for the host
            self._buffer.zero_()
        for _ in range(reps):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            for _ in range(self._flushes):
                self._buffer.zero_()
            start.record()
            run()
            end.record()
            marks.append((start, end, not start.query()))
        torch.cuda.synchronize()
        kept = [float(start.elapsed_time(end)) * 1e3 for start, end, in_time in marks if in_time]
        self.late += reps - len(kept)
        return kept


def device_state() -> dict[str, object]:
    """Name, driver, clock_mhz, power_w and other_processes of the current CUDA device; what cannot be read is None."""
    import torch

    index = torch.cuda.current_device()
    facts = torch.cuda.get_device_properties(index)
    state: dict[str, object] = dict.fromkeys(("gpu", "driver", "clock_mhz", "power_w", "other_processes"))
    state["gpu"] = facts.name
    uuid = getattr(facts, "uuid", None)
    if (ask := nvml.device(f"GPU-{uuid}" if uuid else None, index)) is None:
        _from_command(state, index)
        return state
    power_mw, processes = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetComputeRunningProcesses")
    state["driver"], state["clock_mhz"] = nvml.driver_version(), ask("nvmlDeviceGetClockInfo", 1)
    state["power_w"] = None if power_mw is None else power_mw / 1e3
    state["other_processes"] = None if processes is None else max(0, len(processes) - 1)
    return state


def _from_command(state: dict[str, object], index: int) -> None:
    import subprocess

    query = ["nvidia-smi", f"--id={index}", "--query-gpu=driver_version,clocks.sm,power.draw", "--format=csv,noheader,nounits"]
    try:
        fields = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout.strip().split(", ")
        state["driver"], state["clock_mhz"], state["power_w"] = fields[0], int(fields[1]), float(fields[2])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return
