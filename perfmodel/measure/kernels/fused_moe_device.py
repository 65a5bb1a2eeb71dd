"""Device code of the fused-MoE family: one grouped GEMM over rows sorted by expert, used for both projections, and the gate between.

Rows (token, choice) are sorted by expert and each expert's rows padded to a multiple of BLOCK_M, so that a tile has one expert. The
weights are stored (experts, N, K) row-major like a linear layer's. Padding slots hold `pairs`, one past the last row.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit(do_not_specialize=("pairs", "slots", "n_units", "k_units", "choices", "group_m"))
def grouped(
    a_ptr, b_ptr, c_ptr, row_ptr, expert_ptr, slots_ptr, weight_ptr, pairs, slots, n_units, k_units, choices, group_m,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """C[row] = A[row // choices] B[expert of row]^T, times the row's weight.

    N and K are passed in units of 16 elements. Programs beyond the used slots (a count on the device) end at once.
    """
    n = n_units * 16
    k = k_units * 16
    tiles_m = tl.cdiv(slots, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tile = tl.program_id(0)
    per_band = group_m * tiles_n
    first = (tile // per_band) * group_m
    height = tl.minimum(tiles_m - first, group_m)
    local = tile % per_band
    pm = first + local % height
    pn = local // height
    if pm * BLOCK_M < tl.load(slots_ptr):
        rows = tl.load(row_ptr + pm * BLOCK_M + tl.arange(0, BLOCK_M))
        real = rows < pairs
        expert = tl.load(expert_ptr + pm).to(tl.int64)
        cols = (pn * BLOCK_N + tl.arange(0, BLOCK_N)) % n
        inner = tl.arange(0, BLOCK_K)
        a_at = a_ptr + (rows // choices).to(tl.int64)[:, None] * k + inner[None, :]
        b_at = b_ptr + expert * n * k + cols.to(tl.int64)[:, None] * k + inner[None, :]
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for i in range(0, tl.cdiv(k, BLOCK_K)):
            if EVEN_K:
                a = tl.load(a_at, mask=real[:, None], other=0.0)
                b = tl.load(b_at)
            else:
                inside = (inner < k - i * BLOCK_K)[None, :]
                a = tl.load(a_at, mask=real[:, None] & inside, other=0.0)
                b = tl.load(b_at, mask=inside, other=0.0)
            acc = tl.dot(a, b.T, acc)
            a_at += BLOCK_K
            b_at += BLOCK_K
        acc = acc * tl.load(weight_ptr + rows, mask=real, other=0.0)[:, None]
        out_cols = pn * BLOCK_N + tl.arange(0, BLOCK_N)
        where = c_ptr + rows.to(tl.int64)[:, None] * n + out_cols[None, :]
        tl.store(where, acc.to(c_ptr.dtype.element_ty), mask=real[:, None] & (out_cols < n)[None, :])


@triton.jit
def gate(up_ptr, out_ptr, inter, BLOCK: tl.constexpr):
    """out = silu(first half of a row) * second half."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < inter
    x = tl.load(up_ptr + row * 2 * inter + cols, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(up_ptr + row * 2 * inter + inter + cols, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * inter + cols, (x / (1.0 + tl.exp(-x)) * y).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_choices(rows_ptr, out_ptr, hidden, choices, BLOCK: tl.constexpr):
    """out[token] = sum of the rows of its choices."""
    token = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < hidden
    total = tl.zeros((BLOCK,), tl.float32)
    for c in range(choices):
        total += tl.load(rows_ptr + (token * choices + c) * hidden + cols, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * hidden + cols, total.to(out_ptr.dtype.element_ty), mask=inside)
