"""What the laws rest on: one entry a source, and which law uses which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reference:
    """A paper, manual or data set and where it is found."""

    title: str
    where: str


SOURCES: Mapping[str, Reference] = {
    "matmul": Reference("NVIDIA, Matrix Multiplication Background User's Guide", "docs.nvidia.com/deeplearning/performance"),
    "streamk": Reference("Osama et al., Stream-K: work-centric parallel decomposition for GEMM", "arXiv 2301.03598"),
    "fa2": Reference("Dao, FlashAttention-2", "arXiv 2307.08691"),
    "fa3": Reference("Shah et al., FlashAttention-3", "arXiv 2407.08608"),
    "flash_decoding": Reference("Dao et al., Flash-Decoding for long-context inference", "pytorch.org/blog/flash-decoding, 2023"),
    "trtllm": Reference("TensorRT-LLM, fmha_v2 and XQA kernels", "github.com/NVIDIA/TensorRT-LLM"),
    "fused_moe": Reference("vLLM, fused_moe kernels (moe_align_block_size)", "github.com/vllm-project/vllm"),
    "mla": Reference("DeepSeek-V2 (multi-head latent attention)", "arXiv 2405.04434"),
    "power": Reference("He, Strangely, matrix multiplications run faster when given predictable data", "thonking.ai, 2024"),
    "hopper": Reference("Luo et al., Benchmarking and dissecting the Hopper architecture", "arXiv 2402.13499"),
    "l2": Reference("NVIDIA A100 Tensor Core GPU Architecture, A100 L2 cache", "NVIDIA whitepaper, 2020"),
    "cuda": Reference("NVIDIA, CUDA C++ Best Practices Guide, memory optimizations", "docs.nvidia.com/cuda"),
    "occupancy": Reference("NVIDIA, CUDA C++ Programming Guide, compute capabilities", "docs.nvidia.com/cuda"),
    "nccl": Reference("NCCL, tuning model", "github.com/NVIDIA/nccl"),
    "conformal": Reference("Lei et al., Distribution-free predictive inference for regression", "JASA 113, 2018"),
}
_OF_LAW: Mapping[str, tuple[str, ...]] = {
    "library_gemm": ("matmul", "streamk", "hopper", "l2", "power", "conformal"),
    "library_attention_prefill": ("fa2", "fa3", "trtllm", "l2", "power", "conformal"),
    "library_attention_decode": ("flash_decoding", "fa2", "fa3", "trtllm", "l2", "conformal"),
    "library_moe": ("fused_moe", "matmul", "hopper", "l2", "power", "conformal"),
    "library_mla": ("mla", "fa2", "l2", "conformal"),
    "library_mla_decode": ("mla", "fa2", "l2", "conformal"),
    "library_memory": ("cuda", "l2", "conformal"),
    "gemm": ("matmul", "occupancy", "hopper", "conformal"),
    "collective": ("nccl",),
}


def references_of(law: str) -> tuple[Reference, ...]:
    """The sources of a law; none for an unknown one."""
    return tuple(SOURCES[name] for name in _OF_LAW.get(law, ()))
