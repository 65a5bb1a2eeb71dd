"""The GEMM family: C (M, N) = A (M, K) B^T with B stored (N, K); bf16, fp16, fp8 (e4m3) and int8 operands.

Config keys: variant, block_m, block_n, block_k, group_m, split_k, num_warps, num_stages.

TMA is the tensor-memory accelerator of sm_90 on.

| variant | loads | grid | extra |
|---|---|---|---|
| pointer | ordinary | one program a tile and split | runs anywhere, any alignment |
| tma | TMA | one program a tile and split | sm_90 on |
| tma_swap | TMA | one program a tile and split | computes the tile transposed: block_n is the wide side of the multiply |
| persistent | TMA | one program a multiprocessor | stores by TMA too |

The output is fp16 for fp16 operands and bf16 otherwise. fp8 and int8 results carry no scale.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from perfmodel.errors import InputError
from perfmodel.measure.kernels import CompileSpec, Config, KernelFamily, Prepared, Problem

VARIANTS = ("pointer", "tma", "tma_swap", "persistent")
CONFIG_KEYS = ("variant", "block_m", "block_n", "block_k", "group_m", "split_k", "num_warps", "num_stages")
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
_TRITON_NAME = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8e4nv", "int8": "i8"}
_OUT_NAME = {"bf16": "bf16", "fp16": "fp16", "fp8": "bf16", "int8": "bf16"}
_SPLIT_VARIANTS = ("pointer", "tma", "tma_swap")


def source_hash() -> str:
    """Sixteen hex digits that change when the device code does."""
    text = Path(__file__).with_name("gemm_device.py").read_bytes()
    return hashlib.sha256(text).hexdigest()[:16]


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _align(n: int, k: int) -> int:
    """Largest of 16, 8 and 1 elements that divides N and K: what the kernel may assume of its row starts."""
    return next(a for a in (16, 8, 1) if n % a == 0 and k % a == 0)


def _subtile(config: Config) -> bool:
    """The persistent kernel stores in two halves when a whole tile's buffer would cost a pipeline stage."""
    return bool(config["variant"] == "persistent" and config["block_m"] * config["block_n"] >= 128 * 256)


def illegal(problem: Problem, config: Config, arch: int) -> str | None:
    """Why this config cannot run this problem on compute capability `arch` (90 for 9.0), or None. Shared memory is not judged here."""
    variant = config["variant"]
    if variant not in VARIANTS:
        return f"unknown variant {variant!r}"
    bm, bn, bk, split = (int(config[key]) for key in ("block_m", "block_n", "block_k", "split_k"))
    size = ELEMENT_BYTES[problem["dtype"]]
    if any(b & (b - 1) for b in (bm, bn, bk, int(config["num_warps"]))):
        return "tile sides and warps must be powers of two"
    if bm < 16 or bn < 16 or bk * size < 32:
        return "tile below 16 x 16 x 32 bytes"
    if problem["dtype"] == "fp8" and arch < 89:
        return "fp8 needs compute capability 8.9"
    if split > 1 and variant not in _SPLIT_VARIANTS:
        return f"{variant} does not split K"
    if split > _cdiv(int(problem["k"]), bk):
        return "more splits than K tiles"
    if variant == "pointer":
        return None
    if arch < 90:
        return "the tensor-memory accelerator needs compute capability 9.0"
    if int(problem["k"]) * size % 16:
        return "rows of A and B are not 16-byte multiples"
    if bk * size < 32 or max(bm, bn) > 256:
        return "tile outside the accelerator's box"
    if variant == "persistent" and int(problem["n"]) % 8:
        return "rows of C are not 16-byte multiples"
    if variant == "tma_swap" and bn < 64:
        return "a transposed tile needs block_n of 64 or more"
    return None


def binary_of(problem: Problem, config: Config) -> dict[str, Any]:
    """What decides the machine code: the config without its run-time arguments, plus the problem's alignment class."""
    align = _align(int(problem["n"]), int(problem["k"]))
    return {
        **{key: config[key] for key in CONFIG_KEYS if key not in ("group_m", "split_k")},
        "split": int(config["split_k"]) > 1,
        "even_k": int(problem["k"]) % int(config["block_k"]) == 0 if config["variant"] == "pointer" else True,
        "align": align,
    }


def _call(binary: Mapping[str, Any], dtype: str) -> tuple[Any, dict[str, Any]]:
    """The jitted function and the constants of one binary."""
    import triton.language as tl

    from perfmodel.measure.kernels import gemm_device as device

    variant = binary["variant"]
    const: dict[str, Any] = {"BLOCK_M": binary["block_m"], "BLOCK_N": binary["block_n"], "BLOCK_K": binary["block_k"]}
    const["ALIGN"] = binary["align"]
    const["ACC"] = tl.int32 if dtype == "int8" else tl.float32
    if variant == "pointer":
        return device.gemm_pointer, {**const, "EVEN_K": binary["even_k"], "SPLIT": binary["split"]}
    if variant in ("tma", "tma_swap"):
        return device.gemm_tma, {**const, "SPLIT": binary["split"], "SWAP": variant == "tma_swap"}
    return device.gemm_persistent, {**const, "SUBTILE": _subtile(binary)}


def _options(binary: Mapping[str, Any]) -> dict[str, Any]:
    return {"num_warps": int(binary["num_warps"]), "num_stages": int(binary["num_stages"])}


def compile_spec(binary: Mapping[str, Any], dtype: str, arch: int) -> CompileSpec:
    """How to compile one binary ahead of time; matches what a launch asks for, so that the launch finds it in Triton's cache."""
    function, const = _call(binary, dtype)
    element, out = _TRITON_NAME[dtype], _OUT_NAME[dtype]
    bm, bn, bk = binary["block_m"], binary["block_n"], binary["block_k"]
    types = {
        "a_ptr": f"*{element}",
        "b_ptr": f"*{element}",
        "c_ptr": f"*{out}",
        "work_ptr": "*i32" if dtype == "int8" else "*fp32",
        "lock_ptr": "*i32",
        "a_desc": f"tensordesc<{element}[{bm}, {bk}]>",
        "b_desc": f"tensordesc<{element}[{bn}, {bk}]>",
        "c_desc": f"tensordesc<{out}[{bm}, {bn // 2 if _subtile(binary) else bn}]>",
    }
    names = list(function.arg_names)
    signature = {name: "constexpr" if name in const else types.get(name, "i32") for name in names}
    attrs: dict[tuple[int, ...], Any] = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    return CompileSpec(function, signature, const, attrs, _options(binary))


def _torch_dtype(dtype: str) -> Any:
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}[dtype]


def _dtype_name(tensor: Any) -> str:
    for name in ELEMENT_BYTES:
        if tensor.dtype == _torch_dtype(name):
            return name
    raise InputError(f"unsupported element type {tensor.dtype}; allowed: {', '.join(ELEMENT_BYTES)}")


def make_inputs(problem: Problem, device: str, seed: int) -> dict[str, Any]:
    """Random A (m, k) and B (n, k): normal, B scaled by 1/sqrt(k) so that C is of order one; uniform -127..127 for int8."""
    import torch

    m, n, k, dtype = int(problem["m"]), int(problem["n"]), int(problem["k"]), problem["dtype"]
    source = torch.Generator(device=device).manual_seed(seed)
    if dtype == "int8":
        return {
            "a": torch.randint(-127, 128, (m, k), generator=source, device=device, dtype=torch.int8),
            "b": torch.randint(-127, 128, (n, k), generator=source, device=device, dtype=torch.int8),
        }
    wide = torch.float32 if device == "cpu" or dtype == "fp8" else _torch_dtype(dtype)
    a = torch.randn((m, k), generator=source, device=device, dtype=wide)
    b = torch.randn((n, k), generator=source, device=device, dtype=wide)
    if dtype != "fp8":
        b *= k**-0.5
    return {"a": a.to(_torch_dtype(dtype)), "b": b.to(_torch_dtype(dtype))}


def reference(inputs: Mapping[str, Any]) -> Any:
    """The product in fp32 from the same rounded operands (full fp32, no tf32)."""
    import torch

    keep = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        return inputs["a"].float() @ inputs["b"].float().T
    finally:
        torch.backends.cuda.matmul.allow_tf32 = keep


def _processors(tensor: Any) -> int:
    """Multiprocessors of the tensor's device; 4 for the CPU interpreter, so that persistent loops are exercised there."""
    import torch

    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count) if tensor.is_cuda else 4


def _arch(tensor: Any) -> int:
    import torch

    if not tensor.is_cuda:
        return 90
    major, minor = torch.cuda.get_device_capability(tensor.device)
    return int(major * 10 + minor)


def prepare(inputs: Mapping[str, Any], config: Config, out: Any = None) -> Prepared:
    """Do all host work once (checks, output, workspace, descriptors); the returned `run` only launches."""
    import torch
    from triton.tools.tensor_descriptor import TensorDescriptor

    a, b = inputs["a"], inputs["b"]
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or a.dtype != b.dtype:
        raise InputError(f"expected A (m, k) and B (n, k) of one type, got {tuple(a.shape)} {a.dtype} and {tuple(b.shape)} {b.dtype}")
    if not (a.is_contiguous() and b.is_contiguous()) or a.data_ptr() % 16 or b.data_ptr() % 16:
        raise InputError("A and B must be contiguous and start on 16-byte addresses")
    dtype = _dtype_name(a)
    m, k = a.shape
    n = b.shape[0]
    problem = {"m": m, "n": n, "k": k, "dtype": dtype}
    reason = illegal(problem, config, _arch(a))
    if reason:
        raise InputError(f"config cannot run {m} x {n} x {k} {dtype}: {reason}")
    if out is None:
        out = torch.empty((m, n), device=a.device, dtype=_torch_dtype(_OUT_NAME[dtype]))
    binary = binary_of(problem, config)
    function, const = _call(binary, dtype)
    bm, bn, bk, split = (int(config[key]) for key in ("block_m", "block_n", "block_k", "split_k"))
    tiles = _cdiv(m, bm) * _cdiv(n, bn)
    units = (m, n // binary["align"], k // binary["align"], int(config["group_m"]))
    if config["variant"] == "pointer":
        operands = (a, b)
    else:
        operands = (TensorDescriptor.from_tensor(a, [bm, bk]), TensorDescriptor.from_tensor(b, [bn, bk]))
    args: tuple[Any, ...]
    if config["variant"] == "persistent":
        programs = min(tiles, _processors(a))
        grid: tuple[int, ...] = (programs,)
        width = bn // 2 if _subtile(config) else bn
        target = TensorDescriptor.from_tensor(out, [bm, width])
        args = (*operands, target, *units, programs)
    else:
        grid = (tiles, split)
        accumulator = torch.int32 if dtype == "int8" else torch.float32
        work = torch.empty(split * tiles * bm * bn if split > 1 else 1, device=a.device, dtype=accumulator)
        lock = torch.zeros(tiles if split > 1 else 1, device=a.device, dtype=torch.int32)
        args = (*operands, out, work, lock, *units, split)
    options = _options(binary)
    launcher = function[grid]

    def run() -> object:
        return launcher(*args, **const, **options)

    return Prepared(run, out)


def launch(a: Any, b: Any, config: Config, out: Any = None) -> Any:
    """Multiply once with one config and return C."""
    prepared = prepare({"a": a, "b": b}, config, out)
    prepared.run()
    return prepared.output


def cublas(inputs: Mapping[str, Any]) -> Prepared:
    """The vendor library on the same tensors, through torch: matmul, scaled fp8 with unit scales, or int8 with int32 output."""
    import torch

    a, b = inputs["a"], inputs["b"]
    dtype = _dtype_name(a)
    if dtype == "int8":
        out = torch.empty((a.shape[0], b.shape[0]), device=a.device, dtype=torch.int32)
        return Prepared(lambda: torch._int_mm(a, b.T, out=out), out)
    out = torch.empty((a.shape[0], b.shape[0]), device=a.device, dtype=_torch_dtype(_OUT_NAME[dtype]))
    if dtype == "fp8":
        one = torch.ones((), device=a.device, dtype=torch.float32)
        scaled: Callable[..., Any] = torch._scaled_mm
        return Prepared(lambda: scaled(a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True, out=out), out)
    return Prepared(lambda: torch.matmul(a, b.T, out=out), out)


FAMILY = KernelFamily(
    name="gemm",
    config_keys=CONFIG_KEYS,
    problem_keys=("m", "n", "k"),
    dtypes=tuple(ELEMENT_BYTES),
    tolerance={"bf16": 1e-2, "fp16": 5e-3, "fp8": 3e-2, "int8": 1e-2},
    source_hash=source_hash,
    illegal=illegal,
    binary_of=binary_of,
    compile_spec=compile_spec,
    make_inputs=make_inputs,
    reference=reference,
    prepare=prepare,
    baselines={"cublas": cublas},
)
