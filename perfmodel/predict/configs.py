"""Latency of Triton configs: the law of their kernel with a fitted model's constants, times what its rows taught."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.bound import least_seconds, within
from perfmodel.errors import InputError
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels import family_for, kernel_family
from perfmodel.kernels.configs import Configs, family_configs
from perfmodel.kernels.facts import Facts, facts_for
from perfmodel.kernels.terms import Terms, constant_values
from perfmodel.learn.calibration import CalibrationLike
from perfmodel.learn.domain import DTYPE, KERNEL
from perfmodel.learn.model import FittedModel
from perfmodel.ops.operator import Operator
from perfmodel.predict.explain import Explanation, explanation
from perfmodel.predict.kernel_domain import kernel_model, kernel_outside, kernel_reasons
from perfmodel.predict.prediction import Prediction
from perfmodel.units import US_PER_S

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ConfigPredictions:
    """Predictions of n configs of one kernel: arrays of length n, microseconds, and the terms behind them."""

    latency_us: Floats
    low_us: Floats
    high_us: Floats
    terms: Terms
    model: FittedModel
    in_domain: npt.NDArray[np.bool_]
    outside: npt.NDArray[np.intp]


def predict_configs(
    family: str, gpu: GpuSpec, sizes: Mapping[str, Any], dtype: str, configs: Configs, facts: Facts, model: FittedModel
) -> ConfigPredictions:
    """Latency of each config: physics with the model's constants, times its residual. `sizes` are scalars or arrays beside the configs.

    A residual speaks for the kernel variants it was fitted on; for somebody else's kernel the fitted constants answer alone, with the
    wider interval that the law without a tree has earned. So they do for an element type that no row is of.
    """
    terms: Terms = kernel_family(family).terms(
        gpu, **sizes, dtype=dtype, configs=configs, facts=facts, constants=constant_values(family, model.constants)
    )
    count = len(configs)
    latency = terms.latency_s * US_PER_S
    low, high = (np.full(count, bound) for bound in model.law_interval or model.interval)
    beyond = kernel_outside(model, gpu, dtype, configs, terms)
    seen = (beyond & (KERNEL | DTYPE)) == 0
    if seen.any():
        latency = latency * np.where(seen, model.correction(terms.features, count), 1.0)
        low[seen], high[seen] = model.interval
    least = config_least_s(family, gpu, sizes, dtype) * US_PER_S
    ends = within(latency, latency * np.exp(low), latency * np.exp(high), least)
    return ConfigPredictions(*ends, terms, model, beyond == 0, beyond)


def config_least_s(family: str, gpu: GpuSpec, sizes: Mapping[str, Any], dtype: str) -> Floats:
    """Seconds below which no config of a kernel computes its problem (analytic/bound.py); `sizes` are scalars or arrays."""
    module = kernel_family(family)
    return least_seconds(gpu, module.work(dtype, **sizes), gpu.tensor_rate(module.rate_of(dtype)))


def op_sizes(op: Operator, family: str) -> dict[str, int]:
    """The sizes a kernel family asks for; raises InputError for an operator that it does not compute."""
    module = kernel_family(family)
    if not module.computes(op):
        raise InputError(f"kernel {family} does not compute {_a(op)}")
    sizes: dict[str, int] = module.sizes_of(op)
    return sizes


def _a(op: Operator) -> str:
    phase = getattr(op, "phase", "")
    return f"a {phase} {op.kind}" if phase else f"a {op.kind}"


def predict_config(op: Operator, gpu: GpuSpec, config: Any, calibration: CalibrationLike) -> Prediction:
    """Predict one Triton config of the kernel that computes `op`.

    Raises InputError for a config that the GPU cannot run, more than one config, or a dtype the GPU has no tensor cores for.
    """
    name = family_for(op)
    family = kernel_family(name)
    gpu.tensor_rate(family.rate_of(op.dtype))
    configs = family_configs(family, config)
    if len(configs) != 1:
        raise InputError(f"config holds {len(configs)} configs: predict takes one, rank takes a list")
    sizes = op_sizes(op, name)
    facts = facts_for(name, gpu, op.dtype, configs, sizes)
    for rule in family.rules(gpu, **sizes, dtype=op.dtype, configs=configs, facts=facts):
        if rule.hard and rule.mask[0]:
            raise InputError(f"this config cannot run on {gpu.name}: {rule.reason}")
    model = kernel_model(gpu, name, op.dtype, calibration)
    found = predict_configs(name, gpu, sizes, op.dtype, configs, facts, model)

    def explain(found: Prediction) -> Explanation:
        def latency_of(changed: GpuSpec) -> float:
            constants = constant_values(name, model.constants)
            law = family.terms(changed, **sizes, dtype=op.dtype, configs=configs, facts=facts, constants=constants)
            return float(law.latency_s[0])

        return explanation(found, what=f"{op}, one config", gpu=gpu, law=name, latency_of=latency_of, card=model.card, named=True)

    return Prediction(
        latency_us=float(found.latency_us[0]),
        low_us=float(found.low_us[0]),
        high_us=float(found.high_us[0]),
        bound=str(found.terms.bound()[0]),
        terms={name: float(np.broadcast_to(v, (1,))[0]) * US_PER_S for name, v in found.terms.seconds.items()},
        tier=found.model.tier,
        in_domain=bool(found.in_domain[0]),
        model_id=found.model.model_id,
        outside=kernel_reasons(int(found.outside[0]), gpu, name, op.dtype, str(configs.variant[0]), model, found.terms.features),
        detail={
            "waves": float(found.terms.waves[0]),
            "blocks_per_sm": int(found.terms.blocks_per_sm[0]),
            "limiter": str(found.terms.limiter[0]),
        },
        explainer=explain,
    )
