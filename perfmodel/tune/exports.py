"""Tuned configs for GPUs that one does not have, in the files that vLLM, SGLang and Inductor load."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.boundary import expanded, read_json
from perfmodel.errors import InputError, shown, unknown_name
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels import kernel_family
from perfmodel.learn.calibration import CalibrationLike
from perfmodel.ops import Gemm, MoE
from perfmodel.ops.check import size
from perfmodel.tune.rank import rank
from perfmodel.tune.tuned_files import TOKENS, TunedFile, engine_config

Progress = Callable[[str, int, int], None]
_DTYPES = {"": "bf16", "fp8_w8a8": "fp8", "int8_w8a8": "int8"}
_GROUPS = (1, 16, 32, 64)  # what the engines' tuning scripts try
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "moe_topk", "moe_top_k", "num_selected_experts", "top_k")
_INTER = ("moe_intermediate_size", "expert_hidden_size", "moe_ffn_hidden_size", "ffn_hidden_size", "intermediate_size")


@dataclass(frozen=True, slots=True)
class Experts:
    """What a fused-MoE layer's kernels depend on: sizes of the whole layer, before it is shared out, and its quantisation."""

    hidden: int
    inter: int
    num_experts: int
    top_k: int
    dtype: str = ""
    block_shape: tuple[int, int] | None = None


def read_experts(path: str | Path) -> Experts:
    """The MoE sizes of a model's config.json (Hugging Face's names); raises InputError in one line for another file or a dense model."""
    path = expanded(path)
    path = path / "config.json" if path.is_dir() else path
    data = read_json(path)
    if not isinstance(data, Mapping):
        raise InputError(f"{path}: not a model's config: expected an object")
    text = {**data, **data["text_config"]} if isinstance(data.get("text_config"), Mapping) else data
    found = {
        "hidden": _first(text, ("hidden_size", "d_model")),
        "inter": _first(text, _INTER),
        "num_experts": _first(text, _EXPERTS),
        "top_k": _first(text, _TOP_K),
    }
    missing = [name for name, value in found.items() if value is None]
    if missing:
        kind = "a dense model" if "num_experts" in missing else "not a config this can read"
        raise InputError(f"{path}: no {', '.join(missing)} in it ({kind}); give the sizes as options")
    quantised = text.get("quantization_config")
    dtype, block = "", None
    if isinstance(quantised, Mapping) and "fp8" in str(quantised.get("quant_method", "")).lower():
        sides = quantised.get("weight_block_size")
        dtype, block = "fp8_w8a8", (int(sides[0]), int(sides[1])) if isinstance(sides, Sequence) and len(sides) == 2 else None
    hidden, inter, num_experts, top_k = (size(name, value) for name, value in found.items())
    return Experts(hidden, inter, num_experts, top_k, dtype, block)


def _first(data: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((data[n] for n in names if isinstance(data.get(n), int)), None)


def moe_file(
    experts: Experts,
    gpu: str | GpuSpec,
    *,
    tp: int = 1,
    ep: int = 1,
    tokens: Sequence[int] = TOKENS,
    style: str = "vllm",
    triton: str = "",
    calibration: CalibrationLike = "auto",
    progress: Progress | None = None,
) -> TunedFile:
    """The fused-MoE file that an engine would load on `gpu`, for one GPU of tp x ep: the first ranked config at each token count.

    The configs are those that the engines' own tuning scripts offer; with block-scaled weights the depth of a tile is the block's.
    Raises InputError for a dtype that the model does not cover and sizes that cannot be shared out.
    """
    spec = gpu if isinstance(gpu, GpuSpec) else find_gpu(gpu)
    dtype = _dtype(experts.dtype)
    spec.tensor_rate(kernel_family("fused_moe").rate_of(dtype))
    counts = _tokens(tokens)
    found: dict[int, dict[str, int]] = {}
    for done, m in enumerate(counts, start=1):
        op = MoE(m, experts.hidden, experts.inter, experts.num_experts, experts.top_k, dtype=dtype, tp=tp, ep=ep)
        family = kernel_family("fused_moe")
        candidates = family.space(spec, dtype, **family.sizes_of(op)).rows()
        offered = [{k: v for k, v in row.items() if k != "variant"} for row in candidates if _fits(row, experts.block_shape)]
        ranking = rank(op, spec, kernel="fused_moe", configs=offered, calibration=calibration, top_k=1)
        found[m] = engine_config(ranking.top(1)[0])
        if progress:
            progress("token counts", done, len(counts))
    return TunedFile(
        n=experts.inter // tp,
        device=spec.full_name,
        configs=found,
        num_experts=experts.num_experts // ep,
        dtype=experts.dtype,
        block_shape=experts.block_shape,
        triton=triton,
        style=style,
    )


def _fits(row: Mapping[str, Any], block: tuple[int, int] | None) -> bool:
    """Whether a tile works with block-scaled weights: one scale along its depth, whole blocks or whole parts of one along its columns."""
    if block is None:
        return True
    return bool(row["block_k"] == block[1] and (row["block_n"] % block[0] == 0 or block[0] % row["block_n"] == 0))


def fp8_gemm_file(
    n: int,
    k: int,
    gpu: str | GpuSpec,
    *,
    block_shape: tuple[int, int] = (128, 128),
    tokens: Sequence[int] = TOKENS,
    style: str = "vllm",
    calibration: CalibrationLike = "auto",
    progress: Progress | None = None,
) -> TunedFile:
    """The file of a block-scaled fp8 GEMM with weights (n, k), both as they are on one GPU: the first ranked config at each token count.

    The tile's depth divides the block's. The ranking is that of a plain fp8 GEMM: the scales' loads and multiplies are not in it.
    """
    spec = gpu if isinstance(gpu, GpuSpec) else find_gpu(gpu)
    spec.tensor_rate("fp8")
    counts = _tokens(tokens)
    n, k = size("n", n), size("k", k)
    found: dict[int, dict[str, int]] = {}
    for done, m in enumerate(counts, start=1):
        op = Gemm(m, n, k, dtype="fp8")
        rows = kernel_family("gemm").portable_space(spec, "fp8", m=m, n=n, k=k).rows()
        tiles = [r for r in rows if block_shape[1] % r["block_k"] == 0 and _columns_fit(r["block_n"], block_shape[0])]
        offered = [{**_plain(row), "group_m": group} for row, group in itertools.product(tiles, _GROUPS)]
        if not offered:
            raise InputError(f"no tile fits blocks of {block_shape[0]} x {block_shape[1]}")
        found[m] = engine_config(rank(op, spec, kernel="gemm", configs=offered, calibration=calibration, top_k=1).top(1)[0])
        if progress:
            progress("token counts", done, len(counts))
    return TunedFile(n=n, k=k, device=spec.full_name, configs=found, dtype="fp8_w8a8", block_shape=block_shape, style=style)


def _columns_fit(columns: int, block: int) -> bool:
    return columns % block == 0 or block % columns == 0


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k not in ("variant", "split_k")}


def inductor_table(
    problems: Sequence[Gemm],
    gpu: str | GpuSpec,
    *,
    top_k: int = 1,
    transposed: bool = True,
    device_key: bool = True,
    calibration: CalibrationLike = "auto",
) -> dict[str, list[dict[str, Any]]]:
    """Entries of Inductor's lookup table (torch._inductor.config.lookup_table.table) for mm: the `top_k` first ranked configs of each.

    transposed: the second operand is a weight (n, k) seen as (k, n), as a linear layer passes it. Keys name the device where
    device_key. Format: pytorch/pytorch torch/_inductor/lookup_table/README.md (BSD-3-Clause), checked against its reader of 2026.
    """
    spec = gpu if isinstance(gpu, GpuSpec) else find_gpu(gpu)
    names = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
    table = {}
    for op in problems:
        if op.dtype not in names:
            raise unknown_name("dtype of Inductor's mm", op.dtype, names)
        element = names[op.dtype]
        stride = f"[1, {op.k}]" if transposed else f"[{op.n}, 1]"
        key = f"(({element}, [{op.m}, {op.k}], [{op.k}, 1]), ({element}, [{op.k}, {op.n}], {stride}))+mm"
        rows = kernel_family("gemm").portable_space(spec, op.dtype, m=op.m, n=op.n, k=op.k).rows()
        ranking = rank(op, spec, kernel="gemm", configs=[_plain(r) for r in rows], calibration=calibration)
        table[f"{spec.full_name}+{key}" if device_key else key] = [_template(op, c) for c in ranking.top(size("top_k", top_k))]
    return table


def _template(op: Gemm, config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "template_id": "triton::mm",
        "EVEN_K": op.k % config["block_k"] == 0,
        "ALLOW_TF32": False,
        "USE_FAST_ACCUM": False,
        "ACC_TYPE": "tl.float32",
        "num_stages": int(config["num_stages"]),
        "num_warps": int(config["num_warps"]),
        "BLOCK_M": int(config["block_m"]),
        "BLOCK_N": int(config["block_n"]),
        "BLOCK_K": int(config["block_k"]),
        "GROUP_M": int(config["group_m"]),
    }


def _dtype(word: str) -> str:
    if word not in _DTYPES:
        raise unknown_name("dtype of a tuned file", word, _DTYPES)
    return _DTYPES[word]


def _tokens(tokens: Sequence[int]) -> list[int]:
    counts = sorted({size("tokens", m) for m in tokens})
    if not counts:
        raise InputError("give at least one token count")
    return counts


def parse_pair(text: str, what: str) -> tuple[int, int]:
    """`128,128` as two whole numbers."""
    parts = re.split(r"[,x]", text.strip().strip("[]"))
    if len(parts) != 2:
        raise InputError(f"{what} must be two numbers like 128,128, got {shown(text)}")
    return size(what, parts[0].strip()), size(what, parts[1].strip())
