"""Decision lists that several stacks share."""

from __future__ import annotations

from perfmodel.library.stacks.stack import Capability, Rule, always


def warpgroups(capability: Capability, _: bool) -> bool:
    """Whether multiplies are issued for whole warp groups (library/arch.py)."""
    return capability[0] in (9, 10)


MLA_PREFILL = (Rule("expanded", always, "heads of 192 and 128 take less than a third of the multiplies", "DeepSeek-V2, arXiv 2405.04434"),)
_DECODE = "FlashMLA (warp-group multiplies only); SGLang decode_attention.py, vLLM triton_decode_attention.py"
MLA_DECODE = (
    Rule("flashmla", warpgroups, "the tensor cores take warp-group multiplies", _DECODE),
    Rule("triton", always, "kernels of warp-group multiplies do not run on this architecture", _DECODE),
)
