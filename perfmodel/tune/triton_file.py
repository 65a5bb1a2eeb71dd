"""Rank a kernel that stands in a file: the file is run, in a process of its own with a time limit, only when that was asked for in words.

The process imports the file (which runs it), ranks, and hands back plain rows. `python -m perfmodel.tune.triton_file` is that process: it
reads one JSON question from standard input and writes the answer to the path in it, so that what the file prints harms nothing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.boundary import expanded
from perfmodel.errors import InputError, NoAnswerError, PerfModelError, shown
from perfmodel.hw import gpu as find_gpu

LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class FileRanking:
    """What the process found: rows as KernelRanking.rows, (config, reason) of pruned ones, notes."""

    kernel: str
    gpu: str
    ranked: int
    rows: list[dict[str, Any]]
    pruned: list[tuple[dict[str, Any], str]]
    notes: list[str]


def split_name(text: str) -> tuple[Path, str]:
    """`my_kernel.py:kernel` as a path and a function's name; raises InputError for anything else and for a file that is not there."""
    path, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier() or not path:
        raise InputError(f"{shown(text)}: expected FILE.py:FUNCTION, like my_kernel.py:matmul_kernel")
    found = expanded(path)
    if not found.is_file():
        raise InputError(f"{found}: no such file")
    return found.resolve(), name


def rank_file(
    where: str,
    gpu: str,
    *,
    run: bool,
    grid: str,
    arguments: Mapping[str, Any],
    configs: Sequence[Mapping[str, Any]] | None = None,
    trip_count: str | None = None,
    dtype: str | None = None,
    top_k: int | None = None,
    workers: int | None = None,
    limit_s: float = LIMIT_S,
) -> FileRanking:
    """Rank `FILE.py:FUNCTION` on a GPU; see rank_kernel for the call's description.

    run must be True: ranking imports the file, which runs what it says. Raises InputError for a file or a call that is wrong, and
    NoAnswerError when no config compiles or the time is up, each in one line.
    """
    path, name = split_name(where)
    if not run:
        raise InputError(f"ranking {path.name} runs that file: read it, then add --run-file")
    if not limit_s > 0:
        raise InputError(f"the time limit must be positive seconds, got {limit_s}")
    spec = find_gpu(gpu)
    with tempfile.TemporaryDirectory(prefix="perfmodel-") as scratch:
        answer = Path(scratch) / "answer.json"
        question = {
            "path": str(path), "name": name, "gpu": spec.name, "grid": grid, "arguments": dict(arguments), "dtype": dtype,
            "configs": None if configs is None else [dict(c) for c in configs], "trip_count": trip_count, "top_k": top_k,
            "workers": workers, "answer": str(answer),
        }  # fmt: skip
        _run_limited(question, path.name, limit_s)
        try:
            found = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise NoAnswerError(f"{path.name}: the process that ran it ended without an answer (did the file exit or crash?)") from None
    if "error" in found:
        raise (InputError if found["exit_code"] == InputError.exit_code else NoAnswerError)(found["error"])
    pruned = [(dict(c), str(r)) for c, r in found["pruned"]]
    return FileRanking(found["kernel"], found["gpu"], found["ranked"], found["rows"], pruned, found["notes"])


def _run_limited(question: Mapping[str, Any], name: str, limit_s: float) -> None:
    """Run the worker, and end it with all it started when the time is up."""
    command = [sys.executable, "-m", "perfmodel.tune.triton_file"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        process.communicate(json.dumps(question).encode(), timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"{name}: not done within {limit_s:g} s; give fewer configs, or a longer --time-limit") from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def load_function(path: Path, name: str) -> Any:
    """Import a file under a name of its own and return its function; raises InputError in one line for whatever goes wrong."""
    spec = importlib.util.spec_from_file_location(f"perfmodel_file_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path.name}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise InputError(f"{path.name}, line {error.lineno}: {error.msg}") from None
    except SystemExit:
        raise InputError(f"{path.name} exits when it is run: keep that under `if __name__ == '__main__':`") from None
    except Exception as error:
        raise InputError(f"{path.name} cannot be run: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from None
    if not hasattr(module, name):
        jitted = sorted(n for n, v in vars(module).items() if hasattr(v, "arg_names"))
        known = f"its kernels: {', '.join(jitted)}" if jitted else "it has no @triton.jit function"
        raise InputError(f"{path.name} has no function {name}: {known}")
    return getattr(module, name)


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """The worker's part: import, rank, rows."""
    from perfmodel.tune.kernel_rank import rank_kernel

    try:
        ranking = rank_kernel(
            {"dtype": question["dtype"]} if question["dtype"] else None,
            question["gpu"],
            load_function(Path(question["path"]), question["name"]),
            grid=question["grid"],
            configs=question["configs"],
            arguments=question["arguments"],
            trip_count=question["trip_count"],
            top_k=question["top_k"],
            workers=question["workers"],
        )
    except PerfModelError as error:
        return {"error": str(error), "exit_code": error.exit_code}
    return {
        "kernel": ranking.kernel,
        "gpu": ranking.gpu.name,
        "ranked": len(ranking),
        "rows": ranking.rows(),
        "pruned": [(dict(c), r) for c, r in ranking.pruned],
        "notes": list(ranking.notes),
    }


def main() -> None:
    """Answer the question on standard input."""
    question = json.loads(sys.stdin.read())
    found = answer(question)
    Path(question["answer"]).write_text(json.dumps(found, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
