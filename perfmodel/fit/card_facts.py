"""Write into every shipped card what its rows show, from the committed rows, without a new fit: the trees stay as they are.

    python -m perfmodel.fit.card_facts

A fit writes the same entries (calibrate/operator_rows.card, calibrate/collective.finish). Rows whose digest is not the card's are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel._atomic import write_atomically
from perfmodel._resources import shipped
from perfmodel.calibrate.collective import measured as collective_rows
from perfmodel.calibrate.operator_rows import Rows, card, read_rows, sample
from perfmodel.errors import InputError
from perfmodel.fit.collective_models import shipped_rows
from perfmodel.fit.margins import path_margin
from perfmodel.fit.operator_models import load
from perfmodel.fit.trees import OWN_ROWS, SHARED_ROWS, without_outliers
from perfmodel.hw import gpu as find_gpu
from perfmodel.learn.card import MEASURED_KEY
from perfmodel.learn.collective_fit import read_rows as read_collectives
from perfmodel.learn.transfer import CARD_KEY, PATH_MARGIN, TREE_NAMES, tensor_path
from perfmodel.library.collective import LAW
from perfmodel.library.registry import MODELS
from perfmodel.measure.rows import read

FACTS = ("dtype_codes", "kv_dtype_codes", "kind_codes", MEASURED_KEY)
ONE_GPU = ("names", "dtypes", "kv_dtypes")


def main() -> int:
    """Add the facts to every card under calibration/ and data/left_out/."""
    root, collectives = shipped("calibration"), shipped_rows()
    rows = {model_key: load(model_key) for model_key in MODELS}
    steady = {model_key: without_outliers(each) for model_key, each in rows.items()}
    cards = [*root.glob("*/*/card.json"), *shipped("data").glob("left_out/*/card.json")]
    for path in sorted(cards, key=lambda p: p.parts[-3] != "universal"):  # priors before what was corrected
        kept = json.loads(path.read_text(encoding="utf-8"))
        model_key = str(kept["kind"])
        if model_key in rows:
            new = _operator(path, kept, rows[model_key], steady[model_key])
        elif model_key == LAW:
            tables = [read_collectives(find_gpu(name), collectives[name]) for name in kept["gpus"]]
            new = {MEASURED_KEY: collective_rows(tables), "archs": sorted({table.gpu.arch for table in tables})}
        elif model_key.startswith("kernel_"):
            new = {"archs": sorted({find_gpu(name).arch for name in kept["gpus"]})}
        else:
            continue
        write_atomically(path, json.dumps({**kept, **new}, indent=1, sort_keys=True) + "\n")
    return 0


def _operator(path: Path, kept: Mapping[str, Any], rows: Rows, steady: Rows) -> dict[str, Any]:
    """The facts of an operator's card; `steady` are the rows that no passing disturbance slowed down."""
    if "prior" in kept:
        found = _checked(path, kept, _of_run(kept))
        prior = _card(path.parents[2], kept["prior"], rows.model_key)
        return found | {key: sorted({*found[key], *prior[key]}) for key in FACTS[:-1] if key in found}
    if kept["tier"] == "calibrated":
        found = _checked(path, kept, without_outliers(sample(rows.take(np.isin(rows.gpu, kept["gpus"])), OWN_ROWS)))
        return found | {TREE_NAMES: found[MEASURED_KEY]["names"]}
    found = _checked(path, kept, sample(steady.take(np.isin(steady.gpu, kept["gpus"])), SHARED_ROWS))
    left_out = path.parent.name.partition("_without_")[2]
    return found | {PATH_MARGIN: path_margin(kept[CARD_KEY], tensor_path(find_gpu(left_out).arch) if left_out else None)}


def _of_run(kept: Mapping[str, Any]) -> Rows:
    """The rows of the run that a calibration was fitted to."""
    import pandas as pd

    kind, _, phase = str(kept["kind"]).partition("_")
    rows = [dict(row) for row in read(shipped("data").parent / kept["data"]) if row.get("status") == "ok"]
    mine = pd.DataFrame([row for row in rows if row.get("what") in (kept["kind"], kind) and phase in ("", row.get("phase"))])
    return read_rows(str(kept["kind"]), mine.dropna(axis=1, how="all").assign(gpu=kept["gpu"]))


def _card(root: Path, model_id: str, model_key: str) -> dict[str, Any]:
    """The universal card of `what` with that id."""
    cards = [json.loads(path.read_text(encoding="utf-8")) for path in root.glob(f"universal/{model_key}*/card.json")]
    found: dict[str, Any] = next(card for card in cards if card["model_id"] == model_id)
    return found


def _checked(path: Path, kept: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
    """The facts of a card's own rows; raises InputError where they are not those that it was fitted to."""
    found = card(rows)
    if found["data_hash"] != kept["data_hash"]:
        raise InputError(f"{path}: the committed rows are not those of the card: fit it again")
    return {key: found[key] for key in FACTS if key in found}


if __name__ == "__main__":
    raise SystemExit(main())
