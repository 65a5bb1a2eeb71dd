"""What measured rows alone give, without a model: interpolation in a whole table of the same GPU, and how rough a table itself is.

Two yardsticks for a model that saw a few hundred rows. Interpolation stands for tools that hold every row of a GPU and stack; roughness is
what is left when the rows on both sides of one are known: the steps at which a library takes another kernel, and noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from perfmodel.calibrate.operator_rows import Rows
from perfmodel.learn.kriging import NAMES
from perfmodel.library.registry import MODELS

Floats = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
AXES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention": ("kv_len", "batch", "q_heads"),
    "mla": ("kv_len", "batch", "num_heads"),
    "moe": ("tokens", "tp", "ep"),
    "memory": ("tokens", "hidden"),
}
"""What tables of a kind are interpolated over, the axis within one shape first; in all other columns rows must be the same."""
NEIGHBOUR = 2.0  # rows further apart than this factor along that axis are no neighbours


def interpolated(table: Rows, asked: Rows) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """(log latency of each row of `asked` from the rows of `table`, whether it lies outside of them).

    Linear in the logs of AXES within the simplex (Delaunay) of rows whose other columns are the same; outside of these the row of the
    same names whose sizes are nearest in logs, of all rows where no names are the same.
    """
    from scipy.interpolate import LinearNDInterpolator
    from scipy.spatial import QhullError

    axes, found = AXES[MODELS[table.model_key].kind], np.full(len(asked), np.nan)
    others = [name for name in table.columns if name not in axes]
    sizes = _logs(table, axes), _logs(asked, axes)
    for known, wanted in _alike(table, asked, others):
        at, to = sizes[0][known], sizes[1][wanted]
        varied = np.ptp(at, axis=0) > 0
        near = (to[:, ~varied] == at[0, ~varied]).all(axis=1)
        if varied.sum() == 1:
            order = np.argsort(at[:, varied].ravel())
            line = at[order][:, varied].ravel(), table.log_latency[known][order]
            found[wanted[near]] = np.interp(to[near][:, varied].ravel(), *line, left=np.nan, right=np.nan)
        elif varied.any():
            try:
                between = LinearNDInterpolator(at[:, varied], table.log_latency[known])
            except QhullError:  # all on a line or a plane: no simplex to be inside of
                continue
            found[wanted[near]] = between(to[near][:, varied])
    outside = np.isnan(found)
    found[outside] = _nearest(table, asked.take(outside))
    return found, outside


def between_neighbours(rows: Rows, asked: Rows) -> Floats:
    """|interpolated / measured - 1| of each row of `asked` from the two of `rows` next to it along the first of AXES, all else the same.

    Linear in logs; NaN without both. `asked` are some of `rows`, which are of one GPU.
    """
    axis = AXES[MODELS[rows.model_key].kind][0]
    group = _codes([rows], [name for name in rows.columns if name != axis])[0]
    order = np.lexsort((rows.columns[axis], group))
    x, y = np.log(rows.columns[axis][order]), rows.log_latency[order]
    step, same = np.diff(x), np.diff(group[order]) == 0
    near = same & (step > 0) & (step <= np.log(NEIGHBOUR) + 1e-9)
    both = np.flatnonzero(near[:-1] & near[1:])
    middle = y[both] + (y[both + 2] - y[both]) * step[both] / (step[both] + step[both + 1])
    found = np.full(len(rows), np.nan)
    found[order[both + 1]] = np.abs(np.expm1(middle - y[both + 1]))
    return found[_position(rows, asked)]


def other_stacks(rows: Rows, asked: Rows) -> Floats:
    """|other / this - 1| of each row of `asked` against the stack that agrees best with its stack, over the median ratio of the two.

    What two measurements of one operator leave where both stacks call the same library, an upper bound of that elsewhere; NaN where no
    other stack measured the operator. `asked` are some of `rows`, which are of one GPU.
    """
    found, stacks = np.full(len(rows), np.nan), rows.columns["stack"]
    point = _codes([rows], [name for name in rows.columns if name not in ("stack", "kernel")])[0]
    for stack in np.unique(stacks):
        mine, best = np.flatnonzero(stacks == stack), np.inf
        for other in np.unique(stacks[stacks != stack]):
            of_other = np.full(int(point.max()) + 1, np.nan)
            theirs = np.flatnonzero(stacks == other)
            of_other[point[theirs]] = rows.log_latency[theirs]
            ratio = of_other[point[mine]] - rows.log_latency[mine]
            if np.isfinite(ratio).any():
                apart = np.abs(np.expm1(ratio - np.nanmedian(ratio)))
                if (mean := float(np.nanmean(apart))) < best:
                    best, found[mine] = mean, apart
    return found[_position(rows, asked)]


def _logs(rows: Rows, names: Sequence[str]) -> Floats:
    return np.stack([np.log(np.maximum(rows.columns[name], 1.0)) for name in names], axis=1)


def _alikeness(rows: Rows, name: str) -> Floats:
    """A column as it must be the same: cached keys for the queries, and 0 KV heads where every head has its own."""
    values = rows.columns[name]
    if name == "q_len":
        return np.where(values == 1, -1.0, rows.columns["kv_len"] - values)
    if name == "kv_heads":
        return np.where(values == rows.columns["q_heads"], 0.0, values)
    return values


def _codes(tables: Sequence[Rows], names: Sequence[str]) -> list[Index]:
    """For each table one whole number a row: the same one for the same combination of columns."""
    key = np.stack([np.concatenate([_alikeness(rows, name) for rows in tables]) for name in names], axis=1)
    code = np.unique(key, axis=0, return_inverse=True)[1].reshape(-1)
    return np.split(code, np.cumsum([len(rows) for rows in tables])[:-1])


def _alike(table: Rows, asked: Rows, names: Sequence[str]) -> Iterator[tuple[Index, Index]]:
    """Rows of `table` and of `asked` that agree in columns, by combination; those that only one of them has do not come."""
    known, wanted = _codes([table, asked], names)
    for code in np.intersect1d(known, wanted):
        yield np.flatnonzero(known == code), np.flatnonzero(wanted == code)


def _position(rows: Rows, asked: Rows) -> Index:
    """Where in `rows` each row of `asked` stands."""
    known, wanted = _codes([rows, asked], list(rows.columns))
    first = np.zeros(int(known.max()) + 1, dtype=np.intp)
    first[known] = np.arange(len(rows))
    return first[wanted]


def _nearest(table: Rows, asked: Rows) -> Floats:
    from scipy.interpolate import NearestNDInterpolator

    sizes = [name for name in table.columns if name not in NAMES]
    found = NearestNDInterpolator(_logs(table, sizes), table.log_latency)(_logs(asked, sizes))
    for known, wanted in _alike(table, asked, [name for name in NAMES if name in table.columns]):
        found[wanted] = NearestNDInterpolator(_logs(table, sizes)[known], table.log_latency[known])(_logs(asked, sizes)[wanted])
    return np.asarray(found, dtype=np.float64)
