"""Deployment: one engine of a model on some GPUs, with what each GPU then holds."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError, unknown_name
from perfmodel.hw.spec import GpuSpec
from perfmodel.ops.check import size
from perfmodel.plan.model import LayerSpec, ModelSpec

STACKS = ("vllm", "sglang", "trtllm")
_STACK_ALIASES = {"tensorrt-llm": "trtllm", "tensorrt_llm": "trtllm", "trt-llm": "trtllm", "trt_llm": "trtllm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One engine: a model on tp x pp x dp GPUs of one kind.

    tp shards attention heads and dense MLPs; dp repeats attention, with routed experts spread over all tp x dp GPUs, ep of them by
    whole experts and the rest by slices of each; pp shares out the layers. `dtype` is what activations and attention compute in.
    Raises InputError where an engine of this kind could not be started.
    """

    model: ModelSpec
    gpu: GpuSpec
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    nodes: int = 1
    stack: str = "vllm"
    version: str = ""
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    topology: str = "auto"

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "ep", "dp", "nodes"):
            object.__setattr__(self, name, size(name, getattr(self, name), high=4096))
        key = str(self.stack).strip().lower()
        object.__setattr__(self, "stack", _STACK_ALIASES.get(key, key))
        if self.stack not in STACKS:
            raise unknown_name("serving stack", self.stack, STACKS)
        for name in ("dtype", "kv_dtype"):
            object.__setattr__(self, name, parse_dtype(getattr(self, name)).name)
        if self.pp > self.model.num_layers:
            raise InputError(f"pipeline parallel {self.pp} is more than the {self.model.num_layers} layers of {self.model.name}")
        moe = any(layer.mlp == "moe" for layer in self.model.layers)
        if self.ep > 1 and not moe:
            raise InputError(f"{self.model.name} has no experts: expert parallel must be 1, got {self.ep}")
        if self.dp > 1 and not moe:
            raise InputError(f"{self.model.name} has no experts: data-parallel copies of it are separate engines, each with dp 1")
        if (self.tp * self.dp) % self.ep:
            raise InputError(f"expert parallel {self.ep} must divide tensor parallel x data parallel = {self.tp * self.dp}")
        for layer in self.model.layers:
            check_layer(self, layer)

    @property
    def gpus(self) -> int:
        """GPUs of the engine."""
        return self.tp * self.pp * self.dp

    @property
    def moe_tp(self) -> int:
        """Slices of each expert."""
        return self.tp * self.dp // self.ep

    def replace(self, **changes: object) -> Deployment:
        """The same deployment with some fields changed, checked again."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def check_layer(d: Deployment, layer: LayerSpec) -> None:
    """The divisibility rules that real engines enforce; raises InputError with the value and what is allowed."""
    name, tp = d.model.name, d.tp
    heads = layer.linear_value_heads if layer.attention == "linear" else layer.q_heads
    if heads % tp:
        raise InputError(f"tensor parallel {tp} does not divide the {heads} attention heads of {name}: use a divisor of {heads}")
    if layer.attention == "gqa" and max(layer.kv_heads, tp) % min(layer.kv_heads, tp):
        raise InputError(f"tensor parallel {tp} and the {layer.kv_heads} KV heads of {name}: one must divide the other")
    if layer.mlp == "dense" and layer.inter % tp:
        raise InputError(f"tensor parallel {tp} does not divide the MLP width {layer.inter} of {name}")
    if layer.mlp == "moe":
        if layer.num_experts % d.ep:
            raise InputError(f"expert parallel {d.ep} does not divide the {layer.num_experts} experts of {name}")
        if layer.moe_inter % d.moe_tp:
            raise InputError(
                f"{d.moe_tp} GPUs to an expert do not divide the expert width {layer.moe_inter} of {name}: raise expert parallel"
            )
