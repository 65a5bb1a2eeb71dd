"""Device code of the GEMM family: C (M, N) = A (M, K) B^T, with B stored (N, K) row-major like a linear layer's weight.

M, N, K, the group width and the split count are run-time integers that Triton must not specialise on, so a config has
one binary for every shape of the same alignment. `ALIGN` carries what specialisation would have found out: N and K are
passed divided by it, and the multiplication inside the kernel tells the compiler that rows start on aligned addresses.
"""

# mypy: ignore-errors
import triton
import triton.language as tl

_RUNTIME = ("m", "n_units", "k_units", "group_m", "split_k")


@triton.jit
def tile_position(tile, tiles_m, tiles_n, group_m):
    """Row and column of a tile when tiles are visited in bands of `group_m` tile rows, column after column inside a band."""
    per_band = group_m * tiles_n
    first = (tile // per_band) * group_m
    rows = tl.minimum(tiles_m - first, group_m)
    local = tile % per_band
    return first + local % rows, local // rows


@triton.jit
def write_tile(acc, c_ptr, m, n, m0, n0, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Convert an accumulator tile to C's type and store the part of it that lies inside C."""
    rows = m0 + tl.arange(0, BLOCK_M)
    cols = n0 + tl.arange(0, BLOCK_N)
    where = c_ptr + rows.to(tl.int64)[:, None] * n + cols[None, :]
    tl.store(where, acc.to(tl.float32).to(c_ptr.dtype.element_ty), mask=(rows < m)[:, None] & (cols < n)[None, :])


@triton.jit
def combine_splits(acc, work_ptr, lock_ptr, tile, tiles, split, split_k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Park this split's partial tile; the split that arrives last sums all of them in order (so the result is deterministic).

    Returns (is_last, sum). The lock goes back to zero, so the next launch finds it as this one did.
    """
    inner = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    stride = tiles.to(tl.int64) * (BLOCK_M * BLOCK_N)
    mine = work_ptr + tile.to(tl.int64) * (BLOCK_M * BLOCK_N)
    tl.store(mine + split * stride + inner, acc)
    tl.debug_barrier()
    last = tl.atomic_add(lock_ptr + tile, 1, sem="acq_rel", scope="gpu") == split_k - 1
    tl.debug_barrier()
    total = tl.zeros((BLOCK_M, BLOCK_N), acc.dtype)
    if last:
        for s in range(split_k):
            total += tl.load(mine + s * stride + inner, cache_modifier=".cg")
        tl.atomic_xchg(lock_ptr + tile, 0, sem="relaxed", scope="gpu")
    return last, total


@triton.jit
def finish(
    acc, c_ptr, work_ptr, lock_ptr, m, n, pm, pn, tile, tiles, split, split_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Epilogue shared by the one-tile-per-program kernels."""
    if SPLIT:
        last, total = combine_splits(acc, work_ptr, lock_ptr, tile, tiles, split, split_k, BLOCK_M, BLOCK_N)
        if last:
            write_tile(total, c_ptr, m, n, pm * BLOCK_M, pn * BLOCK_N, BLOCK_M, BLOCK_N)
    else:
        write_tile(acc, c_ptr, m, n, pm * BLOCK_M, pn * BLOCK_N, BLOCK_M, BLOCK_N)


@triton.jit(do_not_specialize=_RUNTIME)
def gemm_pointer(
    a_ptr, b_ptr, c_ptr, work_ptr, lock_ptr, m, n_units, k_units, group_m, split_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ALIGN: tl.constexpr, EVEN_K: tl.constexpr, SPLIT: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """One tile a program, ordinary loads."""
    n = n_units * ALIGN
    k = k_units * ALIGN
    tile = tl.program_id(0)
    split = tl.program_id(1)
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    pm, pn = tile_position(tile, tiles_m, tiles_n, group_m)
    first, last = 0, tl.cdiv(k, BLOCK_K)
    if SPLIT:
        share = tl.cdiv(last, split_k)
        first = split * share
        last = tl.minimum(first + share, last)
    # rows beyond the edge read the last row: cheaper than a mask, and their results are never stored
    rows = tl.minimum(pm * BLOCK_M + tl.arange(0, BLOCK_M), m - 1).to(tl.int64)
    cols = tl.minimum(pn * BLOCK_N + tl.arange(0, BLOCK_N), n - 1).to(tl.int64)
    inner = first * BLOCK_K + tl.arange(0, BLOCK_K)
    a_at = a_ptr + rows[:, None] * k + inner[None, :]
    b_at = b_ptr + cols[:, None] * k + inner[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for i in range(first, last):
        if EVEN_K:
            a = tl.load(a_at)
            b = tl.load(b_at)
        else:
            inside = (tl.arange(0, BLOCK_K) < k - i * BLOCK_K)[None, :]
            a = tl.load(a_at, mask=inside, other=0.0)
            b = tl.load(b_at, mask=inside, other=0.0)
        acc = tl.dot(a, b.T, acc, out_dtype=ACC)
        a_at += BLOCK_K
        b_at += BLOCK_K
    finish(acc, c_ptr, work_ptr, lock_ptr, m, n, pm, pn, tile, tiles_m * tiles_n, split, split_k, BLOCK_M, BLOCK_N, SPLIT)


@triton.jit(do_not_specialize=_RUNTIME)
def gemm_tma(
    a_desc, b_desc, c_ptr, work_ptr, lock_ptr, m, n_units, k_units, group_m, split_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ALIGN: tl.constexpr, SPLIT: tl.constexpr, SWAP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """One tile a program, operands fetched by the tensor-memory accelerator (zero outside the matrix).

    SWAP computes the tile transposed, so that the weight's rows are the wide side of the warp-group multiply and a tiny
    m its narrow side.
    """
    n = n_units * ALIGN
    k = k_units * ALIGN
    tile = tl.program_id(0)
    split = tl.program_id(1)
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    pm, pn = tile_position(tile, tiles_m, tiles_n, group_m)
    first, last = 0, tl.cdiv(k, BLOCK_K)
    if SPLIT:
        share = tl.cdiv(last, split_k)
        first = split * share
        last = tl.minimum(first + share, last)
    if SWAP:
        acc_t = tl.zeros((BLOCK_N, BLOCK_M), ACC)
        for i in range(first, last):
            a = a_desc.load([pm * BLOCK_M, i * BLOCK_K])
            b = b_desc.load([pn * BLOCK_N, i * BLOCK_K])
            acc_t = tl.dot(b, a.T, acc_t, out_dtype=ACC)
        acc = acc_t.T
    else:
        acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
        for i in range(first, last):
            a = a_desc.load([pm * BLOCK_M, i * BLOCK_K])
            b = b_desc.load([pn * BLOCK_N, i * BLOCK_K])
            acc = tl.dot(a, b.T, acc, out_dtype=ACC)
    finish(acc, c_ptr, work_ptr, lock_ptr, m, n, pm, pn, tile, tiles_m * tiles_n, split, split_k, BLOCK_M, BLOCK_N, SPLIT)


@triton.jit(do_not_specialize=(*_RUNTIME, "programs"))
def gemm_persistent(
    a_desc, b_desc, c_desc, m, n_units, k_units, group_m, programs,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ALIGN: tl.constexpr, SUBTILE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """One program a multiprocessor walks over its tiles, loads of the next tile overlapping the epilogue of this one.

    C leaves through descriptors, in two halves when SUBTILE (half the epilogue buffer, so one more stage fits).
    """
    n = n_units * ALIGN
    k = k_units * ALIGN
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    k_tiles = tl.cdiv(k, BLOCK_K)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, programs, flatten=True):
        pm, pn = tile_position(tile, tiles_m, tiles_n, group_m)
        m0 = pm * BLOCK_M
        n0 = pn * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
        for i in range(k_tiles):
            a = a_desc.load([m0, i * BLOCK_K])
            b = b_desc.load([n0, i * BLOCK_K])
            acc = tl.dot(a, b.T, acc, out_dtype=ACC)
        if SUBTILE:
            left, right = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
            c_desc.store([m0, n0], left.to(tl.float32).to(c_desc.dtype))
            c_desc.store([m0, n0 + BLOCK_N // 2], right.to(tl.float32).to(c_desc.dtype))
        else:
            c_desc.store([m0, n0], acc.to(tl.float32).to(c_desc.dtype))
