"""Compiles any Triton kernel's configs for a GPU that is not there: in worker processes, with a time limit, remembered on disk.

What is remembered of one config is its TTIR and the facts of its machine code, under the hash of the kernel's source (with what it calls),
the call's types and constants, the compiler's options, the target and Triton's version. A failed compilation is remembered with its reason.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from perfmodel._atomic import write_atomically
from perfmodel._resources import user_folder
from perfmodel.errors import InputError, NoAnswerError
from perfmodel.kernels.anykernel import ir
from perfmodel.kernels.anykernel.facts import Binary
from perfmodel.measure.kernel_call import Call

VERSION = 1  # of what is remembered
TIMEOUT_S = 120.0
_REASON_CHARACTERS = 300
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Compiled:
    """One config compiled: its TTIR without locations and its facts; or why not."""

    ttir: str
    binary: Binary | None
    reason: str = ""


def source_hash(kernel: Any) -> str:
    """Hash of a kernel's source and of all it calls."""
    return hashlib.sha256(str(kernel.cache_key).encode()).hexdigest()[:16]


def compile_calls(
    kernel: Any,
    calls: Sequence[Call],
    arch: int,
    *,
    workers: int | None = None,
    timeout_s: float = TIMEOUT_S,
    folder: Path | None = None,
    known: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Progress | None = None,
) -> list[Compiled]:
    """Compile each call for compute capability `arch` (90 for 9.0); the answers are in the order of the calls.

    Equal calls are compiled once. workers: processes at a time (default: the machine's cores). A config that crashes its worker or
    takes over timeout_s gets a reason, and the others go on. known: what kernel_pack.read_pack read. Raises NoAnswerError without Triton.
    """
    keys = [call_key(kernel, call, arch) for call in calls]
    place = folder or user_folder() / "compiled"
    found: dict[str, Compiled] = {}
    todo: dict[str, Call] = {}
    for key, call in zip(keys, calls, strict=True):
        if key in found or key in todo:
            continue
        before = _from_data(known[key]) if known and key in known else _read(place / f"{key}.json.gz")
        if before is None:
            todo[key] = call
        else:
            found[key] = before
    fresh = _workers(kernel, todo, arch, workers or os.cpu_count() or 1, timeout_s)
    for done, (key, compiled, lasting) in enumerate(fresh, start=1):
        found[key] = compiled
        if lasting:
            _write(place / f"{key}.json.gz", compiled)
        if progress:
            progress("compiling", done, len(todo))
    return [found[key] for key in keys]


def call_key(kernel: Any, call: Call, arch: int) -> str:
    """What one compilation is remembered under; raises NoAnswerError without Triton."""
    try:
        import triton
    except ImportError:
        raise NoAnswerError("ranking a kernel of your own compiles it, which needs triton: pip install 'perfmodel[gpu]'") from None
    parts = [
        VERSION, source_hash(kernel), str(triton.__version__), arch, dict(call.signature),
        {k: str(v) for k, v in call.constants.items()}, call.aligned, dict(call.options),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def compile_one(kernel: Any, call: Call, arch: int) -> Compiled:
    """Compile one call in this process; never raises for a failed compilation."""
    from perfmodel.measure import machine_code, sass

    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        constants = {name: value for name, value in call.constants.items()}
        attributes: dict[tuple[int, ...], Any] = {(place,): [["tt.divisibility", 16]] for place in call.aligned}
        source = ASTSource(kernel, dict(call.signature), constants, attributes)
        with contextlib.redirect_stdout(io.StringIO()):
            compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=dict(call.options))
        cubin = compiled.asm["cubin"]
        regs, stack = sass.resources(cubin)
        binary = machine_code.read(
            compiled.asm["ttgir"],
            sass.listing(cubin),
            shared_bytes=int(compiled.metadata.shared),
            regs=regs,
            stack_bytes=stack,
            num_warps=int(compiled.metadata.num_warps),
            num_stages=int(compiled.metadata.num_stages),
        )
        return Compiled(ir.strip_locations(compiled.asm["ttir"]), binary)
    except Exception as error:  # a compiler may raise anything; the reason says what
        text = " ".join(str(error).split())
        return Compiled("", None, f"{type(error).__name__}: {text}"[:_REASON_CHARACTERS])


def _workers(kernel: Any, todo: Mapping[str, Call], arch: int, workers: int, timeout_s: float) -> Iterator[tuple[str, Compiled, bool]]:
    """(key, compiled, whether that will be so again) as configs finish, each in a process of its own.

    Processes are forked, so that a kernel from a notebook or a script can be compiled; they touch no CUDA.
    """
    context = multiprocessing.get_context("fork")
    waiting = list(todo.items())
    running: dict[Any, tuple[str, Any, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                key, call = waiting.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(kernel, call, arch, theirs), daemon=True)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # about forking with threads: the child only compiles
                    process.start()
                theirs.close()
                running[ours] = (key, process, time.monotonic() + timeout_s)
            first = min(deadline for _, _, deadline in running.values())
            ready = wait(list(running), timeout=max(first - time.monotonic(), 0.0))
            for pipe in ready or [p for p, (_, _, d) in running.items() if d <= time.monotonic()]:
                key, process, _ = running.pop(pipe)
                yield key, *_result(pipe, process, bool(ready), timeout_s)
    finally:
        for _, process, _ in running.values():
            process.kill()


def _result(pipe: Any, process: Any, ready: bool, timeout_s: float) -> tuple[Compiled, bool]:
    try:
        if not ready:
            process.kill()
            return Compiled("", None, f"compilation took over {timeout_s:.0f} s"), False
        return _from_data(json.loads(pipe.recv_bytes())), True
    except (EOFError, OSError):
        return Compiled("", None, "the compiler crashed"), False
    finally:
        pipe.close()
        process.join(timeout=5.0)


def _work(kernel: Any, call: Call, arch: int, pipe: Any) -> None:
    pipe.send_bytes(json.dumps(_to_data(compile_one(kernel, call, arch))).encode())
    pipe.close()


def _to_data(compiled: Compiled) -> dict[str, Any]:
    binary = None if compiled.binary is None else compiled.binary.to_dict()
    return {"ttir": compiled.ttir, "binary": binary, "reason": compiled.reason}


def _from_data(data: Mapping[str, Any]) -> Compiled:
    binary = None if data["binary"] is None else Binary.from_dict(data["binary"])
    return Compiled(str(data["ttir"]), binary, str(data["reason"]))


def _read(path: Path) -> Compiled | None:
    """What is remembered, or None: a file that cannot be read is compiled again."""
    try:
        return _from_data(json.loads(gzip.decompress(path.read_bytes())))
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, compiled: Compiled) -> None:
    """Remember; a folder that cannot be written to only means compiling again."""
    with contextlib.suppress(OSError, InputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, gzip.compress(json.dumps(_to_data(compiled)).encode(), 6))
