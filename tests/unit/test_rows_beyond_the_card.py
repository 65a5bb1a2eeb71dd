"""Rows that are faster than their GPU can be: what reads them, and who leaves them out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from perfmodel.calibrate.operator_rows import possible, read_possible, read_rows
from perfmodel.hw import gpu
from perfmodel.learn.collective_fit import read_rows as read_collectives


def test_reading_keeps_every_row_and_says_which_are_possible() -> None:
    frame = pd.DataFrame({"m": 8192, "n": 8192, "k": 8192, "latency_us": [100.0, 1500.0], "gpu": "h200_sxm", "stack": "vllm"})
    rows = read_rows("gemm", frame)
    assert len(rows) == 2
    with pytest.warns(UserWarning, match="1 of 2 gemm rows"):
        assert possible("gemm", rows.columns, frame).tolist() == [False, True]
    with pytest.warns(UserWarning, match="1 of 2 gemm rows"):
        assert np.exp(read_possible("gemm", frame).log_latency).tolist() == pytest.approx([1500e-6])


def test_collectives_beyond_their_links() -> None:
    # 2 x 7/8 of 1 GiB over 450e9 B/s are 4,176 us; a switch that adds up needs half of it; 1,000 us are less than either
    frame = pd.DataFrame({"kind": "all_reduce", "message_bytes": 2**30, "n_gpus": 8, "stack": "nccl", "latency_us": [1000.0, 5000.0]})
    assert read_collectives(gpu("h100_sxm"), frame).faster_than_physics().tolist() == [True, False]
