"""Two arms of a comparison, each a process of its own: a kernel tuned with the hook, and tuned in full."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import perfmodel as pm


def arm(name, family, tuned, run, shapes):
    """Tune every shape with the hook ("hook") or without ("all"), in this process; a JSON line a shape on stdout."""
    import torch

    torch.zeros(1, device="cuda")  # both arms start with a CUDA context
    began = time.perf_counter()
    kernel = tuned(pm.prune(kernel=family) if name == "hook" else None)
    for shape in shapes:
        spent, latency_us = run(kernel, *shape, began)
        print(json.dumps({"shape": shape, "tuning_s": spent, "latency_us": latency_us, "chosen": str(kernel.best_config)}), flush=True)
        began = None


def compare(script: str, tmp_path: Path, configs: int) -> None:
    """Run both arms of a test file, each with a Triton cache of its own so that it pays for its compilations; hold them to the limits."""
    found = {}
    for name in ("hook", "all"):
        environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / name), "PERFMODEL_HOME": str(tmp_path)}
        done = subprocess.run([sys.executable, script, name], env=environment, stdout=subprocess.PIPE, text=True, check=True)
        found[name] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for mine, full in zip(found["hook"], found["all"], strict=True):
        for name, row in (("hook", mine), (f"all {configs}", full)):
            print(f"{row['shape']}: {name} {row['tuning_s']:.1f} s, {row['latency_us']:.1f} us, {row['chosen']}")
        assert mine["latency_us"] <= 1.02 * full["latency_us"]
    hook_s, full_s = (sum(row["tuning_s"] for row in found[name]) for name in ("hook", "all"))
    print(f"tuning in all: hook {hook_s:.1f} s, all {full_s:.1f} s, 1 / {full_s / hook_s:.1f}")
    assert hook_s <= 0.1 * full_s
