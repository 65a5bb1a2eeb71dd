"""Device code of the attention families. Tensors are dense: Q and O (batch, q_heads, q_len, D), K and V (batch, kv_heads, kv_len, D).

Lengths and counts are run-time integers that Triton must not specialise on, so a config has one binary for every shape with the same
head width and mask. Offsets are 32-bit inside a head, 64-bit between heads. The scale of the scores carries log2(e), so that powers of
two replace exponentials.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def absorb(acc, top, total, scores, v):
    """One online-softmax step: rescale what was summed, add exp2(scores) and its product with a block of V."""
    new = tl.maximum(top, tl.max(scores, 1))
    p = tl.exp2(scores - new[:, None])
    shrink = tl.exp2(top - new)
    total = total * shrink + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None])
    return acc, new, total


@triton.jit
def visit_pointer(
    acc, top, total, q, k_base, v_base, rows, first, last, limit, scale,
    D: tl.constexpr, BLOCK_N: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Visit key blocks [first, last) by ordinary loads. With MASK, keys from `limit` on and, if CAUSAL, after a row's own are hidden."""
    inner = tl.arange(0, D)
    for start in range(first, last, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        at = keys[:, None] * D + inner[None, :]
        k = tl.load(k_base + at, mask=keys[:, None] < limit, other=0.0) if MASK else tl.load(k_base + at)
        scores = tl.dot(q, tl.trans(k)) * scale
        if MASK:
            seen = keys[None, :] < limit
            if CAUSAL:
                seen = seen & (keys[None, :] <= rows[:, None])
            scores = tl.where(seen, scores, -float("inf"))
        v = tl.load(v_base + at, mask=keys[:, None] < limit, other=0.0) if MASK else tl.load(v_base + at)
        acc, top, total = absorb(acc, top, total, scores, v)
    return acc, top, total


@triton.jit
def visit_tma(
    acc, top, total, q, k_desc, v_desc, offset, rows, first, last, limit, scale,
    BLOCK_N: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """The same by the tensor-memory accelerator; the rows of K and V of all heads stand one after another, these begin at `offset`.

    A last block reads on into the next head: those keys are hidden, and their values meet a weight of zero.
    """
    for start in range(first, last, BLOCK_N):
        k = k_desc.load([offset + start, 0])
        scores = tl.dot(q, tl.trans(k)) * scale
        if MASK:
            keys = start + tl.arange(0, BLOCK_N)
            seen = keys[None, :] < limit
            if CAUSAL:
                seen = seen & (keys[None, :] <= rows[:, None])
            scores = tl.where(seen, scores, -float("inf"))
        v = v_desc.load([offset + start, 0])
        acc, top, total = absorb(acc, top, total, scores, v)
    return acc, top, total


@triton.jit(do_not_specialize=("q_heads", "kv_heads", "q_len", "kv_len"))
def prefill(
    q_ptr, k_ptr, v_ptr, o_ptr, scale, q_heads, kv_heads, q_len, kv_len,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, BANDED: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head a program.

    BANDED visits the blocks that every row sees whole without a mask, and only the others with one; it also starts with the last queries,
    which see most keys, so that short programs fill the end of the launch. With TMA, k_ptr and v_ptr are descriptors.
    """
    tiles = tl.num_programs(0)
    tile = tl.program_id(0)
    if BANDED:
        tile = tiles - 1 - tile
    head = tl.program_id(1)
    batch = head // q_heads
    kv_row = (batch * kv_heads + (head % q_heads) // (q_heads // kv_heads)).to(tl.int64)
    own = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    inner = tl.arange(0, D)
    base = head.to(tl.int64) * q_len * D
    at = own[:, None] * D + inner[None, :]
    q = tl.load(q_ptr + base + at, mask=own[:, None] < q_len, other=0.0)
    rows = own + (kv_len - q_len)  # a query's own place among the keys
    top = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    last = kv_len
    if CAUSAL:
        last = tl.minimum((tile + 1) * BLOCK_M + kv_len - q_len, kv_len)
    whole = 0
    if BANDED:
        whole = kv_len
        if CAUSAL:
            whole = tl.minimum(tile * BLOCK_M + kv_len - q_len + 1, kv_len)
        whole = whole // BLOCK_N * BLOCK_N
    if TMA:
        offset = (kv_row * kv_len).to(tl.int32)
        if BANDED:
            acc, top, total = visit_tma(acc, top, total, q, k_ptr, v_ptr, offset, rows, 0, whole, kv_len, scale, BLOCK_N, False, CAUSAL)
        acc, top, total = visit_tma(acc, top, total, q, k_ptr, v_ptr, offset, rows, whole, last, kv_len, scale, BLOCK_N, True, CAUSAL)
    else:
        k_base = k_ptr + kv_row * kv_len * D
        v_base = v_ptr + kv_row * kv_len * D
        if BANDED:
            acc, top, total = visit_pointer(acc, top, total, q, k_base, v_base, rows, 0, whole, kv_len, scale, D, BLOCK_N, False, CAUSAL)
        acc, top, total = visit_pointer(acc, top, total, q, k_base, v_base, rows, whole, last, kv_len, scale, D, BLOCK_N, True, CAUSAL)
    acc = acc / total[:, None]
    tl.store(o_ptr + base + at, acc.to(o_ptr.dtype.element_ty), mask=own[:, None] < q_len)


@triton.jit(do_not_specialize=("kv_heads", "kv_len", "num_splits"))
def decode(
    q_ptr, k_ptr, v_ptr, part_ptr, top_ptr, total_ptr, scale, kv_heads, kv_len, num_splits,
    D: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One share of the keys of one key head a program: the GROUP query heads that share it are the rows of the multiply, padded to ROWS.

    Writes the unnormalised sum, its maximum and its total for `combine`. A share without keys writes a maximum of minus infinity.
    """
    pair = tl.program_id(0)
    split = tl.program_id(1)
    share = tl.cdiv(tl.cdiv(kv_len, num_splits), BLOCK_N) * BLOCK_N
    first = split * share
    last = tl.minimum(first + share, kv_len)
    own = tl.arange(0, ROWS)
    inner = tl.arange(0, D)
    head = pair * GROUP + own
    q = tl.load(q_ptr + head.to(tl.int64)[:, None] * D + inner[None, :], mask=own[:, None] < GROUP, other=0.0)
    base = pair.to(tl.int64) * kv_len * D
    top = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, D), tl.float32)
    acc, top, total = visit_pointer(acc, top, total, q, k_ptr + base, v_ptr + base, own, first, last, last, scale, D, BLOCK_N, True, False)
    slot = head.to(tl.int64) * num_splits + split
    tl.store(part_ptr + slot[:, None] * D + inner[None, :], acc, mask=own[:, None] < GROUP)
    tl.store(top_ptr + slot, top, mask=own < GROUP)
    tl.store(total_ptr + slot, total, mask=own < GROUP)


@triton.jit(do_not_specialize=("num_splits",))
def combine(part_ptr, top_ptr, total_ptr, o_ptr, num_splits, D: tl.constexpr, SPLITS: tl.constexpr):
    """Add the shares of one query head: a program a head."""
    head = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    inner = tl.arange(0, D)
    there = split < num_splits
    slot = head * num_splits + split
    top = tl.load(top_ptr + slot, mask=there, other=-float("inf"))
    total = tl.load(total_ptr + slot, mask=there, other=0.0)
    part = tl.load(part_ptr + slot[:, None] * D + inner[None, :], mask=there[:, None], other=0.0)
    weight = tl.exp2(top - tl.max(top, 0))
    out = tl.sum(part * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(o_ptr + head * D + inner, out.to(o_ptr.dtype.element_ty))
