"""Element types: storage size and which tensor-core rate they use."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.errors import plain, unknown_name


@dataclass(frozen=True, slots=True)
class DType:
    """One operand type of an operator.

    `a_bytes` / `b_bytes` are bytes per element of the activation and the weight operand, `out_bytes` of the
    result; `rate` names the dense tensor-core rate of hwdb that the multiply uses.
    """

    name: str
    a_bytes: float
    b_bytes: float
    out_bytes: float
    rate: str


_ALL = {
    d.name: d
    for d in (
        DType("bf16", 2, 2, 2, "bf16"),
        DType("fp16", 2, 2, 2, "fp16"),
        DType("fp8", 1, 1, 2, "fp8"),
        DType("fp8_block", 1, 1, 2, "fp8"),
        DType("int8", 1, 1, 2, "int8"),
        DType("int8_wo", 2, 1, 2, "fp16"),
        DType("int4_wo", 2, 0.5, 2, "fp16"),
        DType("nvfp4", 0.5625, 0.5625, 2, "fp4"),
        DType("fp32", 4, 4, 4, "fp32"),
    )
}
_ALIASES = {
    "bfloat16": "bf16", "torch.bfloat16": "bf16", "float16": "fp16", "half": "fp16", "torch.float16": "fp16", "f16": "fp16",
    "float8": "fp8", "fp8e4m3": "fp8", "fp8_e4m3": "fp8", "e4m3": "fp8", "float8_e4m3fn": "fp8", "torch.float8_e4m3fn": "fp8",
    "fp8_w8a8": "fp8", "w8a8_block_fp8": "fp8_block", "torch.int8": "int8", "i8": "int8", "w8a8": "int8", "sq": "int8", "int8_w8a8": "int8",
    "w8a16": "int8_wo", "int8_w8a16": "int8_wo", "w4a16": "int4_wo", "awq": "int4_wo", "gptq": "int4_wo", "int4": "int4_wo",
    "fp4": "nvfp4", "float32": "fp32", "torch.float32": "fp32",
}  # fmt: skip


def dtype(name: str | DType) -> DType:
    """Look up an element type by name or usual alias (case-insensitive); raises InputError for anything else."""
    if isinstance(name, DType):
        return name
    key = name.strip().lower() if isinstance(name, str) else plain(name).lower()
    key = _ALIASES.get(key, key)
    if key not in _ALL:
        raise unknown_name("dtype", name, _ALL)
    return _ALL[key]
