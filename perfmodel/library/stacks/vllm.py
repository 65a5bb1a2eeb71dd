"""vLLM: FlashAttention on pages, FlashInfer where that cannot read the cache; Triton for experts."""

from __future__ import annotations

from perfmodel.library.stacks.stack import Communication, Rule, Stack, always, register
from perfmodel.library.stacks.usual import MLA_DECODE, MLA_PREFILL

SOURCE = "the kernels that public rows of vLLM 0.24 name; vllm/platforms/cuda.py, get_attn_backend_cls"
MOE = "vllm, fused_moe.py, get_default_config; public rows without a kernel's name"
VLLM = register(
    Stack(
        "vllm",
        release="0.24",
        like="any",
        attention=(
            Rule("fa3", lambda arch, fp8: arch[0] == 9, "sm_90 has FlashAttention-3, which reads an fp8 cache as it is", SOURCE),
            Rule("flashinfer", lambda arch, fp8: arch[0] == 10, "sm_100 runs FlashInfer's kernels", SOURCE),
            Rule("flashinfer", lambda arch, fp8: fp8, "FlashAttention-2 reads no fp8 cache", SOURCE),
            Rule("fa2", always, "FlashAttention-2 is first on this architecture", SOURCE),
        ),
        mla_prefill=MLA_PREFILL,
        mla_decode=MLA_DECODE,
        moe=(Rule("triton", always, "they run unless another kernel is asked for", MOE),),
        communication=Communication(rules="vllm", eager=True, without_nvlink=True),
        append_block_threads=512.0,
        constant_weights=True,
    )
)
