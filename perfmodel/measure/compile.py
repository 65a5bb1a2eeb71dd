"""Compile configs for any GPU without one, and keep what the binaries say.

A *fact row* holds, for one (family, source hash, Triton version, target, dtype, binary): shared_bytes a block, regs and
stack_bytes a thread, threads a block, the main loop's instruction counts (see sass.loop_facts) and compile_s; or the reason
why it did not compile. Facts do not depend on the problem's sizes, only on its alignment class.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from perfmodel.measure.kernels import family

_REASON_CHARACTERS = 300

FactRow = dict[str, Any]
Progress = Callable[[int, int], None]


def fact_key(row: Mapping[str, Any]) -> str:
    """What makes two fact rows the same question, as one string."""
    return json.dumps([row[k] for k in ("kernel", "source_hash", "triton", "arch", "dtype")] + sorted(row["binary"].items()))


def blank(kernel: str, binary: Mapping[str, Any], dtype: str, arch: int) -> FactRow:
    """The question a fact row answers: kernel, source hash, Triton version, architecture, dtype and binary."""
    import triton

    return {
        "kernel": kernel,
        "source_hash": family(kernel).source_hash(),
        "triton": str(triton.__version__),
        "arch": arch,
        "dtype": dtype,
        "binary": dict(binary),
    }


def compile_one(kernel: str, binary: Mapping[str, Any], dtype: str, arch: int, *, loop: bool = True) -> FactRow:
    """Compile one binary for compute capability `arch` (90 for 9.0) and read its facts; never raises for a failed compilation.

    Fills Triton's disk cache, so a later launch with the same arguments on such a GPU finds the binary there.
    `loop=False` skips the disassembly.
    """
    row = blank(kernel, binary, dtype, arch)
    began = time.perf_counter()
    noise = io.StringIO()
    try:
        with contextlib.redirect_stdout(noise):
            row |= _compile(kernel, binary, dtype, arch, loop)
        row |= {"status": "ok", "reason": ""}
    except Exception as error:  # a compiler may raise anything; the row says what
        row |= {"status": "compile_error", "reason": _short(error)}
    row["compile_s"] = round(time.perf_counter() - began, 3)
    return row


def _compile(kernel: str, binary: Mapping[str, Any], dtype: str, arch: int, loop: bool) -> FactRow:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from perfmodel.measure import sass

    spec = family(kernel).compile_spec(binary, dtype, arch)
    source = ASTSource(spec.function, spec.signature, spec.constexprs, spec.attrs)
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=spec.options)
    cubin = compiled.asm["cubin"]
    regs, stack = sass.resources(cubin)
    facts: FactRow = {
        "shared_bytes": int(compiled.metadata.shared),
        "regs": regs,
        "stack_bytes": stack,
        "threads": int(compiled.metadata.num_warps) * 32,
    }
    if loop:
        facts |= sass.loop_facts(sass.disassemble(cubin))
    return facts


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:_REASON_CHARACTERS]


def compile_many(
    kernel: str,
    jobs: Iterable[tuple[Mapping[str, Any], str]],
    arch: int,
    *,
    workers: int = 2,
    timeout_s: float = 60.0,
    deadline: float | None = None,
    loop: bool = True,
    progress: Progress | None = None,
) -> Iterator[FactRow]:
    """Compile (binary, dtype) jobs in worker processes and yield their rows as they finish.

    A job that crashes its worker, or a batch in which nothing finishes for `timeout_s` seconds, becomes rows with a reason, and
    the rest goes on in fresh workers. Past `deadline` (time.monotonic seconds) the jobs not started are dropped silently: the
    caller knows them, since it knows what it asked for.
    """
    todo = [(dict(binary), dtype) for binary, dtype in jobs]
    total, done = len(todo), 0
    alone = False  # after a crash, one job at a time until the culprit is known
    while todo and (deadline is None or time.monotonic() < deadline):
        batch = todo[: 1 if alone else None]
        finished: list[int] = []
        broken = ""
        with _pool(1 if alone else min(workers, len(batch))) as pool:
            for index, row, problem in _drain(pool, kernel, batch, arch=arch, timeout_s=timeout_s, deadline=deadline, loop=loop):
                broken = problem or broken
                if row is not None:
                    finished.append(index)
                    done += 1
                    yield row
                    if progress:
                        progress(done, total)
        left = [job for i, job in enumerate(batch) if i not in set(finished)]
        if broken and alone:
            done += 1
            yield blank(kernel, left[0][0], left[0][1], arch) | {"status": "compile_error", "reason": broken, "compile_s": timeout_s}
            left, alone = left[1:], False
        elif broken:
            alone = True
        elif left:
            return
        todo = left + todo[len(batch) :]


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        processes = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()


def _drain(
    pool: ProcessPoolExecutor,
    kernel: str,
    batch: list[tuple[dict[str, Any], str]],
    *,
    arch: int,
    timeout_s: float,
    deadline: float | None,
    loop: bool,
) -> Iterator[tuple[int, FactRow | None, str]]:
    """Yield (index, row, "") for each job that ends, and at last (-1, None, reason) if the pool broke or stood still."""
    futures: dict[Future[FactRow], int] = {
        pool.submit(compile_one, kernel, binary, dtype, arch, loop=loop): i for i, (binary, dtype) in enumerate(batch)
    }
    pending = set(futures)
    while pending:
        left_s = timeout_s if deadline is None else min(timeout_s, deadline - time.monotonic())
        if left_s <= 0:
            return
        ended, pending = wait(pending, timeout=left_s, return_when="FIRST_COMPLETED")
        if not ended:
            if deadline is None or time.monotonic() < deadline:
                yield -1, None, f"compilation took over {timeout_s:.0f} s"
            return
        for future in ended:
            try:
                yield futures[future], future.result(), ""
            except BrokenProcessPool:
                yield -1, None, "the compiler process crashed"
                return
