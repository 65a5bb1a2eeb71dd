"""`perfmodel evaluate speed`: what an answer costs on this machine, question by question and in tables, and what a start does."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli import options, output
from perfmodel.cli.progress import Progress

if TYPE_CHECKING:
    from perfmodel.hw.spec import GpuSpec

TIMES = 1000  # a question is asked this often; the shortest time counts, for other programs only make it longer
TABLES, RANKS, STARTS = 3, 3, 3
CONFIGS = 1_000_000  # whose occupancy is asked at once
COLD = {
    "start: import perfmodel": "import perfmodel",
    "start: perfmodel --help": "from perfmodel.cli.main import run; run(['--help'])",
    "start: first GPU": "from perfmodel.hw import gpu; gpu('h100_sxm')",
    "start: rank gemm": "from perfmodel.cli.main import run; run('rank gemm --gpu h100_sxm -m 4096 -n 14336 -k 4096 --json'.split())",
}
"""What a new process does, by what the table calls it."""


def add_to(app: typer.Typer) -> None:
    """Give `evaluate` the command."""
    app.command("speed")(speed)


def speed(
    gpu: options.Gpu = "h100_sxm",
    stack: Annotated[str | None, typer.Option("--stack", help="Library that runs the operators.")] = None,
    rows: Annotated[str, typer.Option("--rows", metavar="COUNT", help="Rows of each table.")] = "50000",
    calibration: options.Calibration = "auto",
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """Processor time, one core: of a predict once its model is loaded, of predict_table on random rows, of rank; and of new processes."""
    output.check_format(json_, csv_)
    from perfmodel.hw import gpu as find_gpu
    from perfmodel.ops import Gemm
    from perfmodel.predict import predict, predict_table
    from perfmodel.tune.rank import rank

    length, spec, asked = options.count("rows", rows), find_gpu(gpu), options.calibration(calibration)
    found: list[dict[str, Any]] = []
    with Progress("timing"):
        for name, (op, kind, table) in questions(length).items():
            own = None if kind == "collective" else stack
            one = shortest(partial(predict, op, gpu, stack=own, calibration=asked), TIMES)
            frame = table if own is None else table.assign(stack=own)
            many = shortest(partial(predict_table, kind, frame, gpu, calibration=asked), TABLES)
            found.append({"question": name, "ms": 1e3 * one, "table_rows_per_s": length / many})
        ranked = shortest(partial(rank, Gemm(4096, 14336, 4096), gpu, top_k=8, calibration=asked), RANKS)
        found.append({"question": "rank gemm", "ms": 1e3 * ranked, "table_rows_per_s": None})
        asking = occupancy_question(spec)
        found.append({"question": "occupancy", "ms": None, "table_rows_per_s": CONFIGS / shortest(asking, TABLES)})
        for name, code in COLD.items():
            found.append({"question": name, "ms": 1e3 * min(started(code) for _ in range(STARTS)), "table_rows_per_s": None})
    head = [
        f"{spec.name}, processor time on one core, shortest of {TIMES} questions, {TABLES} tables of {length} rows, {RANKS} rankings;",
        f"occupancy: {CONFIGS} configs; start: wall time of a new process, shortest of {STARTS}",
        "",
    ]
    output.write_rows(found, json_=json_, csv_=csv_, head=head)


def shortest(ask: Callable[[], Any], times: int) -> float:
    """Shortest processor time, s, of a call whose models are loaded."""
    ask()
    taken = []
    for _ in range(times):
        start = time.process_time()
        ask()
        taken.append(time.process_time() - start)
    return min(taken)


def started(code: str) -> float:
    """Wall time, s, of a new process that runs this code."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def occupancy_question(spec: GpuSpec) -> Callable[[], Any]:
    """Blocks an SM of random configs, the same ones on every call."""
    import numpy as np

    from perfmodel.analytic.occupancy import blocks_per_sm

    draw = np.random.default_rng(0)
    threads, regs, shared_bytes = draw.integers(1, 1025, CONFIGS), draw.integers(16, 256, CONFIGS), draw.integers(0, 232_448, CONFIGS)
    return partial(blocks_per_sm, spec, threads, regs, shared_bytes)


def questions(length: int) -> dict[str, tuple[Any, str, Any]]:
    """(operator, kind, random table of `length` rows) by name: sizes of language models, the same ones on every call."""
    import numpy as np
    import pandas as pd

    from perfmodel.ops import MLA, Attention, Collective, Gemm, MemoryBound, MoE

    draw = np.random.default_rng(0)

    def whole(low: int, high: int, step: int = 1) -> Any:
        return step * draw.integers(low, high + 1, length)

    kv_heads, tokens = draw.choice([1, 2, 8], length), whole(1, 8192)
    heads = {"kv_heads": kv_heads, "q_heads": kv_heads * draw.choice([1, 4, 8], length), "head_dim": draw.choice([64, 128], length)}
    experts = {"num_experts": draw.choice([8, 64, 128], length), "top_k": draw.choice([2, 8], length)}
    prefill = {"phase": "prefill", "batch": whole(1, 16), "q_len": tokens, "kv_len": tokens, **heads}
    decode = {"phase": "decode", "batch": whole(1, 128), "q_len": 1, "kv_len": whole(1, 32768), **heads}
    mla = {"phase": "decode", "batch": whole(1, 128), "q_len": 1, "kv_len": whole(1, 32768), "num_heads": draw.choice([16, 128], length)}
    collective = {
        "kind": draw.choice(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"], length),
        "message_bytes": 2 ** whole(10, 28),
        "n_gpus": draw.choice([2, 4, 8], length),
    }
    asked: dict[str, tuple[Any, str, dict[str, Any]]] = {
        "gemm": (Gemm(4096, 14336, 4096), "gemm", {"m": tokens, "n": whole(1, 400, 64), "k": whole(1, 400, 64)}),
        "attention prefill": (Attention("prefill", 1, 2048, 2048, 32, 8, 128), "attention", prefill),
        "attention decode": (Attention("decode", 32, 1, 4096, 32, 8, 128), "attention", decode),
        "mla decode": (MLA("decode", 32, 1, 4096, 16), "mla", mla),
        "moe": (
            MoE(64, 4096, 1536, 128, 8),
            "moe",
            {"tokens": tokens, "hidden": whole(8, 64, 128), "inter": whole(4, 64, 256), **experts},
        ),
        "memory": (MemoryBound("rmsnorm", 4096, 5120), "memory", {"kind": "rmsnorm", "tokens": tokens, "hidden": whole(1, 300, 64)}),
        "collective": (Collective("all_reduce", 1 << 24, 8), "collective", collective),
    }
    return {name: (op, kind, pd.DataFrame({**columns, "dtype": "bf16"})) for name, (op, kind, columns) in asked.items()}
