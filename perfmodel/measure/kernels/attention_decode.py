"""Attention of one query a sequence over a long KV cache, the keys shared out over `num_splits` programs, then added by a second kernel.

Config keys: variant (pointer), block_n (keys), num_splits, num_warps, num_stages. A program takes all query heads of one key head (GQA
packing), so keys are read once. The second kernel runs also with one split: a latency always includes both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfmodel.errors import InputError
from perfmodel.measure.kernels import CompileSpec, Config, KernelFamily, Prepared, Problem
from perfmodel.measure.kernels import attention as shared

VARIANTS = ("pointer",)
CONFIG_KEYS = ("variant", "block_n", "num_splits", "num_warps", "num_stages")
LEAST_ROWS = 16  # rows of the smallest tensor-core multiply
_GRID_Y = 65_535
_COMBINE_WARPS = 4


def rows_of(problem: Problem) -> int:
    """Rows of the multiply: the query heads of a key head, padded to a power of two of at least LEAST_ROWS."""
    group = int(problem["q_heads"]) // int(problem["kv_heads"])
    return max(LEAST_ROWS, 1 << (group - 1).bit_length())


def illegal(problem: Problem, config: Config, arch: int) -> str | None:
    """Why this config cannot run this problem, or None. Shared memory is not judged here."""
    if config["variant"] not in VARIANTS:
        return f"unknown variant {config['variant']!r}"
    bn, warps, splits = (int(config[key]) for key in ("block_n", "num_warps", "num_splits"))
    if bn & (bn - 1) or warps & (warps - 1) or bn < 16:
        return "block_n must be a power of two from 16, warps a power of two"
    if splits > shared.cdiv(int(problem["kv_len"]), bn):
        return "more splits than blocks of keys"
    if splits > _GRID_Y:
        return f"more than {_GRID_Y} splits"
    return shared.bad_sizes(problem)


def binary_of(problem: Problem, config: Config) -> dict[str, Any]:
    """What decides the machine code: the config without its splits, the width of a head, the heads that share keys."""
    group = int(problem["q_heads"]) // int(problem["kv_heads"])
    rows = rows_of(problem)
    code = {k: config[k] for k in CONFIG_KEYS if k != "num_splits"}
    return {**code, "rows": rows, "head_dim": int(problem["head_dim"]), "group": group}


def _constants(binary: Mapping[str, Any]) -> dict[str, Any]:
    return {"D": binary["head_dim"], "GROUP": binary["group"], "ROWS": binary["rows"], "BLOCK_N": binary["block_n"]}


def _options(binary: Mapping[str, Any]) -> dict[str, Any]:
    return {"num_warps": int(binary["num_warps"]), "num_stages": int(binary["num_stages"])}


def compile_spec(binary: Mapping[str, Any], dtype: str, arch: int) -> CompileSpec:
    """How to compile the first kernel ahead of time; matches what a launch asks for."""
    from perfmodel.measure.kernels.attention_device import decode

    const = _constants(binary)
    types = {"scale": "fp32"} | {n: f"*{dtype}" for n in ("q_ptr", "k_ptr", "v_ptr")}
    types |= {n: "*fp32" for n in ("part_ptr", "top_ptr", "total_ptr")}
    names = list(decode.arg_names)
    signature = {name: "constexpr" if name in const else types.get(name, "i32") for name in names}
    attrs: dict[tuple[int, ...], Any] = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n].startswith("*")}
    return CompileSpec(decode, signature, const, attrs, _options(binary))


def prepare(inputs: Mapping[str, Any], config: Config) -> Prepared:
    """Do all host work once; the returned `run` launches both kernels."""
    import torch

    from perfmodel.measure.kernels.attention_device import combine, decode

    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    batch, q_heads, _, width = q.shape
    kv_heads, kv_len = k.shape[1], k.shape[2]
    problem = {"batch": batch, "kv_len": kv_len, "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": width}
    reason = illegal(problem, config, 90)
    if reason:
        raise InputError(f"config cannot run this attention: {reason}")
    splits = int(config["num_splits"])
    out = torch.empty_like(q)
    part = torch.empty((batch * q_heads, splits, width), device=q.device, dtype=torch.float32)
    top, total = (torch.empty((batch * q_heads, splits), device=q.device, dtype=torch.float32) for _ in range(2))
    const, options = _constants(binary_of(problem, config)), _options(config)
    args = (q, k, v, part, top, total, width**-0.5 * shared.LOG2_E, kv_heads, kv_len, splits)
    first = decode[(batch * kv_heads, splits)]
    second = combine[(batch * q_heads,)]
    padded = 1 << (splits - 1).bit_length()

    def run() -> object:
        launched = first(*args, **const, **options)
        second(part, top, total, out, splits, D=width, SPLITS=padded, num_warps=_COMBINE_WARPS)
        return launched

    return Prepared(run, out)


FAMILY = KernelFamily(
    name="attention_decode",
    config_keys=CONFIG_KEYS,
    problem_keys=("batch", "kv_len", "q_heads", "kv_heads", "head_dim"),
    dtypes=shared.DTYPES,
    tolerance=shared.TOLERANCE,
    source_hash=shared.source_hash,
    illegal=illegal,
    binary_of=binary_of,
    compile_spec=compile_spec,
    make_inputs=shared.make_inputs,
    reference=shared.reference,
    prepare=prepare,
    baselines={"sdpa": shared.sdpa},
)
