"""Calibrations: the fitted models of one GPU, and the rule that decides which model answers a question."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel._resources import shipped
from perfmodel.boundary import expanded, path_shown
from perfmodel.errors import InputError, NoAnswerError, shown
from perfmodel.html import summary
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.model import LEFT_OUT, FittedModel, find_model, left_out_model, read_model

PRIOR_WIDTH = 0.35  # half-width of log(measured / predicted) where no residual of any GPU is at hand: a stated guess
PRIOR_CONFIG_INTERVAL = (-math.log(1.25), math.log(1.25))  # the same of a Triton config, 25 % either way
KEPT_KEY = "kept"
"""Card entry of a model that a user's rows were compared with: which was kept ("shipped", "stored" or "corrected"), errors, and why."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted models of one GPU.

    Attributes
    ----------
    gpu : str
        Canonical name.
    models : mapping of str to FittedModel
        By what they predict: "kernel_gemm" for Triton configs, "gemm", "attention_prefill" ... for library kernels.
    """

    gpu: str
    models: Mapping[str, FittedModel]

    def __post_init__(self) -> None:
        if not isinstance(self.models, Mapping) or not all(isinstance(m, FittedModel) for m in self.models.values()):
            raise InputError("models of a Calibration must map names to fitted models, as calibrate_table and load_calibration make them")

    def _repr_html_(self) -> str:
        """What a notebook shows: each model and what it rests on."""
        rows = [{"part": key, "tier": m.tier, "rows": m.card.get("rows", "-"), "model": m.model_id} for key, m in self.models.items()]
        return summary(f"Calibration of {self.gpu}", rows)

    @property
    def kept(self) -> dict[str, Mapping[str, Any]]:
        """For each part that a calibration is shipped of: which model was kept, rows, shapes, both held-out errors, and why."""
        return {model_key: model.card[KEPT_KEY] for model_key, model in self.models.items() if KEPT_KEY in model.card}

    def own(self) -> Calibration:
        """Without the parts where what answers already was kept."""
        return Calibration(
            self.gpu, {w: m for w, m in self.models.items() if m.card.get(KEPT_KEY, {}).get("model", "corrected") == "corrected"}
        )

    def save(self, folder: str | Path) -> Path:
        """Write every model under `folder`/<what>/; returns the folder."""
        root = Path(folder)
        try:
            for model_key, model in self.models.items():
                model.save(root / model_key)
        except OSError as error:
            raise InputError(f"cannot write the calibration to {root}: {error.strerror or error}") from None
        return root


def load_calibration(path: str | Path) -> Calibration:
    """Read a calibration from its folder.

    Parameters
    ----------
    path : str or Path
        A folder with one subfolder a model, as `Calibration.save` writes it.

    Returns
    -------
    Calibration
        To pass as calibration=.

    Raises
    ------
    InputError
        When there is none, or a card or tree is corrupt.

    Examples
    --------
    >>> import perfmodel as pm
    >>> pm.load_calibration("calibration/h100_sxm").gpu
    'h100_sxm'
    """
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


CalibrationLike = str | Path | Calibration | None
"""What `calibration=` takes: "auto", None, a Calibration, or the path of one."""


def spec_model(gpu: GpuSpec, model_key: str) -> FittedModel:
    """The model for a GPU as if it had never been measured.

    The universal model fitted without it where it is one of the measured ones, else the one of its architecture where that is better, else
    the one of all GPUs, else bare physics. Raises NoAnswerError in a wheel, which has no models that leave a measured GPU out.
    """
    found = left_out_model(gpu.name, model_key)
    if found is None and (found := _universal(gpu, model_key)) is None and _measured(gpu, model_key):
        raise NoAnswerError(
            f"calibration none of {gpu.name}, a measured GPU, needs a model that it was left out of; no wheel holds those: "
            "ask in a checkout of perfmodel, or leave calibration (--calibration) at auto"
        )
    guess = PRIOR_CONFIG_INTERVAL if model_key.startswith("kernel_") else (-PRIOR_WIDTH, PRIOR_WIDTH)
    return found or FittedModel(f"physics:{model_key}", "spec", {}, guess)


def _universal(gpu: GpuSpec, model_key: str) -> FittedModel | None:
    """The universal model of a GPU's architecture, else that of all GPUs; None where all have rows of this very GPU."""
    for name in (f"{model_key}_{gpu.arch}", model_key):
        found = find_model("universal", name)
        if found is not None and gpu.name not in found.card.get("gpus", ()):
            return found
    return None


def _measured(gpu: GpuSpec, model_key: str) -> bool:
    """Whether a model that leaves this GPU out exists in a checkout and is not at hand."""
    found = find_model("universal", model_key)
    return found is not None and gpu.name in found.card.get("gpus", ()) and not (shipped("data") / LEFT_OUT).is_dir()


def prior_model(gpu: GpuSpec, model_key: str) -> FittedModel:
    """The spec tier where it is at hand; in a wheel, for a measured GPU, the universal model of all GPUs, its own rows included.

    For what rows of this GPU do not show, such as an element type: either has seen none of it.
    """
    try:
        return spec_model(gpu, model_key)
    except NoAnswerError:
        found = find_model("universal", f"{model_key}_{gpu.arch}", model_key)
        assert found is not None  # it is what spec_model refused
        return found


def resolve(gpu: GpuSpec, model_key: str, calibration: CalibrationLike) -> FittedModel:
    """The model of `model_key` ("gemm", "attention_prefill", "kernel_gemm", "collective" ...) that answers for a GPU.

    calibration "auto": the user's own, else the shipped one of that GPU, else the spec tier; None: the spec tier;
    a Calibration or the path of one: that one, and the spec tier for what it does not cover.
    """
    if calibration is None:
        return spec_model(gpu, model_key)
    if isinstance(calibration, str) and calibration == "auto":
        return find_model(gpu.name, model_key) or prior_model(gpu, model_key)
    if not isinstance(calibration, Calibration):
        calibration = load_calibration(calibration)
    if calibration.gpu and calibration.gpu != gpu.name:
        raise InputError(
            f"the calibration is of {calibration.gpu}, the question is about {gpu.name}: pass calibration (--calibration) auto or none"
        )
    return calibration.models.get(model_key) or prior_model(gpu, model_key)
