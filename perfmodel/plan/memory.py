"""The memory ledger of one GPU: weights, KV cache, activations, graphs, communication; every line adds up to the card's total."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from perfmodel.analytic.constants import physics
from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError, shown
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.spec import GpuSpec
from perfmodel.ops.check import is_flag, size
from perfmodel.plan.model import ModelSpec, load_model
from perfmodel.plan.parallel import Parallel, refusals, stage_layers
from perfmodel.plan.weights import weight_bytes
from perfmodel.units import GIB, MIB

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
STACKS = ("vllm", "sglang", "trtllm")
FRACTION = {"vllm": "gpu_memory_utilization", "sglang": "mem_fraction_static", "trtllm": "free_gpu_memory_fraction"}
MOST_AT_ONCE = 2**20  # tokens or sequences of one step
BLOCK_TOKENS = {"vllm": 16, "sglang": 1, "trtllm": 32}  # tokens a KV block holds by default


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """Where the memory of one GPU goes. `entries` (bytes) sum to `total_bytes`, what nvidia-smi shows as the card's total.

    kv_bytes is the pool for KV cache (negative: the model does not fit, `fits` is False); kv_tokens are tokens of one engine's pool at full
    attention, as vLLM prints "GPU KV cache size"; low and high bound it by what public logs show for everything but weights.
    """

    entries: Mapping[str, float]
    total_bytes: float
    weights_bytes: float
    kv_bytes: float
    kv_low_bytes: float
    kv_high_bytes: float
    kv_bytes_per_token: float
    model: ModelSpec
    parallel: Parallel
    gpu: GpuSpec
    stack: str
    fraction: float
    kv_dtype: str
    chunk_tokens: int

    @property
    def fits(self) -> bool:
        """Whether at least one block of KV cache is left."""
        return self.kv_bytes > self.kv_bytes_per_token * BLOCK_TOKENS[self.stack]

    @property
    def kv_tokens(self) -> int:
        """Tokens that the pool of one attention replica holds, in whole blocks."""
        return self._tokens(self.kv_bytes)

    @property
    def kv_tokens_low(self) -> int:
        """Lower bound of kv_tokens."""
        return self._tokens(self.kv_low_bytes)

    @property
    def kv_tokens_high(self) -> int:
        """Upper bound of kv_tokens."""
        return self._tokens(self.kv_high_bytes)

    def _tokens(self, pool_bytes: float) -> int:
        block = BLOCK_TOKENS[self.stack]
        return max(0, int(pool_bytes / (self.kv_bytes_per_token * block))) * block if self.kv_bytes_per_token else 0

    def max_concurrency(self, context_tokens: int) -> int:
        """Requests of that many tokens each that the engine's pools hold at once, all attention replicas together."""
        context = size("context", context_tokens)
        need = float(kv_bytes_per_request(self.model, context, self.parallel, self.kv_dtype, self.chunk_tokens))
        return max(0, int(self.kv_bytes / need)) * self.parallel.dp

    @property
    def frame(self) -> pd.DataFrame:
        """One row an entry: entry, gib, share_percent."""
        import pandas as pd

        rows = [(name, value / GIB, 100.0 * value / self.total_bytes) for name, value in self.entries.items()]
        return pd.DataFrame(rows, columns=["entry", "gib", "share_percent"])


def memory_ledger(
    model: str | ModelSpec,
    gpu: str | GpuSpec,
    *,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    expert_parallel_size: int = 1,
    data_parallel_size: int = 1,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    stack: str = "vllm",
    memory_fraction: float | None = None,
    max_num_batched_tokens: int | None = None,
    max_num_seqs: int | None = None,
    cuda_graphs: bool = True,
) -> MemoryLedger:
    """Memory of the fullest GPU of one engine.

    Parameters
    ----------
    model : str, Path, mapping or ModelSpec
        A bundled name or alias, a Hugging Face config (file, folder, dict, or hub id in the local cache), or a ModelSpec.
    gpu : str or GpuSpec
        See `gpu`.
    tensor_parallel_size, pipeline_parallel_size, expert_parallel_size, data_parallel_size : int
        Sizes of the deployment. Data parallel: attention replicas that share their experts; for a model without experts, separate engines.
    quantization : str, optional
        bf16, fp16, fp8, fp8_block, int8, int8_wo, int4_wo (AWQ, GPTQ), nvfp4, mxfp4 or a usual alias; None: as published.
    kv_cache_dtype : str, optional
        Element type of the KV cache; None: as the model's activations.
    stack : {"vllm", "sglang", "trtllm"}
        The serving engine.
    memory_fraction : float, optional
        What the stack calls it: vLLM's gpu_memory_utilization (of the card's total: weights, activations and KV), SGLang's
        mem_fraction_static (of what is free at start: weights and KV), TensorRT-LLM's free_gpu_memory_fraction (of what is free once the
        engine is loaded: KV).
    max_num_batched_tokens, max_num_seqs : int, optional
        Limits of a step; None: vLLM's defaults for the card.
    cuda_graphs : bool
        Whether decode steps are captured.

    Returns
    -------
    MemoryLedger
        Bytes by what they hold, and the tokens of KV that fit.

    Raises
    ------
    InputError
        For an unknown model, GPU or stack, and for sizes that cannot be.

    Examples
    --------
    >>> import perfmodel as pm
    >>> pm.memory_ledger("llama-3.1-8b", "h100_sxm").weights_bytes > 15e9
    True
    """
    known_stack(stack)
    spec, card = load_model(model, quantization), find_gpu(gpu)
    parallel = Parallel(tensor_parallel_size, pipeline_parallel_size, expert_parallel_size, data_parallel_size)
    for reason in refusals(spec, parallel, stack):
        raise InputError(f"{spec.name} on {parallel}: {reason}")
    kv_dtype = kv_type(kv_cache_dtype, spec)
    chunk, most = default_limits(card)
    tokens = chunk if max_num_batched_tokens is None else size("max_num_batched_tokens", max_num_batched_tokens, high=MOST_AT_ONCE)
    seqs = most if max_num_seqs is None else size("max_num_seqs", max_num_seqs, high=MOST_AT_ONCE)
    fraction = physics("memory")[f"default_fraction_{stack}"].value if memory_fraction is None else _fraction(memory_fraction, stack)
    stages = [
        _stage(spec, card, parallel, stage, kv_dtype, stack, fraction, tokens, seqs, cuda_graphs) for stage in sorted({0, parallel.pp - 1})
    ]
    return min(stages, key=lambda s: s.kv_bytes / s.kv_bytes_per_token if s.kv_bytes_per_token else s.kv_bytes)


def known_stack(stack: object) -> str:
    """The serving stack, checked."""
    if not isinstance(stack, str) or stack not in STACKS:
        raise InputError(f"stack {shown(stack)}: the memory of {', '.join(STACKS)} is known")
    return stack


def kv_type(kv_cache_dtype: str | None, model: ModelSpec) -> str:
    """Type of the KV cache: the model's activations unless said; "auto" is the same as not saying."""
    asked = kv_cache_dtype.strip().lower() if isinstance(kv_cache_dtype, str) else kv_cache_dtype
    if asked is None or (isinstance(asked, str) and asked == "auto"):
        return model.activation_dtype if model.activation_dtype in ("bf16", "fp16") else "bf16"
    try:
        name = {"fp8_e5m2": "fp8"}.get(asked) or parse_dtype(asked).name if isinstance(asked, str) else ""
    except InputError:
        name = ""
    if name not in ("bf16", "fp16", "fp8", "int8"):
        raise InputError(f"kv_cache_dtype {shown(kv_cache_dtype)}: use auto, bf16, fp16, fp8 or int8")
    return name


def kv_bytes_per_request(
    model: ModelSpec, tokens: npt.ArrayLike, parallel: Parallel, kv_dtype: str, chunk_tokens: int = 0, stage: int = 0
) -> Floats:
    """KV bytes on one GPU of a request of `tokens` (broadcast): full layers grow, windows stop at window + chunk, states are fixed."""
    length = np.asarray(tokens, dtype=np.float64)
    total = np.zeros_like(length)
    for kind, count in stage_layers(model, parallel.pp, stage).items():
        layer = model.layers[kind]
        each = layer_kv_bytes(model, kind, parallel.tp, kv_dtype)
        if layer.attention == "linear":
            total = total + count * each
        else:
            kept = np.minimum(length, layer.window + chunk_tokens) if layer.window else length
            total = total + count * each * kept
    return total


def layer_kv_bytes(model: ModelSpec, kind: int, tp: int, kv_dtype: str) -> float:
    """Bytes a token on one GPU of one layer of a kind; for linear attention the bytes of a request's state.

    gqa: keys and values of max(1, kv_heads / tp) heads. mla: the latent and rotary part, whole on every GPU. linear: a 32-bit state of key
    x value dimensions a value head, and the convolution's last inputs at 16 bits.
    """
    layer, each = model.layers[kind], parse_dtype(kv_dtype).a_bytes
    if layer.attention == "mla":
        return (layer.kv_lora_rank + layer.qk_rope_head_dim) * each
    if layer.attention == "linear":
        state = layer.linear_value_heads * layer.linear_key_head_dim * layer.linear_value_head_dim * 4.0
        width = 2 * layer.linear_key_heads * layer.linear_key_head_dim + layer.linear_value_heads * layer.linear_value_head_dim
        return (state + width * (layer.linear_conv - 1) * 2.0) / tp
    return max(1.0, layer.kv_heads / tp) * (layer.head_dim + layer.v_head_dim) * each


def default_limits(gpu: GpuSpec) -> tuple[int, int]:
    """(tokens of a step, sequences) that vLLM's server takes by default on a card."""
    c = physics("memory")
    kind = "large" if gpu.dram_bytes >= c["large_card_gib"].value * GIB and not gpu.name.startswith("a100") else "small"
    return int(c[f"{kind}_chunk_tokens"].value), int(c[f"{kind}_seqs"].value)


def activation_bytes(model: ModelSpec, parallel: Parallel, tokens: int, seqs: int, pick: str = "value") -> float:
    """Peak of the profiling pass over `tokens`: the larger of the widest layer and of the sampler over `seqs` rows of the whole vocabulary.

        max(2 T (a h + b inter / tp),  4 c S V + 2 d T h)

    a, b, c, d: activation_hidden, activation_inter, sampler_copies, residual_hidden. Evidence: nine starts of six models on H100, +-2 %.
    """
    c = _constants(pick)
    width = 0.0
    for layer in model.layers:
        dense = layer.inter if layer.mlp == "dense" else layer.shared_inter
        routed = layer.top_k * layer.moe_inter / (parallel.ep * parallel.moe_tp) if layer.mlp == "moe" else 0.0
        width = max(width, c["activation_inter"] * (dense / parallel.tp + routed) + c["activation_hidden"] * model.hidden)
    sampler = 4.0 * c["sampler_copies"] * min(seqs, tokens) * model.vocab + 2.0 * c["residual_hidden"] * tokens * model.hidden
    return max(2.0 * tokens * width, sampler)


def usable_bytes(gpu: GpuSpec, pick: str = "value") -> float:
    """What CUDA can hand out of the card's total."""
    c = _constants(pick)
    more = c["driver_a100_gib"] if gpu.name.startswith("a100") else 0.0
    return gpu.dram_bytes * (1.0 - c["driver_share"]) - (c["driver_gib"] + more) * GIB


def _constants(pick: str) -> dict[str, float]:
    """The constants' values, or their low or high bounds."""
    return {name: float(getattr(constant, pick)) for name, constant in physics("memory").items()}


def _fraction(value: float, stack: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if is_flag(value) or not 0.0 < number <= 1.0:
        raise InputError(f"memory_fraction ({FRACTION[stack]}) must be over 0 and at most 1, got {shown(value)}")
    return number


def _stage(
    model: ModelSpec,
    gpu: GpuSpec,
    parallel: Parallel,
    stage: int,
    kv_dtype: str,
    stack: str,
    fraction: float,
    tokens: int,
    seqs: int,
    graphs: bool,
) -> MemoryLedger:
    weights = weight_bytes(model, parallel, gpu, stage)
    entries, pools = {}, {}
    for pick in ("value", "low", "high"):
        fixed = _fixed(model, gpu, parallel, stack, tokens, seqs, graphs, pick)
        pools[pick], lines = _pool(sum(weights.values()), fixed, usable_bytes(gpu, pick), gpu.dram_bytes, stack, fraction)
        if pick == "value":
            entries = {f"weights: {name}": value for name, value in weights.items() if value} | lines
    per_token = sum(
        count * layer_kv_bytes(model, kind, parallel.tp, kv_dtype)
        for kind, count in stage_layers(model, parallel.pp, stage).items()
        if model.layers[kind].attention != "linear"
    )
    return MemoryLedger(
        entries=entries,
        total_bytes=float(gpu.dram_bytes),
        weights_bytes=sum(weights.values()),
        kv_bytes=pools["value"],
        kv_low_bytes=pools["high"],
        kv_high_bytes=pools["low"],
        kv_bytes_per_token=per_token,
        model=model,
        parallel=parallel,
        gpu=gpu,
        stack=stack,
        fraction=fraction,
        kv_dtype=kv_dtype,
        chunk_tokens=tokens,
    )


def _fixed(
    model: ModelSpec, gpu: GpuSpec, parallel: Parallel, stack: str, tokens: int, seqs: int, graphs: bool, pick: str
) -> dict[str, float]:
    """Bytes beside weights and KV cache."""
    c = _constants(pick)
    together = parallel.tp * parallel.dp if parallel.ep > 1 else parallel.tp
    kind = "pcie" if gpu.nvlink_bytes_per_s <= 0 else "pair" if together <= 2 else "nvswitch"
    layers = model.num_layers / parallel.pp
    return {
        "driver": gpu.dram_bytes - usable_bytes(gpu, pick),
        "CUDA context": c["sglang_context_gib" if stack == "sglang" else "context_gib"] * GIB,
        "NCCL buffers": c[f"nccl_{kind}_gib"] * GIB if together * parallel.pp > 1 else 0.0,
        "activation peak": activation_bytes(model, parallel, tokens, seqs, pick),
        "CUDA graphs": (c["graph_base_gib"] * GIB + c["graph_layer_mib"] * layers * MIB) if graphs else 0.0,
    }


def _pool(
    weights: float, fixed: Mapping[str, float], usable: float, total: float, stack: str, fraction: float
) -> tuple[float, dict[str, float]]:
    """(bytes for KV cache, all lines beside the weights). What no rule assigns is "left free"; negative where the parts overlap it."""
    small = fixed["CUDA context"] + fixed["NCCL buffers"]
    if stack == "vllm":  # a share of the card holds weights, peak and KV; graphs come on top
        pool = fraction * usable - weights - small - fixed["activation peak"]
    elif stack == "sglang":  # a share of what is free after communication is set up holds weights and KV
        pool = fraction * (usable - small) - weights
    else:  # a share of what is free once weights are loaded and the peak is known
        pool = fraction * (usable - weights - small - fixed["activation peak"] - fixed["CUDA graphs"])
    lines = {**{name: value for name, value in fixed.items() if value}, "KV cache": pool}
    lines["left free"] = total - weights - sum(lines.values())
    return pool, lines
