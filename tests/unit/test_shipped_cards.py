"""Every shipped calibration reads, names only constants of its law, and holds the digest of its own tree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel._resources import shipped
from perfmodel.analytic.constants import physics
from perfmodel.learn.model import TREE, TREE_DIGEST, read_model
from perfmodel.library.collective import LAW
from perfmodel.library.registry import MODELS

CARDS = sorted(shipped("calibration").glob("*/*/card.json"))


def law_of(kind: str) -> str:
    """File of calibration/physics that a card's kind draws on."""
    return MODELS[kind].law if kind in MODELS else kind.removeprefix("kernel_")


@pytest.mark.parametrize("card", CARDS, ids=lambda p: f"{p.parent.parent.name}/{p.parent.name}")
def test_a_shipped_card(card: Path) -> None:
    model = read_model(card.parent)
    stored = json.loads(card.read_text(encoding="utf-8"))
    if stored["kind"] != "ceilings":  # measured rates of the device itself, which no law starts from
        assert set(model.constants) <= set(physics(law_of(stored["kind"])))
    assert (model.residual is not None) == (card.parent / TREE).is_file() == (TREE_DIGEST in stored)
    assert card.read_text(encoding="utf-8") == json.dumps(stored, indent=1, sort_keys=True) + "\n"


def test_every_kind_of_model_is_shipped() -> None:
    assert {*MODELS, LAW, "kernel_gemm"} <= {json.loads(c.read_text(encoding="utf-8"))["kind"] for c in CARDS}
