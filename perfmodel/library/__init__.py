"""Operator-level models of library kernels (cuBLAS, FlashAttention, fused MoE, NCCL) by serving stack: laws only, no fitted model."""
