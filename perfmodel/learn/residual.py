"""The residual: log(measured / analytic) as a small gradient-boosted tree over dimensionless features. The only importer of xgboost."""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib
import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError, shown
from perfmodel.learn.flat import Flat, flatten
from perfmodel.learn.ubjson import read_ubjson

Floats = npt.NDArray[np.float64]

SMALL = {"max_depth": 3, "eta": 0.05, "min_child_weight": 4.0, "subsample": 0.8, "colsample_bytree": 0.5, "reg_lambda": 4.0}
"""Tree settings for a few hundred rows: shallow, slow, strongly regularised."""

FEW = 64  # rows at a time that numpy takes through a tree faster than the library does
LOADING = 20_000  # rows of larger tables that it takes through before the library is imported: half of what that import costs


def load_xgboost() -> ModuleType:
    """Import xgboost without the scikit-learn wrappers that it loads when it can (most of a second, and nothing here uses them)."""
    if "xgboost" in sys.modules or "sklearn" in sys.modules:
        return importlib.import_module("xgboost")
    sys.modules["sklearn"] = None  # type: ignore[assignment]  # makes `import sklearn` fail while xgboost looks for it
    try:
        return importlib.import_module("xgboost")
    finally:
        del sys.modules["sklearn"]


@dataclass(frozen=True, eq=False)
class Residual:
    """A fitted tree and the names of its features, in order. `model`: xgboost's booster, or one as it is stored, read when it must be."""

    names: tuple[str, ...]
    model: Any

    @functools.cached_property
    def booster(self) -> Any:
        """xgboost's own object."""
        if not isinstance(self.model, bytes):
            return self.model
        booster = load_xgboost().Booster(model_file=bytearray(gzip.decompress(self.model)))
        booster.set_param({"nthread": 1})
        return booster

    @functools.cached_property
    def flat(self) -> Flat:
        """The same trees for numpy."""
        stored = gzip.decompress(self.model) if isinstance(self.model, bytes) else bytes(self.model.save_raw("ubj"))
        return flatten(read_ubjson(stored))

    def log_ratio(self, features: Mapping[str, Floats], length: int) -> Floats:
        """Predicted log(measured / analytic) for `length` rows; features are arrays of that length or scalars."""
        rows = matrix(self.names, features, length)
        if _few(rows):
            return self.flat.sums(rows)
        result: Floats = np.asarray(self.booster.inplace_predict(rows), dtype=np.float64)
        return result

    def leaves(self, features: Mapping[str, Floats], length: int) -> npt.NDArray[np.uint16]:
        """Which leaf of each tree a row ends in, shape (length, trees)."""
        rows = matrix(self.names, features, length)
        if _few(rows):
            return self.flat.leaves(rows)
        found = np.asarray(self.booster.predict(load_xgboost().DMatrix(rows), pred_leaf=True), dtype=np.uint16)
        return found.reshape(length, -1)

    def scaled(self, share: float) -> Residual:
        """The tree whose every answer is `share` of this one's."""
        model = json.loads(bytes(self.booster.save_raw("json")))
        for tree in model["learner"]["gradient_booster"]["model"]["trees"]:
            leaf = [child < 0 for child in tree["left_children"]]
            values = tree["split_conditions"]
            tree["split_conditions"] = [share * v if end else v for v, end in zip(values, leaf, strict=True)]
        booster = load_xgboost().Booster(model_file=bytearray(json.dumps(model).encode()))
        booster.set_param({"nthread": 1})
        return Residual(self.names, booster)

    def save(self, path: Path) -> None:
        """Write the tree as gzipped UBJSON, without the training statistics that prediction does not read (a seventh of the size)."""
        model = json.loads(bytes(self.booster.save_raw("json")))
        for tree in model["learner"]["gradient_booster"]["model"]["trees"]:
            for name in ("loss_changes", "sum_hessian", "base_weights"):
                tree[name] = [0.0] * len(tree[name])
        bare = load_xgboost().Booster(model_file=bytearray(json.dumps(model).encode()))
        path.write_bytes(gzip.compress(bytes(bare.save_raw("ubj")), compresslevel=9, mtime=0))


_walked: list[int] = []


def _few(rows: npt.NDArray[np.float32]) -> bool:
    """Whether numpy takes these rows through a tree sooner than xgboost, its import included where nobody imported it; NaN is xgboost's."""
    if len(rows) > FEW:
        if "xgboost" in sys.modules:
            return False
        _walked.append(len(rows))
        if sum(_walked) > LOADING:
            return False
    return not np.isnan(rows).any()


def matrix(names: Sequence[str], features: Mapping[str, Floats], length: int) -> npt.NDArray[np.float32]:
    """Feature matrix (length, len(names)); raises InputError for a feature that the law no longer gives."""
    out = np.empty((length, len(names)), dtype=np.float32)
    for i, name in enumerate(names):
        out[:, i] = feature(features, name)
    return out


def feature(features: Mapping[str, Floats], name: str) -> Floats:
    """One feature that a stored model names; raises InputError where the law does not give it."""
    if name not in features:
        raise _no_feature(name)
    return features[name]


def _no_feature(name: str) -> InputError:
    return InputError(f"the stored model wants feature {shown(name)}, which this version does not compute: fit it again")


def fit_residual(
    features: Mapping[str, Floats],
    target: Floats,
    weight: Floats | None = None,
    *,
    rounds: int = 200,
    params: Mapping[str, Any] = SMALL,
    seed: int = 0,
    threads: int = 1,
) -> Residual:
    """Fit log(measured / analytic). `target` has shape (n,); deterministic for the same input, seed and xgboost version."""
    xgb = load_xgboost()
    names = tuple(features)
    data = xgb.DMatrix(matrix(names, features, len(target)), label=target, weight=weight)
    settings = {**params, "objective": "reg:squarederror", "base_score": 0.0, "tree_method": "hist", "seed": seed, "nthread": threads}
    return Residual(names, xgb.train(settings, data, rounds))


def load_residual(path: Path, names: Sequence[str], sha256: str | None = None) -> Residual:
    """Read a tree written by `Residual.save`; raises InputError for a file that is not one, or not the one with that digest."""
    try:
        stored = path.read_bytes()
        if sha256 is not None and hashlib.sha256(stored).hexdigest() != sha256:
            raise InputError(f"the model {path} is not the one its card describes (tree_sha256): fit it again or reinstall perfmodel")
        found = Residual(tuple(names), stored)
        flat = found.flat
    except InputError:
        raise
    except (OSError, EOFError, KeyError, IndexError, TypeError, ValueError, zlib.error) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "not a model"
        raise InputError(f"cannot read the model {path}: {reason}; fit it again or reinstall perfmodel") from None
    if flat.features != len(names):
        raise InputError(f"the model {path} has {flat.features} features, its card names {len(names)}: fit it again")
    return found
