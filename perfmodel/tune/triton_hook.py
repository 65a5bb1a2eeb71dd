"""A hook for `@triton.autotune`: time the few configs of somebody else's kernel that the model ranks first, instead of all.

    @triton.autotune(configs=[...], key=["M", "N", "K"], prune_configs_by=pm.prune(kernel="gemm", top_k=8))

It works through `early_config_prune`, which Triton calls once a key with the whole list; the kept configs are compiled side by side and
raced for some milliseconds before Triton times the leaders. It never raises inside a launch: what it cannot read makes it warn once and
keep every config.
"""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError, shown, unknown_name
from perfmodel.hw import GpuSpec
from perfmodel.hw import gpu as find_gpu
from perfmodel.kernels import kernel_family
from perfmodel.kernels.configs import Configs, family_configs
from perfmodel.kernels.family import KernelFamily
from perfmodel.learn.calibration import Calibration, CalibrationLike, load_calibration, resolve
from perfmodel.ops.check import size
from perfmodel.tune.autotuner import calling, compile_together, first_dtype, numbers, race, triton_starting
from perfmodel.tune.rank import rank

ANY = "auto"
Prune = Callable[..., list[Any]]


def prune(
    *,
    kernel: Any = "gemm",
    top_k: int = 8,
    gpu: str | GpuSpec | None = None,
    sizes: Mapping[str, str] | None = None,
    fields: Mapping[str, str] | None = None,
    dtype: str | None = None,
    calibration: CalibrationLike = "auto",
) -> dict[str, Prune]:
    """What `prune_configs_by` of @triton.autotune takes: it keeps the configs that the model ranks first, near twins held back.

    Parameters
    ----------
    kernel : str or triton.JITFunction
        A kernel family ("gemm", "attention_prefill" ...), or "auto" (or the function itself) for any kernel, which is then compiled for
        the GPU and ranked from its machine code: the first call of a key compiles, later processes find the result on disk.
    top_k : int
        How many are kept. They are compiled side by side and raced for some milliseconds each; Triton times the up to three that led.
        With 1, Triton from 3.8 on runs that one without any timing.
    gpu : str or GpuSpec, optional
        None: the current CUDA device.
    sizes : mapping of str to str, optional
        Kernel argument of each size of the family ({"m": "M_total"}); None: guessed (M, N, K).
    fields : mapping of str to str, optional
        Keyword of each config field ({"block_m": "TILE_ROWS"}); None: guessed (BLOCK_M, BLOCK_SIZE_M, BM).
    dtype : str, optional
        The operands' element type; None: the first tensor's.
    calibration : "auto", None, str, Path or Calibration
        As in `predict`.

    Returns
    -------
    dict
        {"early_config_prune": function}.

    Raises
    ------
    InputError
        At decoration, for an unknown kernel or GPU, a top_k that is not a whole number of 1 or more, and sizes, fields, dtype or
        calibration that cannot be.

    Notes
    -----
    The same arguments keep the same configs on every rank. Which of them is fastest each rank times by itself, as Triton alone does: only
    top_k = 1 is sure to give all ranks one config.

    Examples
    --------
    >>> import perfmodel as pm
    >>> sorted(pm.prune(kernel="gemm", top_k=8, gpu="h100_sxm"))
    ['early_config_prune']
    """
    count = size("top_k", top_k)
    known = gpu if gpu is None or isinstance(gpu, GpuSpec) else find_gpu(gpu)
    choose = _any_kernel(kernel, count, sizes, fields, dtype, calibration)
    if choose is None:
        _check(kernel, sizes, fields, dtype, calibration, known)
        choose = _family(kernel, count, sizes or {}, fields or {}, dtype, calibration)
    state: dict[str, Any] = {"gpu": known, "warned": False}

    def early_config_prune(configs: Sequence[Any], named_args: Mapping[str, Any], **kwargs: Any) -> list[Any]:
        try:
            spec = state["gpu"] = state["gpu"] or _current_gpu()
            tuner = calling()
            kept = [configs[i] for i in choose(configs, {**named_args, **kwargs}, spec, tuner)] or list(configs)
        except Exception as error:  # a launch of the user's must not fail over a hint
            if not state["warned"]:
                state["warned"] = True
                warnings.warn(f"perfmodel keeps all {len(configs)} configs: {error}", RuntimeWarning, stacklevel=2)
            return list(configs)
        compile_together(tuner, kept, kwargs)
        return race(tuner, kept, kwargs)

    return {"early_config_prune": early_config_prune}


Choose = Callable[[Sequence[Any], Mapping[str, Any], GpuSpec, Any], list[int]]
"""Places of the configs to time, from the whole list, the call's arguments, the GPU and Triton's Autotuner (None where it is not known)."""


def _family(
    kernel: str, count: int, sizes: Mapping[str, str], fields: Mapping[str, str], dtype: str | None, calibration: CalibrationLike
) -> Choose:
    family = kernel_family(kernel)
    last: tuple[list[Any], Configs] | None = None

    def read(configs: Sequence[Any]) -> Configs:
        """The list that Triton passes is the same at every key: read once, which is half of a ranking's time."""
        nonlocal last
        if last is None or len(last[0]) != len(configs) or not all(map(operator.is_, last[0], configs)):
            last = list(configs), family_configs(family, [_fields(config, fields) for config in configs])
        return last[1]

    def choose(configs: Sequence[Any], arguments: Mapping[str, Any], spec: GpuSpec, tuner: Any) -> list[int]:
        op = family.operator(dtype or _dtype(arguments), **_sizes(arguments, sizes, family))
        with triton_starting():  # the first question to a model takes half a second, for its library and its file
            ranking = rank(op, spec, kernel=kernel, configs=read(configs), calibration=calibration)
        chosen = [int(ranking.legal_positions[i]) for i in ranking.shortlist(count)]
        best = _best_measured(configs, arguments, spec, tuner)
        return chosen if best is None or best in chosen else [best, *chosen[: count - 1]]

    return choose


def _any_kernel(kernel: Any, count: int, sizes: object, fields: object, dtype: object, calibration: CalibrationLike) -> Choose | None:
    """How to choose for a kernel without a family; None for a family's name."""
    if isinstance(kernel, str) and kernel != ANY:
        return None
    given = [n for n, v in (("sizes", sizes), ("fields", fields), ("dtype", dtype)) if v is not None]
    if given:
        raise InputError(f"{', '.join(given)} belong to a kernel family; kernel={ANY!r} reads the call itself")
    if calibration not in ("auto", None):
        raise InputError("a calibration belongs to a kernel family; any other kernel is ranked from its machine code alone")
    from perfmodel.measure.kernel_call import jit_function

    if not isinstance(kernel, str):
        jit_function(kernel)

    def choose(configs: Sequence[Any], arguments: Mapping[str, Any], spec: GpuSpec, tuner: Any) -> list[int]:
        from perfmodel.tune.kernel_rank import rank_kernel
        from perfmodel.tune.listener import listening

        function = kernel if not isinstance(kernel, str) else None if tuner is None else tuner.fn
        if function is None:
            raise InputError("cannot tell which kernel is being tuned: pass the @triton.jit function as kernel=")
        if "grid" not in arguments:
            raise InputError("the launch has no grid")
        own = {k: v for k, v in arguments.items() if k in jit_function(function)[0].arg_names}
        found = rank_kernel(None, spec, function, grid=arguments["grid"], configs=configs, arguments=own, store=listening())
        return [r.position for r in found.ranked[:count]]

    return choose


def _check(
    kernel: Any,
    sizes: Mapping[str, str] | None,
    fields: Mapping[str, str] | None,
    dtype: str | None,
    calibration: CalibrationLike,
    gpu: GpuSpec | None,
) -> None:
    """Raise InputError for what could only fail later, inside a launch."""
    family = kernel_family(kernel)
    _check_names("sizes", sizes, family.SIZES)
    _check_names("fields", fields, family.COLUMNS)
    if dtype is not None:
        rate = family.rate_of(parse_dtype(dtype).name)
        if gpu is not None:
            gpu.tensor_rate(rate)
    if calibration is None or (isinstance(calibration, str) and calibration == "auto"):
        return
    if not isinstance(calibration, str | Path | Calibration):
        raise InputError(f"calibration must be 'auto', None, a folder or a Calibration, got {shown(calibration)}")
    if gpu is not None:
        resolve(gpu, f"kernel_{kernel}", calibration)
    elif not isinstance(calibration, Calibration):
        load_calibration(calibration)


def _check_names(what: str, names: object, known: Sequence[str]) -> None:
    """`names` maps some of `known` to the kernel's own names."""
    if names is None:
        return
    if not isinstance(names, Mapping) or not all(isinstance(own, str) for own in names.values()):
        raise InputError(f"{what} is {names!r}: expected {{{known[0]!r}: 'name in the kernel'}}")
    for name in names:
        if name not in known:
            raise unknown_name(f"name in {what}", name, known)


def _best_measured(configs: Sequence[Any], arguments: Mapping[str, Any], spec: GpuSpec, tuner: Any) -> int | None:
    """Place of the fastest config that was timed before on this problem, where a listener keeps timings; None without any."""
    listener = sys.modules.get("perfmodel.tune.listener")  # nobody listens before it is loaded, and it takes its time
    if listener is None or listener.listening() is None or tuner is None:
        return None
    from perfmodel.measure.kernel_call import config_fields, jit_function

    timed = listener.measured(jit_function(tuner)[0], numbers(arguments), spec.full_name, listener.listening())
    if not timed:
        return None
    best = min(timed, key=lambda pair: pair[1])[0]
    return next((i for i, config in enumerate(configs) if config_fields(config) == best), None)


def _sizes(arguments: Mapping[str, Any], names: Mapping[str, str], family: KernelFamily) -> dict[str, int]:
    """The family's sizes from the kernel's arguments: by the caller's names, else by the usual ones, else the family's default."""
    lowered = {name.lower(): value for name, value in arguments.items()}
    found = {}
    for field in family.SIZES:
        usual = family.ARGUMENTS.get(field, ())
        if field in names:
            if names[field] not in arguments:
                raise InputError(f"the kernel has no argument {shown(names[field])} for {field}")
            found[field] = arguments[names[field]]
            continue
        value = next((lowered[name] for name in usual if name in lowered), None)
        if value is None and field in family.DEFAULTS:
            value = family.DEFAULTS[field]
        if value is None:
            raise InputError(f"cannot tell {field} from the arguments {', '.join(arguments)}: pass sizes={{'{field}': 'argument name'}}")
        found[field] = value
    return found


def _dtype(arguments: Mapping[str, Any]) -> str:
    """Element type of the first tensor among the arguments."""
    found = first_dtype(arguments)
    if found is None:
        raise InputError("no tensor among the kernel's arguments to read the element type from: pass dtype=")
    return found


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
