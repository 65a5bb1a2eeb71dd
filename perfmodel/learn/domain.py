"""Whether the rows behind a model show what was asked, and in words what they do not show: sizes, types, kinds, architecture, kernels."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.card import DTYPE_CODES, KIND_CODES, MEASURED_KEY, PAIR_CODES
from perfmodel.learn.model import FittedModel
from perfmodel.learn.residual import feature
from perfmodel.learn.transfer import CARD_KEY, STEP, pair_codes, tensor_path
from perfmodel.library.terms import PricedTerms
from perfmodel.ops.memory import TRAFFIC
from perfmodel.ops.names import DTYPES, KERNELS, STACKS

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.intp]
SIZE, DTYPE, KIND, ARCH, STACK, KERNEL, COUNT, NO_ROWS = (1 << bit for bit in range(8))
WORDS = {
    NO_ROWS: "no rows", ARCH: "architecture", KIND: "kind", DTYPE: "dtype", STACK: "stack", KERNEL: "kernel", COUNT: "GPU count",
    SIZE: "size",
}  # fmt: skip
NAMES = STACK | KERNEL
CODES = DTYPE | KIND  # what a tree was never shown by its code: it has nothing to say
WIDER = SIZE | DTYPE | KIND | COUNT  # what an interval is widened for by intervals.OUTSIDE; architecture and kernels have their own widths


def outside(model: FittedModel, gpu: GpuSpec, terms: PricedTerms, columns: Mapping[str, Floats]) -> Codes:
    """Of each row, what the model's rows do not show: a sum of SIZE, DTYPE ...; 0 inside."""
    card = model.card
    beyond: Any = terms.latency_s < 0  # false
    for name, (low, high) in model.envelope.items():
        values = feature(terms.features, name)
        beyond = beyond | (values < low - 0.5) | (values > high + 0.5)
    found: Any = np.where(beyond, float(SIZE), 0.0).astype(np.intp) + of_gpu(card, gpu)
    for column, key, most in (("dtype", "dtype_codes", DTYPE_CODES), ("kv_dtype", "kv_dtype_codes", DTYPE_CODES)):
        if key in card and column in columns:
            found = found | _missing(tuple(card[key]), most, DTYPE)[columns[column].astype(np.intp)]
    if "kind_codes" in card:
        found = found | _missing(tuple(card["kind_codes"]), KIND_CODES, KIND)[columns["kind"].astype(np.intp)]
    known = shown_pairs(card, gpu.arch)
    all_of_it: Codes = found | _new_names(known)[pair_codes(terms.features)] if known else found
    return all_of_it


def of_gpu(card: Mapping[str, Any], gpu: GpuSpec) -> int:
    """ARCH where no row is of the GPU's architecture, NO_ROWS where there is none at all."""
    gpus = card.get("gpus", ())
    if not gpus:
        return NO_ROWS
    return 0 if gpu.name in gpus or gpu.arch in card.get("archs", ()) else ARCH


def shown_pairs(card: Mapping[str, Any], arch: str) -> tuple[int, ...]:
    """Codes of the stacks and kernels that a model's rows show on the tensor path of an architecture; none where that is not known."""
    return (*card.get(CARD_KEY, {}).get(tensor_path(arch), ()), *card.get(MEASURED_KEY, {}).get("names", ()))


def unseen_types(card: Mapping[str, Any], columns: Mapping[str, Floats]) -> Any:
    """Which rows are of an element type that no row of the GPU itself shows; False where the card does not say."""
    measured = card.get(MEASURED_KEY, {})
    found: Any = False
    for column, key in (("dtype", "dtypes"), ("kv_dtype", "kv_dtypes")):
        if key in measured and column in columns:
            found = found | (_missing(tuple(measured[key]), DTYPE_CODES, DTYPE)[columns[column].astype(np.intp)] > 0)
    return found


@functools.lru_cache(maxsize=256)
def _missing(known: tuple[int, ...], most: int, flag: int) -> Codes:
    """By code: `flag` where it is none of `known`."""
    found: Codes = np.full(most, flag, dtype=np.intp)
    found[list(known)] = 0
    return found


@functools.lru_cache(maxsize=128)
def _new_names(known: tuple[int, ...]) -> Codes:
    """By code of a pair: STACK where no row is of that stack, KERNEL where rows of it are of other kernels; 0 for no name at all."""
    pair = np.arange(PAIR_CODES)
    stacks = sorted({code // STEP for code in known} | {0})
    kernels = sorted({code % STEP for code in known} | {0})
    found: Codes = np.where(np.isin(pair // STEP, stacks), KERNEL, STACK)
    found[list(known)] = 0
    unnamed = pair < STEP
    found[unnamed] = np.where(np.isin(pair[unnamed], kernels), 0, KERNEL)
    return found


def reasons(
    code: int, gpu: GpuSpec, model_key: str, model: FittedModel, asked: Mapping[str, Any], features: Mapping[str, Any]
) -> tuple[str, ...]:
    """What a sum of SIZE, DTYPE ... of one question says, in words; `asked` are its columns, `features` the law's of it."""
    card, found = model.card, []
    if code & NO_ROWS:
        found.append(f"no measured row for {model_key}: the law alone")
    if code & ARCH:
        found.append(f"no row of {gpu.arch} for {model_key}")
    if code & KIND:
        found.append(f"no row of {list(TRAFFIC)[int(asked['kind'])]} for {model_key}")
    if code & DTYPE:
        found += _types(card, asked, model_key)
    if code & NAMES:
        pair = int(pair_codes(features))
        stack, kernel = STACKS[pair // STEP], KERNELS[pair % STEP]
        name = f"stack {stack}" if code & STACK else f"kernel {kernel}" + (f" of {stack}" if pair >= STEP else "")
        found.append(f"no row of {name} for {model_key}" + (f" on {tensor_path(gpu.arch)} tensor cores" if CARD_KEY in card else ""))
    if code & SIZE:
        found += sizes_beyond(model, features)
    return tuple(found)


def _types(card: Mapping[str, Any], asked: Mapping[str, Any], model_key: str) -> list[str]:
    """The element types that no row has."""
    found = []
    for column, key, of in (("dtype", "dtype_codes", "dtype"), ("kv_dtype", "kv_dtype_codes", "KV cache in")):
        if key in card and column in asked and int(asked[column]) not in card[key]:
            found.append(f"no row of {of} {DTYPES[int(asked[column])]} for {model_key}")
    return found


def sizes_beyond(model: FittedModel, features: Mapping[str, Any], slack: float = 0.5, share: float = 0.0) -> list[str]:
    """The sizes of one question that lie outside of those of the rows, with their range; `share` of it, and `slack`, are still inside."""
    found = []
    for name, (low, high) in model.envelope.items():
        value = float(np.reshape(feature(features, name), -1)[0])
        margin = slack + share * (high - low)
        if not low - margin <= value <= high + margin:
            word, shown = (name[5:], [2.0**v for v in (value, low, high)]) if name.startswith("log2_") else (name, [value, low, high])
            found.append("{} {:.6g} is outside of the measured {:.6g} to {:.6g}".format(word, *shown))
    return found


def earned(code: int) -> str:
    """What the interval of an answer outside of its model's rows rests on, in words."""
    if code & ARCH:
        return "interval of architectures left out"
    return "wider interval" if code else ""


def labels(codes: Sequence[int]) -> list[str]:
    """Short words for sums of SIZE, DTYPE ...: 'architecture, size'; empty inside."""
    return [", ".join(word for flag, word in WORDS.items() if code & flag) for code in codes]
