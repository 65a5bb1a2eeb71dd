"""State of a GPU while it is measured: clocks, power, heat, throttling, other processes, ECC; and what of it makes a timing doubtful.

Read through NVML where nvidia-ml-py is installed, else from one `nvidia-smi` that keeps printing; what neither says is None.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from perfmodel.hw import nvml

CLOCK_SHARE = 0.95  # of the highest clock: a card that is neither busy nor hot and stays below it was capped by somebody
HOT_C = 88.0
MANY_SHAKY = 0.1  # share of rows with a spread above 5 %: a few of the shortest kernels always have one, and each row says so itself
_PERIOD_S = 0.2
_REASONS = {  # bits of nvmlClocksEventReasons (NVML reference manual)
    0x002: "clocks set by an application",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "power brake",
}
_BAD = frozenset({"hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake"})
_QUERY = (
    "clocks.sm", "clocks.max.sm", "power.draw", "power.limit", "power.default_limit", "temperature.gpu",
    "ecc.errors.uncorrected.volatile.total",
)  # fmt: skip
_EVENTS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # the name since driver 535, and before


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a GPU: seconds since the epoch, SM clock and its maximum (MHz), power, its limit and the default one (W), heat (C)."""

    time_s: float
    clock_mhz: float | None = None
    max_clock_mhz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    temperature_c: float | None = None
    ecc_uncorrected: int | None = None
    reasons: tuple[str, ...] = ()
    other_processes: int | None = None

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Sample:
        """What `as_row` wrote; other fields are ignored."""
        known = {name: row[name] for name in cls.__dataclass_fields__ if name in row}
        reasons = row.get("reasons") or ()
        return cls(**{**known, "reasons": tuple(reasons.split("; ") if isinstance(reasons, str) else reasons)})

    def as_row(self) -> dict[str, Any]:
        """For a JSON line."""
        return {**asdict(self), "reasons": list(self.reasons)}


def reasons_of(bits: int) -> tuple[str, ...]:
    """Names of the set bits that slow a clock; idle and display are not among them."""
    return tuple(name for bit, name in _REASONS.items() if bits & bit)


class Monitor:
    """Samples one GPU five times a second in the background, from `with` to its end. `read` replaces the reader, for tests.

    `own` gives the processes that are ours, so that the others can be counted.
    """

    def __init__(self, uuid: str, own: Callable[[], set[int]] = set, read: Callable[[], Sample | None] | None = None) -> None:
        self._uuid, self._own, self._read = uuid, own, read
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._child: subprocess.Popen[str] | None = None
        self.samples: list[Sample] = []

    def __enter__(self) -> Monitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._child is not None:
            self._child.kill()
        self._thread.join(5.0)

    def during(self, start_s: float, end_s: float) -> list[Sample]:
        """Samples between two wall times; the latest before the end where none falls between."""
        seen = [s for s in list(self.samples) if s.time_s <= end_s]
        inside = [s for s in seen if s.time_s >= start_s]
        return inside or seen[-1:]

    def _watch(self) -> None:
        read = self._read or _nvml_reader(self._uuid, self._own)
        if read is None:
            self._follow_command()
            return
        while not self._stop.wait(_PERIOD_S):
            with contextlib.suppress(Exception):  # a lost sample must not stop a measurement
                if (sample := read()) is not None:
                    self.samples.append(sample)

    def _follow_command(self) -> None:
        for events in _EVENTS:
            query = ",".join((*_QUERY, events))
            command = ["nvidia-smi", f"--id={self._uuid}", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-lms", "200"]
            try:
                self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            except OSError:
                return
            others = count_others(self._uuid, self._own())
            for line in self._child.stdout or ():
                if self._stop.is_set():
                    return
                if (sample := parse_line(line, time.time(), others)) is not None:
                    self.samples.append(sample)
                    if len(self.samples) % 50 == 0:
                        others = count_others(self._uuid, self._own())
            if self._stop.is_set() or self.samples:
                return


def parse_line(line: str, time_s: float, others: int | None = None) -> Sample | None:
    """One line of nvidia-smi's CSV; a field it does not know is None, a line that is no such CSV gives None."""
    fields = [f.strip() for f in line.split(",")]
    if len(fields) != len(_QUERY) + 1:
        return None

    def number(text: str) -> float | None:
        try:
            return float(text)
        except ValueError:
            return None

    clock, top, power, limit, default, heat, ecc = (number(f) for f in fields[:-1])
    try:
        bits = int(fields[-1], 16)
    except ValueError:
        bits = 0
    errors = None if ecc is None else int(ecc)
    return Sample(time_s, clock, top, power, limit, default, heat, errors, reasons_of(bits), others)


def _nvml_reader(uuid: str, own: Callable[[], set[int]]) -> Callable[[], Sample] | None:
    if (ask := nvml.device(uuid)) is None:
        return None  # the command may still answer

    def watts(value: Any) -> float | None:
        return None if value is None else value / 1e3

    def read() -> Sample:
        bits = ask("nvmlDeviceGetCurrentClocksEventReasons") or ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        processes = ask("nvmlDeviceGetComputeRunningProcesses")
        return Sample(
            time.time(),
            ask("nvmlDeviceGetClockInfo", 1),
            ask("nvmlDeviceGetMaxClockInfo", 1),
            watts(ask("nvmlDeviceGetPowerUsage")),
            watts(ask("nvmlDeviceGetEnforcedPowerLimit")),
            watts(ask("nvmlDeviceGetPowerManagementDefaultLimit")),
            ask("nvmlDeviceGetTemperature", 0),
            ask("nvmlDeviceGetTotalEccErrors", 1, 0),
            reasons_of(int(bits)),
            None if processes is None else _others({int(p.pid) for p in processes}, own()),
        )

    return read


def count_others(uuid: str, own: set[int]) -> int | None:
    """Compute processes on the GPU that are not `own`, by nvidia-smi; None where it does not say."""
    command = ["nvidia-smi", f"--id={uuid}", "--query-compute-apps=pid", "--format=csv,noheader"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return _others({int(p) for p in text.split()}, own)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _others(seen: set[int], own: set[int]) -> int:
    """In a container the driver may report pids of another namespace: then none of ours is among them, and one is ours unseen."""
    left = seen - own
    return max(0, len(left) - 1) if left == seen and any(not os.path.exists(f"/proc/{p}") for p in left) else len(left)


def averages(samples: Sequence[Sample]) -> dict[str, Any]:
    """What a row keeps of the samples taken during it: mean clock (MHz) and power (W), all throttle reasons, most other processes."""

    def mean(name: str) -> float | None:
        known = [v for s in samples if (v := getattr(s, name)) is not None]
        return round(sum(known) / len(known), 1) if known else None

    others = [s.other_processes for s in samples if s.other_processes is not None]
    return {
        "clock_mhz": mean("clock_mhz"),
        "power_w": mean("power_w"),
        "temperature_c": mean("temperature_c"),
        "reasons": sorted({r for s in samples for r in s.reasons}),
        "other_processes": max(others, default=None),
    }


def bad_state(samples: Sequence[Sample], rows: Iterable[Mapping[str, Any]] = ()) -> list[str]:
    """What makes timings doubtful, one line each: capped clocks or power, throttling, heat, other processes, ECC errors, unsteady rows.

    A power cap under heavy arithmetic is how a card works and no complaint.
    """
    found = []
    throttled = {r: sum(r in s.reasons for s in samples) for r in _BAD}
    for reason, count in sorted(throttled.items()):
        if count:
            found.append(f"{reason} in {100 * count / len(samples):.0f} % of the run")
    clocks = [(s.clock_mhz, s.max_clock_mhz) for s in samples if s.clock_mhz and s.max_clock_mhz]
    if clocks and max(c for c, _ in clocks) < CLOCK_SHARE * clocks[0][1]:
        found.append(f"clocks capped: never above {max(c for c, _ in clocks):.0f} MHz of {clocks[0][1]:.0f}")
    limits = [(s.power_limit_w, s.power_default_w) for s in samples if s.power_limit_w and s.power_default_w]
    if limits and limits[-1][0] < 0.99 * limits[-1][1]:
        found.append(f"power limit lowered to {limits[-1][0]:.0f} W of {limits[-1][1]:.0f}")
    if (heat := max((s.temperature_c or 0.0 for s in samples), default=0.0)) > HOT_C:
        found.append(f"hot: {heat:.0f} C")
    if (others := max((s.other_processes or 0 for s in samples), default=0)) > 0:
        found.append(f"{others} other process{'es' if others > 1 else ''} on the GPU")
    ecc = [s.ecc_uncorrected for s in samples if s.ecc_uncorrected is not None]
    if ecc and ecc[-1] > 0:
        found.append(f"{ecc[-1]} uncorrected ECC errors since the driver was loaded")
    rows = [r for r in rows if r.get("status") == "ok"]
    shaky = [r for r in rows if r.get("unstable")]
    if len(shaky) > MANY_SHAKY * len(rows):
        found.append(f"spread above 5 % in {len(shaky)} of {len(rows)} rows")
    return found
