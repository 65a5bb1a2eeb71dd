"""Measured ceilings of a GPU as a card of its calibration. The datasheet stays in hwdb: what is measured and what is printed never mix."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel._resources import layers
from perfmodel.errors import InputError, shown
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.calibration import Calibration
from perfmodel.learn.model import FittedModel, read_model
from perfmodel.measure.ceilings import CEILINGS

WHAT = "ceilings"


def datasheet(gpu: GpuSpec) -> dict[str, float]:
    """What hwdb says of the same quantities, in SI units; a ceiling that no datasheet has is not in it."""
    known = {
        "dram_copy": gpu.dram_bytes_per_s,
        "dram_read": gpu.dram_bytes_per_s,
        "dram_write": gpu.dram_bytes_per_s,
        "l2_read": gpu.l2_bytes_per_s,
        "l2_latency": gpu.l2_latency_s,
        "dram_latency": gpu.dram_latency_s,
        "exp": gpu.sfu_per_clock_per_sm * gpu.sms * gpu.max_clock_hz,
        "pcie_to_device": gpu.pcie_bytes_per_s,
        "pcie_to_host": gpu.pcie_bytes_per_s,
    }
    return known | {f"tensor_{rate}": value for rate, value in gpu.tensor_flops.items()}


def fit_ceilings(gpu: GpuSpec, rows: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any] | None = None) -> FittedModel | None:
    """The card of the rows that are ceilings, None without any. Several rows of one ceiling (several GPUs): their median."""
    good = [r for r in rows if r.get("what") == "ceiling" and r.get("status") == "ok"]
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in good:
        if row["name"] not in CEILINGS:
            raise InputError(f"unknown ceiling {shown(row['name'])}: known are {', '.join(CEILINGS)}")
        found.setdefault(row["name"], []).append(row)
    if not found:
        return None
    middle = {name: sorted(members, key=lambda r: float(r["value"]))[len(members) // 2] for name, members in found.items()}
    values = {name: float(row["value"]) for name, row in middle.items()}
    values |= {f"{name}_sustained": float(row["sustained"]) for name, row in middle.items() if row.get("sustained")}
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
    printed = datasheet(gpu)
    card = {
        **(provenance or {}),
        "gpu": gpu.name,
        "gpus": [gpu.name],
        "kind": WHAT,
        "rows": len(good),
        "units": {name: CEILINGS[name.removesuffix("_sustained")].unit for name in values},
        "of_datasheet": {name: round(value / printed[name], 4) for name, value in values.items() if printed.get(name)},
        "state": {name: {k: row.get(k) for k in ("clock_mhz", "power_w", "spread", "reps")} for name, row in middle.items()},
    }
    return FittedModel(f"{gpu.name}:{WHAT}:{digest}", "calibrated", values, (0.0, 0.0), card=card)


def measured_ceilings(gpu: GpuSpec, calibration: str | Path | Calibration | None = "auto") -> FittedModel | None:
    """The ceilings of a calibration: "auto" the user's own or the shipped one; None where nobody measured them."""
    if calibration is None:
        return None
    if isinstance(calibration, Calibration):
        return calibration.models.get(WHAT)
    folders = [layer / gpu.name for layer in layers("calibration")] if calibration == "auto" else [Path(calibration)]
    return next((read_model(f / WHAT) for f in folders if (f / WHAT / "card.json").is_file()), None)
