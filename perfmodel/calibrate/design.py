"""Which few configs to time so that a fit learns most: the model's own favourites, and a spread of plausible others."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel._resources import shipped
from perfmodel.hw import GpuSpec
from perfmodel.hw import gpu as find_gpu
from perfmodel.kernels import kernel_family
from perfmodel.kernels.configs import Configs
from perfmodel.kernels.facts import facts_for
from perfmodel.learn.calibration import spec_model
from perfmodel.predict import predict_configs

PLAUSIBLE = 2.5  # times the predicted best: beyond it a config is never chosen, and its error does not matter


def calibration_points(
    family: str, gpu: GpuSpec, sizes: dict[str, int], dtype: str, *, best: int, spread: int, seed: int
) -> list[dict[str, Any]]:
    """Configs of one problem to time: the `best` predicted and `spread` random plausible ones, of the GPU's own space and of the
    portable kernel's larger one in equal parts. Predictions are the spec tier's, so the choice sees no measurement.
    """
    module = kernel_family(family)
    own = module.space(gpu, **sizes, dtype=dtype)
    chosen = []
    for part, configs in enumerate((own, module.portable_space(gpu, **sizes, dtype=dtype))):
        legal, latency = _ranked(family, gpu, sizes, dtype, configs)
        order = np.argsort(latency, kind="stable")
        pool = order[best:][latency[order[best:]] <= PLAUSIBLE * latency.min()]
        rng = np.random.default_rng([seed, part, *sizes.values()])
        extra = rng.choice(pool, size=min(spread, len(pool)), replace=False)
        chosen += legal.take(np.concatenate([order[:best], np.sort(extra)])).rows()
    return list({json.dumps(c, sort_keys=True): c for c in chosen}.values())


def _ranked(family: str, gpu: GpuSpec, sizes: dict[str, int], dtype: str, configs: Configs) -> tuple[Configs, Any]:
    module = kernel_family(family)
    facts = facts_for(family, gpu, dtype, configs)
    keep = np.ones(len(configs), dtype=bool)
    for rule in module.rules(gpu, **sizes, dtype=dtype, configs=configs, facts=facts):
        keep &= ~rule.mask
    at = np.flatnonzero(keep)
    legal = configs.take(at)
    model = spec_model(gpu, f"kernel_{family}")
    return legal, predict_configs(family, gpu, sizes, dtype, legal, facts.take(at), model).latency_us


def sweep_points(family: str, gpu: GpuSpec, sizes: dict[str, int], dtype: str) -> list[dict[str, Any]]:
    """The whole legal space of one problem, best predicted first."""
    legal, latency = _ranked(family, gpu, sizes, dtype, kernel_family(family).space(gpu, **sizes, dtype=dtype))
    return legal.take(np.argsort(latency, kind="stable")).rows()


def write_plan(out: Path, shapes: Sequence[Sequence[int]], configs: dict[str, list[dict[str, Any]]]) -> None:
    """Write the two inputs of `perfmodel.measure.sweep`: OUT.shapes.json and OUT.configs.json."""
    Path(f"{out}.shapes.json").write_text(json.dumps([list(s) for s in shapes]), encoding="utf-8")
    Path(f"{out}.configs.json").write_text(json.dumps(configs), encoding="utf-8")


def main() -> None:
    """Write the plan of a GEMM calibration run or of an exhaustive sweep, for `python -m perfmodel.measure.sweep`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("what", choices=("calibration", "evaluation"))
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--out", type=Path, required=True, help="prefix of the two files to write")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    spec = find_gpu(arguments.gpu)
    shapes = json.loads((shipped("data") / "gemm" / "shapes.json").read_text(encoding="utf-8"))[arguments.what]
    configs = {}
    for m, n, k in shapes:
        sizes = {"m": m, "n": n, "k": k}
        if arguments.what == "calibration":
            points = calibration_points("gemm", spec, sizes, arguments.dtype, best=2, spread=3, seed=arguments.seed)
        else:
            points = sweep_points("gemm", spec, sizes, arguments.dtype)
        configs[f"{m}x{n}x{k}"] = points
    write_plan(arguments.out, shapes, configs)
    print(f"{len(shapes)} shapes, {sum(map(len, configs.values()))} configs")


if __name__ == "__main__":
    main()
