"""Plain kernels as people write them after the tutorials: what rankings of other people's kernels are judged on.

Pointer loads, one tile a program, nothing persistent. GEMM (B stored (N, K)), flash attention over a prompt, split-KV decoding with its
combine pass, row softmax, layer norm and a fused element-wise kernel. Sizes that vary from launch to launch are not specialised on, so that
one binary serves them all.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["M"])
def gemm(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bn, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GM: tl.constexpr,
):  # fmt: skip
    """C (M, N) = A (M, K) B (N, K)^T, tiles in bands of GM tile rows."""
    program = tl.program_id(0)
    rows_of_tiles = tl.cdiv(M, BM)
    columns_of_tiles = tl.cdiv(N, BN)
    band = program // (GM * columns_of_tiles)
    height = min(rows_of_tiles - band * GM, GM)
    inside = program % (GM * columns_of_tiles)
    row = band * GM + inside % height
    column = inside // height
    m = (row * BM + tl.arange(0, BM)) % M
    n = (column * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    a_at = a_ptr + m[:, None] * stride_am + k[None, :]
    b_at = b_ptr + k[:, None] + n[None, :] * stride_bn
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BK)):
        a = tl.load(a_at, mask=k[None, :] < K - step * BK, other=0.0)
        b = tl.load(b_at, mask=k[:, None] < K - step * BK, other=0.0)
        total = tl.dot(a, b, total)
        a_at += BK
        b_at += BK
    m = row * BM + tl.arange(0, BM)
    n = column * BN + tl.arange(0, BN)
    c_at = c_ptr + m[:, None] * stride_cm + n[None, :]
    tl.store(c_at, total.to(c_ptr.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit(do_not_specialize=["seq", "heads", "group"])
def attention(
    q_ptr, k_ptr, v_ptr, o_ptr, scale, seq, heads, group,
    D: tl.constexpr, CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One tile of BM queries of one head: online softmax over blocks of BN keys. Tensors are (batch, heads, seq, D)."""
    tile = tl.program_id(0)
    batch_head = tl.program_id(1)
    batch = batch_head // heads
    head = batch_head % heads
    kv = (batch * (heads // group) + head // group).to(tl.int64) * seq * D
    base = batch_head.to(tl.int64) * seq * D
    m = tile * BM + tl.arange(0, BM)
    n = tl.arange(0, BN)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + base + m[:, None] * D + d[None, :], mask=m[:, None] < seq, other=0.0)
    top = tl.full((BM,), -float("inf"), tl.float32)
    mass = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    last = seq
    if CAUSAL:
        last = tl.minimum(seq, (tile + 1) * BM)
    for start in range(0, last, BN):
        at = start + n
        k = tl.load(k_ptr + kv + at[None, :] * D + d[:, None], mask=at[None, :] < seq, other=0.0)
        s = tl.dot(q, k) * scale
        keep = at[None, :] < seq
        if CAUSAL:
            keep = keep & (m[:, None] >= at[None, :])
        s = tl.where(keep, s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        fade = tl.exp2(top - new)
        mass = mass * fade + tl.sum(p, 1)
        acc = acc * fade[:, None]
        v = tl.load(v_ptr + kv + at[:, None] * D + d[None, :], mask=at[:, None] < seq, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc)
        top = new
    tl.store(o_ptr + base + m[:, None] * D + d[None, :], (acc / mass[:, None]).to(o_ptr.dtype.element_ty), mask=m[:, None] < seq)


@triton.jit(do_not_specialize=["seq", "kv_heads", "group", "splits", "per_split"])
def decode(
    q_ptr, k_ptr, v_ptr, part_ptr, lse_ptr, scale, seq, kv_heads, group, splits, per_split,
    D: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One new token: the `group` query heads of a KV head (padded to ROWS) over one split of its keys. K is (batch, kv_heads, seq, D)."""
    batch_head = tl.program_id(0)
    split = tl.program_id(1)
    row = tl.arange(0, ROWS)
    n = tl.arange(0, BN)
    d = tl.arange(0, D)
    kv = batch_head.to(tl.int64) * seq * D
    q = tl.load(q_ptr + (batch_head * group + row)[:, None] * D + d[None, :], mask=row[:, None] < group, other=0.0)
    top = tl.full((ROWS,), -float("inf"), tl.float32)
    mass = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, D), tl.float32)
    first = split * per_split
    last = tl.minimum(first + per_split, seq)
    for start in range(first, last, BN):
        at = start + n
        k = tl.load(k_ptr + kv + at[None, :] * D + d[:, None], mask=at[None, :] < last, other=0.0)
        s = tl.dot(q, k) * scale
        s = tl.where(at[None, :] < last, s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        fade = tl.exp2(top - new)
        mass = mass * fade + tl.sum(p, 1)
        v = tl.load(v_ptr + kv + at[:, None] * D + d[None, :], mask=at[:, None] < last, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None])
        top = new
    part = (batch_head * group + row) * splits + split
    tl.store(part_ptr + part[:, None] * D + d[None, :], acc / mass[:, None], mask=row[:, None] < group)
    tl.store(lse_ptr + part, top + tl.log2(mass), mask=row < group)


@triton.jit
def combine(part_ptr, lse_ptr, o_ptr, splits, D: tl.constexpr, NS: tl.constexpr):
    """Join the splits of one query head."""
    head = tl.program_id(0)
    s = tl.arange(0, NS)
    d = tl.arange(0, D)
    lse = tl.load(lse_ptr + head * splits + s, mask=s < splits, other=-float("inf"))
    weight = tl.exp2(lse - tl.max(lse, 0))
    part = tl.load(part_ptr + (head * splits + s)[:, None] * D + d[None, :], mask=s[:, None] < splits, other=0.0)
    out = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(o_ptr + head * D + d, out.to(o_ptr.dtype.element_ty))


@triton.jit
def softmax(x_ptr, y_ptr, rows, columns, BLOCK: tl.constexpr):
    """One row a program, kept in registers."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row * columns + at, (e / tl.sum(e, 0)).to(y_ptr.dtype.element_ty), mask=at < columns)


@triton.jit
def layer_norm(x_ptr, w_ptr, b_ptr, y_ptr, columns, eps, BLOCK: tl.constexpr):
    """One row a program in two passes over blocks of BLOCK columns: mean and variance, then the result."""
    row = tl.program_id(0).to(tl.int64) * columns
    total = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + at, mask=at < columns, other=0.0).to(tl.float32)
        total += x
        squares += x * x
    mean = tl.sum(total, 0) / columns
    rstd = tl.rsqrt(tl.sum(squares, 0) / columns - mean * mean + eps)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < columns
        w = tl.load(w_ptr + at, mask=inside)
        b = tl.load(b_ptr + at, mask=inside)
        x = tl.load(x_ptr + row + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + row + at, ((x - mean) * rstd * w + b).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def silu_mul(x_ptr, g_ptr, y_ptr, count, BLOCK: tl.constexpr):
    """y = silu(g) x, element by element."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    g = tl.load(g_ptr + at, mask=inside).to(tl.float32)
    x = tl.load(x_ptr + at, mask=inside).to(tl.float32)
    tl.store(y_ptr + at, (x * g / (1.0 + tl.exp(-g))).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["padded", "valid", "top_k"])
def fused_moe(
    a_ptr, b_ptr, c_ptr, ids_ptr, experts_ptr, N, K, padded, valid, top_k,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
):  # fmt: skip
    """Grouped GEMM over experts: rows of A are gathered by sorted ids, every block of rows belongs to one expert of B (experts, N, K)."""
    program = tl.program_id(0)
    rows = tl.cdiv(padded, BLOCK_SIZE_M)
    columns = tl.cdiv(N, BLOCK_SIZE_N)
    band = program // (GROUP_SIZE_M * columns)
    height = min(rows - band * GROUP_SIZE_M, GROUP_SIZE_M)
    inside = program % (GROUP_SIZE_M * columns)
    row = band * GROUP_SIZE_M + inside % height
    column = inside // height
    ids = tl.load(ids_ptr + row * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)).to(tl.int64)
    real = ids < valid
    expert = tl.load(experts_ptr + row).to(tl.int64)
    n = (column * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)).to(tl.int64) % N
    k = tl.arange(0, BLOCK_SIZE_K)
    a_at = a_ptr + (ids[:, None] // top_k) * K + k[None, :]
    b_at = b_ptr + expert * N * K + n[None, :] * K + k[:, None]
    total = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BLOCK_SIZE_K)):
        a = tl.load(a_at, mask=real[:, None] & (k[None, :] < K - step * BLOCK_SIZE_K), other=0.0)
        b = tl.load(b_at, mask=k[:, None] < K - step * BLOCK_SIZE_K, other=0.0)
        total = tl.dot(a, b, total)
        a_at += BLOCK_SIZE_K
        b_at += BLOCK_SIZE_K
    n = column * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_at = c_ptr + ids[:, None] * N + n[None, :]
    tl.store(c_at, total.to(c_ptr.dtype.element_ty), mask=real[:, None] & (n[None, :] < N))
