"""A calibration run on the GPUs of a Ray cluster (extra `cluster`): Ray places one share a GPU and brings the rows back.

A share is calibrate/run.execute where its GPU is. Each row travels as it is measured, and the caller's folder keeps it, so that a run
resumes wherever Ray puts the shares next time. The hosts need this perfmodel, torch and Triton; nothing is scheduled here.
"""

from __future__ import annotations

import queue
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from perfmodel.calibrate.plan import Plan
from perfmodel.calibrate.run import ROWS, STATE, Say, check_same, execute, stored_rows
from perfmodel.errors import InputError, NoAnswerError, PerfModelError
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.probe import probe_device
from perfmodel.hw.spec import GpuSpec
from perfmodel.measure.devices import Device, devices_here
from perfmodel.measure.rows import Appender, Row, read
from perfmodel.measure.session import session

ANSWER_S = 5.0
Message = Row | list[Row]  # a row as it is measured; at the end the samples of the device's state


def connect(address: str) -> int:
    """Join the Ray cluster at `address` ("auto": the one of this machine); how many GPUs it has.

    Raises NoAnswerError without Ray, cluster or GPU.
    """
    try:
        import ray
    except ImportError:
        raise NoAnswerError("--ray needs Ray: pip install 'perfmodel[cluster]'; torchrun does without") from None
    if not ray.is_initialized():
        try:
            if address != "auto":  # Ray itself tries for minutes
                host, _, port = address.removeprefix("ray://").rpartition(":")
                socket.create_connection((host, int(port)), ANSWER_S).close()
            ray.init(address=address, log_to_driver=False)
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise NoAnswerError(f"no Ray cluster at {address} ({reason}): start one with ray start --head, or name its HOST:PORT") from None
    if (count := int(ray.cluster_resources().get("GPU", 0))) < 1:
        raise NoAnswerError("the Ray cluster has no GPU: ray start --num-gpus on its hosts")
    return count


def draft() -> GpuSpec:
    """The spec that the driver of one of the cluster's GPUs tells of (hw/probe)."""
    import ray

    found: GpuSpec = ray.get(ray.remote(num_gpus=1)(probe_device).remote(0))
    return found


def run_shares(plan: Plan, folder: Path, count: int, *, say: Say | None = None, **replaced: Any) -> list[Row]:
    """Measure what is left of a plan, on `count` GPUs of the cluster; all rows of the run.

    A share that fails is a warning and its points stay for the next call; where every share fails, so does this. `replaced` are the
    arguments of `share` that tests give. Raises NoAnswerError and InputError as `execute` does.
    """
    import ray

    check_same(folder, plan)
    known = stored_rows(folder)
    total = len(plan.points)
    remote = ray.remote(num_gpus=1, max_retries=0)(share)
    shares = {remote.remote(plan, known, (rank, count), **replaced): rank for rank in range(count)}
    failed: list[PerfModelError] = []
    done = len(known)
    while shares:
        (ready,), _ = ray.wait(list(shares), num_returns=1)
        rank = shares[ready]
        try:
            message: Message = ray.get(next(ready))
        except StopIteration:
            del shares[ready]
            continue
        except ray.exceptions.RayError as error:
            del shares[ready]
            failed.append(_reason(error, rank))
            print(f"perfmodel: WARNING: {failed[-1]}", file=sys.stderr)
            continue
        rows = message if isinstance(message, list) else [message]
        log = Appender(folder / (STATE if isinstance(message, list) else f"rows-{rank}.jsonl"))
        for row in rows:
            log.add(row)
        log.close()
        if not isinstance(message, list):
            done += 1
            if say:
                say(str(message["id"]), done, total, 0.0)
    if len(failed) == count:
        raise failed[0]
    return stored_rows(folder)


def share(
    plan: Plan,
    known: Sequence[Row],
    part: tuple[int, int],
    here: Callable[[], list[Device]] = devices_here,
    worker: Any = session,
    monitor: Any = None,
) -> Iterator[Message]:
    """What one GPU does: each row of its part that is not `known`, then the samples of its state. Runs where Ray gave it a GPU."""
    device = here()[0]
    if device.name != plan.gpu.full_name and find_gpu(device.name).name != plan.gpu.name:
        raise InputError(f"{device.name} is not the {plan.gpu.full_name} of this run: a cluster is calibrated one kind of GPU at a time")
    rows: queue.SimpleQueue[Row | BaseException | None] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = Appender(folder / ROWS)
        for row in known:
            before.add(row)
        before.close()

        def work() -> None:
            end: BaseException | None = None
            try:
                execute(plan, folder, [device], part=part, worker=worker, monitor=monitor, heard=rows.put)
            except BaseException as error:  # raised again below, where Ray hears of it
                end = error
            rows.put(end)

        threading.Thread(target=work, daemon=True).start()
        while (said := rows.get()) is not None:
            if isinstance(said, BaseException):
                raise said
            yield said
        yield read(folder / STATE)


def _reason(error: Exception, rank: int) -> PerfModelError:
    """A share's failure as one line: its own deliberate error, or what Ray says of it."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, PerfModelError):
        return cause
    text = " ".join(str(cause or error).split())[:300]
    return NoAnswerError(f"share {rank} of the Ray cluster failed: {text}")
