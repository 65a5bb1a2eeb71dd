"""The autotune hook on a plain kernel that the project does not own, against Triton's full autotuning, on a real GPU."""

import pytest
from hook_arms import compare, main

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CONFIGS = [
    triton.Config({"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": 8}, num_warps=w, num_stages=s)
    for m in (16, 64, 128, 256)
    for n in (64, 128, 256)
    for k in (64, 128)
    for w in (4, 8)
    for s in (3, 4)
    if 32 * 32 <= m * n <= 128 * 256 and (m + n) * k * s * 2 <= 220_000
]
FAMILY = "gemm"
SHAPES = [(16, 8192, 3584), (512, 6144, 4096), (4096, 4096, 4096)]


def plain(
    a, b, c, M, N, K,
    BLOCK_SIZE_M: "tl.constexpr", BLOCK_SIZE_N: "tl.constexpr", BLOCK_SIZE_K: "tl.constexpr", GROUP_SIZE_M: "tl.constexpr",
):  # fmt: skip
    tile = tl.program_id(0)
    rows, cols = tl.cdiv(M, BLOCK_SIZE_M), tl.cdiv(N, BLOCK_SIZE_N)
    band = tile // (GROUP_SIZE_M * cols) * GROUP_SIZE_M
    height = min(rows - band, GROUP_SIZE_M)
    pm_ = band + tile % (GROUP_SIZE_M * cols) % height
    pn_ = tile % (GROUP_SIZE_M * cols) // height
    om = (pm_ * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)) % M
    on = (pn_ * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)) % N
    ok = tl.arange(0, BLOCK_SIZE_K)
    at, bt = a + om[:, None] * K + ok[None, :], b + on[None, :] * K + ok[:, None]
    acc = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), tl.float32)
    for _ in range(0, tl.cdiv(K, BLOCK_SIZE_K)):
        acc = tl.dot(tl.load(at), tl.load(bt), acc)
        at += BLOCK_SIZE_K
        bt += BLOCK_SIZE_K
    cm = pm_ * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    cn = pn_ * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    tl.store(c + cm[:, None] * N + cn[None, :], acc.to(tl.bfloat16), mask=(cm < M)[:, None] & (cn < N)[None, :])


def tuned(configs, prune_configs_by):
    return triton.autotune(configs=configs, key=["M", "N", "K"], prune_configs_by=prune_configs_by)(triton.jit(plain))


def problem(m, n, k):
    """(one launch of a kernel, how far its result is off)."""
    a = torch.randn((m, k), device="cuda", dtype=torch.bfloat16)
    b = torch.randn((n, k), device="cuda", dtype=torch.bfloat16)
    c = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)
    grid = lambda meta: (triton.cdiv(m, meta["BLOCK_SIZE_M"]) * triton.cdiv(n, meta["BLOCK_SIZE_N"]),)  # noqa: E731

    def launch(kernel):
        return kernel[grid](a, b, c, m, n, k)

    def error():
        expected = a.float() @ b.float().T
        return float((c.float() - expected).norm() / expected.norm())

    return launch, error


def test_hook_against_full_autotuning(tmp_path):
    compare(__file__, tmp_path, CONFIGS, SHAPES)


if __name__ == "__main__":
    main(FAMILY, CONFIGS, tuned, problem, SHAPES)
