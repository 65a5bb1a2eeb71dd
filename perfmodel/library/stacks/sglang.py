"""SGLang: FlashAttention-3 where its code runs, FlashInfer elsewhere."""

from __future__ import annotations

from perfmodel.library.stacks.stack import Rule, Stack, always, register

SOURCE = "the kernels that public rows of SGLang 0.5 name; sglang/srt/server_args.py, attention backend"
SGLANG = register(
    Stack(
        "sglang",
        attention=(
            Rule("fa3", lambda arch, fp8: arch[0] == 9, "sm_90 has FlashAttention-3", SOURCE),
            Rule("fa2", lambda arch, fp8: arch == (8, 0), "on sm_80 FlashAttention-3's code for mma.sync runs", SOURCE),
            Rule("flashinfer", always, "elsewhere FlashInfer is the default", SOURCE),
        ),
        mla_absorbed=True,
        mla_casts_cache=True,
    )
)
