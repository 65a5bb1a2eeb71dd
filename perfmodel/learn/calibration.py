"""Calibrations: the fitted models of one GPU, and the rule that decides which model answers a question."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.boundary import expanded, path_shown
from perfmodel.errors import InputError, shown
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.model import FittedModel, find_model, read_model

PRIOR_INTERVAL = (-math.log(1.25), math.log(1.25))
"""log(measured / predicted) where no residual of another GPU is at hand: a stated guess of 25 % either way, not a measurement."""


KEPT_KEY = "kept"
"""Card entry of a model that a user's rows were compared with: which was kept ("shipped", "stored" or "corrected"), errors, and why."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted models of one GPU by what they predict: `kernel_gemm` for Triton configs, `gemm`, `attention` ... for library kernels."""

    gpu: str
    models: Mapping[str, FittedModel]

    def __post_init__(self) -> None:
        if not isinstance(self.models, Mapping) or not all(isinstance(m, FittedModel) for m in self.models.values()):
            raise InputError("models of a Calibration must map names to fitted models, as calibrate_table and load_calibration make them")

    @property
    def kept(self) -> dict[str, Mapping[str, Any]]:
        """For each part that a calibration is shipped of: which model was kept, rows, shapes, both held-out errors, and why."""
        return {what: model.card[KEPT_KEY] for what, model in self.models.items() if KEPT_KEY in model.card}

    def own(self) -> Calibration:
        """Without the parts where what answers already was kept."""
        return Calibration(
            self.gpu, {w: m for w, m in self.models.items() if m.card.get(KEPT_KEY, {}).get("model", "corrected") == "corrected"}
        )

    def save(self, folder: str | Path) -> Path:
        """Write every model under `folder`/<what>/; returns the folder."""
        root = Path(folder)
        try:
            for what, model in self.models.items():
                model.save(root / what)
        except OSError as error:
            raise InputError(f"cannot write the calibration to {root}: {error.strerror or error}") from None
        return root


def load_calibration(path: str | Path) -> Calibration:
    """Read a calibration folder (one subfolder a model); raises InputError when there is none or a card is corrupt."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"calibration is {shown(path)}: expected 'auto', None, a Calibration, or the path of one")
    root = expanded(path)
    try:
        cards = sorted(root.glob("*/card.json")) if root.is_dir() else []
    except ValueError:  # a name that the system does not take
        cards = []
    except OSError as error:
        raise InputError(f"no calibration at {path_shown(root)}: {error.strerror}") from None
    if not cards:
        raise InputError(f"no calibration at {path_shown(root)}: expected a folder with <kind>/card.json files")
    models = {card.parent.name: read_model(card.parent) for card in cards}
    gpus = {str(m.card.get("gpu", "")) for m in models.values()}
    return Calibration(gpus.pop() if len(gpus) == 1 else root.name, models)


def spec_model(gpu: GpuSpec, what: str) -> FittedModel:
    """The model for a GPU as if it had never been measured: one trained on other GPUs of its architecture, else bare physics."""
    for name in (f"{what}_{gpu.arch}", what):
        model = find_model("universal", name)
        if model is not None and gpu.name not in model.card.get("gpus", ()):
            return model
    return FittedModel(model_id=f"physics:{what}", tier="spec", constants={}, interval=PRIOR_INTERVAL)


def resolve(gpu: GpuSpec, what: str, calibration: str | Path | Calibration | None) -> FittedModel:
    """The model that answers for `gpu`.

    calibration "auto": the user's own, else the shipped one of that GPU, else the spec tier; None: the spec tier;
    a Calibration or the path of one: that one, and the spec tier for what it does not cover.
    """
    if calibration is None:
        return spec_model(gpu, what)
    if isinstance(calibration, str) and calibration == "auto":
        return find_model(gpu.name, what) or spec_model(gpu, what)
    if not isinstance(calibration, Calibration):
        calibration = load_calibration(calibration)
    if calibration.gpu and calibration.gpu != gpu.name:
        raise InputError(
            f"the calibration is of {calibration.gpu}, the question is about {gpu.name}: pass calibration (--calibration) auto or none"
        )
    return calibration.models.get(what) or spec_model(gpu, what)
