"""What a tree may know by name: the stacks and kernels measured on GPUs with the same tensor path, and nothing on a path that is new.

A tree that has seen `vllm` on mma.sync parts alone would carry their residual over to another kernel of the same name. Trees are therefore
fitted to every row twice, with its names and without, and asked without them where the pair was not measured on that tensor path.
The law keeps the names: which kernel a stack runs is a fact, not a residual.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.learn.model import FittedModel

Floats = npt.NDArray[np.float64]
NAMED = ("stack", "kernel", "path")
CARD_KEY = "known_names"
STEP = 64  # codes of kernels for each stack
NEW_PATH_SHARE = 0.5
"""Share of a tree's answer on a tensor path that none of its rows used: fitted on mma.sync parts alone and asked about H100 and H200, half
of GEMM, prefill and decode trees was as good as or better than all or nothing (21.9, 20.3, 25.7 % against 21.9, 21.3, 25.9 and 23.1, 21.3,
26.4 on H100)."""
PATH_MARGIN = "path_margin"
"""Card entry: how much wider than a new architecture's the interval is where its tensor path is new too, as the errors of tensor paths left
out whole say (fit/left_out_paths); without the entry no wider."""
TREE_NAMES = (
    "tree_names"  # card entry of a GPU's own tree: the stacks and kernels it was shown; asked about another, it is asked about none
)
SCALED_TREE = "settled_share"
TREE_SHARES = "tree_shares"
KNOWN_ARCH_GROUP, NEW_ARCH_GROUP = "known", "new"
HIDDEN = -1.0  # a name that is not shown; 0 is a name that nobody gave


def tensor_path(arch: str) -> str:
    """Which instruction multiplies: library kernels are written for one, and the same code runs on all GPUs that share it."""
    return {"sm_90": "wgmma", "sm_100": "tcgen05", "sm_103": "tcgen05"}.get(arch, "mma")


def pair_codes(features: Mapping[str, Floats]) -> npt.NDArray[np.intp]:
    """One whole number for the stack and kernel of each row."""
    stack = features["stack"].astype(np.intp)
    return stack * STEP + features["kernel"].astype(np.intp) if "kernel" in features else stack * STEP


def blank(features: Mapping[str, Floats]) -> dict[str, Floats]:
    """The same rows with their names hidden."""
    return {name: np.where(features["stack"] > 0, HIDDEN, values) if name in NAMED else values for name, values in features.items()}


def known_pairs(archs: Sequence[str], features: Mapping[str, Floats]) -> dict[str, list[int]]:
    """Card entry: the pairs that each tensor path's rows show; `archs` names the architecture of each row."""
    codes, names = pair_codes(features), np.array([tensor_path(arch) for arch in archs])
    return {str(name): sorted({int(code) for code in codes[names == name]}) for name in sorted(set(names.tolist()))}


def measured_stacks(card: Mapping[str, Any], arch: str) -> list[int]:
    """Codes of the stacks that a model's rows show on the tensor path of an architecture, else on any; none without the entry."""
    known = card.get(CARD_KEY, {})
    codes = known.get(tensor_path(arch)) or [code for path in known.values() for code in path]
    return sorted({code // STEP for code in codes} - {0})


def visible(card: Mapping[str, Any], arch: str, features: Mapping[str, Floats]) -> Mapping[str, Floats]:
    """The features as the tree of a model with this card may see them on an architecture; models without the entry see all."""
    if "stack" not in features:
        return features
    if CARD_KEY not in card:
        return _unnamed(card, features) if TREE_NAMES in card else features
    hidden = _unknown(card, arch, features)
    if hidden is True:
        return blank(features)
    if not hidden.any():
        return features
    return {name: np.where(hidden, HIDDEN, values) if name in NAMED else values for name, values in features.items()}


def _unnamed(card: Mapping[str, Any], features: Mapping[str, Floats]) -> Mapping[str, Floats]:
    """The features as a GPU's own tree may see them: as of no stack and kernel where it was not shown these."""
    hidden = _unseen(tuple(card[TREE_NAMES]))[pair_codes(features)] & (features["stack"] > 0)
    if not hidden.any():
        return features
    return {name: np.where(hidden, 0.0, values) if name in ("stack", "kernel") else values for name, values in features.items()}


def _unknown(card: Mapping[str, Any], arch: str, features: Mapping[str, Floats]) -> Any:
    """Which rows name a stack and kernel that no row of the tensor path shows; True where the path has none at all."""
    known = card[CARD_KEY].get(tensor_path(arch))
    if not known:
        return True
    return _unseen(tuple(known))[pair_codes(features)] & (features["stack"] > 0)


@functools.lru_cache(maxsize=64)
def _unseen(known: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """By code of a pair: whether it is none of `known`."""
    found = np.ones(STEP * STEP, dtype=bool)
    found[list(known)] = False
    return found


def tree_share(card: Mapping[str, Any], arch: str, features: Mapping[str, Floats] | None = None) -> Any:
    """Share of its tree's answer that a model with this card gives on an architecture, of each row where there are `features`.

    The tree of GPUs of one architecture holds for the next of them; on another one that runs the same instructions it holds less.
    Where stacks bring kernels of their own, a pair that the tensor path's rows do not show is as new as a path: a few rows of one stack
    say nothing of another's kernels (H100 left out: prefill 16.0 % with all of a tree that knows H200's torch rows, 14.7 with half).
    """
    known = card.get(CARD_KEY)
    if known is None or card.get(SCALED_TREE):
        return 1.0
    if tensor_path(arch) not in known:
        return NEW_PATH_SHARE
    share = float(card.get(TREE_SHARES, {}).get(arch_group(card, arch), 1.0))
    new = False if features is None else new_kernels(card, arch, features)
    return share if new is False else share * np.where(new, NEW_PATH_SHARE, 1.0)


def new_kernels(card: Mapping[str, Any], arch: str, features: Mapping[str, Floats]) -> Any:
    """Which rows run a kernel that none of a model's rows of the tensor path show; False where stacks bring none of their own."""
    return _unknown(card, arch, features) if CARD_KEY in card and "kernel" in features else False


def arch_group(card: Mapping[str, Any], arch: str) -> str:
    """Whether rows of this architecture are in a model with this card."""
    return KNOWN_ARCH_GROUP if arch in card.get("archs", ()) else NEW_ARCH_GROUP


def path_margin(card: Mapping[str, Any], arch: str) -> float:
    """How much wider the interval of a model with this card is on an architecture whose tensor path none of its rows used.

    A correction of a `prior` has measured its own widths.
    """
    known = card.get(CARD_KEY)
    return 1.0 if known is None or "prior" in card or tensor_path(arch) in known else float(card.get(PATH_MARGIN, 1.0))


def with_scaled_tree(model: FittedModel, arch: str, features: Mapping[str, Floats] | None = None) -> FittedModel:
    """The same answers on an architecture, for most of the rows, from a tree that is used in full: more rounds can be added to it."""
    share = float(np.median(tree_share(model.card, arch, features)))
    if model.residual is None or (share == 1.0 and features is None):
        return model
    return replace(model, residual=model.residual.scaled(share) if share < 1.0 else model.residual, card={**model.card, SCALED_TREE: share})
