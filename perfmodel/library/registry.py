"""Which law answers which kind of operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.library import attention_decode, attention_prefill, gemm, memory, mla, mla_decode, moe, names
from perfmodel.library.terms import Floats, OperatorTerms

TermsOf = Callable[[GpuSpec, Mapping[str, Floats], Mapping[str, float]], OperatorTerms]


@dataclass(frozen=True, slots=True)
class Model:
    """One fitted law: the kind of table it reads, its constants' file, its terms, and the columns that make up a shape.

    `shape`: rows that share these are held out together; `domain`: features whose training range says whether an answer extrapolates.
    """

    kind: str
    law: str
    terms: TermsOf
    shape: tuple[str, ...]
    domain: tuple[str, ...]
    data: str  # file of data/operators with its rows


_EXPERTS = ("num_experts", "top_k", "hidden", "inter", "tp", "ep")
_NARROW = np.array([name not in ("bf16", "fp16", "fp32") for name in names.DTYPES]).astype("int8")
_HEADS = ("q_heads", "kv_heads", "head_dim", "window")
MODELS: Mapping[str, Model] = {
    "gemm": Model("gemm", gemm.LAW, gemm.terms, ("n", "k"), ("log2_m", "log2_n", "log2_k"), "gemm"),
    "gemm_quantised": Model("gemm", gemm.LAW, gemm.terms, ("n", "k"), ("log2_m", "log2_n", "log2_k"), "gemm"),
    "attention_prefill": Model(
        "attention",
        attention_prefill.LAW,
        attention_prefill.terms,
        _HEADS,
        ("log2_q", "cached", "log2_batch", "head_dim", "group"),
        "attention_prefill",
    ),
    "attention_decode": Model(
        "attention",
        attention_decode.LAW,
        attention_decode.terms,
        _HEADS,
        ("log2_kv", "log2_batch", "head_dim", "group"),
        "attention_decode",
    ),
    "moe": Model("moe", moe.LAW, moe.terms, _EXPERTS, ("log2_tokens", "log2_hidden", "log2_inter"), "moe"),
    "moe_quantised": Model("moe", moe.LAW, moe.terms, _EXPERTS, ("log2_tokens", "log2_hidden", "log2_inter"), "moe"),
    "moe_kernel": Model("moe", moe.LAW, moe.terms, _EXPERTS[:4], ("log2_tokens", "log2_hidden", "log2_inter"), "moe_kernel"),
    "mla_prefill": Model("mla", mla.LAW, mla.terms, ("num_heads", "q_len"), ("log2_q", "log2_batch", "log2_heads"), "mla_prefill"),
    "mla_decode": Model(
        "mla", mla_decode.LAW, mla_decode.terms, ("num_heads", "kv_len"), ("log2_kv", "log2_batch", "log2_heads"), "mla_decode"
    ),
    "memory": Model("memory", memory.LAW, memory.terms, ("kind", "hidden"), ("log2_tokens", "log2_hidden"), "memory"),
}
KINDS = ("gemm", "attention", "moe", "mla", "memory")


def parts(kind: str, columns: Mapping[str, Floats]) -> list[tuple[str, npt.NDArray[np.intp] | slice]]:
    """(model, rows) for a table of one kind: attention and MLA by phase, GEMM and MoE by 16-bit or quantised, MoE kernels alone apart."""
    if kind in ("attention", "mla"):
        code, models = (columns["decode"] > 0).astype("int8"), [f"{kind}_prefill", f"{kind}_decode"]
    elif kind == "gemm":
        code, models = _NARROW[columns["dtype"].astype(np.intp)], ["gemm", "gemm_quantised"]
    elif kind == "moe":
        code = np.where(columns["stage"] > 0, 2, _NARROW[columns["dtype"].astype(np.intp)])
        models = ["moe", "moe_quantised", "moe_kernel"]
    else:
        return [(kind, slice(None))]
    first = int(code[0]) if len(code) else 0
    if (code == first).all():
        return [(models[first], slice(None))]
    return [(model, np.flatnonzero(code == i)) for i, model in enumerate(models)]
