"""Fit a kernel family's law to measured rows of one GPU: first the constants of the physics, then a small tree on what is left."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from perfmodel.calibrate.sweep_rows import rows_that_ran, with_size_columns
from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError, plain
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels import kernel_family
from perfmodel.kernels.configs import TILE, Configs, family_configs
from perfmodel.kernels.facts import Facts, facts_for
from perfmodel.kernels.terms import Terms, constant_values, physics
from perfmodel.learn.calibration import PRIOR_CONFIG_INTERVAL
from perfmodel.learn.intervals import conformal_bounds, out_of_fold
from perfmodel.learn.model import FittedModel
from perfmodel.learn.plausible import usable
from perfmodel.learn.residual import Residual, fit_residual
from perfmodel.library.least import faster_than_physics
from perfmodel.ops import OperatorTable
from perfmodel.ops.check import MAX_SIZE, table
from perfmodel.ops.names import dtype_code
from perfmodel.units import US_PER_S

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
MIN_ROWS = 24
MIN_SHAPES = 4
_OPERATOR: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "gemm": ("gemm", {"batch": 1.0}),
    "attention_prefill": ("attention", {"window": 0.0, "decode": 0.0}),
    "attention_decode": ("attention", {"window": 0.0, "decode": 1.0, "q_len": 1.0, "causal": 1.0}),
    "fused_moe": ("moe", {"tp": 1.0, "ep": 1.0, "gated": 1.0, "stage": 0.0}),
}
"""Kernel family -> kind of operator that it computes, and columns of its table that the kernel's sizes do not have."""
NOISE = 0.3  # weight of the prior against a row: residual spread that physics alone is expected to leave
PRIOR_WIDTH = 0.45  # standard deviation of log(constant / spec value) before any row is seen: a factor of 1.6


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured rows of one kernel on one GPU, one Part a dtype; `group` numbers the shapes, `weight` favours configs near the best."""

    parts: tuple[Part, ...]
    log_latency: Floats
    group: npt.NDArray[np.int64]
    weight: Floats

    def __len__(self) -> int:
        return len(self.group)


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one dtype: where they stand in Rows, and what the law needs of them."""

    index: npt.NDArray[np.int64]
    dtype: str
    sizes: Mapping[str, Floats]
    configs: Configs
    facts: Facts


def read_rows(family: str, gpu: GpuSpec, frame: pd.DataFrame) -> Rows:
    """Check a frame of measured configs (sizes, config fields under any spelling, latency_us, optional dtype, status, correct).

    Failed or wrong rows are left out and, with a warning that names them, rows that cannot be. Raises InputError naming the column or
    the rows for missing columns, NaN or non-positive latencies, fewer than 24 rows or 4 shapes, and a table that is wrong as a whole.
    """
    module = kernel_family(family)
    table(frame, f"kernel:{family}")
    frame = rows_that_ran(with_size_columns(module, frame, f"the table for kernel:{family}"))
    labels, frame = list(frame.index), frame.reset_index(drop=True)
    latency = _numbers(family, frame, "latency_us")
    bad = np.flatnonzero(~(np.isfinite(latency) & (latency > 0)))
    if len(bad):
        raise InputError(f"latency_us must be a positive number: rows {', '.join(map(str, bad[:5]))} of kernel:{family} are not")
    sizes = {name: _numbers(family, frame, name) for name in module.SIZES}
    for name, values in sizes.items():
        least = 0 if name in module.FLAGS else 1
        wrong = np.flatnonzero(~((values >= least) & (values <= MAX_SIZE) & (values == np.floor(values))))
        if len(wrong):
            row, value = wrong[0], values[wrong[0]]
            raise InputError(f"{name} must be a whole number from {least} to {MAX_SIZE}: row {row} of kernel:{family} has {value:g}")
    names = [parse_dtype(d).name for d in frame["dtype"]] if "dtype" in frame.columns else ["bf16"] * len(frame)
    key = np.array([f"{d}:" + "x".join(str(int(sizes[n][i])) for n in module.SIZES) for i, d in enumerate(names)])
    group = np.unique(key, return_inverse=True)[1].astype(np.int64)
    if len(frame) < MIN_ROWS or len(np.unique(group)) < MIN_SHAPES:
        raise InputError(
            f"kernel:{family} has {len(frame)} usable rows over {len(np.unique(group))} shapes; a fit needs {MIN_ROWS} over {MIN_SHAPES}"
        )
    parts = []
    for name in sorted(set(names)):
        gpu.tensor_rate(module.rate_of(name))
        index = np.flatnonzero(np.array(names) == name)
        configs = family_configs(module, frame.iloc[index])
        check_launchable(gpu, configs, index)
        own = {k: v[index] for k, v in sizes.items()}
        parts.append(Part(index, name, own, configs, facts_for(family, gpu, name, configs, own)))
    log_latency = np.log(latency * 1e-6)
    best = np.full(group.max() + 1, np.inf)
    np.minimum.at(best, group, latency)
    rows = Rows(tuple(parts), log_latency, group, 1.0 / (1.0 + 2.0 * (latency / best[group] - 1.0)))
    log_law = np.log(law(family, gpu, rows, {}).latency_s)
    good = usable(f"kernel:{family}", labels, log_latency, log_law, log_law, _too_fast(family, gpu, rows))
    return rows if good.all() else take(rows, good)


def _too_fast(family: str, gpu: GpuSpec, rows: Rows) -> npt.NDArray[np.bool_]:
    """Which rows are faster than the GPU's peaks allow for the operator that the kernel computes."""
    found = np.zeros(len(rows), dtype=bool)
    for part in rows.parts:
        code, size = float(dtype_code(part.dtype)), len(part.index)
        columns = {**{name: np.full(size, value) for name, value in _OPERATOR[family][1].items()}, **part.sizes}
        columns |= {name: np.full(size, code) for name in ("dtype", "kv_dtype")}
        if family == "fused_moe":
            columns["skew"] = columns["random"]  # which experts get tokens is drawn: the least that any draw needs
        latency_us = np.exp(rows.log_latency[part.index]) * US_PER_S
        found[part.index] = faster_than_physics(gpu, OperatorTable(_OPERATOR[family][0], columns), latency_us)
    return found


def check_launchable(gpu: GpuSpec, configs: Configs, labels: npt.NDArray[np.int64]) -> None:
    """A measured config was launched: its tile sides and warps are powers of two, its threads fit a block. Else InputError with the row."""
    most = {**dict.fromkeys(TILE, MAX_SIZE), "num_warps": gpu.max_threads_per_block // 32}
    for name, limit in most.items():
        if name not in configs.columns:
            continue
        values = configs[name]
        wrong = np.flatnonzero((values & (values - 1) != 0) | (values > limit))
        if len(wrong):
            row, value = labels[wrong[0]], values[wrong[0]]
            raise InputError(f"{name} {value} of row {row} cannot have run on {gpu.name}: expected a power of two, up to {limit}")


def _numbers(family: str, frame: pd.DataFrame, name: str) -> Floats:
    try:
        values: Floats = frame[name].to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} of kernel:{family} must be numbers: {plain(error, 120)}") from None
    return values


def law(family: str, gpu: GpuSpec, rows: Rows, constants: Mapping[str, float]) -> Terms:
    """The family's terms of every row, in the order of Rows."""
    module = kernel_family(family)
    values = constant_values(family, constants)
    pieces: list[Terms] = [
        module.terms(gpu, **p.sizes, dtype=p.dtype, configs=p.configs, facts=p.facts, constants=values) for p in rows.parts
    ]
    if len(pieces) == 1 and np.array_equal(rows.parts[0].index, np.arange(len(rows))):
        return pieces[0]
    back = np.argsort(np.concatenate([p.index for p in rows.parts]))
    return Terms(
        latency_s=np.concatenate([t.latency_s for t in pieces])[back],
        seconds={k: np.concatenate([np.broadcast_to(t.seconds[k], t.latency_s.shape) for t in pieces])[back] for k in pieces[0].seconds},
        waves=np.concatenate([t.waves for t in pieces])[back],
        blocks_per_sm=np.concatenate([t.blocks_per_sm for t in pieces])[back],
        limiter=np.concatenate([t.limiter for t in pieces])[back],
        features={k: np.concatenate([np.broadcast_to(t.features[k], t.latency_s.shape) for t in pieces])[back] for k in pieces[0].features},
        exact_facts=np.concatenate([t.exact_facts for t in pieces])[back],
    )


def take(rows: Rows, mask: npt.NDArray[np.bool_]) -> Rows:
    """The rows of a mask."""
    keep = np.flatnonzero(mask)
    renumber = np.full(len(rows), -1)
    renumber[keep] = np.arange(len(keep))
    parts = []
    for p in rows.parts:
        inside = mask[p.index]
        if inside.any():
            at = np.flatnonzero(inside)
            parts.append(Part(renumber[p.index[at]], p.dtype, {k: v[at] for k, v in p.sizes.items()}, p.configs.take(at), p.facts.take(at)))
    return Rows(tuple(parts), rows.log_latency[keep], rows.group[keep], rows.weight[keep])


def fit_constants(family: str, gpu: GpuSpec, rows: Rows) -> dict[str, float]:
    """Constants of the law that explain `rows`, shrunk to the spec-tier values and kept within their stated ranges.

    Robust least squares (soft-l1) over log constants: the residual of each row, and again what is left of it after its shape's mean (a
    ranking only needs the latter), plus a Gaussian prior of standard deviation PRIOR_WIDTH on each log constant.
    """
    known = {n: c for n, c in physics(family).items() if c.value > 0 and c.high > c.low}
    low = np.array([np.log(max(c.low, c.value * 0.02) / c.value) for c in known.values()])
    high = np.array([np.log(c.high / c.value) for c in known.values()])
    weight = np.sqrt(rows.weight)
    groups = np.unique(rows.group, return_inverse=True)[1]
    mass = np.bincount(groups, weights=rows.weight)

    def residuals(x: Floats) -> Floats:
        constants = {n: c.value * float(np.exp(v)) for (n, c), v in zip(known.items(), x, strict=True)}
        error = rows.log_latency - np.log(law(family, gpu, rows, constants).latency_s)
        shape_mean = np.bincount(groups, weights=rows.weight * error) / mass
        return np.concatenate([0.7 * weight * error, 1.5 * weight * (error - shape_mean[groups]), NOISE * x / PRIOR_WIDTH])

    start = np.zeros(len(known))
    found = least_squares(
        residuals, start, bounds=(np.minimum(low, -1e-6), np.maximum(high, 1e-6)), diff_step=1e-3, max_nfev=30, loss="soft_l1", f_scale=0.15
    )
    return {n: float(f"{c.value * np.exp(v):.6g}") for (n, c), v in zip(known.items(), found.x, strict=True)}  # the same on any machine


def fit_kernel(
    family: str,
    gpu: GpuSpec,
    frame: pd.DataFrame,
    *,
    provenance: Mapping[str, Any] | None = None,
    today: FittedModel | None = None,
    seed: int = 0,
) -> FittedModel:
    """Fit constants and residual tree to measured rows; the better of constants alone and constants with tree, by held-out shapes.

    The interval comes from rows of shapes that the fold's model did not see. Of `today`, the model that answers now, the card has the
    error on the same rows. Raises InputError for bad rows, and when nothing
    beats the spec tier on held-out shapes (the message has the figures).
    """
    rows = read_rows(family, gpu, frame)
    spec = rows.log_latency - np.log(law(family, gpu, rows, {}).latency_s)

    def held_out(train: npt.NDArray[np.bool_], held: npt.NDArray[np.bool_]) -> Floats:
        constants = fit_constants(family, gpu, take(rows, train))
        seen, unseen = law(family, gpu, take(rows, train), constants), law(family, gpu, take(rows, held), constants)
        tree = _tree(seen, take(rows, train), seed)
        bare = np.log(unseen.latency_s)
        return np.stack([bare, bare + tree.log_ratio(unseen.features, len(bare))], axis=1)

    both = out_of_fold(rows.group, held_out, seed=seed)
    errors = {"spec": spec, "constants": rows.log_latency - both[:, 0], "constants and tree": rows.log_latency - both[:, 1]}
    scores = {name: float(np.average(np.abs(e), weights=rows.weight)) for name, e in errors.items()}
    best = min(scores, key=lambda name: scores[name])
    figures = ", ".join(f"{name} {100 * value:.1f} %" for name, value in scores.items())
    if best == "spec":
        raise InputError(f"the fit does not beat the spec tier on held-out shapes ({figures}): keep the spec tier, or give more rows")
    constants = fit_constants(family, gpu, rows)
    terms = law(family, gpu, rows, constants)
    tree = _tree(terms, rows, seed) if best == "constants and tree" else None
    near = rows.weight >= 1.0 / 3.0  # within twice the best
    enough = near.sum() >= MIN_ROWS
    interval, law_interval = (conformal_bounds(errors[k][near]) if enough else PRIOR_CONFIG_INTERVAL for k in (best, "constants"))
    digest = hashlib.sha256(np.ascontiguousarray(np.round(rows.log_latency, 9)).tobytes()).hexdigest()[:16]
    envelope = {name: (float(np.min(v)), float(np.max(v))) for name, v in terms.features.items()}
    card = {
        **(provenance or {}),
        "gpu": gpu.name,
        "gpus": [gpu.name],
        "archs": [gpu.arch],
        "kind": f"kernel_{family}",
        "rows": len(rows),
        "shapes": len(np.unique(rows.group)),
        "variants": sorted({str(v) for p in rows.parts for v in np.unique(p.configs.variant)}),
        "dtypes": sorted({p.dtype for p in rows.parts}),
        "data_hash": digest,
        "held_out_error": scores,
        "chosen": best,
    }
    if today is not None:
        card["prior_error"] = float(np.average(np.abs(_errors_of(family, gpu, rows, today)), weights=rows.weight))
    return FittedModel(f"{gpu.name}:kernel_{family}:{digest[:8]}", "calibrated", constants, interval, tree, envelope, card, law_interval)


def _errors_of(family: str, gpu: GpuSpec, rows: Rows, model: FittedModel) -> Floats:
    """log(measured / predicted) of a model, whose tree speaks for the variants that it was fitted to."""
    terms = law(family, gpu, rows, model.constants)
    learnt, seen = np.log(model.correction(terms.features, len(rows))), np.zeros(len(rows), dtype=bool)
    for part in rows.parts:
        seen[part.index] = part.configs.of(*model.card.get("variants", part.configs.variants))
    return rows.log_latency - np.log(terms.latency_s) - np.where(seen, learnt, 0.0)


def _tree(terms: Terms, rows: Rows, seed: int) -> Residual:
    return fit_residual(terms.features, rows.log_latency - np.log(terms.latency_s), rows.weight, seed=seed)
