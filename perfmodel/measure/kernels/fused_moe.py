"""A fused mixture-of-experts layer: rows sorted by expert, up and gate projection, silu times gate, down projection, sum over choices.

Config keys: variant (pointer), block_m, block_n, block_k, group_m, num_warps, num_stages: one config for both projections, as vLLM and
SGLang use theirs. A latency covers the two grouped GEMMs, the gate and the sum; rows are sorted beforehand, as routing is another kernel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfmodel.errors import InputError
from perfmodel.measure.kernels import CompileSpec, Config, KernelFamily, Prepared, Problem

VARIANTS = ("pointer",)
CONFIG_KEYS = ("variant", "block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages")
DTYPES = ("bf16", "fp16")
UNIT = 16  # hidden and inter are multiples of this
_BLOCK = 1024  # columns a program of the two elementwise kernels


def source_hash() -> str:
    """Sixteen hex digits that change when the device code does."""
    return hashlib.sha256(Path(__file__).with_name("fused_moe_device.py").read_bytes()).hexdigest()[:16]


def illegal(problem: Problem, config: Config, arch: int) -> str | None:
    """Why this config cannot run this problem, or None. Shared memory is not judged here."""
    if config["variant"] not in VARIANTS:
        return f"unknown variant {config['variant']!r}"
    sides = [int(config[key]) for key in ("block_m", "block_n", "block_k", "num_warps")]
    if any(x & (x - 1) for x in sides) or min(sides[:3]) < 16:
        return "tile sides must be powers of two from 16, warps a power of two"
    if int(problem["hidden"]) % UNIT or int(problem["inter"]) % UNIT:
        return f"hidden and inter must be multiples of {UNIT}"
    return None


def _even(problem: Problem, block_k: int) -> bool:
    return int(problem["hidden"]) % block_k == 0 and int(problem["inter"]) % block_k == 0


def binary_of(problem: Problem, config: Config) -> dict[str, Any]:
    """What decides the machine code of both grouped GEMMs."""
    code = {k: config[k] for k in CONFIG_KEYS if k != "group_m"}
    return {**code, "even_k": _even(problem, int(config["block_k"]))}


def _constants(binary: Mapping[str, Any]) -> dict[str, Any]:
    sides = {f"BLOCK_{s}": binary[f"block_{s.lower()}"] for s in "MNK"}
    return {**sides, "EVEN_K": binary["even_k"]}


def _options(binary: Mapping[str, Any]) -> dict[str, Any]:
    return {"num_warps": int(binary["num_warps"]), "num_stages": int(binary["num_stages"])}


def compile_spec(binary: Mapping[str, Any], dtype: str, arch: int) -> CompileSpec:
    """How to compile one grouped GEMM ahead of time; matches what a launch asks for."""
    from perfmodel.measure.kernels.fused_moe_device import grouped

    const = _constants(binary)
    types = {n: f"*{dtype}" for n in ("a_ptr", "b_ptr", "c_ptr")}
    types |= {n: "*i32" for n in ("row_ptr", "expert_ptr", "slots_ptr")} | {"weight_ptr": "*fp32"}
    names = list(grouped.arg_names)
    signature = {name: "constexpr" if name in const else types.get(name, "i32") for name in names}
    attrs: dict[tuple[int, ...], Any] = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n].startswith("*")}
    return CompileSpec(grouped, signature, const, attrs, _options(binary))


def _torch_dtype(dtype: str) -> Any:
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]


def make_inputs(problem: Problem, device: str, seed: int) -> dict[str, Any]:
    """x (tokens, hidden), up (experts, 2 inter, hidden), down (experts, hidden, inter), each token's experts and weights, and what
    `prepare` has sorted so far, by block_m.

    A token's experts are top_k different ones, all sets equally likely with `random`, else dealt out in turn; its weights are the softmax
    of normal scores.
    """
    import torch

    tokens, hidden, inter, experts, choices = (int(problem[k]) for k in ("tokens", "hidden", "inter", "num_experts", "top_k"))
    source = torch.Generator(device=device).manual_seed(seed)
    kind = _torch_dtype(problem["dtype"])
    wide = torch.float32 if device == "cpu" else kind

    def tensor(*shape: int, scale: float = 1.0) -> Any:
        return torch.randn(shape, generator=source, device=device, dtype=wide).mul_(scale).to(kind)

    scores = torch.rand((tokens, experts), generator=source, device=device)
    chosen = scores.topk(choices, dim=1).indices
    if not problem.get("random", 1):
        chosen = torch.arange(tokens * choices, device=device).remainder(experts).reshape(tokens, choices)
    weights = torch.softmax(torch.randn((tokens, choices), generator=source, device=device), -1)
    return {
        "x": tensor(tokens, hidden),
        "up": tensor(experts, 2 * inter, hidden, scale=hidden**-0.5),
        "down": tensor(experts, hidden, inter, scale=inter**-0.5),
        "chosen": chosen,
        "weights": weights,
        "routed": {},
    }


def reference(inputs: Mapping[str, Any]) -> Any:
    """The layer in fp32 from the same rounded operands, expert by expert; the value between the projections is rounded like theirs."""
    import torch

    x, up, down, chosen, weights = (inputs[k] for k in ("x", "up", "down", "chosen", "weights"))
    keep = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    out = torch.zeros(x.shape, device=x.device, dtype=torch.float32)
    try:
        for e in range(up.shape[0]):
            token, choice = torch.nonzero(chosen == e, as_tuple=True)
            if not len(token):
                continue
            both = (x[token].float() @ up[e].float().T).to(x.dtype).float()
            gate, value = both.chunk(2, dim=1)
            middle = (torch.nn.functional.silu(gate) * value).to(x.dtype).float()
            out.index_add_(0, token, middle @ down[e].float().T * weights[token, choice][:, None])
    finally:
        torch.backends.cuda.matmul.allow_tf32 = keep
    return out


def sort_rows(chosen: Any, experts: int, block_m: int) -> tuple[Any, Any, Any, int]:
    """(row of each slot, expert of each tile, used slots as a tensor, slots to launch for): experts padded to multiples of block_m.

    Rows are token * top_k + choice; a padding slot holds the number of rows. The launch covers the worst case, as a host that does not
    wait for the device must: rows + experts (block_m - 1), or rows * block_m if fewer.
    """
    import torch

    flat = chosen.reshape(-1)
    pairs = flat.numel()
    counts = torch.bincount(flat, minlength=experts)
    padded = (counts + block_m - 1) // block_m * block_m
    ends = padded.cumsum(0)
    worst = -(-min(pairs + experts * (block_m - 1), pairs * block_m) // block_m) * block_m
    order = torch.argsort(flat, stable=True)
    sorted_expert = flat[order]
    within = torch.arange(pairs, device=flat.device) - (counts.cumsum(0) - counts)[sorted_expert]
    slot = (ends - padded)[sorted_expert] + within
    rows = torch.full((worst,), pairs, device=flat.device, dtype=torch.int32)
    rows[slot] = order.to(torch.int32)
    starts = torch.arange(0, worst, block_m, device=flat.device)
    tile_expert = torch.searchsorted(ends, starts, right=True).clamp(max=experts - 1).to(torch.int32)
    return rows, tile_expert, ends[-1:].to(torch.int32), worst


def prepare(inputs: Mapping[str, Any], config: Config) -> Prepared:
    """Sort rows and make the buffers; the returned `run` launches the four kernels."""
    import torch

    from perfmodel.measure.kernels.fused_moe_device import add_choices, gate, grouped

    x, up, down, chosen, weights = (inputs[k] for k in ("x", "up", "down", "chosen", "weights"))
    tokens, hidden = x.shape
    experts, inter, choices = up.shape[0], down.shape[2], chosen.shape[1]
    problem = {"tokens": tokens, "hidden": hidden, "inter": inter, "num_experts": experts, "top_k": choices}
    reason = illegal(problem, config, 90)
    if reason:
        raise InputError(f"config cannot run this layer: {reason}")
    bm, bn, group = (int(config[k]) for k in ("block_m", "block_n", "group_m"))
    routed = inputs["routed"]
    if bm not in routed:  # the same for every config of this block_m
        routed[bm] = sort_rows(chosen, experts, bm)
    rows, tile_expert, used, slots = routed[bm]
    pairs = tokens * choices
    both = torch.empty((pairs, 2 * inter), device=x.device, dtype=x.dtype)
    middle = torch.empty((pairs, inter), device=x.device, dtype=x.dtype)
    parts = torch.empty((pairs, hidden), device=x.device, dtype=x.dtype)
    out = torch.empty_like(x)
    flat = weights.reshape(-1).contiguous()
    binary, options = binary_of(problem, config), _options(config)
    ones = torch.ones_like(flat)
    tables = (rows, tile_expert, used)
    counts = (pairs, slots)
    first, second = ((x, up, both, *tables, ones, *counts, 2 * inter // UNIT, hidden // UNIT, choices, group),
                     (middle, down, parts, *tables, flat, *counts, hidden // UNIT, inter // UNIT, 1, group))  # fmt: skip
    tiles = slots // bm
    launch_up, launch_down = grouped[(tiles * -(-2 * inter // bn),)], grouped[(tiles * -(-hidden // bn),)]
    launch_gate, launch_sum = gate[(pairs, -(-inter // _BLOCK))], add_choices[(tokens, -(-hidden // _BLOCK))]
    const = _constants(binary)

    def run() -> object:
        launched = launch_up(*first, **const, **options)
        launch_gate(both, middle, inter, BLOCK=_BLOCK)
        launch_down(*second, **const, **options)
        launch_sum(parts, out, hidden, choices, BLOCK=_BLOCK)
        return launched

    return Prepared(run, out)


FAMILY = KernelFamily(
    name="fused_moe",
    config_keys=CONFIG_KEYS,
    problem_keys=("tokens", "hidden", "inter", "num_experts", "top_k", "random"),
    dtypes=DTYPES,
    tolerance={"bf16": 2e-2, "fp16": 1e-2},
    source_hash=source_hash,
    illegal=illegal,
    binary_of=binary_of,
    compile_spec=compile_spec,
    make_inputs=make_inputs,
    reference=reference,
    prepare=prepare,
    baselines={},
)
