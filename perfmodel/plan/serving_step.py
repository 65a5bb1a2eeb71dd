"""ServingStep: a step's time with the host in it, as the simulation asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.plan.overhead import Overhead
from perfmodel.plan.step_table import StepTable


@dataclass(frozen=True, slots=True)
class ServingStep:
    """GPU time of a step from its table, plus the host's.

    Steps of decode alone replay a CUDA graph; a step with prefill in it launches layer by layer, which is free as long as the GPU is
    slower. Pipeline stages work on microbatches: a step of n sequences takes what n / stages of them take to pass all layers.
    Data-parallel ranks share the tokens evenly.
    """

    table: StepTable
    host: Overhead

    def __call__(self, chunks: Sequence[tuple[int, int]], sequences: int, kv_len: float) -> float:
        """Seconds of a step of prompts' chunks (tokens, earlier tokens) and `sequences` decoding ones of kv_len tokens."""
        d = self.table.deployment
        split = d.dp * min(d.pp, max((sequences + len(chunks)) // d.dp, 1))
        new = sum(chunk[0] for chunk in chunks)
        if chunks and new == len(chunks):  # prompts that were computed elsewhere and lack their last token alone decode
            kv_len = (kv_len * sequences + sum(past + 1 for _, past in chunks)) / (sequences + new)
            return self([], sequences + new, kv_len)
        gpu = self.table.tokens_s((new + sequences) / split) + self.table.output_s((sequences + len(chunks)) / split)
        if sequences:
            gpu += self.table.decode_s(-(-sequences // split), kv_len)
        host = self.host.step_s + self.host.sequence_s * sequences
        if not chunks:
            return gpu + host
        pairs = sum(q * (past + q / 2) for q, past in chunks)
        each = new / len(chunks)
        gpu += self.table.prefill_s(
            -(-len(chunks) // split), each * len(chunks) / split / -(-len(chunks) // split), max(pairs / new - each / 2, 0.0)
        )
        return max(gpu, self.host.eager_layer_s * d.model.num_layers) + host
