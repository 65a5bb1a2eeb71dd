"""Measuring one config on one problem: compile facts, numerics against the reference, cold timing; the answer is always a row."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from perfmodel.measure.kernels import Config, KernelFamily, Prepared, Problem
from perfmodel.measure.rows import Row
from perfmodel.measure.timing import CudaMeter, Policy, device_state, time_cold

STATUSES = ("ok", "illegal", "compile_error", "out_of_resources", "wrong_result", "timeout", "crash", "error")
_STATE_EVERY_S = 1.0


class Runner(Protocol):
    """Answers what one config, or one library baseline, takes on one problem. The live and the replayed one look alike."""

    def measure(self, problem: Problem, config: Config, *, best_us: float = math.inf) -> Row:
        """A row with status, reason and, when status is "ok", latency_us."""
        ...

    def baseline(self, problem: Problem, name: str) -> Row:
        """The same for a library call; `variant` is its name."""
        ...


class DeviceLostError(RuntimeError):
    """The CUDA context is unusable after a failed kernel: this process must end."""


def fact_index_key(binary: Mapping[str, Any], dtype: str) -> str:
    """Key of a compile fact inside one run (one family, source, target and Triton)."""
    return f"{dtype}|" + ",".join(f"{k}={binary[k]}" for k in sorted(binary))


class LiveRunner:
    """Measures on the current CUDA device. `facts` are this run's compile rows by `fact_index_key`; `state` reads the device's."""

    def __init__(
        self,
        family: KernelFamily,
        facts: Mapping[str, Row],
        *,
        seed: int = 0,
        policy: Policy | None = None,
        state: Callable[[], dict[str, object]] = device_state,
    ) -> None:
        import torch
        import triton

        self._family = family
        self._facts = facts
        self._seed = seed
        self._policy = policy or Policy()
        self._meter = CudaMeter()
        index = torch.cuda.current_device()
        major, minor = torch.cuda.get_device_capability(index)
        self._arch = major * 10 + minor
        self._shared_limit = int(getattr(torch.cuda.get_device_properties(index), "shared_memory_per_block_optin", 1 << 30))
        self._versions = {"torch": str(torch.__version__), "triton": str(triton.__version__), "source_hash": family.source_hash()}
        self._problem: dict[str, Any] | None = None
        self._inputs: dict[str, Any] = {}
        self._reference: Any = None
        self._read_state = state
        self._state: dict[str, object] = {}
        self._state_at = -math.inf

    def measure(self, problem: Problem, config: Config, *, best_us: float = math.inf) -> Row:
        """Check and time one config; see Runner."""
        row = self._row(problem, {key: config[key] for key in self._family.config_keys})
        reason = self._family.illegal(problem, config, self._arch)
        if reason:
            return row | {"status": "illegal", "reason": reason}
        fact = self._facts.get(fact_index_key(self._family.binary_of(problem, config), problem["dtype"]))
        if fact is not None:
            if fact["status"] != "ok":
                return row | {"status": fact["status"], "reason": fact["reason"]}
            row |= {"regs": fact["regs"], "spills": fact["stack_bytes"] // 4, "shared": fact["shared_bytes"]}
            if fact["shared_bytes"] > self._shared_limit:
                reason = f"{fact['shared_bytes']} B of shared memory, a block may have {self._shared_limit}"
                return row | {"status": "out_of_resources", "reason": reason}
        self._open(problem)
        return self._guarded(row, lambda: self._family.prepare(self._inputs, config), best_us)

    def baseline(self, problem: Problem, name: str) -> Row:
        """Check and time a library call; see Runner."""
        row = self._row(problem, dict.fromkeys(self._family.config_keys)) | {"variant": name}
        self._open(problem)
        return self._guarded(row, lambda: self._family.baselines[name](self._inputs), math.inf)

    def _row(self, problem: Problem, config: Mapping[str, Any]) -> Row:
        if time.monotonic() - self._state_at > _STATE_EVERY_S:
            self._state, self._state_at = self._read_state(), time.monotonic()
        sizes = {key: problem[key] for key in self._family.problem_keys}
        return {"kernel": self._family.name, "dtype": problem["dtype"], **sizes, **config, **self._state, **self._versions}

    def _open(self, problem: Problem) -> None:
        if self._problem == dict(problem):
            return
        import torch

        self._inputs, self._reference = {}, None
        torch.cuda.empty_cache()
        self._inputs = self._family.make_inputs(problem, "cuda", self._seed)
        self._reference = self._family.reference(self._inputs)
        self._problem = dict(problem)

    def _guarded(self, row: Row, prepare: Any, best_us: float) -> Row:
        from triton.runtime.errors import OutOfResources

        try:
            prepared: Prepared = prepare()
            error = self._error(prepared)
            row["rel_error"] = error if math.isfinite(error) else None
            if not error <= self._family.tolerance[row["dtype"]]:
                return row | {"status": "wrong_result", "reason": f"relative error {error:.3g}"}
            timing = asdict(time_cold(self._meter.sampler(prepared.run), best_us=best_us, policy=self._policy))
        except OutOfResources as failure:
            return row | {"status": "out_of_resources", "reason": _short(failure)}
        except Exception as failure:  # whatever a kernel or a library raises is a row
            self._raise_if_lost(failure)
            return row | {"status": "error", "reason": _short(failure)}
        return row | timing | {"status": "ok", "reason": ""}

    def _error(self, prepared: Prepared) -> float:
        """Relative Frobenius error against the fp32 reference, over the whole output, which is poisoned first."""
        import torch

        prepared.output.fill_(float("nan") if prepared.output.dtype.is_floating_point else -(2**31))
        prepared.run()
        torch.cuda.synchronize()
        difference = prepared.output.float().sub_(self._reference)
        return float((difference.norm() / self._reference.norm()).item())

    @staticmethod
    def _raise_if_lost(failure: Exception) -> None:
        import torch

        try:
            torch.cuda.synchronize()
        except Exception:
            raise DeviceLostError(_short(failure)) from failure


def _short(failure: BaseException) -> str:
    return f"{type(failure).__name__}: {' '.join(str(failure).split())}"[:300]
