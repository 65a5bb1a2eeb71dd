"""Real questions of every kind to every GPU, at every tier and by every route: no answer may beat the card, or miss its own interval."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError, NoAnswerError
from perfmodel.fit.operator_models import load
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw import gpus
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels import FAMILIES, kernel_family
from perfmodel.library.collective import model
from perfmodel.library.least import least_s
from perfmodel.library.registry import MODELS, kinds
from perfmodel.ops import OperatorTable
from perfmodel.ops.memory import TRAFFIC
from perfmodel.ops.names import DTYPES, KERNELS, STACKS, fastest_rates
from perfmodel.predict import predict, predict_table
from perfmodel.predict.configs import config_least_s
from perfmodel.tune.rank import rank
from perfmodel.units import US_PER_S

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
BATCH = 50  # rows of one table
SINGLES = 5  # of them, asked one by one too
ROUNDING = 1e-9
NAMES = ("latency_us", "low_us", "high_us")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p")
TIERS = ("auto", None)


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to questions of one kind, microseconds: latency, low and high ends, and the bound of the work."""

    kind: str
    latency: Floats
    low: Floats
    high: Floats
    least: Floats


def check(
    questions: int, seed: int = 0, progress: Callable[[str, int, int], None] = lambda what, done, total: None
) -> list[dict[str, Any]]:
    """One row a kind of question: how many were asked, how many answers or ends of intervals lie beyond the bound, how many intervals miss
    their own point, how many numbers are not finite; and a last row for all of them."""
    found: dict[str, list[Answers]] = {}
    asked = 0
    for answers in _asked(np.random.default_rng(seed)):
        found.setdefault(answers.kind, []).append(answers)
        asked += len(answers.latency)
        progress("asking", min(asked, questions), questions)
        if asked >= questions:
            break
    rows = [_counted(kind, parts) for kind, parts in sorted(found.items())]
    return [*rows, {"kind": "all", **{name: sum(row[name] for row in rows) for name in rows[0] if name != "kind"}}]


def _answers(kind: str, found: pd.DataFrame, least_us: Floats) -> Answers:
    latency, low, high = (found[name].to_numpy(dtype=np.float64) for name in NAMES)
    return Answers(kind, latency, low, high, least_us)


def _counted(kind: str, parts: list[Answers]) -> dict[str, Any]:
    latency, low, high, least = (np.concatenate([getattr(part, name) for part in parts]) for name in ("latency", "low", "high", "least"))
    beyond = np.minimum(np.minimum(latency, low), high) < least * (1.0 - ROUNDING)
    outside = (latency < low * (1.0 - ROUNDING)) | (latency > high * (1.0 + ROUNDING))
    finite = np.isfinite(latency) & np.isfinite(low) & np.isfinite(high) & (low > 0)
    counts = {"beyond_bound": beyond, "outside_own_interval": outside, "not_finite": ~finite}
    return {"kind": kind, "questions": len(latency), **{name: int(wrong.sum()) for name, wrong in counts.items()}}


def _asked(draw: np.random.Generator) -> Iterator[Answers]:
    """Tables, single questions, rankings and collectives in turn, without end."""
    shapes = {kind: _shapes(kind) for kind in kinds()}
    names = gpus()
    while True:
        for kind in kinds():
            spec, tier = find_gpu(str(draw.choice(names))), TIERS[int(draw.integers(2))]
            frame = _operators(kind, shapes[kind], spec, draw)
            yield _table(kind, frame, spec, tier)
            yield _singles(kind, frame.head(SINGLES), spec, tier)
        yield _collectives(find_gpu(str(draw.choice(names))), draw)
        yield from _ranked(find_gpu(str(draw.choice(names))), draw)


def _shapes(kind: str) -> pd.DataFrame:
    """The shapes of committed rows of a kind: real ones."""
    import pandas as pd

    frames = [pd.DataFrame(dict(load(name).columns)) for name, law in MODELS.items() if law.kind == kind]
    return pd.concat(frames, ignore_index=True)


def _operators(kind: str, shapes: pd.DataFrame, spec: GpuSpec, draw: np.random.Generator) -> pd.DataFrame:
    """Some real shapes with element types that the GPU multiplies, and any stack."""
    frame = shapes.iloc[draw.integers(len(shapes), size=BATCH)].reset_index(drop=True).copy()
    able = [name for name, rate in zip(DTYPES, fastest_rates(spec), strict=True) if rate > 0]
    sixteen = [name for name in able if name in ("bf16", "fp16")]
    cached = [name for name in able if name in ("bf16", "fp16", "fp8")]
    frame["dtype"] = draw.choice(able if kind in ("gemm", "moe") else sixteen, BATCH)
    frame["stack"] = draw.choice(["", *STACKS[1:]], BATCH)
    if "kv_dtype" in frame:
        frame["kv_dtype"] = draw.choice(cached, BATCH)
    if "decode" in frame:
        frame["phase"] = np.where(frame["decode"] > 0, "decode", "prefill")
    if "skew" in frame:
        frame["distribution"] = [f"power_law_{value:g}" if value else "balanced" for value in frame["skew"]]
        frame["weight"] = np.array(["both", "w13", "w2"])[frame["stage"].to_numpy(dtype=int)]
    if kind == "memory":
        frame["kind"] = np.array(list(TRAFFIC))[frame["kind"].to_numpy(dtype=int)]
    if "kernel" in frame:
        frame["kernel"] = np.where(draw.random(BATCH) < 0.5, "", np.array(KERNELS)[frame["kernel"].to_numpy(dtype=int)])
    return frame


def _table(kind: str, frame: pd.DataFrame, spec: GpuSpec, tier: Any) -> Answers:
    found = predict_table(kind, frame, spec, calibration=tier)
    return _answers(kind, found, least_s(spec, OperatorTable.read(kind, frame)) * US_PER_S)


def _singles(kind: str, frame: pd.DataFrame, spec: GpuSpec, tier: Any) -> Answers:
    """The same rows, one by one, those that an operator can say."""
    from perfmodel.ops import MLA, Attention, Gemm, MemoryBound, MoE

    made: Any = {"gemm": Gemm, "attention": Attention, "mla": MLA, "moe": MoE, "memory": MemoryBound}[kind]
    fields = [field.name for field in dataclasses.fields(made) if field.name in frame]
    answers = []
    for row in frame.to_dict("records"):
        values = {name: int(row[name]) if isinstance(row[name], float) else row[name] for name in fields}
        if "causal" in values:
            values["causal"] = bool(values["causal"])
        try:
            op = made(**values)
            found = predict(op, spec, stack=row["stack"] or None, calibration=tier)
        except (InputError, NoAnswerError):
            continue  # a row of a table may be what no single operator is: one grouped GEMM of a layer
        least = least_s(spec, OperatorTable.read(kind, _row_of(op)))[0] * US_PER_S
        answers.append((found.latency_us, found.low_us, found.high_us, least))
    return Answers(f"{kind}, single", *np.array(answers, dtype=np.float64).reshape(-1, 4).T)


def _row_of(op: Any) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([dataclasses.asdict(op)])


def _collectives(spec: GpuSpec, draw: np.random.Generator) -> Answers:
    import pandas as pd

    frame = pd.DataFrame({
        "kind": draw.choice(COLLECTIVES, BATCH), "message_bytes": 2 ** draw.integers(8, 31, BATCH), "n_gpus": draw.choice([2, 4, 8], BATCH),
        "stack": draw.choice(["nccl", "vllm", "sglang", "trtllm", "torch", "vllm_eager"], BATCH),
    })  # fmt: skip
    try:
        found = predict_table("collective", frame, spec)
    except InputError:  # the usual machine of this GPU holds fewer
        frame = frame.assign(n_gpus=2, topology="pcie_8gpu")
        found = predict_table("collective", frame, spec)
    return _answers("collective", found, np.asarray(model(spec, OperatorTable.read("collective", frame)).least_s) * US_PER_S)


def _ranked(spec: GpuSpec, draw: np.random.Generator) -> Iterator[Answers]:
    """Some configs of one problem of each kernel family that the GPU runs."""
    from perfmodel.ops import Attention, Gemm, MoE

    m, heads = 2 ** int(draw.integers(0, 14)), int(draw.choice([1, 2, 8]))
    problems: dict[str, Any] = {
        "gemm": Gemm(m, 256 * int(draw.integers(1, 64)), 256 * int(draw.integers(1, 64))),
        "attention_prefill": Attention("prefill", int(draw.choice([1, 4])), 1024, 1024 * int(draw.integers(1, 8)), 8 * heads, heads, 128),
        "attention_decode": Attention("decode", int(draw.choice([1, 32])), 1, 1024 * int(draw.integers(1, 32)), 8 * heads, heads, 128),
        "fused_moe": MoE(m, 4096, 1536, int(draw.choice([8, 64, 128])), 4),
    }
    for family in FAMILIES:
        try:
            ranking = rank(problems[family], spec, kernel=family, calibration=TIERS[int(draw.integers(2))])
        except (InputError, NoAnswerError):
            continue
        frame = ranking.frame.sample(min(BATCH, len(ranking)), random_state=int(draw.integers(2**31)))
        least = config_least_s(family, spec, kernel_family(family).sizes_of(problems[family]), problems[family].dtype) * US_PER_S
        yield _answers("configs", frame, np.full(len(frame), least))
