"""The library GEMM law where scales belong to blocks: one kernel finds them, and mma.sync loops pay for applying them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from perfmodel.hw import gpu
from perfmodel.learn.operators import operator_terms
from perfmodel.library.terms import OperatorTerms
from perfmodel.ops import OperatorTable


def asked(name: str, dtype: str, size: int, stack: str = "trtllm") -> OperatorTerms:
    frame = pd.DataFrame({"m": [size], "n": [size], "k": [size], "dtype": dtype, "stack": stack})
    return operator_terms(gpu(name), "gemm_quantised", OperatorTable.read("gemm", frame), {})


def test_scales_of_blocks_take_one_kernel_and_a_scale_of_the_tensor_several() -> None:
    block, whole = asked("h100_sxm", "fp8_block", 128), asked("h100_sxm", "fp8", 128)
    floor = block.seconds["launch"]
    assert np.allclose(block.seconds["quantise"], floor, rtol=0.01)  # one launch, and next to no bytes
    assert np.allclose((whole.seconds["quantise"] - block.seconds["quantise"]) / floor, 2.5)


@pytest.mark.parametrize(("name", "share"), [("l40s", 0.8), ("rtx_pro_6000", 0.8), ("h100_sxm", 1.0)])
def test_block_scales_slow_the_inner_loop_of_mma_sync(name: str, share: float) -> None:
    block, whole = asked(name, "fp8_block", 8192), asked(name, "fp8", 8192)
    assert np.allclose(whole.seconds["tensor"] / block.seconds["tensor"], share, rtol=0.02)
    assert block.least_s == whole.least_s  # the datasheet's rate bounds both
