"""How well kernels that nobody modelled are ranked: the plain kernels' sweeps against the law of any kernel, by whole shapes.

The law sees the kernel's source, the GPU's datasheet and no measurement. Each sweep's kernel is written again in measure/kernels/plain.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perfmodel._resources import measured_data
from perfmodel.calibrate.sweep_rows import rows_that_ran
from perfmodel.errors import InputError, NoAnswerError, unknown_name
from perfmodel.evaluate.ranking import STEADY, random_regret, regret, steady_rows
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels.anykernel import ir, law
from perfmodel.kernels.anykernel.work import Work, analyse
from perfmodel.measure.kernel_call import describe, jit_function
from perfmodel.measure.kernel_compile import Compiled, call_key, compile_calls
from perfmodel.measure.kernel_pack import read_pack
from perfmodel.units import US_PER_S

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Progress = Callable[[str, int, int], None]
Row = Mapping[str, Any]
KS = (1, 3, 8)


@dataclass(frozen=True, slots=True)
class Step:
    """One launch of a sweep's kernels: its name in measure/kernels/plain.py, arguments, config and grid of a row."""

    kernel: str
    arguments: Callable[[Row], dict[str, Any]]
    config: Callable[[Row], dict[str, Any]]
    grid: Callable[[Row], tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Columns that make a shape, and the launches of one measurement in their order."""

    shape: tuple[str, ...]
    steps: tuple[Step, ...]


def _up(a: int, b: int) -> int:
    return -(-a // b)


def _gemm(element: str) -> Sweep:
    pointers = {"a_ptr": f"*{element}", "b_ptr": f"*{element}", "c_ptr": "*bf16"}
    step = Step(
        "gemm",
        lambda r: pointers | {"M": r["m"], "N": r["n"], "K": r["k"], "stride_am": r["k"], "stride_bn": r["k"], "stride_cm": r["n"]},
        lambda r: {n: r[n] for n in ("BM", "BN", "BK", "GM", "num_warps", "num_stages")},
        lambda r: (_up(r["m"], r["BM"]) * _up(r["n"], r["BN"]), 1, 1),
    )
    return Sweep(("m", "n", "k"), (step,))


_FAMILY_NAMES = {
    "block_m": "BM", "block_n": "BN", "block_k": "BK", "group_m": "GM", "num_splits": "NS", "q_heads": "heads", "kv_len": "seq",
}  # fmt: skip
"""What a family's own tables (data/) call the columns that the sweeps' kernels name so."""
_QKV = {"q_ptr": "*bf16", "k_ptr": "*bf16", "v_ptr": "*bf16", "scale": 0.1}
_ROWS = 16  # query heads of a KV head are padded to what a tensor-core instruction takes
SWEEPS: dict[str, Sweep] = {
    "gemm_bf16": _gemm("bf16"),
    "gemm_fp8": _gemm("fp8e4nv"),
    "attention_prefill": Sweep(
        ("batch", "heads", "kv_heads", "seq", "head_dim", "causal"),
        (
            Step(
                "attention",
                lambda r: _QKV | {"o_ptr": "*bf16", "seq": r["seq"], "heads": r["heads"], "group": r["heads"] // r["kv_heads"]},
                lambda r: {"D": r["head_dim"], "CAUSAL": bool(r["causal"]), **{n: r[n] for n in ("BM", "BN", "num_warps", "num_stages")}},
                lambda r: (_up(r["seq"], r["BM"]), r["batch"] * r["heads"], 1),
            ),
        ),
    ),
    "attention_decode": Sweep(
        ("batch", "heads", "kv_heads", "seq", "head_dim"),
        (
            Step(
                "decode",
                lambda r: (
                    _QKV
                    | {"part_ptr": "*fp32", "lse_ptr": "*fp32", "seq": r["seq"], "kv_heads": r["kv_heads"], "splits": r["NS"]}
                    | {"group": r["heads"] // r["kv_heads"], "per_split": _up(_up(r["seq"], r["NS"]), r["BN"]) * r["BN"]}
                ),
                lambda r: {"D": r["head_dim"], "ROWS": _ROWS, **{n: r[n] for n in ("BN", "num_warps", "num_stages")}},
                lambda r: (r["batch"] * r["kv_heads"], r["NS"], 1),
            ),
            Step(
                "combine",
                lambda r: {"part_ptr": "*fp32", "lse_ptr": "*fp32", "o_ptr": "*bf16", "splits": r["NS"]},
                lambda r: {"D": r["head_dim"], "NS": r["NS"], "num_warps": 4},
                lambda r: (r["batch"] * r["heads"], 1, 1),
            ),
        ),
    ),
}


def pack_path(gpu: GpuSpec) -> Path:
    """Shipped compilations of the sweeps' kernels for a GPU's architecture."""
    return measured_data(f"anykernel/compiled_{gpu.arch}.parquet")


def evaluate_kernels(
    sweep: str,
    frame: pd.DataFrame,
    gpu: GpuSpec,
    *,
    only_shipped: bool = False,
    steady: float = STEADY,
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(summary, per shape) of regret at 1, 3 and 8, and of latency error, for one of SWEEPS; beside random order and the order given.

    only_shipped judges on the configs whose compilation is shipped, others are left out; else they are compiled first. steady: see
    evaluate.ranking.steady_rows. Raises InputError for a frame that is not such a sweep.
    """
    import pandas as pd

    if sweep not in SWEEPS:
        raise unknown_name("sweep", sweep, SWEEPS)
    plan = SWEEPS[sweep]
    frame = rows_that_ran(frame.rename(columns={own: short for own, short in _FAMILY_NAMES.items() if short not in frame.columns}))
    missing = [c for c in (*plan.shape, "latency_us", "num_warps", "num_stages") if c not in frame.columns]
    if missing:
        raise InputError(f"the {sweep} sweep lacks column {', '.join(missing)}; it has {', '.join(map(str, frame.columns))}")
    given = len(frame)
    frame = steady_rows(frame, plan.shape, steady)
    rows = [{str(k): v.item() if hasattr(v, "item") else v for k, v in r.items()} for r in frame.to_dict("records")]
    predicted = _predict(plan, rows, gpu, only_shipped, workers, progress)
    frame = frame.assign(predicted_us=predicted)
    frame = frame[frame["predicted_us"].notna()]
    if frame.empty:
        raise NoAnswerError(f"no config of the {sweep} sweep is compiled for {gpu.arch}: leave --only-shipped out")
    shapes = pd.DataFrame([_judge(plan, key, part, progress) for key, part in frame.groupby(list(plan.shape))])
    names = [f"{m}@{k}" for m in ("", "random", "given") for k in KS]
    summary: dict[str, Any] = {"sweep": sweep, "shapes": len(shapes), "rows": len(frame), "of_rows": given}
    summary |= {n: float(np.exp(np.log(shapes[n]).mean())) for n in names} | {"@1 max": float(shapes["@1"].max())}
    near = frame.groupby(list(plan.shape))["latency_us"].transform("min") * 2 >= frame["latency_us"]
    off = (frame["predicted_us"] / frame["latency_us"])[near]
    width = np.exp(law.constants()["interval_log"])
    summary |= {"error median": float((off - 1).abs().median()), "coverage": float(((off >= 1 / width) & (off <= width)).mean())}
    return pd.DataFrame([summary]), shapes


def _judge(plan: Sweep, key: Any, part: pd.DataFrame, progress: Progress | None) -> dict[str, Any]:
    latency = part["latency_us"].to_numpy(dtype=np.float64)
    found: dict[str, Any] = dict(zip(plan.shape, key, strict=True)) | {"configs": len(part), "best_us": float(latency.min())}
    orders = {"": part["predicted_us"].to_numpy(dtype=np.float64), "given": np.arange(len(part), dtype=np.float64)}
    for name, order in orders.items():
        found |= {f"{name}@{k}": float(v) for k, v in zip(KS, regret(latency, order, KS), strict=True)}
    return found | {f"random@{k}": float(v) for k, v in zip(KS, random_regret(latency, KS), strict=True)}


def _predict(
    plan: Sweep, rows: list[dict[str, Any]], gpu: GpuSpec, only_shipped: bool, workers: int | None, progress: Progress | None
) -> Floats:
    """Predicted microseconds of each row; NaN where a config is not compiled."""
    constants = law.constants()
    works: dict[Any, Work] = {}
    total = np.zeros(len(rows))
    for place, step in enumerate(plan.steps):
        compiled, calls = _compile(step, rows, gpu, only_shipped, workers, progress)
        for i, (row, one, call) in enumerate(zip(rows, compiled, calls, strict=True)):
            if one is None or one.binary is None or law.reasons(gpu, one.binary):
                total[i] = np.nan
                continue
            grid = step.grid(row)
            key = (one.ttir, grid, tuple(call.values.items()))
            if key not in works:
                works[key] = analyse(ir.parse(one.ttir), call.values, grid)
            seconds = law.estimate(gpu, works[key], one.binary, constants).latency_s
            total[i] += seconds if place == 0 else seconds - constants["launch_s"] + constants["next_launch_s"]
            if progress and i % 100 == 0:
                progress(f"predicting {step.kernel}", i, len(rows))
    return total * US_PER_S


def _compile(
    step: Step, rows: list[dict[str, Any]], gpu: GpuSpec, only_shipped: bool, workers: int | None, progress: Progress | None
) -> tuple[list[Compiled | None], list[Any]]:
    try:
        from perfmodel.measure.kernels import plain
    except ImportError:
        raise NoAnswerError("evaluating any kernel needs triton: pip install 'perfmodel[gpu]'") from None
    function = jit_function(getattr(plain, step.kernel))[0]
    arch = int(gpu.arch.removeprefix("sm_"))
    pack = read_pack(pack_path(gpu)) if pack_path(gpu).is_file() else {}
    calls = [describe(function, {}, step.arguments(row), step.config(row)) for row in rows]
    asked = [i for i, call in enumerate(calls) if not only_shipped or call_key(function, call, arch) in pack]
    found = compile_calls(function, [calls[i] for i in asked], arch, workers=workers, known=pack, progress=progress)
    answers: list[Compiled | None] = [None] * len(rows)
    for i, one in zip(asked, found, strict=True):
        answers[i] = one
    return answers, calls
