"""What a calibration run may time: the recipe in calibration/recipes, and points drawn from its spaces."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel._resources import shipped
from perfmodel.boundary import read_toml
from perfmodel.errors import InputError, shown
from perfmodel.measure.operators import ATTENTION_KERNELS, MEMORY_KINDS

if TYPE_CHECKING:
    import pandas as pd

OPERATORS = ("gemm", "attention_prefill", "attention_decode", "memory")
KERNELS = ("kernel_gemm",)
PARTS = ("ceilings", *OPERATORS, *KERNELS)
KIND = {"gemm": "gemm", "attention_prefill": "attention", "attention_decode": "attention", "memory": "memory", "kernel_gemm": "gemm"}
MOST_ELEMENTS = 2**32  # of the largest operand of a point
_SPACE = {
    "gemm": ("m", "n", "k"),
    "attention_prefill": ("batch", "q_len"),
    "attention_decode": ("batch", "kv_len"),
    "memory": ("tokens", "hidden"),
    "kernel_gemm": ("m", "n", "k"),
}


def read_recipe(path: Path | None = None) -> Mapping[str, Any]:
    """The recipe as tables by part. Raises InputError naming what is missing or out of range."""
    path = path or shipped("calibration") / "recipes" / "gpu.toml"
    recipe = read_toml(path)
    for part, table in recipe.items():
        if part not in PARTS:
            raise InputError(f"{path}: unknown part {shown(part)}: known are {', '.join(PARTS)}")
        if not isinstance(table, dict) or not isinstance(table.get("use"), int | float) or not 0 < table["use"] <= 1:
            raise InputError(f"{path}: [{part}] needs use, a weight above 0 and up to 1")
        for name in _SPACE.get(part, ()):
            values = table.get(name)
            if not isinstance(values, list) or not values or not all(isinstance(v, int) and v > 0 for v in values):
                raise InputError(f"{path}: [{part}] {name} must be a list of whole numbers above 0")
    return recipe


def draw(part: str, space: Mapping[str, Any], count: int, seed: int) -> pd.DataFrame:
    """At most `count` distinct points of a part's space, as a table of its kind; the same for the same seed."""
    import pandas as pd

    rng = np.random.default_rng([seed, PARTS.index(part)])
    columns: dict[str, Any] = {name: rng.choice(space[name], count) for name in _SPACE[part]}
    frame = pd.DataFrame(columns)
    if part in ("gemm", "kernel_gemm"):
        frame["dtype"] = rng.choice(space.get("dtypes", ["bf16"]), count)
        m, n, k = (columns[name] for name in ("m", "n", "k"))
        largest = np.maximum(m * k, np.maximum(n * k, m * n))
    elif part == "memory":
        frame["kind"], frame["dtype"] = rng.choice(MEMORY_KINDS, count), "bf16"
        largest = columns["tokens"] * columns["hidden"]
    else:
        heads = np.array(space["heads"])[rng.integers(len(space["heads"]), size=count)]
        frame["q_heads"], frame["kv_heads"] = heads[:, 0], heads[:, 1]
        frame["head_dim"] = rng.choice(space["head_dim"], count)
        frame["kernel"], frame["dtype"] = rng.choice(ATTENTION_KERNELS, count), "bf16"
        frame["phase"] = part.removeprefix("attention_")
        if part == "attention_prefill":
            frame["kv_len"] = frame["q_len"]
        else:
            frame["q_len"] = 1
        longest = np.maximum(heads[:, 0] * frame["q_len"].to_numpy(), heads[:, 1] * frame["kv_len"].to_numpy())
        largest = columns["batch"] * frame["head_dim"].to_numpy() * longest
    if part != "kernel_gemm":
        frame["stack"] = "torch"
    small: pd.DataFrame = frame[largest <= MOST_ELEMENTS]
    return small.drop_duplicates().reset_index(drop=True)
