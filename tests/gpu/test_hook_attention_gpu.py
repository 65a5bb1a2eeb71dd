"""The autotune hook on a flash-attention kernel that the project does not own, named as in Triton's tutorial, against full autotuning."""

import itertools

import pytest
from hook_arms import compare, main

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=w, num_stages=s)
    for m, n, w, s in itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4))
]
FAMILY = "attention_prefill"
SHAPES = [(1, 16, 4096, 64), (2, 16, 2048, 128)]


def flash(
    sm_scale, Q, K, V, Out, Z, H, N_CTX,
    HEAD_DIM: "tl.constexpr", BLOCK_M: "tl.constexpr", BLOCK_N: "tl.constexpr",
):  # fmt: skip
    start_m, off_hz = tl.program_id(0), tl.program_id(1)
    base = off_hz.to(tl.int64) * N_CTX * HEAD_DIM
    offs_m, offs_d = start_m * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    q = tl.load(Q + base + offs_m[:, None] * HEAD_DIM + offs_d[None, :], mask=offs_m[:, None] < N_CTX, other=0.0)
    m_i = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for start_n in range(0, tl.minimum((start_m + 1) * BLOCK_M, N_CTX), BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        at = base + offs_n[:, None] * HEAD_DIM + offs_d[None, :]
        k = tl.load(K + at, mask=offs_n[:, None] < N_CTX, other=0.0)
        qk = tl.dot(q, tl.trans(k)) * (sm_scale * 1.44269504)
        qk = tl.where((offs_m[:, None] >= offs_n[None, :]) & (offs_n[None, :] < N_CTX), qk, -float("inf"))
        m_new = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.exp2(qk - m_new[:, None])
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        v = tl.load(V + at, mask=offs_n[:, None] < N_CTX, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new
    out = Out + base + offs_m[:, None] * HEAD_DIM + offs_d[None, :]
    tl.store(out, (acc / l_i[:, None]).to(Out.dtype.element_ty), mask=offs_m[:, None] < N_CTX)


def tuned(configs, prune_configs_by):
    return triton.autotune(configs=configs, key=["N_CTX", "HEAD_DIM"], prune_configs_by=prune_configs_by)(triton.jit(flash))


def problem(z, h, length, width):
    """(one launch of a kernel, how far its result is off)."""
    q, k, v = (torch.randn((z, h, length, width), device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out = torch.empty_like(q)
    grid = lambda meta: (triton.cdiv(length, meta["BLOCK_M"]), z * h)  # noqa: E731

    def launch(kernel):
        return kernel[grid](width**-0.5, q, k, v, out, z, h, length, HEAD_DIM=width)

    def error():
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).float()
        return float((out.float() - expected).norm() / expected.norm())

    return launch, error


def test_hook_against_full_autotuning(tmp_path):
    compare(__file__, tmp_path, CONFIGS, SHAPES)


if __name__ == "__main__":
    main(FAMILY, CONFIGS, tuned, problem, SHAPES)
