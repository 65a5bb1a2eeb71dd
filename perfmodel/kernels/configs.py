"""Configurations as columns: anybody's config list in, one table of integer arrays under the project's names out."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perfmodel.errors import InputError, shown
from perfmodel.ops.check import table

if TYPE_CHECKING:
    from perfmodel.kernels.family import KernelFamily

Ints = npt.NDArray[np.int64]

_SPELLINGS = {
    "block_m": ("block_m", "block_size_m", "bm", "tile_m", "blockm"),
    "block_n": ("block_n", "block_size_n", "bn", "tile_n", "blockn"),
    "block_k": ("block_k", "block_size_k", "bk", "tile_k", "blockk"),
    "group_m": ("group_m", "group_size_m", "gm", "group_size", "groupm"),
    "split_k": ("split_k", "splitk", "num_ksplit", "sk"),
    "num_splits": ("num_splits", "num_kv_splits", "kv_splits", "splits", "split_kv", "ns"),
    "num_warps": ("num_warps", "warps", "nw"),
    "num_stages": ("num_stages", "stages", "ns_stages"),
    "num_ctas": ("num_ctas",),
    "regs": ("regs", "n_regs", "registers"),
    "spills": ("spills", "n_spills"),
    "spill_bytes": ("spill_bytes",),
    "shared": ("shared", "shared_bytes", "smem_bytes"),
}
_CANONICAL = {spelling: name for name, spellings in _SPELLINGS.items() for spelling in spellings}
TILE = ("block_m", "block_n", "block_k")
FACTS = ("regs", "spills", "spill_bytes", "shared")
DEFAULTS = {"group_m": 1, "split_k": 1, "num_splits": 1, "num_warps": 4, "num_stages": 3}  # Triton's own defaults for the last two
_MISSING = ("None", "nan", "<NA>")
_MAY_BE_OFF = ("group_m", "split_k")  # 0 says: not grouped, not split
OPTIONAL = ("group_m", "split_k", "num_warps", "num_stages")


@dataclass(frozen=True, slots=True)
class Configs:
    """Columns of equal length; `code` is each row's position in `variants`. `given` keeps the caller's own rows for the answer."""

    columns: Mapping[str, Ints]
    code: npt.NDArray[np.int8]
    variants: tuple[str, ...]
    given: tuple[Mapping[str, Any], ...] | None = None

    def __len__(self) -> int:
        return len(self.code)

    @property
    def variant(self) -> npt.NDArray[np.str_]:
        """Name of each row's kernel variant."""
        return np.array(self.variants)[self.code]

    def of(self, *names: str) -> npt.NDArray[np.bool_]:
        """Which rows are of one of these variants."""
        wanted = np.array([v in names for v in self.variants])
        return wanted[self.code]

    def __getitem__(self, name: str) -> Ints:
        return self.columns[name]

    def take(self, index: npt.NDArray[Any]) -> Configs:
        """Rows at `index` (positions or a mask)."""
        positions = np.flatnonzero(index) if index.dtype == bool else index
        given = None if self.given is None else tuple(self.given[i] for i in positions)
        return Configs({k: v[positions] for k, v in self.columns.items()}, self.code[positions], self.variants, given)

    def rows(self) -> list[dict[str, Any]]:
        """One plain dict a config, under the project's names."""
        names = list(self.columns)
        values = [self.columns[n].tolist() for n in names]
        return [
            {"variant": str(v), **dict(zip(names, row, strict=True))}
            for v, row in zip(self.variant, zip(*values, strict=True), strict=True)
        ]


def _as_mapping(config: Any, position: int) -> Mapping[str, Any]:
    if isinstance(config, Mapping):
        nested = config.get("kwargs")
        return {**nested, **{k: v for k, v in config.items() if k != "kwargs"}} if isinstance(nested, Mapping) else config
    kwargs = getattr(config, "kwargs", None)
    if isinstance(kwargs, Mapping):  # a triton.Config
        return {**kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    raise InputError(f"config {position} is {type(config).__name__}; expected a mapping or a triton.Config")


def parse_configs(
    configs: Any, *, required: Sequence[str], default_variant: str, variants: Sequence[str], optional: Sequence[str] = OPTIONAL
) -> Configs:
    """Read a DataFrame, or an iterable of mappings or triton.Config objects, under the usual spellings of each field.

    `required` fields must be present in every row; missing `optional` ones take Triton's defaults. Raises InputError naming the
    row and the field for anything missing, not whole, or below 1.
    """
    given: tuple[Mapping[str, Any], ...] | None = None
    if hasattr(configs, "to_dict") and hasattr(configs, "columns"):
        count = len(configs)
        table(configs, "config")
        raw = _renamed({name: configs[name].to_numpy() for name in configs.columns}, "the config table")
    else:
        if isinstance(configs, Mapping):
            given = (_as_mapping(configs, 0),)
        elif isinstance(configs, Iterable) and not isinstance(configs, str | bytes) and getattr(configs, "ndim", True):
            given = tuple(_as_mapping(c, i) for i, c in enumerate(configs))
        else:
            raise InputError(f"configs must be a list of configs or a DataFrame, not {type(configs).__name__}")
        count = len(given)
        parsed = [_renamed(row, f"config {i}") for i, row in enumerate(given)]
        raw = {name: np.array([row.get(name) for row in parsed], dtype=object) for name in {n: None for row in parsed for n in row}}
    if not count:
        raise InputError("the config list is empty: give at least one config, or configs=None for the kernel's own space")
    columns = {name: _whole(raw.get(name), name, count) for name in (*required, *(n for n in optional if n not in required))}
    columns |= {name: _whole(raw[name], name, count) for name in FACTS if name in raw and all(v is not None for v in raw[name])}
    names = [default_variant if str(v) in _MISSING else str(v) for v in raw.get("variant", [None] * count)]
    position = {v: i for i, v in enumerate(variants)}
    for i, name in enumerate(names):
        if name not in position:
            raise InputError(f"config {i} has variant {shown(name)}; known: {', '.join(variants)}")
    code = np.array([position[n] for n in names], dtype=np.int8)
    return Configs(columns, code, tuple(variants), given)


def family_configs(module: KernelFamily, configs: Any, *, own: bool = False) -> Configs:
    """`parse_configs` for a kernel family; what it gave before is taken as it is.

    Rows without a variant are somebody else's plain kernel, or with `own` the family's first.
    """
    if isinstance(configs, Configs):
        return configs
    variants = tuple(v for v in module.VARIANTS if v != module.PLAIN) if own else module.VARIANTS
    return parse_configs(
        configs,
        required=module.REQUIRED,
        default_variant=variants[0] if own else module.PLAIN,
        variants=variants,
        optional=[name for name in module.COLUMNS if name in DEFAULTS],
    )


def _renamed(row: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """A row, or a table of columns, under the project's names. A field given twice must agree; misspelt ones are refused."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        field = canonical_field(name)
        if field in found and not np.array_equal(found[field], value):
            both = ", ".join(str(n) for n in row if canonical_field(n) == field)
            raise InputError(f"{where} gives {field} more than once with different values: as {both}")
        if field not in _CANONICAL and (near := _meant(field.lower())):
            raise InputError(f"{where} has an unknown field {shown(name)}: did you mean {near}?")
        found[field] = value
    return found


@functools.cache
def _meant(name: str) -> str | None:
    """The optional field that a name not known misspells; a name that ends in another axis (GROUP_N) is another kernel's own field."""
    near = difflib.get_close_matches(name, [spelling for field in DEFAULTS for spelling in _SPELLINGS[field]], n=1, cutoff=0.85)
    return near[0] if near and near[0][:-1] != name[:-1] else None


def canonical_field(name: Any) -> str:
    """The project's name of a config field under any usual spelling; other names as they are."""
    return _CANONICAL.get(str(name).lower(), str(name))


def _whole(values: Any, name: str, count: int) -> Ints:
    """A column of whole numbers; a missing column, or a missing entry of an optional one, takes the default."""
    default = DEFAULTS.get(name)
    if values is not None and (flags := _flags(values)):
        raise InputError(f"config {flags[0]}: {name} must be a whole number, got {shown(values[flags[0]])}")
    if values is None:
        if default is None:
            raise InputError(_lacks(0, name))
        return np.full(count, default, dtype=np.int64)
    try:
        numbers = np.array([default if v is None else v for v in values], dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.empty(0)
    if numbers.shape != (count,):
        numbers = np.array([np.nan if v is None else _number(v) for v in values])
    if default is not None:
        numbers = np.where(np.isnan(numbers) | ((numbers == 0) & (name in _MAY_BE_OFF)), default, numbers)
    low = 0 if name in FACTS else 1
    bad = np.flatnonzero(~((numbers == np.floor(numbers)) & (numbers >= low) & (numbers <= 2**31)))
    if len(bad):
        value = list(values)[bad[0]]
        if value is None:
            raise InputError(_lacks(bad[0], name))
        given = value.tolist() if hasattr(value, "tolist") else value
        raise InputError(f"config {bad[0]}: {name} must be a whole number of {low} or more, got {shown(given)}")
    return numbers.astype(np.int64)


def _lacks(position: int, name: str) -> str:
    return f"config {position} has no {name} (spellings: {', '.join(_SPELLINGS[name])})"


def _number(value: Any) -> float:
    try:
        return float(value) if np.ndim(value) == 0 else -1.0
    except (TypeError, ValueError, OverflowError):
        return -1.0


def _flags(values: Any) -> list[int]:
    """Places of True and False among values that should be numbers."""
    if not {bool, np.bool_} & (set(map(type, values)) if values.dtype == object else {values.dtype.type}):
        return []
    return [i for i, value in enumerate(values) if isinstance(value, bool | np.bool_)]
