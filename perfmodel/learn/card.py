"""What a model's card may say: each check gives the value in the types a model holds, or a CardError that names the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfmodel.errors import shown

TIERS = ("spec", "calibrated")
LARGEST = 1e300
UNCERTAINTY_KEY = "doubt"  # of widths of GPUs left out: the log correction that learn/operators.uncertainty_factor takes
LEAST_UNCERTAINTY = 0.01  # below it any correction by a tree would make an answer worthless
LARGEST_CONSTANT = 1e18  # of a law or a rate: the largest of a real card are some 1e16 flop/s
WIDEST_LOG = 20.0  # a factor of 5e8 either way: beyond it exp() tells nothing
DTYPE_CODES, KIND_CODES, PAIR_CODES = 16, 64, 4096  # codes that the tables of learn/domain and learn/transfer hold
MEASURED_KEY = "measured"  # what the rows that a model was fitted to show: {"rows": {gpu: {stack: rows}}, "names", "dtypes" ...: codes}

BEYOND_KEY = "beyond"  # a collective's card: {"gpus": most that were measured, "constants": of the answers for more}
COUNTS_KEY = "gpu_counts"  # a collective's card: the numbers of GPUs that were measured
MOST_GPUS = 2**20


class CardError(ValueError):
    """A defect of the card at hand, without its path."""


def number(field: str, value: object, low: float = -LARGEST, high: float = LARGEST, *, positive: bool = False) -> float:
    """A finite number from `low` to `high`, or above 0."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high and (value > 0 or not positive)
    if not good:
        allowed = "a positive number" if positive else "a number" if high == LARGEST else f"a number from {low:g} to {high:g}"
        raise CardError(f"{field} is {shown(value)}: expected {allowed}")
    return float(value)  # type: ignore[arg-type]


def constants(value: object) -> dict[str, float]:
    """Constants of a law: positive numbers."""
    given = _mapping("constants", value)
    return {str(name): number(f"constants.{name}", v, 0.0, LARGEST_CONSTANT, positive=True) for name, v in given.items()}


def pair(field: str, value: object, widest: float = LARGEST) -> tuple[float, float]:
    """(low, high), in that order."""
    if not isinstance(value, list) or len(value) != 2:
        raise CardError(f"{field} is {shown(value)}: expected [low, high]")
    low, high = (number(field, v, -widest, widest) for v in value)
    if low > high:
        raise CardError(f"{field} is {shown(value)}: the low end is above the high one")
    return low, high


def interval(field: str, value: object) -> tuple[float, float]:
    """Bounds of log(measured / predicted)."""
    return pair(field, value, WIDEST_LOG)


def envelope(value: object) -> dict[str, tuple[float, float]]:
    """Range of each feature in training."""
    return {str(name): pair(f"envelope.{name}", v) for name, v in _mapping("envelope", value).items()}


def tier(value: object) -> str:
    """What an answer of the model may call itself."""
    if value not in TIERS:
        raise CardError(f"tier is {shown(value)}: expected {' or '.join(TIERS)}")
    return str(value)


def names(field: str, value: object) -> tuple[str, ...]:
    """A list of texts."""
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise CardError(f"{field} is {shown(value)}: expected a list of names")
    return tuple(value)


def check_facts(card: Mapping[str, Any]) -> None:
    """Check the optional entries that predictions read straight from the card."""
    for field in ("variants", "gpus", "archs"):
        if field in card:
            names(field, card[field])
    if not isinstance(counts := card.get(COUNTS_KEY, []), list):
        raise CardError(f"{COUNTS_KEY} is {shown(counts)}: expected a list of numbers")
    for count in counts:
        number(COUNTS_KEY, count, 2, MOST_GPUS)
    for field, most in (("dtype_codes", DTYPE_CODES), ("kv_dtype_codes", DTYPE_CODES), ("kind_codes", KIND_CODES)):
        _codes(field, card.get(field, []), most)
    _check_measured(_mapping(MEASURED_KEY, card.get(MEASURED_KEY, {})))
    for path, codes in _mapping("known_names", card.get("known_names", {})).items():
        _codes(f"known_names.{path}", codes, PAIR_CODES)
    for group, widths in _mapping("half_widths", card.get("half_widths", {})).items():
        if not isinstance(widths, list) or len(widths) != 6:
            raise CardError(f"half_widths.{group} is {shown(widths)}: expected six numbers")
        for width in widths:
            number(f"half_widths.{group}", width, 0.0, WIDEST_LOG)
    _codes("tree_names", card.get("tree_names", []), PAIR_CODES)
    for group, share in _mapping("tree_shares", card.get("tree_shares", {})).items():
        number(f"tree_shares.{group}", share, 0.0, 1.0)
    if "path_margin" in card:
        number("path_margin", card["path_margin"], 1.0, WIDEST_LOG)
    if UNCERTAINTY_KEY in card:
        number(UNCERTAINTY_KEY, card[UNCERTAINTY_KEY], LEAST_UNCERTAINTY, WIDEST_LOG)
    if BEYOND_KEY in card:
        beyond = _mapping(BEYOND_KEY, card[BEYOND_KEY])
        number(f"{BEYOND_KEY}.gpus", beyond.get("gpus"), 2)
        constants(beyond.get("constants"))


def _check_measured(measured: Mapping[str, Any]) -> None:
    for field, most in (("names", PAIR_CODES), ("dtypes", DTYPE_CODES), ("kv_dtypes", DTYPE_CODES)):
        _codes(f"{MEASURED_KEY}.{field}", measured.get(field, []), most)
    names(f"{MEASURED_KEY}.kinds", measured.get("kinds", []))
    for gpu, stacks in _mapping(f"{MEASURED_KEY}.rows", measured.get("rows", {})).items():
        for stack, count in _mapping(f"{MEASURED_KEY}.rows.{gpu}", stacks).items():
            number(f"{MEASURED_KEY}.rows.{gpu}.{stack}", count, 0)


def _mapping(field: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CardError(f"{field} is {shown(value)}: expected an object")
    return value


def _codes(field: str, value: object, count: int) -> None:
    if not isinstance(value, list) or not all(isinstance(v, int) and 0 <= v < count for v in value):
        raise CardError(f"{field} is {shown(value)}: expected a list of whole numbers from 0 to {count - 1}")
