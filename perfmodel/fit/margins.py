"""The margins that architectures left out have earned (fit/left_out_paths), for the cards of models that are asked about others."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping
from typing import Any

from perfmodel._resources import shipped
from perfmodel.errors import InputError

FILE = "left_out_architectures.json"


def path_margin(paths: Collection[str], left_out: str | None) -> float:
    """How much wider than a new architecture's an interval must be where its tensor path is new too.

    paths: those of the model's rows; left_out: that of the GPU it was fitted without, None of none. Where that GPU was alone on its path
    the margin is the one that was chosen on others' errors.
    """
    own = left_out is not None and left_out not in paths
    return float(_stored()["back_margin" if own else "forward_margin"])


@functools.lru_cache(maxsize=1)
def _stored() -> Mapping[str, Any]:
    path = shipped("calibration") / FILE
    try:
        found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}: python -m perfmodel.fit.left_out_paths writes it") from None
    return found
