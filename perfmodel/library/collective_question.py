"""The checked columns of a table of collectives: arrays of equal length, names resolved, links looked up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError, plain, shown
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.collective_links import Links, resolve_links
from perfmodel.library.collective_stacks import DEFAULT_STACK, communicating, parse_stack, version_key
from perfmodel.ops.cells import factorized
from perfmodel.ops.collective import MAX_BYTES, collective_kind

NEW_NCCL = (2, 27)  # send/recv and LL changed between 2.23 and 2.27.3, as rows of both on one kind of host show
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Question:
    """Checked columns: message, n (GPUs in all), m (machines), kind, one_byte, links, and the stack of each row."""

    def __init__(self, gpu: GpuSpec, columns: Mapping[str, Any], constants: Mapping[str, float]) -> None:
        sizes = {"message_bytes": columns["message_bytes"], "n_gpus": columns["n_gpus"], "nodes": columns.get("nodes", 1.0)}
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, dtype=np.float64)) for v in sizes.values()))
        self.rows = len(arrays[0])
        for name, values, low in zip(sizes, arrays, (1, 2, 1), strict=True):
            _check(name, values, low)
        self.message, self.n, self.m = arrays
        if (uneven := np.flatnonzero(self.n % self.m)).size:
            i = uneven[0]
            raise InputError(f"row {i}: {self.n[i]:.0f} GPUs do not divide evenly over {self.m[i]:.0f} nodes: give a multiple")
        kinds, code = levels(columns["kind"], self.rows)
        self.kind = np.array([collective_kind(x) for x in kinds], dtype=str)[code]
        dtypes, code = levels(columns.get("dtype", "bf16"), self.rows)
        self.one_byte = np.array([parse_dtype(x or "bf16").a_bytes < 2 for x in dtypes], dtype=bool)[code]
        topologies, code = levels(columns.get("topology", "auto"), self.rows)
        self.links: Links = resolve_links(gpu, [plain(t) or "auto" for t in topologies], code, self.n, self.m, constants)
        stacks, self.stack_code = levels(columns.get("stack", DEFAULT_STACK), self.rows)
        self.stacks = [parse_stack(x) for x in stacks]
        self.eager = np.array([e for _, e, _ in self.stacks], dtype=bool)[self.stack_code]
        self.graph = np.array([g for _, _, g in self.stacks], dtype=bool)[self.stack_code]
        how = communicating()
        self.how = [how[name] for name, _, _ in self.stacks]
        self.by_python = self._each([c.from_python for c in self.how]) & ~self.graph
        self.versions, self.version_code = levels(columns.get("version", ""), self.rows)
        before = np.array([version_key(v) < NEW_NCCL for v in self.versions], dtype=bool)[self.version_code]
        self.old = self._each([not c.rules for c in self.how]) & before

    def _each(self, of_stacks: list[bool]) -> Bools:
        found: Bools = np.array(of_stacks, dtype=bool)[self.stack_code]
        return found

    def constant(self, k: Mapping[str, float], attribute: str, missing: float) -> Floats:
        """The constant of the law that an attribute of each row's stack names (Communication), `missing` where it names none."""
        names = [getattr(c, attribute) for c in self.how]
        found: Floats = np.array([k[name] if name else missing for name in names])[self.stack_code]
        return found


def _check(name: str, values: Floats, low: int) -> None:
    bad = np.flatnonzero(~((values >= low) & (values == np.floor(values)) & (values <= MAX_BYTES)))
    if bad.size:
        value = values[bad[0]]
        if name == "n_gpus" and value == 1:
            raise InputError(f"row {bad[0]}: n_gpus is 1: a collective needs at least 2 GPUs (one GPU has nobody to talk to)")
        raise InputError(f"row {bad[0]}: {name} must be a whole number from {low} to {MAX_BYTES}, got {value:g}")


def levels(values: Any, rows: int) -> tuple[list[Any], npt.NDArray[np.intp]]:
    """(distinct values, "" for none, and which of them each row has)."""
    if np.ndim(values) and len(values) != rows:
        raise InputError(f"{shown(values)}: expected one name")
    if rows == 1 or np.ndim(values) == 0:
        value = values if np.ndim(values) == 0 else values[0]
        if value is None or isinstance(value, str):
            return [value or ""], np.zeros(rows, dtype=np.intp)
    import pandas as pd

    codes, found = factorized(np.broadcast_to(np.asarray(values, dtype=object), (rows,)))
    return ["" if pd.isna(x) else x for x in found], np.asarray(codes, dtype=np.intp)
