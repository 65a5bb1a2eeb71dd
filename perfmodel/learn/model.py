"""A fitted model on disk and in memory: constants of the law, residual tree, interval, and the card that says what it rests on."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel._atomic import write_atomically
from perfmodel._resources import folders, forget, look, shipped
from perfmodel.boundary import path_shown, read_json
from perfmodel.errors import InputError, plain, shown
from perfmodel.learn import card as checks
from perfmodel.learn.residual import Residual, feature, load_residual

CARD_VERSION = 1
LEFT_OUT = "left_out"  # folder of data/ with models for evaluation alone
TREE = "model.ubj.gz"
TREE_DIGEST = "tree_sha256"
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FittedModel:
    """One fitted law.

    `constants` override the spec-tier ones; `interval` is (low, high) of log(measured / predicted) at 80 %, `law_interval` the same of
    the law alone, for kernels the tree has not seen; `envelope` gives the
    range each feature had in training; `card` is what was stored beside it (data, versions, errors).
    """

    model_id: str
    tier: str
    constants: Mapping[str, float]
    interval: tuple[float, float]
    residual: Residual | None = None
    envelope: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    card: Mapping[str, Any] = field(default_factory=dict)
    law_interval: tuple[float, float] | None = None

    def correction(self, features: Mapping[str, Floats], length: int) -> Floats:
        """exp(residual) for `length` rows; 1 where there is no tree."""
        return np.ones(length) if self.residual is None else np.exp(self.residual.log_ratio(features, length))

    def in_domain(self, features: Mapping[str, Floats], length: int, slack: float = 0.1) -> npt.NDArray[np.bool_]:
        """Whether every feature lies within its training range, widened by `slack` of it."""
        inside = np.ones(length, dtype=bool)
        for name, (low, high) in self.envelope.items():
            margin = slack * (high - low) + 1e-9
            inside &= (feature(features, name) >= low - margin) & (feature(features, name) <= high + margin)
        return inside

    def save(self, folder: Path) -> None:
        """Write model.ubj.gz and card.json under `folder`, the card last and atomically.

        The card holds the tree's digest, so that a half-written model, or a tree of another card, is never read.
        """
        folder.mkdir(parents=True, exist_ok=True)
        tree = folder / TREE
        if self.residual is not None:
            self.residual.save(tree)
        else:
            tree.unlink(missing_ok=True)
        card = {
            **self.card,
            "card_version": CARD_VERSION,
            "model_id": self.model_id,
            "tier": self.tier,
            "constants": dict(self.constants),
            "interval_log": list(self.interval),
            "law_interval_log": list(self.law_interval or self.interval),
            "features": list(self.residual.names) if self.residual else [],
            "envelope": {k: list(v) for k, v in self.envelope.items()},
        }
        card.pop(TREE_DIGEST, None)
        if self.residual is not None:
            card[TREE_DIGEST] = hashlib.sha256(tree.read_bytes()).hexdigest()
        write_atomically(folder / "card.json", json.dumps(card, indent=1, sort_keys=True) + "\n")
        forget(folder.resolve() / "card.json")


def read_model(folder: Path) -> FittedModel:
    """Load a model written by `FittedModel.save`.

    Raises InputError naming file and field for anything missing, corrupt, impossible or of another version, and for a tree that is not
    the card's. A card without tree_sha256 (written before there was one) takes the tree beside it.
    """
    path = folder / "card.json"
    try:
        card = read_json(path)
        if card["card_version"] != CARD_VERSION:
            raise InputError(f"{path} is of card version {shown(card['card_version'])}, this perfmodel reads {CARD_VERSION}: fit it again")
        names = checks.names("features", card["features"])
        checks.check_facts(card)
        model = FittedModel(
            model_id=str(card["model_id"]),
            tier=checks.tier(card["tier"]),
            constants=checks.constants(card["constants"]),
            interval=checks.interval("interval_log", card["interval_log"]),
            residual=load_residual(folder / TREE, names, card.get(TREE_DIGEST)) if names else None,
            law_interval=checks.interval("law_interval_log", card.get("law_interval_log", card["interval_log"])),
            envelope=checks.envelope(card["envelope"]),
            card=card,
        )
    except checks.CardError as error:
        raise InputError(f"{path_shown(path)}: {error}; fit it again or reinstall perfmodel") from None
    except InputError as error:
        raise InputError(str(error) if "fit it again" in str(error) else f"{error}; fit it again or reinstall perfmodel") from None
    except (OSError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError(
            f"cannot read the model card {path_shown(path)}: {type(error).__name__}: {plain(error)}; fit it again or reinstall perfmodel"
        ) from None
    return model


def find_model(owner: str, *model_key: str) -> FittedModel | None:
    """The model of `owner` (a GPU, or `universal`) for the first of `what` (`kernel_gemm` ...) that has one, the user's own before the
    shipped; None without any.

    Raises InputError for one that is there but cannot be read.
    """
    layers = folders("calibration")
    own, cards = _cards(owner, model_key, layers)
    if _seen(own) is None:  # one look for all of them
        cards = cards[1 :: len(layers)]
    for card in cards:
        state = _seen(card)
        if state is not None:
            return _read(card, state.st_mtime_ns)
    return None


def _seen(path: str) -> os.stat_result | None:
    try:
        return look(path)
    except OSError as error:
        raise InputError(f"cannot read the model card {path}: {error.strerror}") from None


def left_out_model(gpu: str, model_key: str) -> FittedModel | None:
    """The universal model of `what` that a measured GPU was left out of; None without one, as of GPUs without rows, and in a wheel."""
    card = str(shipped("data") / LEFT_OUT / f"{model_key}_without_{gpu}" / "card.json")
    state = _seen(card)
    return None if state is None else _read(card, state.st_mtime_ns)


def shipped_model(owner: str, model_key: str) -> FittedModel | None:
    """The same without the user's own; None where none is shipped."""
    card = shipped("calibration") / owner / model_key / "card.json"
    return _read(str(card), card.stat().st_mtime_ns) if card.is_file() else None


def shipped_owners(model_key: str) -> list[str]:
    """Names of the GPUs that are shipped with a model of `what`, sorted."""
    return sorted(
        card.parent.parent.name
        for card in shipped("calibration").glob(f"*/{model_key}/card.json")
        if card.parent.parent.name != "universal"
    )


@functools.lru_cache(maxsize=1024)
def _cards(owner: str, model_key: tuple[str, ...], layers: tuple[Path, Path]) -> tuple[str, tuple[str, ...]]:
    """(the user's folder of `owner`, cards in the order in which they count)."""
    return str(layers[0] / owner), tuple(str(layer / owner / each / "card.json") for each in model_key for layer in layers)


@functools.lru_cache(maxsize=128)
def _read(card: str, stamp: int) -> FittedModel:
    return read_model(Path(card).parent)
