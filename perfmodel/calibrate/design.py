"""Which few configs to time so that a fit learns most: the model's own favourites, and a spread of plausible others."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel._resources import shipped
from perfmodel.hw import GpuSpec
from perfmodel.hw import gpu as find_gpu
from perfmodel.kernels import FAMILIES, kernel_family
from perfmodel.kernels.configs import Configs
from perfmodel.kernels.facts import facts_for
from perfmodel.learn.calibration import prior_model
from perfmodel.predict.configs import predict_configs

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
    facts = facts_for(family, gpu, dtype, configs, sizes)
    keep = np.ones(len(configs), dtype=bool)
    for rule in module.rules(gpu, **sizes, dtype=dtype, configs=configs, facts=facts):
        keep &= ~rule.mask
    at = np.flatnonzero(keep)
    legal = configs.take(at)
    model = prior_model(gpu, f"kernel_{family}")
    return legal, predict_configs(family, gpu, sizes, dtype, legal, facts.take(at), model).latency_us


def sweep_points(family: str, gpu: GpuSpec, sizes: dict[str, int], dtype: str, *, portable: bool = False) -> list[dict[str, Any]]:
    """The whole legal space of one problem, with `portable` that of the portable kernel too, best predicted first in turns."""
    module = kernel_family(family)
    spaces = [module.space(gpu, **sizes, dtype=dtype), *([module.portable_space(gpu, **sizes, dtype=dtype)] if portable else [])]
    ordered = []
    for configs in spaces:
        legal, latency = _ranked(family, gpu, sizes, dtype, configs)
        ordered.append(legal.take(np.argsort(latency, kind="stable")).rows())
    mixed = [row for rows in itertools.zip_longest(*ordered) for row in rows if row is not None]
    return list({json.dumps(c, sort_keys=True): c for c in mixed}.values())


def write_plan(out: Path, shapes: Sequence[Sequence[int]], configs: dict[str, list[dict[str, Any]]]) -> None:
    """Write the two inputs of `perfmodel.measure.sweep`: OUT.shapes.json and OUT.configs.json."""
    Path(f"{out}.shapes.json").write_text(json.dumps([list(s) for s in shapes]), encoding="utf-8")
    Path(f"{out}.configs.json").write_text(json.dumps(configs), encoding="utf-8")


def main() -> None:
    """Write the plan of a kernel's calibration run or exhaustive sweep (also of its portable space), for `perfmodel.measure.sweep`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("what", choices=("calibration", "evaluation", "both_spaces"))
    parser.add_argument("--kernel", default="gemm", choices=FAMILIES)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--out", type=Path, required=True, help="prefix of the two files to write")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    spec = find_gpu(arguments.gpu)
    family = arguments.kernel
    known = json.loads((shipped("data") / family / "shapes.json").read_text(encoding="utf-8"))
    shapes = [s for part in known.values() for s in part] if arguments.what == "both_spaces" else known[arguments.what]
    configs = {}
    for shape in shapes:
        sizes = dict(zip(kernel_family(family).SIZES, shape, strict=True))
        if arguments.what == "calibration":
            points = calibration_points(family, spec, sizes, arguments.dtype, best=2, spread=3, seed=arguments.seed)
        else:
            points = sweep_points(family, spec, sizes, arguments.dtype, portable=arguments.what == "both_spaces")
        configs["x".join(map(str, shape))] = points
    write_plan(arguments.out, shapes, configs)
    print(f"{len(shapes)} shapes, {sum(map(len, configs.values()))} configs")


if __name__ == "__main__":
    main()
