"""The public predictions: one operator, one Triton config, or a table of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.bound import least_seconds, within
from perfmodel.errors import InputError, shown
from perfmodel.explanation import Explanation
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels import family_for, kernel_family
from perfmodel.kernels.configs import Configs, family_configs
from perfmodel.kernels.facts import Facts, facts_for
from perfmodel.kernels.terms import Terms, constant_values
from perfmodel.learn.calibration import Calibration
from perfmodel.learn.domain import DTYPE, KERNEL
from perfmodel.learn.model import FittedModel
from perfmodel.predict_kernels import kernel_model, kernel_outside, kernel_reasons
from perfmodel.prediction import Prediction
from perfmodel.units import US_PER_S

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
CalibrationLike = str | Path | Calibration | None


class Operator(Protocol):
    """Anything with a kind and a dtype: Gemm, Attention, MoE, Collective, MemoryBound."""

    @property
    def kind(self) -> str:
        """`gemm`, `attention`, `moe`, `collective` or `memory`."""
        ...

    @property
    def dtype(self) -> str:
        """Element type."""
        ...


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


def check_operator(op: object) -> None:
    """Raise InputError for what is no operator, such as its name."""
    if not hasattr(op, "kind") or not hasattr(op, "dtype"):
        raise InputError(f"op is {shown(op)}: expected an operator such as Gemm(4096, 14336, 4096)")


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


def predict(
    op: Operator, gpu: str | GpuSpec, *, stack: str | None = None, config: Any = None, calibration: CalibrationLike = "auto"
) -> Prediction:
    """Predict one operator on one GPU: a library kernel of `stack`, or with `config` one Triton config of the operator's kernel.

    Raises InputError for an unknown GPU, an impossible config, a config together with a stack, or a dtype the GPU has no tensor cores for.
    """
    check_operator(op)
    spec = gpu if isinstance(gpu, GpuSpec) else find_gpu(gpu)
    if config is None:
        from perfmodel.predict_operators import predict_one

        return predict_one(op, spec, stack=stack, calibration=calibration)
    if stack is not None:
        raise InputError(
            f"stack {shown(stack)} and config (--stack, --config): a Triton config is no library's kernel, so give one of the two"
        )
    name = family_for(op)
    family = kernel_family(name)
    spec.tensor_rate(family.rate_of(op.dtype))
    configs = family_configs(family, config)
    if len(configs) != 1:
        raise InputError(f"config holds {len(configs)} configs: predict takes one, rank takes a list")
    sizes = op_sizes(op, name)
    facts = facts_for(name, spec, op.dtype, configs, sizes)
    for rule in family.rules(spec, **sizes, dtype=op.dtype, configs=configs, facts=facts):
        if rule.hard and rule.mask[0]:
            raise InputError(f"this config cannot run on {spec.name}: {rule.reason}")
    model = kernel_model(spec, name, op.dtype, calibration)
    found = predict_configs(name, spec, sizes, op.dtype, configs, facts, model)

    def explain(found: Prediction) -> Explanation:
        from perfmodel.predict_explain import explanation

        def latency_of(changed: GpuSpec) -> float:
            constants = constant_values(name, model.constants)
            law = family.terms(changed, **sizes, dtype=op.dtype, configs=configs, facts=facts, constants=constants)
            return float(law.latency_s[0])

        return explanation(found, what=f"{op}, one config", gpu=spec, law=name, latency_of=latency_of, card=model.card, named=True)

    return Prediction(
        latency_us=float(found.latency_us[0]),
        low_us=float(found.low_us[0]),
        high_us=float(found.high_us[0]),
        bound=str(found.terms.bound()[0]),
        terms={name: float(np.broadcast_to(v, (1,))[0]) * US_PER_S for name, v in found.terms.seconds.items()},
        tier=found.model.tier,
        in_domain=bool(found.in_domain[0]),
        model_id=found.model.model_id,
        outside=kernel_reasons(int(found.outside[0]), spec, name, op.dtype, str(configs.variant[0]), model, found.terms.features),
        detail={
            "waves": float(found.terms.waves[0]),
            "blocks_per_sm": int(found.terms.blocks_per_sm[0]),
            "limiter": str(found.terms.limiter[0]),
        },
        explainer=explain,
    )


def predict_table(
    kind: str, frame: pd.DataFrame, gpu: str | GpuSpec | None = None, *, calibration: CalibrationLike = "auto"
) -> pd.DataFrame:
    """Predict every row of `frame`, which has one column a field of the operator (optional: gpu, stack, dtype, kernel ...).

    kind: gemm, attention, moe, collective or memory. Returns latency_us, low_us, high_us, bound, tier and in_domain on the same
    index. Unknown columns are ignored; raises InputError naming the first bad row for sizes that cannot be.
    """
    from perfmodel.predict_operators import predict_frame

    return predict_frame(kind, frame, gpu, calibration=calibration)
