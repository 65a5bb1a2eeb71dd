"""Attention of many queries: softmax(Q K^T / sqrt(D)) V, one block of queries of one head a program.

Config keys: variant, block_m (queries), block_n (keys), num_warps, num_stages.

| variant | loads | masks |
|---|---|---|
| pointer | ordinary | every block: the plain form of this kernel |
| banded | ordinary | only blocks on the diagonal and at the end; longest programs first |
| tma | tensor-memory accelerator, sm_90 on | as banded |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfmodel.errors import InputError
from perfmodel.measure.kernels import CompileSpec, Config, KernelFamily, Prepared, Problem
from perfmodel.measure.kernels import attention as shared

VARIANTS = ("pointer", "banded", "tma")
CONFIG_KEYS = ("variant", "block_m", "block_n", "num_warps", "num_stages")
_GRID_Y = 65_535  # programs along the second axis of a launch (CUDA programming guide)


def illegal(problem: Problem, config: Config, arch: int) -> str | None:
    """Why this config cannot run this problem on compute capability `arch` (90 for 9.0), or None. Shared memory is not judged here."""
    if config["variant"] not in VARIANTS:
        return f"unknown variant {config['variant']!r}"
    bm, bn, warps = (int(config[key]) for key in ("block_m", "block_n", "num_warps"))
    if any(x & (x - 1) for x in (bm, bn, warps)) or bm < 16 or bn < 16:
        return "tile sides must be powers of two from 16, warps a power of two"
    if int(problem["batch"]) * int(problem["q_heads"]) > _GRID_Y:
        return f"more than {_GRID_Y} heads in the batch"
    if config["variant"] == "tma":
        if arch < 90:
            return "the tensor-memory accelerator needs compute capability 9.0"
        if bn > 256:
            return "tile outside the accelerator's box"
        if int(problem["batch"]) * int(problem["kv_heads"]) * int(problem["kv_len"]) >= 2**31:
            return "more keys than 32-bit coordinates"
    return shared.bad_sizes(problem)


def binary_of(problem: Problem, config: Config) -> dict[str, Any]:
    """What decides the machine code: the config, the width of a head and the mask."""
    return {**{k: config[k] for k in CONFIG_KEYS}, "head_dim": int(problem["head_dim"]), "causal": int(problem["causal"])}


def _constants(binary: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "D": binary["head_dim"],
        "BLOCK_M": binary["block_m"],
        "BLOCK_N": binary["block_n"],
        "CAUSAL": bool(binary["causal"]),
        "BANDED": binary["variant"] != "pointer",
        "TMA": binary["variant"] == "tma",
    }


def _options(binary: Mapping[str, Any]) -> dict[str, Any]:
    return {"num_warps": int(binary["num_warps"]), "num_stages": int(binary["num_stages"])}


def compile_spec(binary: Mapping[str, Any], dtype: str, arch: int) -> CompileSpec:
    """How to compile one binary ahead of time; matches what a launch asks for, so that the launch finds it in Triton's cache."""
    from perfmodel.measure.kernels.attention_device import prefill

    const = _constants(binary)
    pointer = f"*{dtype}"
    keys = f"tensordesc<{dtype}[{binary['block_n']}, {binary['head_dim']}]>" if const["TMA"] else pointer
    types = {"q_ptr": pointer, "k_ptr": keys, "v_ptr": keys, "o_ptr": pointer, "scale": "fp32"}
    names = list(prefill.arg_names)
    signature = {name: "constexpr" if name in const else types.get(name, "i32") for name in names}
    attrs: dict[tuple[int, ...], Any] = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n].startswith("*")}
    return CompileSpec(prefill, signature, const, attrs, _options(binary))


def prepare(inputs: Mapping[str, Any], config: Config) -> Prepared:
    """Do all host work once; the returned `run` only launches."""
    import torch
    from triton.tools.tensor_descriptor import TensorDescriptor

    from perfmodel.measure.kernels.attention_device import prefill

    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    batch, q_heads, q_len, width = q.shape
    kv_heads, kv_len = k.shape[1], k.shape[2]
    problem = {
        "batch": batch, "q_len": q_len, "kv_len": kv_len, "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": width,
        "causal": int(inputs["causal"]),
    }  # fmt: skip
    reason = illegal(problem, config, 10 * torch.cuda.get_device_capability(q.device)[0] if q.is_cuda else 90)
    if reason:
        raise InputError(f"config cannot run this attention: {reason}")
    out = torch.empty_like(q)
    const = _constants(binary_of(problem, config))
    keys: tuple[Any, Any] = (k, v)
    if const["TMA"]:
        box = [int(config["block_n"]), width]
        keys = (TensorDescriptor.from_tensor(k.view(-1, width), box), TensorDescriptor.from_tensor(v.view(-1, width), box))
    args = (q, *keys, out, width**-0.5 * shared.LOG2_E, q_heads, kv_heads, q_len, kv_len)
    options = _options(config)
    launcher = prefill[(shared.cdiv(q_len, int(config["block_m"])), batch * q_heads)]

    def run() -> object:
        return launcher(*args, **const, **options)

    return Prepared(run, out)


FAMILY = KernelFamily(
    name="attention_prefill",
    config_keys=CONFIG_KEYS,
    problem_keys=("batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "causal"),
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
