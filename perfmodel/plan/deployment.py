"""Deployment: one engine of a model on some GPUs, with what each GPU then holds."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError, unknown_name
from perfmodel.hw.spec import GpuSpec
from perfmodel.ops.check import size
from perfmodel.plan.model import ModelSpec
from perfmodel.plan.parallel import Parallel, refusals

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
        for reason in refusals(self.model, self.parallel, self.stack):
            raise InputError(f"{self.model.name} on {self.parallel}: {reason}")
        if self.dp > 1 and not any(layer.mlp == "moe" for layer in self.model.layers):
            raise InputError(f"{self.model.name} has no experts: data-parallel copies of it are separate engines, each with dp 1")

    @property
    def parallel(self) -> Parallel:
        """How the model is shared out."""
        return Parallel(self.tp, self.pp, self.ep, self.dp)

    @property
    def gpus(self) -> int:
        """GPUs of the engine."""
        return self.tp * self.pp * self.dp

    @property
    def moe_tp(self) -> int:
        """Slices of each expert."""
        return self.tp * self.dp // self.ep

    @property
    def fuses_quantisation(self) -> bool:
        """Whether activations are quantised by the kernel before a GEMM.

        All stacks do; TensorRT-LLM's PyTorch release candidates before 1.0 did not (39 served fp8 runs of 1.0.0rc3: TPOT is 20 % off with
        fusion and 12 % without; the tables of 1.0 fit with it).
        """
        return not (self.stack == "trtllm" and str(self.version).startswith("1.0.0rc"))
