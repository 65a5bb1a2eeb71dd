"""Fit every shipped model of collectives from data/: `python -m perfmodel.fit.collective_models`; --adopt takes rows in first."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel._resources import measured_data, measured_table, shipped
from perfmodel.calibrate.collective import fit_collective, fit_universal
from perfmodel.errors import InputError
from perfmodel.hw import gpu as find_gpu
from perfmodel.learn.collective_fit import read_rows
from perfmodel.learn.model import LEFT_OUT, FittedModel
from perfmodel.library.collective import LAW
from perfmodel.measure.rows import read

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("collectives", "collectives_h200")
MEASURED = ("a100_sxm4_80gb", "h100_sxm", "l40s", "rtx_pro_6000")  # what the models of unmeasured GPUs rest on
OWN_ROWS = ("h200_sxm",)  # calibrated, and in no universal model: their spec tier is judged on rows it has not seen
BY_ARCH = {  # GPUs that answer for an unmeasured one of that compute capability
    "sm_80": ("a100_sxm4_80gb",),
    "sm_89": ("l40s",),
    "sm_90": ("h100_sxm",),
    "sm_100": ("a100_sxm4_80gb", "h100_sxm"),
}
COLUMNS = {
    "source": "where a row comes from",
    "gpu": "hwdb name",
    "topology": "hwdb/nodes name or path, auto = the usual machine",
    "stack": "torch = call by call through torch.distributed, torch_graph = replayed from a CUDA graph; see library/collective_stacks",
    "version": "of NCCL",
    "kind": "ops/collective",
    "dtype": "element type",
    "n_gpus": "in all",
    "nodes": "machines",
    "message_bytes": "as in ops/collective.Collective",
    "latency_us": "microseconds a call: median over the timings of the slowest rank",
    "min_us": "the least of the timings",
    "calls": "calls in one timing",
    "host_us": "microseconds that the host of the slowest rank takes to launch a call (eager); absent in earlier runs",
    "timing": "how: see measure/collectives.TIMING",
}
WIDTHS = {"sm_80": "sm_100", "sm_89": "", "sm_90": "sm_100"}
"""A model of one GPU cannot know how far another one is off: its interval is that of the model in which each GPU was left out."""
STACKS = {"nccl": "torch", "nccl_graph": "torch_graph"}  # names that rows of before used
OLD_TIMING = "cold, max"


def adopt(path: Path, gpu: str, facts: Mapping[str, Any], folder: Path) -> Path:
    """Rows that `perfmodel measure collectives` wrote -> data/collectives_<gpu>.parquet and its sidecar. No host names are kept."""
    import pandas as pd

    rows = pd.DataFrame([row for row in read(path) if row.get("status") == "ok"])
    if rows.empty:
        raise InputError(f"{path} holds no row with status ok")
    spec = find_gpu(gpu)
    if (other := {find_gpu(str(d)).name for d in rows["device"].unique()} - {spec.name}) != set():
        raise InputError(f"{path} holds rows of {', '.join(sorted(other))}, not of {spec.name}")
    if "timing" not in rows:
        rows["timing"] = OLD_TIMING
    rows["stack"] = rows["stack"].replace(STACKS)
    table = rows.assign(source="perfmodel measure collectives", gpu=spec.name).reindex(columns=list(COLUMNS))
    table = table.astype({"message_bytes": "int64", "n_gpus": "int64", "nodes": "int64", "calls": "int64"})
    table = table.sort_values(["kind", "stack", "n_gpus", "message_bytes"]).reset_index(drop=True)
    target = folder / f"collectives_{spec.name.split('_', maxsplit=1)[0]}.parquet"
    table.to_parquet(target, index=False)
    side = {
        "file": target.name,
        "rows": len(table),
        "sha256": hashlib.sha256(target.read_bytes()).hexdigest(),
        "columns": COLUMNS,
        "sources": {"perfmodel measure collectives": "measured by this project, Apache-2.0"},
        "device": f"{rows['device'].iloc[0]} x{int(table['n_gpus'].max())}",
        "nccl": ", ".join(sorted(set(table["version"]))),
        "torch": ", ".join(sorted(set(rows["torch"]))),
        "measured": str(rows["measured_at"].min())[:10],
        **facts,
    }
    target.with_suffix(".json").write_text(json.dumps(side, indent=1) + "\n", encoding="utf-8")
    return target


def shipped_rows() -> dict[str, pd.DataFrame]:
    """The committed rows that the shipped calibrations are fitted to, by GPU.

    Stack rows of more than two L40S come from other hosts than its NCCL rows, whose staging is 25 % faster: left out.
    """
    import pandas as pd

    frame = pd.concat([measured_table(f"{name}.parquet") for name in TABLES], ignore_index=True)
    other_host = (frame["gpu"] == "l40s") & (frame["n_gpus"] > 2) & (frame["stack"] != "nccl") & (frame["topology"] == "auto")
    return {name: frame[(frame["gpu"] == name) & ~other_host].reset_index(drop=True) for name in (*MEASURED, *OWN_ROWS)}


def provenance(name: str) -> dict[str, Any]:
    """What a card says of its rows: file, licence, and for a run of our own device, versions and what was off."""
    if name not in OWN_ROWS:
        return {"data": "data/collectives.parquet", "licence": "Apache-2.0 (see data/collectives.json)"}
    table = f"collectives_{name.split('_', maxsplit=1)[0]}"
    side = json.loads((measured_data(f"{table}.json")).read_text(encoding="utf-8"))
    kept = ("device", "driver", "nccl", "torch", "link", "measured", "limits", "licence")
    return {"data": f"data/{table}.parquet", "licence": "Apache-2.0", **{key: side[key] for key in kept if key in side}}


def ship(folder: str | Path) -> dict[str, FittedModel]:
    """Fit and write every shipped calibration of collectives under `folder` (a checkout's calibration/); minutes on one core.

    <gpu>/collective: that GPU's own; universal/collective_<arch> and universal/collective: for GPUs never measured;
    data/left_out/collective_without_<gpu>: the spec tier of a measured one.
    """
    root = Path(folder)
    frames = shipped_rows()
    tables = {name: read_rows(find_gpu(name), frame) for name, frame in frames.items()}
    made: dict[str, FittedModel] = {}
    groups = {
        **{f"{LAW}_{arch}": names for arch, names in BY_ARCH.items()},
        **{f"{LAW}_without_{name}": tuple(n for n in MEASURED if n != name) for name in MEASURED},
        LAW: MEASURED,
    }
    for what, names in groups.items():
        made[f"universal/{what}"] = fit_universal("universal", [tables[n] for n in names], provenance=provenance(names[0]))
    for arch, wider in WIDTHS.items():
        place = f"universal/{LAW}_{arch}"
        other = made[f"universal/{LAW}_{wider}" if wider else f"universal/{LAW}"].constants
        own = made[place].constants
        widths = {n: max(v, other[n]) for n, v in own.items() if n.startswith("sigma_")}
        made[place] = dataclasses.replace(made[place], constants={**own, **widths})
    for name, frame in frames.items():
        spec = find_gpu(name)
        priors = [made[f"universal/{LAW}_{spec.arch}"].constants] if name in OWN_ROWS else []  # two GPUs say nothing of NVLS or of eight
        made[f"{name}/{LAW}"] = fit_collective(spec, frame, priors=priors, provenance=provenance(name))
    for place, model in made.items():
        left_out = "_without_" in place
        model.save(shipped("data") / LEFT_OUT / place.removeprefix("universal/") if left_out else root / place)
    return made


def main(argv: Sequence[str] | None = None) -> None:
    """Adopt rows where asked, fit, write, and print the error of each model on what its fit did not see."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=shipped("calibration"))
    parser.add_argument("--adopt", type=Path, help="JSONL of perfmodel measure collectives, to become data/collectives_<gpu>.parquet")
    parser.add_argument("--gpu", help="hwdb name of the adopted rows")
    parser.add_argument("--facts", type=json.loads, default={}, help="JSON object for the sidecar: driver, link, limits, command ...")
    given = parser.parse_args(argv)
    if given.adopt:
        print(adopt(given.adopt, given.gpu, given.facts, shipped("data")))
    for place, model in ship(given.out).items():
        error = ", ".join(f"{k} {100 * v:.1f} %" for k, v in model.card["held_out_error"].items())
        print(f"{place}: {model.card['rows']} rows; error on {model.card['held_out']} left out: {error}")


if __name__ == "__main__":
    main()
