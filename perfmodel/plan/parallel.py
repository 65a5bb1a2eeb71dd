"""Parallel: how one engine shares a model out over its GPUs, and what real engines refuse."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from perfmodel.errors import InputError
from perfmodel.ops.check import size
from perfmodel.plan.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Parallel:
    """Sizes of one engine: GPUs = tp x pp x dp.

    Parameters
    ----------
    tp, pp : int
        GPUs that split every layer, and that split the depth.
    ep, dp : int
        dp attention replicas with their own KV cache share one set of experts, which all tp x dp GPUs hold: ep of them by whole experts,
        the rest by slices of each.

    Examples
    --------
    >>> import perfmodel as pm
    >>> pm.Parallel(tp=2, dp=4).gpus
    8
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        for name, words in (("tp", "tensor"), ("pp", "pipeline"), ("ep", "expert"), ("dp", "data")):
            object.__setattr__(self, name, size(f"{words}_parallel_size", getattr(self, name), high=4096))
        if self.ep > 1 and (self.tp * self.dp) % self.ep:
            raise InputError(f"expert_parallel_size = {self.ep} must divide tensor x data parallel size, {self.tp} x {self.dp}")

    @property
    def gpus(self) -> int:
        """GPUs of one engine."""
        return self.tp * self.pp * self.dp

    @property
    def moe_tp(self) -> int:
        """GPUs that split one expert."""
        return self.tp * self.dp // self.ep

    def __str__(self) -> str:
        parts = [f"TP{self.tp}"] + [f"{name}{n}" for name, n in (("PP", self.pp), ("EP", self.ep), ("DP", self.dp)) if n > 1]
        return " ".join(parts)


def stage_layers(model: ModelSpec, pp: int, stage: int) -> Counter[int]:
    """How many layers of each kind stand in a pipeline stage: even shares, what is left over goes to the later stages but not the last."""
    total = model.num_layers
    shares = [total // pp] * pp
    for i in range(total % pp):
        shares[-(i + 2) % pp] += 1
    start = sum(shares[:stage])
    return Counter(model.order[start : start + shares[stage]])


def refusals(model: ModelSpec, parallel: Parallel, stack: str = "vllm") -> list[str]:
    """Why an engine would not start this model so, empty if it would. Rules that vLLM, SGLang and TensorRT-LLM check at load."""
    lines: list[str] = []
    tp, pp = parallel.tp, parallel.pp
    if pp > model.num_layers:
        lines.append(f"PP {pp} has more stages than {model.name} has layers, {model.num_layers}")
    for layer in model.layers:
        lines += _layer_refusals(model, layer_heads=(layer.q_heads, layer.kv_heads), parallel=parallel, kind=layer.attention)
        if layer.attention == "linear" and (layer.linear_key_heads % tp or layer.linear_value_heads % tp):
            lines.append(
                f"TP {tp} must divide the {layer.linear_key_heads} key and {layer.linear_value_heads} value heads of linear attention"
            )
        if layer.mlp == "dense" and layer.inter % tp:
            lines.append(f"TP {tp} must divide the MLP width {layer.inter}")
        if layer.mlp == "dense":
            lines += _block_refusal(model, layer.mlp_dtype, layer.inter, tp, "MLP width")
        if layer.mlp == "moe":
            if layer.num_experts % parallel.ep:
                lines.append(f"EP {parallel.ep} must divide the {layer.num_experts} experts")
            if layer.moe_inter % parallel.moe_tp:
                lines.append(f"{parallel.moe_tp} GPUs cannot share an expert of width {layer.moe_inter} evenly")
            lines += _block_refusal(model, layer.mlp_dtype, layer.moe_inter, parallel.moe_tp, "expert width")
    if parallel.ep > 1 and not any(layer.mlp == "moe" for layer in model.layers):
        lines.append(f"EP {parallel.ep}: {model.name} has no experts")
    if stack == "vllm" and parallel.ep not in (1, tp * parallel.dp):
        lines.append(f"vLLM spreads experts over all TP x DP GPUs: EP must be 1 or {tp * parallel.dp}")
    if stack == "trtllm" and parallel.dp > 1 and parallel.ep > 1 and tp > 1:
        lines.append("TensorRT-LLM's attention data parallelism takes the whole TP group: TP 1 with DP, or TP alone")
    return list(dict.fromkeys(lines))


def _layer_refusals(model: ModelSpec, layer_heads: tuple[int, int], parallel: Parallel, kind: str) -> list[str]:
    q_heads, kv_heads = layer_heads
    tp = parallel.tp
    if kind == "linear":
        return []
    if q_heads % tp:
        return [f"TP {tp} must divide the {q_heads} attention heads of {model.name}"]
    if kind == "gqa" and max(kv_heads, tp) % min(kv_heads, tp):
        return [f"TP {tp} must divide or be a multiple of the {kv_heads} key-value heads of {model.name}"]
    return []


def _block_refusal(model: ModelSpec, dtype: str, width: int, shards: int, what: str) -> list[str]:
    """Weights that share scales in blocks cannot be cut inside a block."""
    if dtype not in ("fp8_block", "int4_wo", "mxfp4", "nvfp4") or not model.group_size or width % shards:
        return []
    if dtype == "mxfp4" or (width // shards) % model.group_size == 0:  # mxfp4 experts are padded instead
        return []
    return [f"{what} {width} over {shards} GPUs is {width // shards}, not a multiple of the {dtype} block of {model.group_size}"]
