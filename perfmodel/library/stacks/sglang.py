"""SGLang: FlashAttention-3 where its code runs, FlashInfer elsewhere; Triton for experts and, without warp groups, latent attention."""

from __future__ import annotations

from perfmodel.library.stacks.stack import Communication, Rule, Stack, always, register
from perfmodel.library.stacks.usual import MLA_DECODE, warpgroups

SOURCE = "the kernels that public rows of SGLang 0.5 name; sglang/srt/server_args.py, attention backend"
MLA = "SGLang flashattention_backend.py (cast of an fp8 cache) and decode_attention.py; the time of its public rows"
MOE = "sglang, fused_moe_triton, get_default_config; public rows without a kernel's name"
SGLANG = register(
    Stack(
        "sglang",
        release="0.5",
        like="any",
        attention=(
            Rule("fa3", lambda arch, fp8: arch[0] == 9, "sm_90 has FlashAttention-3", SOURCE),
            Rule("fa2", lambda arch, fp8: arch == (8, 0), "on sm_80 FlashAttention-3's code for mma.sync runs", SOURCE),
            Rule("flashinfer", always, "FlashInfer is its default where FlashAttention-3's code does not run", SOURCE),
        ),
        mla_prefill=(Rule("absorbed", always, "its prefill keeps the up-projections absorbed", MLA),),
        mla_decode=(Rule("casting", warpgroups, "the tensor cores take warp-group multiplies", MLA), MLA_DECODE[-1]),
        moe=(Rule("triton", always, "they run unless another kernel is asked for", MOE),),
        communication=Communication(rules="sglang", eager=True, without_nvlink=True),
    )
)
