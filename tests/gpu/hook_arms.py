"""A kernel tuned with the hook and tuned in full, each in a process of its own; then what they chose, timed side by side."""

import functools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import perfmodel as pm

ROUNDS, WARMUP_MS, TIMED_MS = 16, 100, 100  # each long enough for a GPU at its power limit to settle


def main(family, configs, tuned, problem, shapes):
    """`FILE hook|all` tunes every shape with or without the hook, `FILE both CHOSEN.json` times what they chose; a JSON line a shape."""
    if sys.argv[1] == "both":
        return both(json.loads(Path(sys.argv[2]).read_text()), configs, tuned, problem, shapes)
    import torch

    kernel = None
    for shape in shapes:
        launch, error = problem(*shape)
        torch.cuda.synchronize()
        began = time.perf_counter()
        kernel = kernel or tuned(configs, pm.prune(kernel=family) if sys.argv[1] == "hook" else None)
        launch(kernel)
        torch.cuda.synchronize()
        spent = time.perf_counter() - began
        assert error() < 1e-2
        print(json.dumps({"tuning_s": spent, "chosen": configs.index(kernel.best_config)}), flush=True)


def both(chosen, configs, tuned, problem, shapes):
    """Medians of each choice's timings, and of the ratio of two neighbours in time.

    A GPU at its power limit runs one and the same kernel 4 % up or down from one second to the next, and its neighbour with it.
    """
    from triton.testing import do_bench

    for shape, (mine, full) in zip(shapes, chosen, strict=True):
        launch, _ = problem(*shape)
        kernels = {place: tuned([configs[place]], None) for place in (mine, full)}
        times = {place: [] for place in kernels}
        for turn in range(ROUNDS):
            for place in list(kernels)[:: 1 if turn % 2 else -1]:  # means: a short kernel's times lie in two heaps
                times[place].append(1e3 * do_bench(functools.partial(launch, kernels[place]), warmup=WARMUP_MS, rep=TIMED_MS))
        ratio = statistics.median(m / f for m, f in zip(times[mine], times[full], strict=True))
        print(json.dumps({"hook_us": statistics.median(times[mine]), "all_us": statistics.median(times[full]), "ratio": ratio}), flush=True)


def compare(script: str, tmp_path: Path, configs, shapes) -> None:
    """Run both arms of a test file, each with a Triton cache of its own so that it pays for its compilations; hold them to the limits."""

    def lines(name, *more, cache):
        environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / cache), "PERFMODEL_HOME": str(tmp_path)}
        done = subprocess.run([sys.executable, script, name, *more], env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    lines("hook", cache="first")  # not counted: it reads compilers and libraries from disk, which the arms then find in memory
    hook, full = (lines(name, cache=name) for name in ("hook", "all"))
    chosen = tmp_path / "chosen.json"
    chosen.write_text(json.dumps([(mine["chosen"], theirs["chosen"]) for mine, theirs in zip(hook, full, strict=True)]))
    timed = lines("both", str(chosen), cache="all")
    for i, shape in enumerate(shapes):
        for name, row, us in (("hook", hook[i], timed[i]["hook_us"]), (f"all {len(configs)}", full[i], timed[i]["all_us"])):
            print(f"{shape}: {name} {row['tuning_s']:.1f} s, {us:.1f} us, {configs[row['chosen']]}")
        print(f"{shape}: hook / all {timed[i]['ratio']:.3f}")
    hook_s, full_s = (sum(row["tuning_s"] for row in rows) for rows in (hook, full))
    print(f"tuning in all: hook {hook_s:.1f} s, all {full_s:.1f} s, 1 / {full_s / hook_s:.1f}")
    assert all(row["ratio"] <= 1.02 for row in timed)
    assert hook_s <= 0.1 * full_s
