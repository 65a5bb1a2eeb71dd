"""The timing protocol with fake kernels: how many repetitions each deserves, late hosts, and what counts as unstable."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from perfmodel.measure.timing import CudaMeter, Policy, summarise, time_cold


class Fake:
    """Hands out the given latencies, the last one for ever, and notes how many were asked for each time."""

    def __init__(self, *latencies_us: float) -> None:
        self.latencies_us, self.asked = list(latencies_us), list[int]()

    def __call__(self, reps: int) -> Sequence[float]:
        start = sum(self.asked)
        self.asked.append(reps)
        return [self.latencies_us[min(i, len(self.latencies_us) - 1)] for i in range(start, start + reps)]


@pytest.mark.parametrize(
    ("latency_us", "best_us", "reps", "finalist"),
    [
        (100.0, math.inf, 25, True),  # the first kernel of a problem
        (100.0, 100.0, 25, True),
        (114.0, 100.0, 25, True),
        (116.0, 100.0, 7, False),
        (149.0, 100.0, 7, False),
        (151.0, 100.0, 3, False),
        (399.0, 100.0, 3, False),
        (401.0, 100.0, 1, False),
    ],
)
def test_repetitions_follow_the_distance_to_the_best(latency_us: float, best_us: float, reps: int, finalist: bool) -> None:
    sample = Fake(latency_us)
    timing = time_cold(sample, best_us=best_us)
    assert (timing.reps, timing.finalist, timing.latency_us) == (reps, finalist, latency_us)
    assert sum(sample.asked) == reps


def test_a_disturbed_first_repetition_does_not_condemn_a_good_kernel() -> None:
    assert time_cold(Fake(390.0, 101.0), best_us=100.0).reps == 25  # the minimum decides
    assert time_cold(Fake(401.0, 101.0), best_us=100.0).reps == 1  # four times the best is beyond any disturbance worth a second look


def test_long_kernels_get_fewer_repetitions_but_never_below_the_floor() -> None:
    assert time_cold(Fake(17_000.0)).reps == 400_000 // 17_000
    assert time_cold(Fake(1e6)).reps == 20
    few = Policy(reps_floor=5, budget_us=100.0)
    assert time_cold(Fake(1e6), policy=few).reps == 5
    assert time_cold(Fake(0.0)).reps == 25  # below the clock's resolution


def test_median_minimum_and_spread() -> None:
    timing = summarise([10.0, 20.0, 30.0, 40.0, 50.0], finalist=False, policy=Policy())
    assert (timing.latency_us, timing.min_us, timing.reps) == (30.0, 10.0, 5)
    assert timing.spread == pytest.approx((40.0 - 20.0) / 30.0) and timing.unstable


@pytest.mark.parametrize(
    ("samples", "unstable"),
    [
        ([100.0] * 9, False),
        ([100.0, 104.0] * 5, False),
        ([100.0, 110.0] * 5, True),
        ([100.0, 200.0], False),
        ([100.0] * 8 + [900.0], False),
    ],
)
def test_unstable_is_a_wide_middle_half_of_three_or_more(samples: list[float], unstable: bool) -> None:
    assert summarise(samples, finalist=True, policy=Policy()).unstable is unstable


class Device:
    """Stands in for torch: a host that needs `host_us` to queue a launch, and a device that runs what is queued at once."""

    def __init__(self, host_us: Callable[[int], float], kernel_us: float = 50.0, flush_us: float = 10.0) -> None:
        self.host_us, self.kernel_us, self.flush_us = host_us, kernel_us, flush_us
        self.host = self.device = 0.0
        self.launches = 0
        self.cuda = self

    def zero_(self) -> None:
        self.host += 1.0
        self.device = max(self.device, self.host) + self.flush_us

    def run(self) -> None:
        self.host += self.host_us(self.launches)
        self.launches += 1
        self.device = max(self.device, self.host) + self.kernel_us

    def synchronize(self) -> None:
        self.host = self.device = max(self.host, self.device)

    def Event(self, enable_timing: bool) -> Any:
        device = self

        class Mark:
            at = math.inf

            def record(self) -> None:
                device.host += 1.0
                self.at = max(device.device, device.host)

            def query(self) -> bool:
                return self.at <= device.host

            def elapsed_time(self, other: Any) -> float:
                return (other.at - self.at) / 1e3

        return Mark()


def meter_on(device: Device, flushes: int = 4) -> CudaMeter:
    meter = object.__new__(CudaMeter)
    meter._torch, meter._buffer, meter.late = device, device, 0
    meter._flush_us, meter._max_lead_us = device.flush_us, 3000.0
    meter._flushes = meter._least = flushes
    return meter


def test_a_prompt_host_times_the_kernel_alone() -> None:
    device = Device(lambda launch: 5.0)
    meter = meter_on(device)
    samples = meter.sample(device.run, 8)
    assert samples == pytest.approx([50.0] * 8) and meter.late == 0 and device.launches == 8


def test_a_late_host_is_thrown_away_and_given_a_longer_lead() -> None:
    device = Device(lambda launch: 500.0)  # far longer than four flushes of 10 us
    meter = meter_on(device)
    samples = meter.sampler(device.run)(8)
    assert samples == pytest.approx([50.0] * 8), "no sample may carry the host's delay"
    assert meter.late > 0 and meter._flushes > 4 and device.launches == 8 + meter.late


def test_one_slow_launch_costs_one_sample() -> None:
    device = Device(lambda launch: 400.0 if launch == 3 else 5.0)
    meter = meter_on(device)
    assert meter.sample(device.run, 6) == pytest.approx([50.0] * 6)
    assert meter.late >= 1 and device.launches == 6 + meter.late


def test_a_hopeless_host_is_an_error() -> None:
    device = Device(lambda launch: 1e7)
    with pytest.raises(RuntimeError, match="overloaded"):
        meter_on(device).sample(device.run, 3)


def test_a_lead_that_proved_long_enough_is_shortened_again() -> None:
    device = Device(lambda launch: 500.0 if launch < 8 else 5.0)
    meter = meter_on(device)
    meter.sample(device.run, 3)
    longest = meter._flushes
    for _ in range(20):
        meter.sample(device.run, 3)
    assert longest > 4 and meter._flushes == 4
