"""Which fitted model answers for the configs of a Triton kernel, and what its rows do not show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels.configs import Configs
from perfmodel.kernels.terms import Terms
from perfmodel.learn.calibration import Calibration, prior_model, resolve
from perfmodel.learn.domain import ARCH, DTYPE, KERNEL, NO_ROWS, SIZE, of_gpu, sizes_beyond
from perfmodel.learn.model import FittedModel

SLACK = 0.1  # of a feature's range, as in FittedModel.in_domain


def kernel_model(gpu: GpuSpec, family: str, dtype: str, calibration: str | Path | Calibration | None) -> FittedModel:
    """As `resolve` says; for an element type that no row of the GPU is of, the spec tier."""
    what = f"kernel_{family}"
    found = resolve(gpu, what, calibration)
    return prior_model(gpu, what) if found.tier != "spec" and not shows(found.card, dtype) else found


def shows(card: Mapping[str, Any], dtype: str) -> bool:
    """Whether a model's rows are of an element type; 16-bit ones run alike."""
    known = set(card.get("dtypes", (dtype,)))
    alike = {"bf16", "fp16"}
    return dtype in known or (dtype in alike and bool(known & alike))


def kernel_outside(model: FittedModel, gpu: GpuSpec, dtype: str, configs: Configs, terms: Terms) -> npt.NDArray[np.intp]:
    """Of each config, what the model's rows do not show: a sum of domain.SIZE, DTYPE, KERNEL ..."""
    found: npt.NDArray[np.intp] = np.where(model.in_domain(terms.features, len(configs), SLACK), 0, SIZE) + of_gpu(model.card, gpu)
    if not shows(model.card, dtype):
        found |= DTYPE
    found |= np.where(configs.of(*model.card.get("variants", configs.variants)), 0, KERNEL)
    return found


def kernel_reasons(
    code: int, gpu: GpuSpec, family: str, dtype: str, variant: str, model: FittedModel, features: Mapping[str, Any]
) -> tuple[str, ...]:
    """The same of one config, with the law's features of it, in words."""
    found, what = [], f"the Triton kernel {family}"
    if code & NO_ROWS:
        found.append(f"no measured row for {what}: the law alone")
    if code & ARCH:
        found.append(f"no row of {gpu.arch} for {what}")
    if code & DTYPE:
        found.append(f"no row of dtype {dtype} for {what}")
    if code & KERNEL:
        found.append(f"no row of variant {variant} of {what}")
    if code & SIZE:
        found += sizes_beyond(model, features, 1e-9, SLACK) or ["a term of the config is outside of what was measured"]
    return tuple(found)
