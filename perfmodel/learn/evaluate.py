"""How good a ranking is: regret of the first k over the best of all, by whole shapes, beside baselines; and latency error with coverage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels import kernel_family
from perfmodel.kernels.configs import Configs, family_configs
from perfmodel.kernels.family import KernelFamily
from perfmodel.learn.baselines import BASELINES, EXTERNAL

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
KS = (1, 3, 5, 8, 16)
RANDOM_ORDERS = 64
STEADY = 0.15  # of the latency: the standard deviation up to which a row counts as measured


@dataclass(frozen=True, slots=True)
class Sweep:
    """One problem measured over many configs: its sizes, the configs and their latencies in microseconds."""

    sizes: Mapping[str, int]
    dtype: str
    configs: Configs
    latency_us: Floats
    family: str = "gemm"

    @property
    def label(self) -> str:
        """`dtype MxNxK`."""
        return f"{self.dtype} " + "x".join(str(v) for v in self.sizes.values())


def rows_that_ran(frame: pd.DataFrame) -> pd.DataFrame:
    """The measured rows that ran and gave the right answer, where the frame says (columns status, correct)."""
    if "status" in frame.columns:
        frame = frame[frame["status"] == "ok"]
    if "correct" in frame.columns:
        frame = frame[frame["correct"].eq(True)]
    return frame


def steady_rows(frame: pd.DataFrame, shape: Sequence[str], share: float = STEADY) -> pd.DataFrame:
    """The rows whose repetitions agree: standard deviation (std_us) within `share` of the latency; all rows of a frame that has none.

    A shape that loses half of its rows by it is left out as a whole: there the host was timed, not the kernel. The rule looks at
    repeated measurements only, never at what a model says.
    """
    if "std_us" not in frame.columns:
        return frame
    calm = ~(frame["std_us"] > share * frame["latency_us"])
    mostly = calm.groupby([frame[c] for c in shape]).transform("mean") >= 0.5
    return frame[calm & mostly]


def read_sweeps(family: str, frame: pd.DataFrame, dtype: str | None = None, steady: float = STEADY) -> list[Sweep]:
    """Split measured rows (sizes, config fields, latency_us, optional dtype, status, correct) into one Sweep a problem.

    Only rows that ran, gave the right answer and are steady (steady_rows) count. The kernel's library baseline rows (variant cublas)
    are left out.
    """
    import pandas as pd

    module = kernel_family(family)
    frame = rows_that_ran(with_size_columns(module, frame, "the sweep"))
    if "variant" in frame.columns:
        frame = frame[frame["variant"].isna() | frame["variant"].isin(module.VARIANTS)]
    if "dtype" not in frame.columns:
        frame = frame.assign(dtype=dtype or "bf16")
    elif dtype is not None:
        frame = frame[frame["dtype"] == dtype]
    if frame.empty:
        raise InputError("the sweep has no row that ran correctly" + (f" with dtype {dtype}" if dtype else ""))
    latency = pd.to_numeric(frame["latency_us"], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.flatnonzero(~(np.isfinite(latency) & (latency > 0)))
    if len(bad):
        raise InputError(f"latency_us must be a positive number of microseconds: row {frame.index[bad[0]]} of the sweep is not")
    frame = steady_rows(frame, ["dtype", *module.SIZES], steady)
    if frame.empty:
        raise InputError(
            f"no shape of the sweep was measured steadily: std_us is over {steady:g} of the latency on half of the rows or more"
        )
    sweeps = []
    for label, rows in frame.groupby(["dtype", *module.SIZES], sort=True):
        key: tuple[Any, ...] = tuple(label)
        configs = family_configs(module, rows)
        sizes = dict(zip(module.SIZES, (int(v) for v in key[1:]), strict=True))
        sweeps.append(Sweep(sizes, str(key[0]), configs, rows["latency_us"].to_numpy(dtype=np.float64), family))
    return sweeps


def over_library(family: str, frame: pd.DataFrame) -> dict[str, Floats]:
    """Best latency of the family's own variants over a library's on each shape that has both, by the library's name in `variant`."""
    module = kernel_family(family)
    frame = rows_that_ran(with_size_columns(module, frame, "the sweep"))
    if "variant" not in frame.columns:
        return {}
    keys = ["dtype", *module.SIZES] if "dtype" in frame.columns else list(module.SIZES)
    own = frame["variant"].isin(module.VARIANTS)
    best = frame[own].groupby(keys)["latency_us"].min()
    found = {}
    for name, rows in frame[~own & frame["variant"].notna()].groupby("variant"):
        ratio = (best / rows.groupby(keys)["latency_us"].min()).dropna().to_numpy(dtype=np.float64)
        if len(ratio):
            found[str(name)] = ratio
    return found


def with_size_columns(module: KernelFamily, frame: pd.DataFrame, what: str) -> pd.DataFrame:
    """The frame with one column a size of the family, read from its ALIASES where its own name is absent, and its DEFAULTS where both are.

    Raises InputError naming `what` and the missing columns.
    """
    found: dict[str, Any] = {}
    for size in module.SIZES:
        known = [name for name in (size, *module.ALIASES.get(size, ())) if name in frame.columns]
        if known:
            found[size] = frame[known[0]]
        elif size in module.DEFAULTS:
            found[size] = module.DEFAULTS[size]
    missing = [c for c in module.SIZES if c not in found] + (["latency_us"] if "latency_us" not in frame.columns else [])
    if missing:
        raise InputError(f"{what} lacks column {', '.join(missing)}; it has {', '.join(map(str, frame.columns))}")
    return frame.assign(**found)


def regret(latency: Floats, score: Floats, ks: Sequence[int] = KS) -> Floats:
    """Best latency among the k lowest scores over the best of all, for each k; ties keep their order."""
    order = np.argsort(score, kind="stable")
    first: Floats = np.minimum.accumulate(latency[order])
    best: Floats = np.array([first[min(k, len(first)) - 1] for k in ks])
    return best / float(latency.min())


def random_regret(latency: Floats, ks: Sequence[int] = KS, seed: int = 0) -> Floats:
    """Geometric mean regret over RANDOM_ORDERS random orders."""
    rng = np.random.default_rng(seed)
    logs = [np.log(regret(latency, rng.permutation(len(latency)).astype(np.float64), ks)) for _ in range(RANDOM_ORDERS)]
    mean: Floats = np.exp(np.mean(logs, axis=0))
    return mean


Predictor = Callable[[Sweep], tuple[Floats, Floats, Floats]]
"""Latency, low and high of every config of a sweep, microseconds."""


def evaluate_ranking(
    sweeps: Sequence[Sweep], gpu: GpuSpec, methods: Mapping[str, Predictor], *, external: bool = False
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Score `methods` (ours) and the baselines on every sweep.

    Returns (summary, per shape). Summary has one row a method: regret@k as geometric mean, and for @3 its p90, maximum and the share of
    shapes within 5 %; for our methods the mean, median and p90 absolute error of latency over configs within twice the best, and
    the coverage of the 80 % interval there. A static list is scored with the half of the shapes it was not chosen on.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    errors: dict[str, list[Floats]] = {name: [] for name in methods}
    inside: dict[str, list[npt.NDArray[np.bool_]]] = {name: [] for name in methods}
    for sweep in sweeps:
        scores = {**BASELINES, **(EXTERNAL if external else {})} if sweep.family == "gemm" else {}
        rows.append({"method": "random", "shape": sweep.label, **_named(random_regret(sweep.latency_us))})
        for name, score in scores.items():
            values = score(gpu, sweep.sizes, sweep.dtype, sweep.configs)
            rows.append({"method": name, "shape": sweep.label, **_named(regret(sweep.latency_us, values))})
        for name, method in methods.items():
            latency, low, high = method(sweep)
            rows.append({"method": name, "shape": sweep.label, **_named(regret(sweep.latency_us, latency))})
            near = sweep.latency_us <= 2 * sweep.latency_us.min()
            errors[name].append(np.abs(latency / sweep.latency_us - 1)[near])
            inside[name].append(((low <= sweep.latency_us) & (sweep.latency_us <= high))[near])
    rows += [{"method": "static list (other half of the shapes)", "shape": s.label, **_named(r)} for s, r in _static_lists(sweeps)]
    shapes = pd.DataFrame(rows)
    summary = []
    for label, group in shapes.groupby("method", sort=False):
        name = str(label)
        logs = np.log(group[[f"@{k}" for k in KS]].to_numpy())
        row: dict[str, Any] = {"method": name, "shapes": len(group), **_named(np.exp(logs.mean(axis=0)))}
        row |= {"@3 p90": group["@3"].quantile(0.9), "@3 max": group["@3"].max(), "@3 within 5 %": (group["@3"] <= 1.05).mean()}
        if name in methods:
            off = np.concatenate(errors[name])
            row |= {"error mean": off.mean(), "error median": np.median(off), "error p90": np.quantile(off, 0.9)}
            row |= {"coverage": np.concatenate(inside[name]).mean()}
        summary.append(row)
    return pd.DataFrame(summary), shapes


def _named(values: Floats) -> dict[str, float]:
    return {f"@{k}": float(v) for k, v in zip(KS, values, strict=True)}


def _static_lists(sweeps: Sequence[Sweep]) -> list[tuple[Sweep, Floats]]:
    """Greedy list of configs that covers one half of the shapes best, scored on the other half; needs sweeps of the same configs."""
    keys = [
        [tuple(row) for row in np.column_stack([s.configs.code, *(s.configs[c] for c in kernel_family(s.family).COLUMNS)])] for s in sweeps
    ]
    results = []
    for half in (0, 1):
        train = [i for i in range(len(sweeps)) if i % 2 != half]
        if not train:
            return []
        known = sorted({key for i in train for key in keys[i]})
        at = {key: j for j, key in enumerate(known)}
        table = np.full((len(train), len(known)), np.inf)
        for row, i in enumerate(train):
            table[row, [at[key] for key in keys[i]]] = sweeps[i].latency_us / sweeps[i].latency_us.min()
        chosen: list[int] = []
        best = np.full(len(train), 20.0)
        for _ in range(max(KS)):
            gain = np.log(np.minimum(best[:, None], table)).mean(axis=0)
            chosen.append(int(np.argmin(gain)))
            best = np.minimum(best, table[:, chosen[-1]])
        place = {known[j]: float(p) for p, j in enumerate(chosen)}
        for i in range(half, len(sweeps), 2):
            score = np.array([place.get(key, 1e6) for key in keys[i]])
            results.append((sweeps[i], regret(sweeps[i].latency_us, score)))
    return results
