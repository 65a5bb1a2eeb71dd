"""A hook for `@triton.autotune`: time the few configs of somebody else's kernel that the model ranks first, instead of all.

    @triton.autotune(configs=[...], key=["M", "N", "K"], prune_configs_by=pm.prune(kernel="gemm", top_k=8))

It works through `early_config_prune`, which Triton calls once a key with the whole list. It never raises inside a launch: what it
cannot read makes it warn once and keep every config.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError, unknown_name
from perfmodel.hw import GpuSpec
from perfmodel.hw import gpu as find_gpu
from perfmodel.kernels import kernel_family
from perfmodel.kernels.configs import DEFAULTS
from perfmodel.learn.calibration import Calibration, load_calibration
from perfmodel.ops import Gemm
from perfmodel.ops.check import size
from perfmodel.predict import CalibrationLike
from perfmodel.tune.rank import rank

_USUAL = {"m": ("m", "size_m", "num_rows", "rows"), "n": ("n", "size_n", "num_cols", "cols"), "k": ("k", "size_k", "hidden")}
Prune = Callable[..., list[Any]]


def prune(
    *,
    kernel: str = "gemm",
    top_k: int = 8,
    gpu: str | GpuSpec | None = None,
    sizes: Mapping[str, str] | None = None,
    fields: Mapping[str, str] | None = None,
    dtype: str | None = None,
    calibration: CalibrationLike = "auto",
) -> dict[str, Prune]:
    """What `prune_configs_by` takes: keeps the `top_k` configs that the model ranks first, near twins held back.

    sizes: kernel argument names of m, n and k ({"m": "M_total"}); fields: config keyword of each field ({"block_m": "TILE_ROWS"});
    dtype: the operands' type; each is guessed where left out (M, N, K; BLOCK_M, BLOCK_SIZE_M, BM ...; the first tensor's type).
    gpu: the current CUDA device where left out. top_k = 1 leaves one config, which current Triton runs without any timing.
    The same arguments give the same choice on every rank. Raises InputError here, at decoration, for an unknown kernel, GPU, size, field
    or dtype, a calibration that cannot be read, and a top_k that is not a whole number of 1 or more.
    """
    count = size("top_k", top_k)
    family = kernel_family(kernel)
    known = None if gpu is None else find_gpu(gpu)
    _check_names("sizes", sizes, family.SIZES)
    _check_names("fields", fields, (*family.REQUIRED, *DEFAULTS))
    if dtype is not None:
        rate = family.rate_of(parse_dtype(dtype).name)
        if known is not None:
            known.tensor_rate(rate)
    if calibration is not None and calibration != "auto" and not isinstance(calibration, Calibration):
        calibration = load_calibration(calibration)
    state: dict[str, Any] = {"gpu": known, "warned": False}

    def early_config_prune(configs: Sequence[Any], named_args: Mapping[str, Any], **kwargs: Any) -> list[Any]:
        try:
            arguments = {**named_args, **kwargs}
            op = Gemm(**_sizes(arguments, sizes or {}), dtype=dtype or _dtype(arguments))
            spec = state["gpu"] = state["gpu"] or _current_gpu()
            rows = [_fields(config, fields or {}) for config in configs]
            ranking = rank(op, spec, kernel=kernel, configs=rows, calibration=calibration)
            positions = ranking.legal_positions
            return [configs[positions[i]] for i in ranking.shortlist(count)]
        except Exception as error:  # a launch of the user's must not fail over a hint
            if not state["warned"]:
                state["warned"] = True
                warnings.warn(f"perfmodel keeps all {len(configs)} configs: {error}", RuntimeWarning, stacklevel=2)
            return list(configs)

    return {"early_config_prune": early_config_prune}


def _check_names(what: str, names: object, known: Sequence[str]) -> None:
    """`names` maps some of `known` to the kernel's own names."""
    if names is None:
        return
    if not isinstance(names, Mapping) or not all(isinstance(own, str) for own in names.values()):
        raise InputError(f"{what} is {names!r}: expected {{{known[0]!r}: 'name in the kernel'}}")
    for name in names:
        if name not in known:
            raise unknown_name(f"name in {what}", name, known)


def _sizes(arguments: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, int]:
    """m, n and k from the kernel's arguments."""
    lowered = {name.lower(): value for name, value in arguments.items()}
    found = {}
    for field, usual in _USUAL.items():
        if field in names:
            if names[field] not in arguments:
                raise InputError(f"the kernel has no argument {names[field]!r} for {field}")
            found[field] = arguments[names[field]]
            continue
        value = next((lowered[name] for name in usual if name in lowered), None)
        if value is None:
            raise InputError(f"cannot tell {field} from the arguments {', '.join(arguments)}: pass sizes={{'{field}': 'argument name'}}")
        found[field] = value
    return found


def _dtype(arguments: Mapping[str, Any]) -> str:
    """Element type of the first tensor among the arguments."""
    for value in arguments.values():
        kind = getattr(value, "dtype", None) or getattr(getattr(value, "base", None), "dtype", None)
        if kind is not None:
            return str(kind).removeprefix("torch.")
    raise InputError("no tensor among the kernel's arguments to read the element type from: pass dtype=")


def _fields(config: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """A triton.Config as a mapping under the project's field names where `names` says so, else under its own."""
    row = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    return {**row, **{field: row[keyword] for field, keyword in names.items() if keyword in row}}


def _current_gpu() -> GpuSpec:
    """The current CUDA device from hwdb, or a draft of it made on the spot."""
    import torch

    index = torch.cuda.current_device()
    try:
        return find_gpu(torch.cuda.get_device_name(index))
    except InputError:
        from perfmodel.hw.probe import probe_device

        return probe_device(index)
