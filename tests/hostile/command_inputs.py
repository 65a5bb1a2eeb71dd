"""Hostile command lines and files: every verb with arguments exchanged, dropped and added; cards, configs, exports and tables broken."""

# ruff: noqa: E501
from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import perfmodel as pm
from perfmodel._resources import shipped
from perfmodel.tune.imports import read_autotune, read_inductor
from perfmodel.tune.tuned_files import read as read_tuned

from .cases import Case, command
from .values import FOLDER, TEXTS, broken, mutated, pick, written

LINES = (
    "gpus", "gpus show l20", "gpus lint", "gpus --json", "predict gemm --gpu l20 -m 64 -n 512 -k 512 --dtype bf16 --stack torch",
    "predict gemm --gpu l20 -m 64 -n 512 -k 512 --config block_m=64,block_n=64,block_k=32,num_warps=4",
    "predict attention --gpu l20 --phase decode --batch 4 --kv-len 512 --q-heads 8 --kv-heads 2 --head-dim 128 --q-len 1 --csv",
    "predict moe --gpu l20 --tokens 64 --hidden 512 --inter 256 --num-experts 8 --top-k 2",
    "predict mla --gpu l20 --phase decode --batch 4 --q-len 1 --kv-len 512 --num-heads 16",
    "predict memory --gpu l20 --kind rmsnorm --tokens 64 --hidden 512", "predict all_reduce --gpu l20 --bytes 16MiB --n-gpus 8",
    "explain gemm --gpu l20 -m 64 -n 512 -k 512", "rank gemm --gpu l20 -m 64 -n 64 -k 64 --top-k 2 --json",
    "rank gemm --gpu l20 -m 64 -n 64 -k 64 --calibration none --pruned", "rank --triton-file nope.py:kernel --run-file --gpu l20 --grid 1",
    "export vllm-moe --gpu l20 --num-experts 8 --hidden 512 --inter 256 --out nope", "store show", "store show --history --csv",
    "store export -", "store export nope.json", "store import nope.json", "store import-autotune nope.json --gpu l20 --keys M,N",
    "calibrate table nope.csv --kind gemm --gpu l20", "calibrate report --gpu l20", "calibrate --dry-run --gpu l20 --budget 10",
    "calibrate --from-gpu h100_sxm --to-gpu l20", "models", "memory --model Qwen3-8B --gpu l20", "tune gemm -m 64 -n 64 -k 64 --gpu l20",
    "evaluate nope", "measure collectives --nope", "--version", "--help", "nope",
)  # fmt: skip
SLOW = ("evaluate", "plan", "estimate")
"""Verbs whose arguments are only exchanged in part: a valid question takes seconds."""


def line(rng: np.random.Generator) -> Case:
    """A command line with one or two words exchanged, dropped or added."""
    words = pick(rng, LINES).split()
    for _ in range(int(rng.integers(1, 3))):
        at = int(rng.integers(1, len(words) + 1))
        kind = int(rng.integers(4))
        if kind == 0 and at < len(words):
            words = [*words[:at], *words[at + 1 :]]
        elif kind == 1:
            words = [*words[:at], pick(rng, TEXTS), *words[at:]]
        elif at < len(words):
            words = [*words[:at], pick(rng, TEXTS), *words[at + 1 :]]
    if words[0] == "calibrate" and len(words) > 1 and words[1] not in ("table", "report") and "--dry-run" not in words:
        words = ["calibrate", "report", *words[1:]]
    if words[0] in SLOW:
        words = [words[0], "--no-such-option"]
    words = [str(FOLDER / word) if word in ("nope", "nope.json", "nope.csv") and i > 1 else word for i, word in enumerate(words)]
    return f"perfmodel {' '.join(words)[:150]!r}", command(*words)


@cache
def _cards() -> list[tuple[str, dict[str, Any], bytes | None]]:
    found = []
    for name in ("h100_sxm/gemm", "universal/gemm", "h200_sxm/memory"):
        folder = shipped("calibration") / name
        if (folder / "card.json").is_file():
            tree = folder / "model.ubj.gz"
            found.append(
                (name.partition("/")[2], json.loads((folder / "card.json").read_text()), tree.read_bytes() if tree.is_file() else None)
            )
    return found


def card(rng: np.random.Generator) -> Case:
    """A calibration with a broken card or tree, asked for a prediction."""
    kind, data, tree = pick(rng, _cards())
    gpu = data.get("gpu") or "h100_sxm"
    spoil_tree = tree is not None and rng.random() < 0.2
    path = written(rng, f"{kind}/card.json", json.dumps(data).encode() if spoil_tree else mutated(rng, data))
    if tree is not None:
        path.with_name("model.ubj.gz").write_bytes(broken(rng, tree) if spoil_tree else tree)
    op = pm.Gemm(64, 512, 512) if kind == "gemm" else pm.MemoryBound("rmsnorm", 64, 512)
    return f"a card of {kind} in {path}", lambda: pm.predict(op, gpu, calibration=_loaded(path.parent))


def _loaded(folder: Path) -> Any:
    from perfmodel.learn.calibration import Calibration
    from perfmodel.learn.model import read_model

    model = read_model(folder)
    return Calibration("", {folder.name: model})


def configs_file(rng: np.random.Generator) -> Case:
    rows = [{"block_m": 64, "block_n": 64, "block_k": 32, "num_warps": 4}, {"block_m": 128, "block_n": 64, "block_k": 32}]
    if rng.random() < 0.3:
        text = b"block_m,block_n,block_k\n64,64,32\n128,64,32\n"
        path = written(rng, "configs.csv", broken(rng, text))
    else:
        path = written(rng, "configs.json", mutated(rng, rows))
    return f"rank --configs {path}", command("rank", "gemm", "--gpu", "l20", "-m", "64", "-n", "64", "-k", "64", "--configs", str(path))


EXPORT = {
    "perfmodel_store": 1,
    "runs": [
        {
            "kernel": "gemm", "sizes": {"m": 64}, "dtype": "bf16", "source_hash": "", "gpu": "NVIDIA L20", "driver": "", "triton": "", "torch": "",
            "config": {"block_m": 64}, "role": "config", "status": "ok", "reason": "", "at": "2026-01-01", "detail": {}, "latency_us": 5.0,
            "spread": None, "predicted_us": 6.0, "clock_mhz": None,
        }
    ],
}  # fmt: skip


def export_file(rng: np.random.Generator) -> Case:
    path = written(rng, "export.json", mutated(rng, EXPORT))
    return f"store import {path}", command("store", "import", str(path), "--store", str(FOLDER / "import.sqlite"))


def store_file(rng: np.random.Generator) -> Case:
    path = written(rng, "broken.sqlite", broken(rng, _store()))
    what = pick(rng, (("show",), ("show", "--history"), ("export", "-")))
    return f"store {what} {path}", command("store", *what, "--store", str(path))


@cache
def _store() -> bytes:
    from perfmodel.tune.store import Store

    path = FOLDER / "good.sqlite"
    with Store(path) as book:
        book.import_rows(EXPORT, "here")
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    return path.read_bytes()


AUTOTUNE = {
    "key": [64, 64, "torch.bfloat16"],
    "configs_timings": [[{"kwargs": {"BLOCK_M": 64}, "num_warps": 4, "num_stages": 3, "num_ctas": 1}, [0.1, 0.09, 0.11]]],
}
INDUCTOR = {"cuda+((torch.bfloat16, [64, 64], [64, 1]), (torch.bfloat16, [64, 64], [64, 1]))+mm": [{"BLOCK_M": 64, "template_id": "t"}]}
TUNED = {"triton_version": "3.2", "16": {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "num_warps": 4, "num_stages": 3}}


def tool_file(rng: np.random.Generator) -> Case:
    kind = int(rng.integers(3))
    if kind == 0:
        path = written(rng, "k.autotune.json", mutated(rng, AUTOTUNE))
        return f"read_autotune({path})", lambda: [run.row() for run in read_autotune(path, gpu="l20")]
    if kind == 1:
        path = written(rng, "inductor.json", mutated(rng, INDUCTOR))
        return f"read_inductor({path})", lambda: read_inductor(path)
    path = written(rng, "E=8,N=64,device_name=NVIDIA_L20.json", mutated(rng, TUNED))
    return f"read tuned {path}", lambda: read_tuned(path).rows()


def rows_file(rng: np.random.Generator) -> Case:
    frame = pd.DataFrame([{"m": 64, "n": 64, "k": 64, "dtype": "bf16", "latency_us": 5.0}] * 3)
    ending = pick(rng, ("csv", "json", "jsonl", "parquet"))
    path = written(rng, f"rows.{ending}", b"")
    if ending == "csv":
        frame.to_csv(path, index=False)
    elif ending == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=ending == "jsonl")
    path.write_bytes(broken(rng, path.read_bytes()))
    return f"calibrate table {path}", command(
        "calibrate", "table", str(path), "--kind", "gemm", "--gpu", "l20", "--out", str(FOLDER / "fit")
    )


GENERATORS = (line, line, line, line, line, line, card, card, configs_file, export_file, store_file, tool_file, rows_file)
