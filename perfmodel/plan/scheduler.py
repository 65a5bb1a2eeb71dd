"""How each serving stack forms a step: token budget, mixing of prefill and decode, admission to the KV cache."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from perfmodel.errors import InputError
from perfmodel.hw.spec import GpuSpec
from perfmodel.ops.check import size
from perfmodel.plan.memory import MOST_AT_ONCE, default_limits


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Rules of one engine.

    token_budget: tokens of one step; max_sequences: running at once; chunked: a prompt may be cut to fit the budget; mixed: prefill and
    decode share a step (else waiting prompts go first and decode stands still); reserve: share of a request's output length that must
    fit into the KV cache before it is admitted (0: the prompt alone, and the youngest is preempted when the cache is full).
    """

    token_budget: int
    max_sequences: int
    chunked: bool
    mixed: bool
    reserve: float

    def limited(self, token_budget: int | None, max_sequences: int | None) -> Scheduler:
        """The same rules with limits of the user's own; raises InputError for impossible ones."""
        found = self
        if token_budget is not None:
            found = dataclasses.replace(found, token_budget=size("max_num_batched_tokens", token_budget, high=MOST_AT_ONCE))
        if max_sequences is not None:
            found = dataclasses.replace(found, max_sequences=size("max_num_seqs", max_sequences, high=MOST_AT_ONCE))
        return found

    def times(self, replicas: int) -> Scheduler:
        """The rules of `replicas` attention replicas taken together."""
        return dataclasses.replace(self, token_budget=self.token_budget * replicas, max_sequences=self.max_sequences * replicas)


def default_scheduler(stack: str, gpu: GpuSpec) -> Scheduler:
    """What the stack does when nobody says.

    vLLM: chunked prefill, decode first, 8192 tokens on GPUs of 70 GiB and more other than A100, else 2048; 1024 or 256 sequences;
    recompute of the youngest (vllm/engine/arg_utils.py, V1). SGLang: prompts first, cut at 8192 tokens, half of the output reserved
    (server_args.py chunked_prefill_size, schedule_policy.py new_token_ratio). TensorRT-LLM: in-flight batching of whole prompts, 8192
    tokens, 2048 sequences, the whole output reserved (GUARANTEED_NO_EVICT).
    """
    if stack == "vllm":
        tokens, sequences = default_limits(gpu)
        return Scheduler(tokens, sequences, True, True, 0.0)
    if stack == "sglang":
        return Scheduler(8192, 2048, True, False, 0.5)
    if stack == "trtllm":
        return Scheduler(8192, 2048, False, True, 1.0)
    raise InputError(f"no scheduler of {stack!r}: known: vllm, sglang, trtllm")
