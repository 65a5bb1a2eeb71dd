"""The Triton prefill family: attention of many queries, one block of queries of one head a program.

Variants: `pointer` masks every block, `banded` only those on the diagonal and starts with the longest programs, `tma` loads by the
tensor-memory accelerator besides (measure/kernels/attention_prefill.py); `plain` is anybody else's kernel of pointer's form (one loop over
blocks of keys with an online softmax, masks on each). Latencies are of one launch with a cold L2, from event to event on the device.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from perfmodel.analytic import attention as law
from perfmodel.analytic import tile
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels import attention as shared
from perfmodel.kernels.configs import Configs
from perfmodel.kernels.facts import Facts
from perfmodel.kernels.family import register
from perfmodel.kernels.terms import Rule, Terms
from perfmodel.ops import Attention, Work

NAME = "attention_prefill"
PLAIN = "plain"
VARIANTS = ("pointer", "banded", "tma", PLAIN)
SIZES = ("batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "causal")
FLAGS = ("causal",)
ALIASES = {"q_len": ("seq", "seqlen", "isl"), "kv_len": ("seq", "seqlen", "isl"), "q_heads": ("heads",)}
DEFAULTS = {"causal": 1}
ARGUMENTS = {
    **shared.ARGUMENTS,
    "q_len": ("q_len", "seqlen_q", "n_ctx_q", "n_ctx", "seqlen", "seq_len", "seq"),
    "causal": ("causal", "is_causal"),
}
REQUIRED = ("block_m", "block_n")
COLUMNS = (*REQUIRED, "num_warps", "num_stages")
TWINS = REQUIRED
BINARY = (*REQUIRED, "head_dim", "causal", "num_warps", "num_stages")
FIXED: Mapping[str, Any] = {}
_ROWS = (16, 32, 64, 128, 256)
_KEYS = (16, 32, 64, 128, 256)
_WARPS = (4, 8)
_STAGES = (1, 2, 3, 4)
_HEADS = (64, 128)
_MASK_INSTRUCTIONS = 4.5  # of one score that is masked: two comparisons, their conjunction, a select

rate_of = shared.rate_of


def computes(op: Any) -> bool:
    """Whether the operator is an attention of many queries."""
    return bool(op.kind == "attention" and op.phase == "prefill")


def operator(dtype: str, **sizes: Any) -> Attention:
    """The Attention of these sizes."""
    causal = sizes.pop("causal")
    return Attention("prefill", **sizes, dtype=dtype, causal=bool(causal))


def sizes_of(op: Any) -> dict[str, int]:
    """SIZES of an Attention; raises InputError for windows, mixed types and head widths that the kernel does not have."""
    found = shared.common_sizes(op, NAME) | {"q_len": int(op.q_len), "causal": int(op.causal)}
    return {name: found[name] for name in SIZES}


def work(dtype: str, **sizes: Any) -> Work:
    """Flops and compulsory bytes of a problem, broadcast over arrays."""
    return shared.work(dtype, **sizes)


def _tiles(variants: tuple[str, ...]) -> list[tuple[int, ...]]:
    """(variant, block_m, block_n, num_warps, num_stages) with at most 256 scores a thread."""
    return [
        (VARIANTS.index(v), bm, bn, w, s)
        for v, bm, bn, w, s in itertools.product(variants, _ROWS, _KEYS, _WARPS, _STAGES)
        if bm * bn <= 256 * 32 * w and bm * bn >= 32 * w
    ]


def _own_variants(arch: int) -> tuple[str, ...]:
    return ("banded", "tma") if arch >= 90 else ("banded",)


def _configs(rows: list[tuple[int, ...]], sizes: Mapping[str, Any]) -> Configs:
    rows_most, keys_most = (max(16, 2 * sizes[name] - 1) for name in ("q_len", "kv_len"))
    table = np.array([r for r in rows if r[1] <= rows_most and r[2] <= keys_most], dtype=np.int64)
    return Configs({name: table[:, 1 + i] for i, name in enumerate(COLUMNS)}, table[:, 0].astype(np.int8), VARIANTS)


def space(gpu: GpuSpec, dtype: str, **sizes: Any) -> Configs:
    """Every config worth asking about for this problem on this GPU, before the rules: blocks of at most twice the lengths."""
    return _configs(_tiles(_own_variants(int(gpu.arch.removeprefix("sm_")))), sizes)


def portable_space(gpu: GpuSpec, dtype: str, **sizes: Any) -> Configs:
    """The pointer kernel's whole grid: what other people's kernels usually offer."""
    return _configs(_tiles(("pointer",)), sizes)


def binaries(arch: int, dtype: str) -> list[dict[str, Any]]:
    """What measure.compile has to compile, so that every causal config of both spaces has its facts for heads 64 and 128 wide."""
    return [
        {"variant": VARIANTS[row[0]], **dict(zip(COLUMNS, row[1:], strict=True)), "head_dim": width, "causal": 1}
        for width in _HEADS
        for row in _tiles(("pointer", *_own_variants(arch)))
    ]


def code_of(configs: Configs, sizes: Mapping[str, Any] | None) -> dict[str, Any]:
    """The BINARY columns. The mask costs a few instructions in code that has no mask: without one the masked code's facts answer."""
    assert sizes is not None
    return {**{name: configs[name] for name in COLUMNS}, "head_dim": sizes["head_dim"], "causal": np.ones(len(configs), dtype=np.int64)}


def formula(gpu: GpuSpec, dtype: str, configs: Configs, sizes: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Facts without compiling; see kernels/attention.formula."""
    assert sizes is not None
    bm, bn, warps, stages = (configs[x].astype(np.float64) for x in COLUMNS)
    masked = configs.of("pointer", PLAIN)
    return shared.formula(gpu, dtype, bm, bn, np.asarray(sizes["head_dim"], dtype=np.float64), warps, stages, masked)


def rules(gpu: GpuSpec, dtype: str, configs: Configs, facts: Facts, **sizes: Any) -> list[Rule]:
    """Configs to prune, with reasons: limits of the hardware and the kernel's semantics (hard), and dominated choices."""
    bm, bn = configs["block_m"], configs["block_n"]
    tma = configs.of("tma")
    return [
        *shared.hard_rules(gpu, configs, facts, bm, bn),
        Rule(tma & (gpu.capability < (9, 0)), "the tensor-memory accelerator needs sm_90"),
        Rule(tma & (bn > 256), "tile sides over 256: outside the tensor-memory accelerator's box"),
        Rule(facts.spill_bytes > 512, "spills more than 512 bytes a thread", hard=False),
        Rule((bm >= 2 * max(16, sizes["q_len"])) & (bm > 16), "more than half of the block lies beyond the queries", hard=False),
    ]


def terms(gpu: GpuSpec, dtype: str, configs: Configs, facts: Facts, constants: Mapping[str, float], **sizes: Any) -> Terms:
    """Physical terms of each config for SIZES (scalars or arrays beside the configs).

        latency = launch + soft-max2( visits of the busiest slot x cycles a visit / clock + edges, bytes / DRAM rate + ramp )

    Visits are block-granular under the mask; a slot's share of them follows the order in which programs start. Constants:
    calibration/physics/attention_prefill.toml. Evidence: `perfmodel evaluate ranking --kernel attention_prefill` (README).
    """
    c = constants
    batch, q, kv, heads, _, width, causal = (np.asarray(sizes[n], dtype=np.float64) for n in SIZES)
    bm, bn = configs["block_m"].astype(np.float64), configs["block_n"].astype(np.float64)
    clock = gpu.max_clock_hz * c["clock_share"]
    per_head, longest, whole = law.visited_blocks(q, kv, bm, bn, causal)
    tiles = np.ceil(q / bm)
    programs, total = tiles * batch * heads, per_head * batch * heads
    unmasked = configs.of("banded", "tma")
    masked = np.where(unmasked, 1.0 - whole / per_head, 0.0)
    once = np.asarray(work(dtype, **sizes).bytes)
    miss = np.minimum(1.0, c["miss_weight"] * once / (total * 2.0 * bn * width * shared.DTYPES[dtype]))
    found = shared.visit(
        gpu, dtype, configs, facts, c, rows=bm, width=width, miss=miss, active_sms=np.minimum(programs, gpu.sms),
        extra_instructions=masked * _MASK_INSTRUCTIONS * _scores(configs),
    )  # fmt: skip
    together = np.clip(np.ceil(programs / gpu.sms), 1.0, found.resident)
    tail = np.where(unmasked, c["tail_share_longest_first"], c["tail_share_in_order"])
    visits = law.makespan(total, longest, gpu.sms * together, (causal == 0) | (tiles == 1), tail, c["tail_weight"])
    rounds = np.maximum(np.ceil(programs / (gpu.sms * together)), 1.0)
    epilogue = bm * width * 2.0 / c["epilogue_bytes_per_cycle"]
    edges = (found.load_cycles + epilogue + c["block_start_cycles"]) * (1.0 + c["round_overlap"] * (rounds - 1.0))
    busy = visits * found.each(together)
    dram_s = tile.dram_seconds(once, gpu.dram_bytes_per_s * c["dram_efficiency"], c["dram_ramp_s"])
    latency = c["launch_s"] + tile.smooth_max2((busy + edges) / clock, dram_s)
    seconds = shared.seconds(found, busy, edges, together, clock, dram_s, latency, c["launch_s"])
    extra = {
        "log2_block_m": np.log2(bm),
        "waves": np.minimum(programs / (gpu.sms * together), 8.0),
        "uneven": visits * gpu.sms * together / total,
        "log2_visits": np.log2(longest),
        "log2_head_dim": np.log2(width),
        "fill_m": q / (tiles * bm),
        "masked": masked,
        "variant": np.where(configs.of(PLAIN), 0, configs.code).astype(np.float64),
    }
    columns = shared.features(seconds, latency, configs, facts, found, extra)
    return Terms(latency, seconds, programs / (gpu.sms * found.resident), found.blocks_per_sm, found.limiter, columns, facts.exact)


def _scores(configs: Configs) -> Any:
    """Scores of a visit that each thread holds: warps beyond rows / 16 repeat each other's."""
    bm, bn, warps = (configs[name].astype(np.float64) for name in ("block_m", "block_n", "num_warps"))
    return bm * bn / (32.0 * np.minimum(warps, np.maximum(bm / 16.0, 1.0)))


from perfmodel.kernels import attention_prefill as _this  # noqa: E402, PLW0406  the module itself, so that its type is checked

register(_this)
