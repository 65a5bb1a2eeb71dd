"""Tiles of the grouped GEMMs: what each kernel takes for shapes that nobody tuned."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.constants import tables
from perfmodel.hw.spec import GpuSpec
from perfmodel.library.moe_kernels import MoeKernel, records
from perfmodel.library.records import Kernels
from perfmodel.library.terms import Floats
from perfmodel.ops import names

FILE = "moe_tiles"
_KIB, _LINE = 1024.0, 128.0


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows, columns and K elements a step of the tiles of n layers, each (n,)."""

    rows: Floats
    columns: Floats
    depth: Floats

    def where(self, condition: npt.NDArray[np.bool_], other: Tile) -> Tile:
        """These tiles where the condition holds, else the other ones."""
        pairs = ((self.rows, other.rows), (self.columns, other.columns), (self.depth, other.depth))
        return Tile(*(np.where(condition, mine, theirs) for mine, theirs in pairs))


@functools.cache
def _rules() -> tuple[tuple[str, ...], npt.NDArray[np.bool_], Floats, Floats]:
    """Names, whether by load, sizes up to which a tile holds (rule, step), tiles (rule, step, [rows, columns, depth]; NaN: derived)."""
    known = tables(FILE)
    steps = max(len(entry["columns"]) for entry in known.values())
    up_to, found = np.full((len(known), steps - 1), np.inf), np.full((len(known), steps, 3), np.nan)
    for index, entry in enumerate(known.values()):
        up_to[index, : len(entry.get("up_to", ()))] = entry.get("up_to", ())
        for side, name in enumerate(("rows", "columns", "depth")):
            found[index, : len(entry.get(name, ())), side] = entry.get(name, ())
    return tuple(known), np.array([entry.get("by") == "load" for entry in known.values()]), up_to, found


@functools.cache
def _rule_codes(sm_9: bool) -> npt.NDArray[np.intp]:
    """(record, block scales, old release, 8-bit operands) -> place of its rule."""
    known, flags = _rules()[0], (False, True)
    return np.array(
        [[[[known.index(r.tiles_of(sm_9, b, o, n)) for n in flags] for o in flags] for b in flags] for r in records().records],
    )


def layer_tiles(gpu: GpuSpec, kernels: Kernels[MoeKernel], columns: Mapping[str, Floats], mean: Floats) -> Tile:
    """Tiles of a whole layer whose GPU sees `mean` rows an expert: calibration/physics/moe_tiles.toml, by the kernel's record."""
    tokens, code = columns["tokens"], columns["dtype"].astype(np.intp)
    narrow, old = names.A_BYTES[code] < 2, columns["old"] > 0
    rules = _rule_codes(gpu.capability[0] == 9)
    rule = rules[kernels.code, names.BLOCK_SCALED[code].astype(np.intp), old.astype(np.intp), narrow.astype(np.intp)]
    _, by_load, up_to, found = _rules()
    size = np.where(by_load[rule], tokens / (columns["num_experts"] / columns["ep"]), tokens)
    tile = found[rule, (size[..., None] > up_to[rule]).sum(axis=-1)]
    fitting = np.clip(np.exp2(np.ceil(np.log2(mean))), 16.0, 128.0)
    rows, depth = tile[..., 0], tile[..., 2]
    return Tile(np.where(np.isnan(rows), fitting, rows), tile[..., 1], np.where(np.isnan(depth), _LINE / names.A_BYTES[code], depth))


def kernel_tiles(gpu: GpuSpec, tokens: Floats, experts: Floats, hidden: Floats) -> Tile:
    """Tiles of the fused-MoE Triton kernel alone, as its public benchmark configures both GEMMs.

    Source: PipeWeave, analytical_model/triton_moe_calculator.py (Apache-2.0): by tokens, hidden size and shared memory an SM (up to 100,
    up to 164, or more KiB). Evidence: the steps of the H20 rows at 128, 256 and 512 tokens.
    """
    small = gpu.smem_per_sm_bytes <= 100 * _KIB
    middle, one = not small and gpu.smem_per_sm_bytes <= 164 * _KIB, np.ones_like(tokens)
    many = np.where(experts < 64, 64.0, 128.0) if small else one * (64.0 if middle else 128.0)
    rows = np.select([tokens <= 128, tokens <= 256, tokens <= 512, tokens <= 2048], [16.0, 32.0, 64.0, 64.0 if middle else 128.0], many)
    narrow = np.where((hidden <= 1536) & (tokens <= 128), 16.0, 64.0)
    deep = np.where(tokens <= 256, 256.0 if small else 128.0, 64.0)
    return Tile(rows, narrow if small else one * 128.0, deep)
