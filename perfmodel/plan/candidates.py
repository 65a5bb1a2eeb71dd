"""Which engines a search looks at: every GPU, quantisation and parallelism that real engines would start and whose weights fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfmodel.errors import InputError
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.node import node
from perfmodel.hw.spec import GpuSpec
from perfmodel.plan.memory import FRACTION, MemoryLedger, memory_ledger
from perfmodel.plan.model import ModelSpec, load_model
from perfmodel.plan.parallel import Parallel, refusals
from perfmodel.units import GIB

LARGEST_ENGINE = 64  # GPUs
NO_ROOM = ("weights of", "the KV cache of")
"""How the reasons begin that more GPUs of memory would remove."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One engine on one kind of GPU, with what memory is left for its KV cache. `held`: whole requests that it holds at once."""

    model: ModelSpec
    gpu: GpuSpec
    parallel: Parallel
    quantization: str | None  # None: as the model is published
    ledger: MemoryLedger
    held: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """An engine that was looked at and left out."""

    gpu: str
    parallel: Parallel
    quantization: str | None
    reason: str


def candidates(
    model: str,
    gpus: Sequence[str | GpuSpec],
    *,
    quantizations: Sequence[str | None],
    stack: str,
    kv_cache_dtype: str | None,
    context_tokens: int,
    largest_engine: int,
    memory_fraction: float | None,
    assume_dense: bool = False,
) -> tuple[list[Candidate], list[Rejected]]:
    """(engines worth pricing, engines left out with the reason). A request of `context_tokens` must fit into an engine's KV cache."""
    found: list[Candidate] = []
    out: list[Rejected] = []
    for quantization in quantizations:
        spec = load_model(model, quantization, assume_dense)
        for name in gpus:
            gpu = find_gpu(name)
            host = node("auto", gpu)
            for parallel in shapes(spec, min(largest_engine, LARGEST_ENGINE), host.gpus):
                reason = _refused(spec, gpu, parallel, stack, host.gpus, host.nic_bytes_per_s > 0)
                if not reason:
                    ledger = memory_ledger(
                        spec,
                        gpu,
                        tensor_parallel_size=parallel.tp,
                        pipeline_parallel_size=parallel.pp,
                        expert_parallel_size=parallel.ep,
                        data_parallel_size=parallel.dp,
                        kv_cache_dtype=kv_cache_dtype,
                        stack=stack,
                        memory_fraction=memory_fraction,
                    )
                    reason = _does_not_fit(ledger, context_tokens)
                if reason:
                    out.append(Rejected(gpu.name, parallel, quantization, reason))
                else:
                    held = ledger.max_concurrency(context_tokens)
                    found.append(Candidate(spec, gpu, parallel, quantization, ledger, held, -(-parallel.gpus // host.gpus)))
    return found, out


def shapes(model: ModelSpec, largest: int, per_node: int) -> Iterator[Parallel]:
    """Sizes to look at, smallest first: powers of two for TP (in a node), PP and, for models with experts, DP; EP over all or none."""
    moe = any(layer.mlp == "moe" for layer in model.layers)
    powers = [2**i for i in range(largest.bit_length()) if 2**i <= largest]
    grid = [
        Parallel(tp, pp, ep, dp)
        for tp in powers
        if tp <= per_node
        for pp in powers
        if pp <= 4 or tp == per_node
        for dp in (powers if moe else [1])
        for ep in ({1, tp} if moe and dp == 1 else {tp * dp})
        if tp * pp * dp <= largest
    ]
    if not moe:
        grid = [Parallel(p.tp, p.pp) for p in grid]
    yield from sorted(dict.fromkeys(grid), key=lambda p: (p.gpus, p.pp, p.dp, p.ep))


def _refused(model: ModelSpec, gpu: GpuSpec, parallel: Parallel, stack: str, per_node: int, network: bool) -> str:
    if parallel.gpus > per_node and not network:
        return f"{parallel.gpus} GPUs of {gpu.name} do not fit in one host of {per_node}, and its topology states no network"
    lines = refusals(model, parallel, stack)
    return lines[0] if lines else ""


def _does_not_fit(ledger: MemoryLedger, context_tokens: int) -> str:
    gib = ledger.weights_bytes / GIB
    if not ledger.fits:
        return (
            f"weights of {gib:.1f} GiB a GPU leave no memory for KV cache on {ledger.gpu.name} "
            f"({ledger.total_bytes / GIB:.1f} GiB, {FRACTION[ledger.stack]} {ledger.fraction:g})"
        )
    if ledger.max_concurrency(context_tokens) < 1:
        return f"the KV cache of {ledger.kv_tokens} tokens does not hold one request of {context_tokens}"
    return ""


def context(model: ModelSpec, isl: int, osl: int) -> int:
    """Tokens of a whole request; raises InputError where the model was not made for as many."""
    total = isl + osl
    if total > model.max_context:
        raise InputError(f"isl + osl = {total} is more than {model.name}'s context of {model.max_context} tokens")
    return total
