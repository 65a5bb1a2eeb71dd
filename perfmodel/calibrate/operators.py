"""Fits of operator models: constants of a law within their ranges, folds of whole shapes, and widths of intervals by regime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from perfmodel.analytic.constants import physics
from perfmodel.calibrate.operator_rows import Rows, law_of, sample
from perfmodel.hw import gpu as find_gpu
from perfmodel.learn.intervals import NOMINAL, upper_bound
from perfmodel.learn.model import FittedModel
from perfmodel.learn.operators import (
    REGIMES_US,
    correction,
    interval_group,
)
from perfmodel.library.registry import MODELS
from perfmodel.units import US_PER_S

if TYPE_CHECKING:
    pass

Floats = npt.NDArray[np.float64]
CONSTANT_ROWS, MORE_ROWS = 600, {"attention_decode": 1500, "gemm_quantised": 1500}
"""Rows a GPU that a law's constants are fitted to: more weigh more against their stated values, which a GPU left out needs more often
(MLA decode of the A100, whole tree: 20 % with 600, 34 % with 1500). Those with more gain on every GPU tried (quantised GEMM of the H100:
33 % with 600, 24 % with 1500)."""
FIXED = (
    "max_splits", "split_tokens", "idle_share", "pj_mma", "pj_wgmma", "pj_7nm", "pj_tcgen", "pj_per_byte",
    "constant_data_power", "power_power",
    "narrow_share", "peak_share", "block_share_mma",
    "inline_ecc_share", "copies_any", "copies_vllm", "copies_sglang", "copies_trtllm", "copies_torch",
)  # fmt: skip
"""Constants that keep their stated value: facts with a source of their own, not identified by latencies, or a choice of form."""
SCALE = 0.15  # residual of log latency from which a row counts less
SLACK = 0.3  # standard deviation of a log constant's prior, relative to the noise of a row
MIN_GROUP = 40  # residuals below which a group's width is pooled with the rest


def free_constants(model_key: str, start: Mapping[str, float] | None = None) -> tuple[list[str], Floats, Floats, Floats]:
    """Names of the constants that a fit may move, the values it starts from, and the bounds of log(constant / value)."""
    known = {n: c for n, c in physics(MODELS[model_key].law).items() if c.high > c.low and c.value > 0 and n not in FIXED}
    value = np.array([(start or {}).get(n, c.value) for n, c in known.items()])
    low = np.log(np.maximum([c.low for c in known.values()], value * 0.01) / value) - 1e-6
    high = np.log(np.array([c.high for c in known.values()]) / value) + 1e-6
    return list(known), value, np.minimum(low, -1e-6), np.maximum(high, 1e-6)


def prior_weight(rows: int, pull: float = 1.0) -> float:
    """Weight of a log constant's distance from its start, beside `rows` residuals: a standard deviation of SLACK / pull."""
    return float(pull * 0.008 * np.sqrt(rows) / SLACK * 0.3)


def fit_constants(rows: Rows, evaluations: int = 16, start: Mapping[str, float] | None = None, pull: float = 1.0) -> dict[str, float]:
    """Constants of the law, one value for all the GPUs of `rows`, by robust least squares over their logs within their stated ranges.

    GPUs count alike. A prior of standard deviation SLACK / pull keeps what the rows do not identify at its stated value, or at `start`.
    """
    rows = sample(rows, MORE_ROWS.get(rows.model_key, CONSTANT_ROWS))
    names, value, low, high = free_constants(rows.model_key, start)
    count = {name: int((rows.gpu == name).sum()) for name in rows.gpus}
    weight = np.sqrt(len(rows) / len(count) / np.array([count[name] for name in rows.gpu.tolist()]))
    prior = prior_weight(len(rows), pull)

    def residuals(x: Floats) -> Floats:
        log_law, _ = law_of(rows, dict(zip(names, value * np.exp(x), strict=True)))
        return np.concatenate([weight * (rows.log_latency - log_law), prior * x])

    found = least_squares(
        residuals, np.zeros(len(names)), bounds=(low, high), diff_step=1e-2, max_nfev=evaluations, loss="soft_l1", f_scale=SCALE
    )
    return {name: float(f"{v:.6g}") for name, v in zip(names, value * np.exp(found.x), strict=True)}


def predict_log(model: FittedModel, rows: Rows) -> Floats:
    """Log of the predicted latency in seconds."""
    result = np.empty(len(rows))
    for name in rows.gpus:
        at = np.flatnonzero(rows.gpu == name)
        terms, log_ratio = correction(find_gpu(name), rows.model_key, rows.columns.take(at), model)
        result[at] = np.log(terms.latency_s) + log_ratio
    return result


def shape_folds(rows: Rows, folds: int, seed: int = 0) -> list[tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]]:
    """(train, held) masks by whole shapes."""
    shape = np.unique(rows.shape, return_inverse=True)[1]
    part = np.random.default_rng(seed).permutation(int(shape.max()) + 1)[shape] % folds
    return [(part != i, part == i) for i in range(folds)]


def regime_widths(parts: Sequence[Floats], apart: bool = True) -> list[float]:
    """Half-widths of the three regimes from columns that begin with (error, log latency), one array a GPU, GPUs alike; none of few rows.

    Of each the error that a new one exceeds with probability 1 - NOMINAL. A GPU is what is drawn next, not a row of one: it counts once.
    apart: whether each regime has its own, else all have that of all rows.
    """
    if sum(part.shape[1] for part in parts) < MIN_GROUP:
        return []
    error, log_latency = np.concatenate([part[:2] for part in parts], axis=1)
    weight = np.concatenate([np.full(part.shape[1], 1.0 / max(part.shape[1], 1)) for part in parts])
    regime = interval_group(np.exp(log_latency - error) * US_PER_S, np.ones(len(error)))
    masks = [regime == i for i in range(len(REGIMES_US) + 1)]
    masks = [mask if apart and mask.sum() >= MIN_GROUP else np.ones_like(mask) for mask in masks]
    return [round(upper_bound(np.abs(error[mask]), NOMINAL, weight[mask]), 4) for mask in masks]


def group_widths(parts: Sequence[Floats]) -> list[float]:
    """Half-widths of the six interval groups from (error, log latency, stack) columns, as `regime_widths` for stacks named and unnamed."""
    found = [regime_widths(half) for half in halves(parts)]
    together = regime_widths(parts) or [float(upper_bound(np.abs(np.concatenate(list(parts), axis=1)[0]), NOMINAL))] * 3
    return [width for widths in found for width in widths or together]


def halves(parts: Sequence[Floats]) -> list[list[Floats]]:
    """The same columns of the rows whose stack is named, and of those whose is not."""
    return [[part[:, (part[2] > 0) == named] for part in parts if ((part[2] > 0) == named).any()] for named in (True, False)]
