"""Compile facts: what the compiler says a config costs. Exact where a compiled kernel's figures are stored, a stated formula elsewhere.

Triton compiles for any GPU on a machine without one, so shared memory, registers, spills and the instruction mix of the K loop are facts.
They do not depend on the sizes of the problem. The stored table is made by `perfmodel.measure.compile` (data/README.md).
"""

from __future__ import annotations

import functools
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel._resources import shipped
from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels.configs import Configs

Floats = npt.NDArray[np.float64]
_BARRIER_BYTES = 8.0  # of a buffer that the tensor-memory accelerator fills
_TWO_STORES = 128 * 256  # output elements from which the persistent kernel stores a tile in two halves (measure/kernels/gemm.py)
_KEY = ("block_m", "block_n", "block_k", "num_warps", "num_stages")
VALUES = (
    "shared_bytes", "regs", "spill_bytes", "loop_instructions", "multiplies", "warpgroup", "rate_share", "serialised", "fragment_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Facts:
    """Per config: bytes of shared memory a block; registers and spilled bytes a thread; and for one K iteration of one warp the

    instructions issued, the tensor-core multiplies, whether they are warp-group ones, their rate over the operand type's own
    (0.5 where the compiler promotes fp8 to fp16), how many of them the compiler serialised, and the bytes of shared memory that
    fragment loads read. `exact` tells compiled figures from the formula's.
    """

    shared_bytes: npt.NDArray[np.int64]
    regs: npt.NDArray[np.int64]
    spill_bytes: Floats
    loop_instructions: Floats
    multiplies: Floats
    warpgroup: npt.NDArray[np.bool_]
    rate_share: Floats
    serialised: Floats
    fragment_bytes: Floats
    exact: npt.NDArray[np.bool_]

    def take(self, index: npt.NDArray[Any]) -> Facts:
        """Rows at `index`."""
        return Facts(*(getattr(self, name)[index] for name in self.__slots__))


def facts_for(family: str, gpu: GpuSpec, dtype: str, configs: Configs) -> Facts:
    """Facts of each config on `gpu`: the caller's own (configs.FACTS) first, then stored ones, then the formula."""
    guess = formula(gpu, dtype, configs)
    values = {name: np.array(guess[name], dtype=np.float64) for name in VALUES}
    exact = np.zeros(len(configs), dtype=bool)
    stored = _stored(family)
    keys = _keys(gpu.arch, dtype, configs)
    if len(stored.keys):
        at = np.minimum(np.searchsorted(stored.keys, keys), len(stored.keys) - 1)
        exact = stored.keys[at] == keys
        for name in VALUES:
            values[name][exact] = stored.values[name][at[exact]]
    own = (("regs", "regs", 1.0), ("spills", "spill_bytes", 4.0), ("spill_bytes", "spill_bytes", 1.0), ("shared", "shared_bytes", 1.0))
    for column, name, size in own:
        if column in configs.columns:  # Triton's n_spills counts 4-byte registers
            values[name] = np.asarray(configs[column] * size, dtype=np.float64)
    return Facts(
        shared_bytes=values["shared_bytes"].astype(np.int64),
        regs=np.clip(values["regs"], 16, 255).astype(np.int64),
        spill_bytes=values["spill_bytes"],
        loop_instructions=values["loop_instructions"],
        multiplies=values["multiplies"],
        warpgroup=values["warpgroup"] > 0,
        rate_share=values["rate_share"],
        serialised=values["serialised"],
        fragment_bytes=values["fragment_bytes"],
        exact=exact,
    )


def formula(gpu: GpuSpec, dtype: str, configs: Configs) -> Mapping[str, Any]:
    """Facts estimated without compiling, for configs that no table holds.

    Shared memory: a ring of (stages - 1) operand buffers where multiplies read registers (mma.sync), `stages` where they read
    shared memory (warp-group multiplies, sm_90 and sm_100, 64 rows or more), each with a barrier where the tensor-memory accelerator
    fills it; or the 16-bit output tile if that is larger, and beside the ring in the persistent kernel.
    Registers: accumulators m n / (32 warps), fragments, and about 40 for addresses; what exceeds the block's share of the SM spills.
    Serialised: two warp groups with 256 columns each.
    Evidence: on the sm_80, sm_86, sm_89 and sm_90 tables in data/ shared memory is within 64 bytes of the compiled figure on 99 % of the
    configs (equal on 93 %), the kind and number of multiplies equal on all, registers within 14 (median, 44 at p90); on sm_100 shared
    memory within 64 bytes on 99 %, registers within 18, the number of multiplies equal on 80 % (tests/unit/test_compile_facts.py).
    """
    size = parse_dtype(dtype).a_bytes
    bm, bn, bk = (configs[x].astype(np.float64) for x in ("block_m", "block_n", "block_k"))
    warps, stages = configs["num_warps"].astype(np.float64), configs["num_stages"].astype(np.float64)
    swap = configs.of("tma_swap")
    rows, cols = np.where(swap, bn, bm), np.where(swap, bm, bn)
    warpgroup = (gpu.capability[0] in (9, 10)) & (rows >= 64) & (warps % 4 == 0)
    buffers = np.where(warpgroup, stages, np.maximum(stages - 1, 1))
    tma, persistent = configs.of("tma", "tma_swap", "persistent"), configs.of("persistent")
    barriers = np.where(tma, _BARRIER_BYTES * buffers, 0.0)
    ring = buffers * (bm + bn) * bk * size
    out = bm * bn * 2.0
    shared = barriers + np.where(persistent, ring + np.where(bm * bn >= _TWO_STORES, out / 2.0, out), np.maximum(ring, out))
    accumulators = bm * bn / (32.0 * warps)
    depth16 = bk * size / 32.0
    grid_m = np.where(rows >= 32, np.minimum(2.0, warps), 1.0)
    grid_n = warps / grid_m
    fragments = np.where(warpgroup, 0.0, (rows / grid_m + cols / grid_n) * size * 16.0 / 128.0)
    registers = accumulators + fragments + 40.0
    ceiling = np.minimum(float(gpu.max_regs_per_thread), gpu.regs_per_sm / (32.0 * warps))  # a block must fit its SM
    spill = np.maximum(registers - ceiling, 0.0) * 4.0
    promoted = (dtype == "fp8") & ~warpgroup & (gpu.capability != (8, 9))
    rate_share = np.where(promoted, 0.5, 1.0)
    per_warp = np.where(
        warpgroup, np.ceil(rows / 64.0 / np.maximum(warps / 4.0, 1.0)) * depth16, rows * cols / (128.0 * warps) * depth16 / rate_share
    )
    per_warp = np.maximum(per_warp, 1.0)
    serialised = np.where(warpgroup & (((cols >= 256) & (warps >= 8)) | (accumulators >= 255)), per_warp, 0.0)
    copies = np.where(tma, 1.0, (bm + bn) * bk * size / 16.0 / (32.0 * warps))
    return {
        "shared_bytes": shared,
        "regs": np.minimum(registers, ceiling),
        "spill_bytes": spill,
        "loop_instructions": 40.0 + 6.0 * copies + per_warp * np.where(promoted, 4.0, 1.5),
        "multiplies": per_warp,
        "warpgroup": warpgroup.astype(np.float64),
        "rate_share": rate_share,
        "serialised": serialised,
        "fragment_bytes": np.where(warpgroup, 0.0, (rows / grid_m + cols / grid_n) * bk * size),
    }


@dataclass(frozen=True, slots=True)
class _Table:
    keys: npt.NDArray[np.int64]
    values: Mapping[str, Floats]


_DTYPE_CODES = {"bf16": 1, "fp16": 1, "fp8": 3, "int8": 4}  # fp16 code differs from bf16 code in nothing but the type of the multiply
_VARIANT_CODES = {"pointer": 1, "plain": 1, "tma": 2, "tma_swap": 3, "persistent": 4}


def _keys(arch: str, dtype: str, configs: Configs) -> npt.NDArray[np.int64]:
    """One integer a config; -1 where the stored table cannot hold it."""
    variant = np.array([_VARIANT_CODES[name] for name in configs.variants], dtype=np.int64)[configs.code]
    return _pack(int(arch.removeprefix("sm_")), _DTYPE_CODES.get(dtype, 0), variant, [configs[n] for n in _KEY])


def _pack(arch: Any, dtype: Any, variant: Any, parts: list[Any]) -> npt.NDArray[np.int64]:
    code = (np.asarray(arch, dtype=np.int64) * 8 + dtype) * 8 + variant
    for part in parts:
        code = code * 1024 + np.minimum(np.asarray(part, dtype=np.int64), 1023)
    return np.where(np.asarray(dtype) > 0, code, -1)


@functools.cache
def _stored(family: str) -> _Table:
    path = shipped("data") / f"compile_facts_{family}.npz"
    if not path.is_file():
        return _Table(np.array([], dtype=np.int64), {})
    return read_table(path)


def read_table(path: Path) -> _Table:
    """Read a table of compile facts; raises InputError for a file that is not one."""
    try:
        with np.load(path, allow_pickle=False) as raw:
            columns = {name: raw[name] for name in raw.files}
        keys = _pack(columns["arch"], columns["dtype"], columns["variant"], [columns[n] for n in _KEY])
        order = np.argsort(keys, kind="stable")
        return _Table(keys[order], {name: columns[name][order].astype(np.float64) for name in VALUES})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"cannot read the compile facts in {path}: {error}; restore the file or reinstall perfmodel") from None


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store facts rows (keys: arch int, dtype, variant, the tile, warps, stages, and VALUES) as a compact array file."""
    columns: dict[str, Any] = {
        "arch": np.array([int(r["arch"]) for r in rows], dtype=np.int16),
        "dtype": np.array([_DTYPE_CODES[r["dtype"]] for r in rows], dtype=np.int8),
        "variant": np.array([_VARIANT_CODES[r["variant"]] for r in rows], dtype=np.int8),
    }
    columns |= {n: np.array([int(r[n]) for r in rows], dtype=np.int16) for n in _KEY}
    columns |= {n: np.array([float(r[n]) for r in rows], dtype=np.float32) for n in VALUES}
    with path.open("wb") as handle:
        np.savez_compressed(handle, **columns)
