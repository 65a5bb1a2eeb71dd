"""Correction by a few hundred measured rows: what is left of a prior, interpolated between rows that are alike (Gaussian process).

Rows are alike when their sizes and binding terms are near, when the prior's tree puts them into the same leaves, and when other GPUs'
calibrations say the same of them; what those calibrations say in common is also followed as a whole. Kept in a model's card as plain
numbers; costs one distance to every kept row, so it is for tables of at most MAX_POINTS rows.
"""

from __future__ import annotations

import base64
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError

Floats = npt.NDArray[np.float64]
Leaves = npt.NDArray[np.uint16]
CARD_KEY = "kriging"
MAX_POINTS = 1500
SIZES = (
    "m", "n", "k", "batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "tokens", "hidden", "inter", "num_experts", "top_k",
    "tp", "ep", "num_heads",
)  # fmt: skip
TERMS = (
    "tensor", "exp", "chain", "dram", "l2", "power", "fixed", "feed", "floor", "waves", "rows_per_expert", "tail", "edge", "weights_in_l2",
    "acts_in_l2", "cache_in_l2", "quantise", "combine", "convert", "prepare", "handled", "routing",
)  # fmt: skip
"""Features of a law that place a row: rows that the same resource binds are alike."""
FURTHEST = 5.0  # a term this many e-folds under the latency does not matter, however small it is
LATENCY = "log_latency"  # of the rows beside an entry, log seconds
_VARIANT = 64.0  # apart from any stack's code
NAMES = ("stack", "kernel", "dtype", "kv_dtype", "stage", "kind")
APARTS = (1.0, 0.15)
"""How much the names divide rows, over what all rows share: stacks with kernels of their own, and stacks that call one library."""
LENGTH = 12.0  # octaves over which two rows of one stack lose 1/e of what they share
OFFSETS = 0.05  # variance of log latency at each of three levels: all rows; same stack; all names the same (these two times `apart`)
SMOOTH, LEAF = 0.04, 0.05  # at the same levels: the part that fades with distance, the part that holds within leaves of the prior's tree
SMOOTH_ALONE = 0.15  # the part that fades, where the prior has no tree
COVARIATE_WEIGHT = 0.1  # variance of the weight that another GPU's calibration gets, once for all rows and once for each stack
FURTHEST_COVARIATE = 1.5  # what such a calibration may say at most, in e-folds
NOISE, OUTLIER = 0.02, 0.05  # variance of a row; residual from which a row counts less (0.1: GEMM 0.4, MoE and quantised GEMM 1.5 % worse)
JUDGES = 128  # rows by which it is told how far others are from what was measured
SPREAD = "spread"  # of an entry: what `spread` typically is on shapes held out
BLOCK = 20_000
_BYTE = 255
LARGEST = 1e4  # no octaves, e-folds or weights of a sound entry come near it
KEPT = 16  # entries whose arrays stay in memory


@dataclass(frozen=True, slots=True)
class Place:
    """Where n rows stand.

    near: (n, p) octaves; names: (n, q) codes; covariates: (n, g) log ratios that other GPUs' calibrations give over
    the prior; leaves: (n, t) leaf of each tree of the prior.
    """

    near: Floats
    names: Floats
    covariates: Floats
    leaves: Leaves

    def take(self, rows: Any) -> Place:
        """The rows of a mask, slice or index."""
        return Place(self.near[rows], self.names[rows], self.covariates[rows], self.leaves[rows])

    def around(self, centre: Floats) -> Place:
        """The same with `centre` as the origin of near: distances then lose nothing to rounding."""
        return replace(self, near=self.near - centre)


def names_of(columns: Mapping[str, Floats], variant: Floats | None = None) -> Floats:
    """(n, q) codes of what rows name. Where a law says which of a stack's kernels runs (OperatorTerms.variant), each counts as a stack.

    Evidence, decode of 200 rows: TensorRT-LLM's kernel for one head at a time, with an fp8 cache on the L40S, takes 1.9 to 2.8 times what
    the law says, its XQA 1.1 to 1.3 times. Held-out shapes, stacks mixed: decode of H100 9.3 -> 8.8, L40S 10.5 -> 10.0 %; prefill, whose
    variant is the multiply in 8 bits, L40S 9.5 -> 8.6 %; one stack: decode of L40S 9.4 -> 8.2 %.
    """
    named = [columns[name] for name in NAMES if name in columns]
    if variant is not None:  # alone too, so that entries made without it do not fit
        named = [named[0] + _VARIANT * variant, *named[1:], variant]
    return beside(named)


def place(
    columns: Mapping[str, Floats],
    log_law: Floats,
    features: Mapping[str, Floats],
    covariates: Floats | None = None,
    leaves: Leaves | None = None,
    variant: Floats | None = None,
) -> Place:
    """Place of each row, or of one: logs of sizes, window, skew, the law's latency and terms; codes of names; what else is known of it."""
    near = [np.log2(np.maximum(np.nan_to_num(columns[name], nan=1.0), 1.0)) for name in SIZES if name in columns]
    if "window" in columns:
        near.append(np.log2(columns["window"] + 1.0) / 2.0)
    if "skew" in columns:
        near.append(2.0 * columns["skew"])
    near.append(1.5 * log_law)
    near += [np.clip(features[name], -FURTHEST, FURTHEST) for name in TERMS if name in features]
    names = names_of(columns, variant)
    empty = np.zeros((len(names), 0))
    covariates = empty if covariates is None else np.clip(covariates, -FURTHEST_COVARIATE, FURTHEST_COVARIATE)
    return Place(beside(near), names, covariates, empty.astype(np.uint16) if leaves is None else leaves)


def beside(columns: Sequence[Floats]) -> Floats:
    """Columns, or numbers of one row, as a table of shape (rows, columns)."""
    return np.ascontiguousarray(np.reshape(columns, (len(columns), -1)).T)


def _levels(a: Floats, b: Floats, apart: float) -> tuple[Floats, Floats]:
    """(1 + same stack + all names the same, 1 + same stack) of every row of `a` with every row of `b`, names counting `apart`."""
    stack = a[:, None, 0] == b[None, :, 0]
    same = stack.copy()
    for column in range(1, a.shape[1]):
        same &= a[:, None, column] == b[None, :, column]
    return 1.0 + apart * (1.0 * stack + same), 1.0 + apart * stack


def covariance(a: Place, b: Place, apart: float = 1.0, *, leaves: bool = True) -> Floats:
    """Covariance of every row of `a` with every row of `b`; without the part of `leaves` where that is added in another way."""

    def square(x: Floats, y: Floats) -> Floats:
        gap: Floats = np.maximum((x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1)[None, :] - 2.0 * x @ y.T, 0.0)
        return gap

    levels, stacks = _levels(a.names, b.names, apart)
    fading = np.exp(-np.sqrt(square(a.near, b.near) / LENGTH**2 + square(a.covariates, b.covariates)))
    trees = b.leaves.shape[1]
    shared: Floats = OFFSETS + (SMOOTH if trees else SMOOTH_ALONE) * fading
    if trees and leaves:
        shared += LEAF * _together(a.leaves, b.leaves)
    result: Floats = shared * levels + COVARIATE_WEIGHT * (a.covariates @ b.covariates.T) * stacks
    return result


def _together(a: Leaves, b: Leaves) -> Floats:
    """Share of the trees in which a row of `a` and one of `b` end in the same leaf."""
    kind = np.uint8 if max(a.max(initial=0), b.max(initial=0)) <= _BYTE else np.uint16
    one, other = np.ascontiguousarray(a.T, dtype=kind), np.ascontiguousarray(b.T, dtype=kind)
    count = np.zeros((len(a), len(b)), dtype=np.uint16)
    same = np.empty(count.shape, dtype=bool)
    for start in range(0, len(one), _BYTE):  # so many fit a byte
        part = np.zeros(count.shape, dtype=np.uint8)
        for mine, theirs in zip(one[start : start + _BYTE], other[start : start + _BYTE], strict=True):
            np.equal(mine[:, None], theirs[None, :], out=same)
            np.add(part, same.view(np.uint8), out=part)
        count += part
    share: Floats = count / len(one)
    return share


def within(where: Place, apart: float = 1.0) -> Floats:
    """Covariance of the rows with each other; that of any of them is a part of it."""
    centred = where.around(where.near.mean(axis=0))
    return covariance(centred, centred, apart)


def weigh(between: Floats, residual: Floats) -> Floats:
    """Weights of rows with these covariances, so that `covariance @ weights` interpolates; rows unlike their neighbours count less."""
    from scipy.linalg import solve  # only a fit needs it

    trust: Floats = np.ones(len(residual))
    weights: Floats = np.zeros(len(residual))
    for _ in range(4):
        noisy = between.copy()
        noisy.flat[:: len(noisy) + 1] += NOISE / trust
        weights = np.asarray(solve(noisy, residual, assume_a="pos", overwrite_a=True, check_finite=False), dtype=np.float64)
        trust = np.asarray(1.0 / np.maximum(1.0, np.abs(NOISE / trust * weights) / OUTLIER), dtype=np.float64)
    return weights


def fit(where: Place, residual: Floats, share: float = 1.0, apart: float = 1.0) -> dict[str, Any]:
    """Card entry that gives `share` of `residual` (log measured over prior) at `where`; rows unlike their neighbours count less."""
    centre = where.near.mean(axis=0)
    weights = weigh(within(where, apart), residual)
    return {
        "rows": len(residual),
        "place": _packed(where.near, "<f4"),
        "names": _packed(where.names, "<u2"),
        "kin_ratios": _packed(where.covariates, "<f4"),
        "leaves": _packed(where.leaves, "<u2"),
        "trees": where.leaves.shape[1],
        "share": share,
        "apart": apart,
        "centre": np.round(centre, 4).tolist(),
        "weights": np.round(share * weights, 6).tolist(),
    }


def _packed(values: npt.NDArray[Any], kind: str) -> str:
    """An array as text: rows of that many bytes a value, compressed."""
    exact = values if kind == "<u2" else np.round(values, 4)
    return base64.b64encode(zlib.compress(exact.astype(kind).tobytes(), 9)).decode("ascii")


def _unpacked(text: str, kind: str, rows: int) -> npt.NDArray[Any]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=kind).reshape(rows, -1)


def with_rows(entry: Mapping[str, Any], columns: Mapping[str, Floats], log_latency: Floats) -> dict[str, Any]:
    """The entry with the rows that it was fitted to, so that it can be fitted again where they stand when models around it change."""
    table = {**columns, LATENCY: log_latency}
    return {**entry, "columns": list(table), "table": _packed(np.stack(list(table.values()), axis=1), "<f8")}


def rows_of(entry: Mapping[str, Any]) -> tuple[dict[str, Floats], Floats]:
    """(columns, log latency in seconds) of the rows of an entry; raises InputError for an entry that has none."""
    try:
        table = _unpacked(entry["table"], "<f8", int(entry["rows"])).astype(np.float64)
        columns = dict(zip([str(name) for name in entry["columns"]], table.T, strict=True))
        log_latency = columns.pop(LATENCY)
        if not np.isfinite(table).all() or not all(0.0 <= float(entry[name]) <= 1.0 for name in ("share", "apart")):
            raise ValueError("not an entry")
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError, zlib.error):
        raise another_version() from None
    return columns, log_latency


def fits(entry: Mapping[str, Any], where: Place) -> bool:
    """Whether rows that stand there can be compared with those of an entry."""
    known = _arrays(entry).where
    return all(getattr(where, name).shape[1] == getattr(known, name).shape[1] for name in ("near", "names", "covariates", "leaves"))


def spread(known: Place, at: Place, apart: float = 1.0) -> Floats:
    """Standard deviation of what interpolation between `known` rows leaves of the log latency of others, leaves of the prior apart.

    A conformal quantile is taken of residuals over it, so that an interval is wider far from the rows (Lei et al., JASA 113, 2018, section
    5.2). Told by JUDGES of the rows at most, which costs 128 x 128 products a question. Evidence, 34 tables of 200 rows (products and
    decode): of the held-out rows by how little is known of them (thirds, and the last tenth) 91, 84, 77 and 65 % are covered without, and
    88, 82, 78 and 71 % with it, by intervals 3 % narrower; all rows and the leaves too: 87, 82, 78 and 71 %, another 3 % narrower.
    """
    centre = known.near.mean(axis=0)
    judges = known.take(_judges(len(known.near))).around(centre)
    at = at.around(centre)
    return _spread(covariance(at, judges, apart, leaves=False), _inverse(judges, apart), at, apart)


def _judges(rows: int) -> npt.NDArray[np.intp]:
    """JUDGES of so many rows, evenly."""
    return np.unique(np.linspace(0, rows - 1, min(rows, JUDGES)).astype(np.intp))


def _inverse(judges: Place, apart: float) -> Floats:
    within = covariance(judges, judges, apart, leaves=False)
    return np.asarray(np.linalg.inv(within + NOISE * np.eye(len(within))), dtype=np.float64)


def _spread(between: Floats, inverse: Floats, at: Place, apart: float) -> Floats:
    """sqrt(k(x, x) - k(x, judges) (K + NOISE)^-1 k(judges, x) + NOISE) of each row of `at`; `between` is k(x, judges)."""
    fading = SMOOTH if at.leaves.shape[1] else SMOOTH_ALONE
    own = (OFFSETS + fading) * (1.0 + 2.0 * apart) + COVARIATE_WEIGHT * (1.0 + apart) * (at.covariates**2).sum(axis=1)
    known = ((between @ inverse) * between).sum(axis=1)
    left: Floats = np.sqrt(np.maximum(own - known, 0.0) + NOISE)
    return left


def log_ratio(entry: Mapping[str, Any], where: Place) -> Floats:
    """Log of the correction of each row; raises InputError where the entry and the rows are not of one version."""
    return interpolated(entry, where)[0]


def interpolated(entry: Mapping[str, Any], where: Place) -> tuple[Floats, Floats]:
    """(log of the correction, `spread` over what it typically is on shapes held out) of each row; the latter is 1 where none was stored.

    Raises InputError where the entry and the rows are not of one version.
    """
    if not fits(entry, where):
        raise another_version()
    known = _arrays(entry)
    result, far = np.empty(len(where.near)), np.ones(len(where.near))
    for start in range(0, len(result), BLOCK):
        rows = slice(start, start + BLOCK)
        part = where.take(rows).around(known.centre)
        between = covariance(part, known.where, known.apart, leaves=False)
        result[rows] = between @ known.weights + known.within_leaves(part)
        if known.typical:
            far[rows] = _spread(between[:, known.judges], known.inverse, part, known.apart) / known.typical
    return result, far


def trees(entry: Any) -> int:
    """How many trees the prior had; raises InputError for what is no entry."""
    count = entry.get("trees") if isinstance(entry, Mapping) else None
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < LARGEST:
        raise another_version()
    return count


def another_version() -> InputError:
    """What to say of an entry that cannot be read."""
    return InputError("this calibration was made by another version of perfmodel, or its card is damaged: make it again from its rows")


@dataclass(frozen=True, slots=True)
class _Arrays:
    """An entry in memory; `sums` has for each level, tree and leaf the weights of the kept rows that ended there.

    typical: the entry's SPREAD, 0 without; judges, inverse: rows and matrix that give the `spread` of others.
    """

    where: Place
    centre: Floats
    weights: Floats
    apart: float
    sums: Mapping[tuple[int, ...], Floats]
    typical: float
    judges: npt.NDArray[np.intp]
    inverse: Floats

    def within_leaves(self, part: Place) -> Floats:
        """The part of the correction that rows in the same leaves give."""
        result = np.zeros(len(part.near))
        trees = part.leaves.shape[1]
        if trees == 0:
            return result
        kinds, kind = np.unique(part.names, axis=0, return_inverse=True)
        each = np.arange(trees)
        for i, names in enumerate(kinds.astype(int).tolist()):
            shares = zip(_keys(names), (1.0, self.apart, self.apart), strict=True)
            table = np.sum([share * self.sums[level] for level, share in shares if level in self.sums], axis=0)
            at = np.flatnonzero(kind.reshape(-1) == i)
            result[at] = LEAF * table[each, np.minimum(part.leaves[at], table.shape[1] - 1)].mean(axis=1)
        return result


_KEPT: OrderedDict[int, tuple[Mapping[str, Any], _Arrays]] = OrderedDict()  # by identity, with the entry held so that it stays unique


def _arrays(entry: Mapping[str, Any]) -> _Arrays:
    kept = _KEPT.get(id(entry))
    if kept is not None and kept[0] is entry:
        return kept[1]
    try:
        rows = int(entry["rows"])
        near, covariates = (_unpacked(entry[name], "<f4", rows).astype(np.float64) for name in ("place", "kin_ratios"))
        names, leaves = (_unpacked(entry[name], "<u2", rows) for name in ("names", "leaves"))
        centre, weights = (np.asarray(entry[name], dtype=np.float64) for name in ("centre", "weights"))
        apart, typical = float(entry.get("apart", 1.0)), float(entry.get(SPREAD, 0.0))
        where = Place(near, names.astype(np.float64), covariates, leaves).around(centre)
        whole = near.shape[1:] == centre.shape and (rows,) == weights.shape and rows > 0 and names.shape[1] > 0
        if not whole or not all(
            np.isfinite(v).all() and np.abs(v).max(initial=0.0) < LARGEST
            for v in (where.near, covariates, weights, np.array([apart, typical]))
        ):
            raise ValueError("not an entry")
        if typical < 0.0:
            raise ValueError("not a spread")
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError, zlib.error):
        raise another_version() from None
    judges = _judges(rows) if typical else np.zeros(0, dtype=np.intp)
    inverse = _inverse(where.take(judges), apart) if typical else np.zeros((0, 0))
    arrays = _Arrays(where, centre, weights, apart, _sums(where.names, leaves, weights), typical, judges, inverse)
    _KEPT[id(entry)] = (entry, arrays)
    while len(_KEPT) > KEPT:
        _KEPT.popitem(last=False)
    return arrays


def _keys(names: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The three levels at which a row with these names shares what it knows."""
    return (), (1, names[0]), (2, *names)


def _sums(names: Floats, leaves: Leaves, weights: Floats) -> dict[tuple[int, ...], Floats]:
    rows, trees = leaves.shape
    found: dict[tuple[int, ...], Floats] = {}
    each, width = np.arange(trees), int(leaves.max(initial=0)) + 2  # the last column is for leaves that no kept row reached
    for row in range(rows if trees else 0):
        for level in _keys([int(code) for code in names[row]]):
            found.setdefault(level, np.zeros((trees, width)))[each, leaves[row]] += weights[row]
    return found
