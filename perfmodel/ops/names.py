"""Codes for what is a name in a question: element types, serving stacks, attention and MoE kernels.

Codes are stored in models (as feature values), so they only ever grow.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.dtypes import DType
from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError, plain, unknown_name
from perfmodel.hw.spec import GpuSpec

DTYPES = ("bf16", "fp16", "fp8", "fp8_block", "int8", "int8_wo", "int4_wo", "nvfp4", "fp32")
STACKS = ["any", "vllm", "sglang", "trtllm", "torch"]
"""Serving stacks by their codes; library/stacks adds those that have no place here (`add_stack`)."""
ANY_STACK = 0
_STACK_ALIASES = {
    "pytorch": "torch", "cublas": "torch", "tensorrt-llm": "trtllm", "tensorrt_llm": "trtllm", "trt-llm": "trtllm", "trt_llm": "trtllm",
    "": "any", "none": "any",
}  # fmt: skip
KERNELS = ("other", "fa2", "fa3", "fa4", "flashinfer", "triton", "trtllm", "cudnn", "cutlass", "deepgemm", "marlin")
_KERNEL_MARKS = (
    ("fa4", "fa4"), ("fa3", "fa3"), ("fa2", "fa2"), ("trtllm", "trtllm"), ("cutlass", "cutlass"), ("flashinfer", "flashinfer"),
    ("fiprefill", "flashinfer"), ("fidecode", "flashinfer"), ("triton", "triton"), ("cudnn", "cudnn"), ("deepgemm", "deepgemm"),
    ("marlin", "marlin"), ("flash", "fa2"),
)  # fmt: skip
_SPECS: tuple[DType, ...] = tuple(parse_dtype(name) for name in DTYPES)
A_BYTES = np.array([d.a_bytes for d in _SPECS])
B_BYTES = np.array([d.b_bytes for d in _SPECS])
OUT_BYTES = np.array([d.out_bytes for d in _SPECS])
QUANTISED = np.array([d in ("fp8", "fp8_block", "int8", "nvfp4") for d in DTYPES])  # activations are quantised by the operator
BLOCK_SCALED = np.array([d == "fp8_block" for d in DTYPES])  # a scale for each block, that no tensor core of these GPUs applies itself
WEIGHT_ONLY = np.array([d in ("int8_wo", "int4_wo") for d in DTYPES])

_NARROW = np.array([d not in ("bf16", "fp16", "fp32") for d in DTYPES])

Codes = npt.NDArray[np.intp]


def widths(columns: Mapping[str, npt.NDArray[np.float64]]) -> tuple[npt.NDArray[np.float64], ...]:
    """Bytes of an element of the left operand, the right one and the result of each row, by its element type."""
    code = columns["dtype"].astype(np.intp)
    return A_BYTES[code], B_BYTES[code], OUT_BYTES[code]


def dtype_code(name: Any) -> int:
    """Code of an element type; raises InputError for an unknown one."""
    return DTYPES.index(parse_dtype(name).name)


def narrow(codes: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Where operands, or weights alone, have fewer than 16 bits, by the code of each row's element type."""
    found: npt.NDArray[np.bool_] = _NARROW[codes.astype(np.intp)]
    return found


def stack_code(name: Any) -> int:
    """Code of a serving stack; None and empty mean any."""
    if name is None or (isinstance(name, float) and np.isnan(name)):
        return ANY_STACK
    key = plain(name).lower()
    key = _STACK_ALIASES.get(key, key)
    if key not in STACKS:
        raise unknown_name("stack", name, STACKS[1:])
    return STACKS.index(key)


def add_stack(name: str) -> int:
    """Code of a stack, one more than those before where it is new."""
    if name not in STACKS:
        STACKS.append(name)
    return STACKS.index(name)


def kernel_code(name: Any) -> int:
    """Code of the family a kernel's name belongs to; `other` when nothing is recognised or it is not said."""
    text = plain(name).lower()
    return next((KERNELS.index(family) for mark, family in _KERNEL_MARKS if mark in text), 0)


def tensor_rates(gpu: GpuSpec, codes: Codes) -> npt.NDArray[np.float64]:
    """Dense tensor rate, flop/s, of each row's dtype; raises InputError for a dtype this GPU has no tensor cores for."""
    found: npt.NDArray[np.float64] = _tensor_rates(gpu.fp32_flops, tuple(gpu.tensor_flops.items()))[codes]
    if np.isnan(found).any():
        code = int(np.min(codes[np.isnan(found)]))
        try:
            gpu.tensor_rate(_SPECS[code].rate)
        except InputError as error:
            raise InputError(f"dtype {DTYPES[code]}: {error}") from None
    return found


@functools.lru_cache(maxsize=64)
def _tensor_rates(fp32_flops: float, tensor_flops: tuple[tuple[str, float], ...]) -> npt.NDArray[np.float64]:
    """Rate by dtype code, NaN where there is none."""
    rates = dict(tensor_flops)
    return np.array([fp32_flops if d.rate == "fp32" else rates.get(d.rate, np.nan) for d in _SPECS])


def fastest_rates(gpu: GpuSpec) -> npt.NDArray[np.float64]:
    """Flop/s by dtype code that a program may reach at most: bf16 or fp16, tf32 for fp32; 0 where the GPU has no such tensor cores."""
    return _fastest_rates(gpu.fp32_flops, tuple(gpu.tensor_flops.items()))


@functools.lru_cache(maxsize=64)
def _fastest_rates(fp32_flops: float, tensor_flops: tuple[tuple[str, float], ...]) -> npt.NDArray[np.float64]:
    rates = dict(tensor_flops)
    half = max(rates.get("bf16", 0.0), rates.get("fp16", 0.0))
    known = {**rates, "bf16": half, "fp16": half, "fp32": max(fp32_flops, rates.get("tf32", 0.0))}
    return np.array([known.get(d.rate, 0.0) for d in _SPECS])
