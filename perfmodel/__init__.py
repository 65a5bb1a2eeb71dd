"""perfmodel predicts GPU performance without a GPU: Triton config ranking, operator latency, deployment planning.

    import perfmodel as pm
    pm.rank(pm.Gemm(4096, 14336, 4096), "h100_sxm", top_k=8)

Names load on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "gpus": "perfmodel.hw",
    "gpu": "perfmodel.hw",
    "Gemm": "perfmodel.ops",
    "Attention": "perfmodel.ops",
    "MLA": "perfmodel.ops",
    "MoE": "perfmodel.ops",
    "MemoryBound": "perfmodel.ops",
    "Collective": "perfmodel.ops",
    "predict": "perfmodel.predict",
    "predict_table": "perfmodel.predict",
    "Prediction": "perfmodel.predict.prediction",
    "rank": "perfmodel.tune",
    "Ranking": "perfmodel.tune",
    "tune": "perfmodel.tune",
    "prune": "perfmodel.tune",
    "calibrate_table": "perfmodel.calibrate",
    "Calibration": "perfmodel.learn.calibration",
    "load_calibration": "perfmodel.learn.calibration",
    "load_model": "perfmodel.plan.model",
    "models": "perfmodel.plan.catalogue",
    "plan": "perfmodel.plan.search",
    "Plan": "perfmodel.plan.result",
    "estimate": "perfmodel.plan.estimate",
    "ServingEstimate": "perfmodel.plan.estimate",
    "Lognormal": "perfmodel.plan.traffic",
    "Pool": "perfmodel.plan.disagg",
    "Parallel": "perfmodel.plan.parallel",
    "estimate_split": "perfmodel.plan.disagg",
    "max_concurrency": "perfmodel.plan.capacity",
    "gpus_for": "perfmodel.plan.capacity",
    "compare": "perfmodel.plan.capacity",
    "sensitivity": "perfmodel.plan.capacity",
    "what_binds": "perfmodel.plan.capacity",
    "memory_ledger": "perfmodel.plan.memory",
    "PerfModelError": "perfmodel.errors",
    "InputError": "perfmodel.errors",
    "NoAnswerError": "perfmodel.errors",
}
__all__ = [*_HOME, "__version__"]

if TYPE_CHECKING:
    from perfmodel.calibrate import calibrate_table
    from perfmodel.errors import InputError, NoAnswerError, PerfModelError
    from perfmodel.hw import gpu, gpus
    from perfmodel.learn.calibration import Calibration, load_calibration
    from perfmodel.ops import MLA, Attention, Collective, Gemm, MemoryBound, MoE
    from perfmodel.plan.capacity import compare, gpus_for, max_concurrency, sensitivity, what_binds
    from perfmodel.plan.catalogue import models
    from perfmodel.plan.disagg import Pool, estimate_split
    from perfmodel.plan.estimate import ServingEstimate, estimate
    from perfmodel.plan.memory import memory_ledger
    from perfmodel.plan.model import load_model
    from perfmodel.plan.result import Plan
    from perfmodel.plan.search import plan
    from perfmodel.predict import predict, predict_table
    from perfmodel.predict.prediction import Prediction
    from perfmodel.tune.profile import tune
    from perfmodel.tune.rank import Ranking, rank
    from perfmodel.tune.triton_hook import prune


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'perfmodel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps `pm.predict` and `pm.tune` the functions: importing the submodules of the same name does not shadow them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
