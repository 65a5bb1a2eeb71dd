"""What both attention families share on the measuring side: inputs, the fp32 reference, torch's own attention as the baseline."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfmodel.measure.kernels import Prepared, Problem

DTYPES = ("bf16", "fp16")
TOLERANCE = {"bf16": 1e-2, "fp16": 5e-3}
LOG2_E = math.log2(math.e)
_REFERENCE_ELEMENTS = 1 << 28  # scores of the reference held at once: 1 GiB of fp32


def source_hash() -> str:
    """Sixteen hex digits that change when the device code does."""
    return hashlib.sha256(Path(__file__).with_name("attention_device.py").read_bytes()).hexdigest()[:16]


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def torch_dtype(dtype: str) -> Any:
    """torch's element type of one of DTYPES."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]


def bad_sizes(problem: Problem) -> str | None:
    """Why no kernel here can run a problem, or None."""
    width = int(problem["head_dim"])
    if width & (width - 1) or not 16 <= width <= 256:
        return f"head_dim must be a power of two from 16 to 256, got {width}"
    if int(problem["kv_len"]) * width >= 2**31:
        return "keys of one head beyond 32-bit offsets"
    return None


def make_inputs(problem: Problem, device: str, seed: int) -> dict[str, Any]:
    """Normal q (batch, q_heads, q_len, D), k and v (batch, kv_heads, kv_len, D)."""
    import torch

    source = torch.Generator(device=device).manual_seed(seed)
    batch, width, kind = int(problem["batch"]), int(problem["head_dim"]), torch_dtype(problem["dtype"])
    wide = torch.float32 if device == "cpu" else kind

    def tensor(heads: int, length: int) -> Any:
        return torch.randn((batch, heads, length, width), generator=source, device=device, dtype=wide).to(kind)

    q = tensor(int(problem["q_heads"]), int(problem.get("q_len", 1)))
    k, v = (tensor(int(problem["kv_heads"]), int(problem["kv_len"])) for _ in range(2))
    return {"q": q, "k": k, "v": v, "causal": bool(problem.get("causal", 0))}


def reference(inputs: Mapping[str, Any]) -> Any:
    """Attention in fp32 (full fp32, no tf32) from the same rounded operands, a few rows of queries at a time."""
    import torch

    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    batch, heads, q_len, width = q.shape
    kv_heads, kv_len = k.shape[1], k.shape[2]
    out = torch.empty((batch, heads, q_len, width), device=q.device, dtype=torch.float32)
    keep = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = max(1, min(q_len, _REFERENCE_ELEMENTS // (heads * kv_len)))
    keys = torch.arange(kv_len, device=q.device)
    try:
        for b in range(batch):
            wide = [x[b].float().repeat_interleave(heads // kv_heads, 0) for x in (k, v)]
            for start in range(0, q_len, rows):
                part = slice(start, min(start + rows, q_len))
                scores = q[b, :, part].float() @ wide[0].transpose(1, 2) * width**-0.5
                if inputs["causal"]:
                    own = torch.arange(part.start, part.stop, device=q.device) + (kv_len - q_len)
                    scores.masked_fill_(keys[None, :] > own[:, None], -math.inf)
                out[b, :, part] = torch.softmax(scores, -1) @ wide[1]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = keep
    return out


def sdpa(inputs: Mapping[str, Any]) -> Prepared:
    """torch's scaled_dot_product_attention on the same tensors. Its output is new each time: `run` copies it where it can be checked."""
    import torch

    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    out = torch.empty_like(q)
    causal = inputs["causal"] and q.shape[2] == k.shape[2]
    grouped = q.shape[1] != k.shape[1]
    state = {"first": True}

    def run() -> object:
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
        if state.pop("first", None):
            out.copy_(found)
        return found

    return Prepared(run, out)
