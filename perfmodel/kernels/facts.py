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
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perfmodel._resources import shipped
from perfmodel.errors import InputError
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels import kernel_family
from perfmodel.kernels.configs import Configs

if TYPE_CHECKING:
    from perfmodel.kernels.family import KernelFamily

Floats = npt.NDArray[np.float64]
VALUES = (
    "shared_bytes", "regs", "spill_bytes", "loop_instructions", "multiplies", "warpgroup", "rate_share", "serialised", "fragment_bytes",
    "special",
)  # fmt: skip
LATER = ("special",)  # zero in a table or formula that does not say


@dataclass(frozen=True, slots=True)
class Facts:
    """Per config: bytes of shared memory a block; registers and spilled bytes a thread; and for one K iteration of one warp the

    instructions issued, the tensor-core multiplies, whether they are warp-group ones, their rate over the operand type's own
    (0.5 where the compiler promotes fp8 to fp16), how many of them the compiler serialised, the bytes of shared memory that
    fragment loads read, and the special-function instructions (exponentials). `exact` tells compiled figures from the formula's.
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
    special: Floats
    exact: npt.NDArray[np.bool_]

    def take(self, index: npt.NDArray[Any]) -> Facts:
        """Rows at `index`."""
        return Facts(*(getattr(self, name)[index] for name in self.__slots__))


def facts_for(family: str, gpu: GpuSpec, dtype: str, configs: Configs, sizes: Mapping[str, Any] | None = None) -> Facts:
    """Facts of each config on `gpu`: the caller's own (configs.FACTS) first, then stored ones, then the formula.

    `sizes` of the problem, scalars or arrays beside the configs, for families whose code depends on some of them (a head's width).
    """
    module = kernel_family(family)
    guess = module.formula(gpu, dtype, configs, sizes)
    zero = np.zeros(len(configs))
    values = {name: np.array(np.broadcast_to(guess.get(name, zero), zero.shape), dtype=np.float64) for name in VALUES}
    exact = np.zeros(len(configs), dtype=bool)
    stored = _stored(family)
    code = module.code_of(configs, sizes)
    code = {name: code[name] for name in module.BINARY}
    own = int(gpu.arch.removeprefix("sm_"))
    for arch in (*_SIBLINGS.get(own, ()), own):  # the GPU's own code last, so that it wins
        keys = _pack(arch, _DTYPE_CODES.get(dtype, 0), _variant_codes(module, configs), code)
        if len(stored.keys):
            at = np.minimum(np.searchsorted(stored.keys, keys), len(stored.keys) - 1)
            found = stored.keys[at] == keys
            for name in VALUES:
                values[name][found] = stored.values[name][at[found]]
            exact = found
    given = (("regs", "regs", 1.0), ("spills", "spill_bytes", 4.0), ("spill_bytes", "spill_bytes", 1.0), ("shared", "shared_bytes", 1.0))
    for column, name, size in given:
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
        special=values["special"],
        exact=exact,
    )


@dataclass(frozen=True, slots=True)
class _Table:
    keys: npt.NDArray[np.int64]
    values: Mapping[str, Floats]


_DTYPE_CODES = {"bf16": 1, "fp16": 1, "fp8": 3, "int8": 4}  # fp16 code differs from bf16 code in nothing but the type of the multiply
_SIBLINGS = {80: (86, 89), 86: (80, 89), 89: (80, 86)}
"""Architectures whose code answers, not as exact, where a table lacks a GPU's own, the best last: sm_86 and sm_89 compile to the same
code but for fp8, sm_80 to nearly the same (the same multiplies and shared memory, registers within 20)."""
_RADIX = {"num_warps": 64, "num_stages": 32, "causal": 2}
_RADIX_OF_SIDES = 1024  # tile sides and widths of heads


def _variant_codes(module: KernelFamily, configs: Configs) -> npt.NDArray[np.int64]:
    """Place of each row's variant in the family, from 1; somebody else's plain kernel counts as the ordinary one."""
    codes = [1 if name == module.PLAIN else 1 + module.VARIANTS.index(name) for name in configs.variants]
    return np.array(codes, dtype=np.int64)[configs.code]


def _pack(arch: Any, dtype: Any, variant: Any, code: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    """One integer a binary; -1 where the stored table cannot hold it."""
    key = (np.asarray(arch, dtype=np.int64) * 8 + dtype) * 8 + variant
    for name, part in code.items():
        radix = _RADIX.get(name, _RADIX_OF_SIDES)
        key = key * radix + np.minimum(np.asarray(part, dtype=np.int64), radix - 1)
    return np.where(np.asarray(dtype) > 0, key, -1)


@functools.cache
def _stored(family: str) -> _Table:
    path = shipped("data") / f"compile_facts_{family}.npz"
    if not path.is_file():
        return _Table(np.array([], dtype=np.int64), {})
    return read_table(path, family)


def read_table(path: Path, family: str = "gemm") -> _Table:
    """Read a table of compile facts; raises InputError for a file that is not one."""
    names = kernel_family(family).BINARY
    try:
        with np.load(path, allow_pickle=False) as raw:
            columns = {name: raw[name] for name in raw.files}
        keys = _pack(columns["arch"], columns["dtype"], columns["variant"], {n: columns[n] for n in names})
        order = np.argsort(keys, kind="stable")
        zero = np.zeros(len(keys))
        found = {name: columns.get(name, zero) if name in LATER else columns[name] for name in VALUES}
        return _Table(keys[order], {name: values[order].astype(np.float64) for name, values in found.items()})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"cannot read the compile facts in {path}: {error}; restore the file or reinstall perfmodel") from None


def write_table(path: Path, rows: Sequence[Mapping[str, Any]], family: str = "gemm") -> None:
    """Store facts rows (keys: arch int, dtype, variant, the family's BINARY columns, and VALUES) as a compact array file."""
    module = kernel_family(family)
    columns: dict[str, Any] = {
        "arch": np.array([int(r["arch"]) for r in rows], dtype=np.int16),
        "dtype": np.array([_DTYPE_CODES[r["dtype"]] for r in rows], dtype=np.int8),
        "variant": np.array([1 if r["variant"] == module.PLAIN else 1 + module.VARIANTS.index(r["variant"]) for r in rows], dtype=np.int8),
    }
    columns |= {n: np.array([int(r[n]) for r in rows], dtype=np.int16) for n in module.BINARY}
    columns |= {n: np.array([float(r.get(n, 0.0)) for r in rows], dtype=np.float32) for n in VALUES}
    with path.open("wb") as handle:
        np.savez_compressed(handle, **columns)
