"""The Triton decode family: attention of one query a sequence, the keys of a head shared out over `num_splits` programs, then combined.

Variants: `pointer` is the project's own kernel (measure/kernels/attention_decode.py), `plain` anybody else's of that form: a program takes
all query heads of one key head, padded to 16 rows or more. A latency includes the combining kernel and its launch; somebody else's is taken
to go through the splits in a loop, the project's reads them all at once.
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

NAME = "attention_decode"
PLAIN = "plain"
VARIANTS = ("pointer", PLAIN)
SIZES = ("batch", "kv_len", "q_heads", "kv_heads", "head_dim")
FLAGS: tuple[str, ...] = ()
ALIASES = {"kv_len": ("seq", "seqlen", "context"), "q_heads": ("heads",)}
DEFAULTS: Mapping[str, int] = {}
ARGUMENTS = shared.ARGUMENTS
REQUIRED = ("block_n",)
COLUMNS = ("block_n", "num_splits", "num_warps", "num_stages")
TWINS = ("block_n", "num_splits")
BINARY = ("block_n", "rows", "head_dim", "num_warps", "num_stages")
FIXED: Mapping[str, Any] = {"group": 8}  # the heads that share keys change a mask, not the loop
_KEYS = (16, 32, 64, 128, 256)
_WARPS = (2, 4, 8)
_STAGES = (1, 2, 3, 4)
_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
_HEADS = (64, 128)

rate_of = shared.rate_of


def computes(op: Any) -> bool:
    """Whether the operator is a decode."""
    return bool(op.kind == "attention" and op.phase == "decode")


def operator(dtype: str, **sizes: Any) -> Attention:
    """The Attention of these sizes."""
    return Attention("decode", q_len=1, **sizes, dtype=dtype)


def sizes_of(op: Any) -> dict[str, int]:
    """SIZES of an Attention; raises InputError for windows, mixed types and head widths that the kernel does not have."""
    return shared.common_sizes(op, NAME)


def work(dtype: str, **sizes: Any) -> Work:
    """Flops and compulsory bytes of a problem, broadcast over arrays."""
    return shared.work(dtype, q_len=1.0, causal=1, **sizes)


def space(gpu: GpuSpec, dtype: str, **sizes: Any) -> Configs:
    """Every config worth asking about for this problem on this GPU, before the rules: each split keeps a block of keys."""
    rows = np.array(
        [r for r in itertools.product(_KEYS, _SPLITS, _WARPS, _STAGES) if r[1] == 1 or r[1] * r[0] <= sizes["kv_len"]], dtype=np.int64
    )
    return Configs({name: rows[:, i] for i, name in enumerate(COLUMNS)}, np.zeros(len(rows), dtype=np.int8), VARIANTS)


portable_space = space


def binaries(arch: int, dtype: str) -> list[dict[str, Any]]:
    """What measure.compile has to compile, so that every config has its facts: heads 64 and 128 wide, up to 16 on one key head."""
    return [
        {"variant": "pointer", "block_n": bn, "num_warps": w, "num_stages": s, "rows": shared.LEAST_ROWS, "head_dim": width, **FIXED}
        for width, bn, w, s in itertools.product(_HEADS, _KEYS, _WARPS, _STAGES)
    ]


def _rows(sizes: Mapping[str, Any]) -> Any:
    """Rows of the multiply: the query heads of a key head, padded to a power of two of at least 16."""
    group = np.asarray(sizes["q_heads"], dtype=np.float64) / np.asarray(sizes["kv_heads"], dtype=np.float64)
    return np.maximum(shared.LEAST_ROWS, 2.0 ** np.ceil(np.log2(group) - 1e-9)).astype(np.int64)


def code_of(configs: Configs, sizes: Mapping[str, Any] | None) -> dict[str, Any]:
    """The BINARY columns."""
    assert sizes is not None
    return {**{name: configs[name] for name in COLUMNS}, "rows": _rows(sizes), "head_dim": sizes["head_dim"]}


def formula(gpu: GpuSpec, dtype: str, configs: Configs, sizes: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Facts without compiling; see kernels/attention.formula."""
    assert sizes is not None
    bn, _, warps, stages = (configs[x].astype(np.float64) for x in COLUMNS)
    return shared.formula(gpu, dtype, _rows(sizes).astype(np.float64), bn, np.asarray(sizes["head_dim"], dtype=np.float64), warps, stages)


def rules(gpu: GpuSpec, dtype: str, configs: Configs, facts: Facts, **sizes: Any) -> list[Rule]:
    """Configs to prune, with reasons: limits of the hardware and the kernel's semantics (hard), and dominated choices."""
    bn, splits = configs["block_n"], configs["num_splits"]
    programs = sizes["batch"] * sizes["kv_heads"]
    full = (programs >= gpu.sms) & (programs * splits > 32 * gpu.sms)
    return [
        *shared.hard_rules(gpu, configs, facts, np.full(len(configs), shared.LEAST_ROWS), bn),
        Rule((splits > -(-sizes["kv_len"] // bn)) & ~configs.of(PLAIN), "more splits than blocks of keys"),
        Rule(facts.spill_bytes > 512, "spills more than 512 bytes a thread", hard=False),
        Rule((splits > 1) & full, "splits further though every SM has work", hard=False),
    ]


def terms(gpu: GpuSpec, dtype: str, configs: Configs, facts: Facts, constants: Mapping[str, float], **sizes: Any) -> Terms:
    """Physical terms of each config for SIZES (scalars or arrays beside the configs).

        latency = launch + soft-max2( visits of the busiest slot x cycles a visit / clock + edges, bytes / DRAM rate + ramp ) + combine

    Each key and value comes from DRAM once: bytes in flight decide. Constants: calibration/physics/attention_decode.toml. Evidence:
    `perfmodel evaluate ranking --kernel attention_decode` (README).
    """
    c = constants
    batch, kv, heads, kv_heads, width = (np.asarray(sizes[n], dtype=np.float64) for n in SIZES)
    bn = configs["block_n"].astype(np.float64)
    splits = np.minimum(configs["num_splits"], np.ceil(kv / bn))  # other people's launchers clip them
    clock = gpu.max_clock_hz * c["clock_share"]
    share_keys = np.ceil(np.ceil(kv / splits) / bn) * bn
    used = np.ceil(kv / share_keys)
    programs, longest, total = batch * kv_heads * used, share_keys / bn, batch * kv_heads * np.ceil(kv / bn)
    rows, active = _rows(sizes).astype(np.float64), np.minimum(programs, gpu.sms)
    found = shared.visit(gpu, dtype, configs, facts, c, rows=rows, width=width, miss=1.0, active_sms=active)
    together = np.clip(np.ceil(programs / gpu.sms), 1.0, found.resident)
    visits = law.makespan(total, longest, gpu.sms * together, True, 0.0, c["tail_weight"])
    rounds = np.maximum(np.ceil(programs / (gpu.sms * together)), 1.0)
    starts = c["block_start_cycles"] * np.maximum(programs / gpu.sms, 1.0)  # an SM starts its blocks one after another
    edges = found.load_cycles * (1.0 + c["round_overlap"] * (rounds - 1.0)) + starts
    busy = visits * found.each(together)
    moved = work(dtype, **sizes).bytes + batch * heads * splits * (width + 2.0) * 4.0  # partial sums after the compulsory bytes
    dram_s = tile.dram_seconds(np.asarray(moved), gpu.dram_bytes_per_s * c["dram_efficiency"], c["dram_ramp_s"])
    combine = _combine_s(gpu, configs, batch * heads, splits, width, c)
    latency = c["launch_s"] + tile.smooth_max2((busy + edges) / clock, dram_s) + combine
    seconds = shared.seconds(found, busy, edges, together, clock, dram_s, latency, c["launch_s"], combine=combine)
    extra = {
        "waves": np.minimum(programs / (gpu.sms * together), 8.0),
        "uneven": visits * gpu.sms * together / total,
        "log2_visits": np.log2(longest),
        "log2_head_dim": np.log2(width),
        "log2_splits": np.log2(splits),
        "empty_splits": used / splits,
        "log2_programs_per_sm": np.log2(programs / gpu.sms),
    }
    columns = shared.features(seconds, latency, configs, facts, found, extra)
    return Terms(latency, seconds, programs / (gpu.sms * found.resident), found.blocks_per_sm, found.limiter, columns, facts.exact)


def _combine_s(gpu: GpuSpec, configs: Configs, rows: Any, splits: Any, width: Any, c: Mapping[str, float]) -> Any:
    """Seconds of adding up the splits of each output row; somebody else's kernel goes through them in a loop."""
    at_once = (width + 2.0) * 4.0 / c["combine_bytes_per_cycle"]
    pass_cycles = np.where(configs.of(PLAIN), np.maximum(at_once, c["combine_loop_cycles"]), at_once)
    far, clock = gpu.dram_latency_s * c["dram_latency_factor"], gpu.max_clock_hz * c["clock_share"]
    return law.combine_seconds(rows, splits, pass_cycles, gpu.sms, far, clock, c["combine_launch_s"], c["combine_programs_per_sm"])


from perfmodel.kernels import attention_decode as _this  # noqa: E402, PLW0406  the module itself, so that its type is checked

register(_this)
