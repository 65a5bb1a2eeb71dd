"""Laws that no constant may break: monotone in bytes, never above the link's datasheet rate, additive terms, clock scaling."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perfmodel.hw import gpu
from perfmodel.library.collective import model
from perfmodel.ops.collective import KINDS

GPUS = ("a100_sxm4_80gb", "h100_sxm", "h200_sxm", "b200_sxm", "l40s", "rtx_pro_6000", "l20", "a100_pcie_80gb")
SWITCHED = ("a100_sxm4_80gb", "h100_sxm", "h200_sxm", "b200_sxm")
STACKS = ("nccl", "nccl_graph", "vllm", "vllm_eager", "sglang", "trtllm", "torch")
names, kinds, stacks = st.sampled_from(GPUS), st.sampled_from(KINDS), st.sampled_from(STACKS)
counts, sizes = st.sampled_from((2, 3, 4, 6, 8)), st.integers(1, 2**34)
SWITCH_LOSS = 2.0  # a library's own choice may be worse than its last one: 19 us at 512 KiB and 41 at 1 MiB on two A100


@settings(max_examples=150, deadline=None)
@given(names, kinds, stacks, counts, sizes)
def test_terms_add_up_and_never_beat_the_wire(name: str, kind: str, stack: str, n: int, size: int) -> None:
    spec = gpu(name)
    terms = model(spec, {"kind": kind, "message_bytes": size, "n_gpus": n, "stack": stack})
    total = sum(v[0] for v in terms.seconds.values())
    assert terms.latency_s[0] == pytest.approx(total, rel=1e-9)
    assert all(v[0] >= -1e-15 for v in terms.seconds.values())
    wire = max(spec.nvlink_bytes_per_s, spec.pcie_bytes_per_s)
    least = size * (1.0 if terms.algorithm[0] in ("nvls", "multicast") else (n - 1) / n)
    assert terms.latency_s[0] > least / wire * 0.999
    assert 0 < terms.log_sigma[0] < 1


@settings(max_examples=60, deadline=None)
@given(names, kinds, stacks, counts)
def test_more_bytes_never_take_less_within_an_algorithm(name: str, kind: str, stack: str, n: int) -> None:
    message = np.round(2 ** np.linspace(8, 30, 200))
    terms = model(gpu(name), {"kind": kind, "message_bytes": message, "n_gpus": float(n), "stack": stack})
    same = (terms.algorithm[1:] == terms.algorithm[:-1]) & (terms.protocol[1:] == terms.protocol[:-1])
    grown = np.diff(terms.latency_s) / terms.latency_s[:-1]
    assert (grown[same] > -1e-9).all()
    assert (terms.latency_s[1:] < terms.latency_s[:-1] * SWITCH_LOSS * 1.2).all()


@settings(max_examples=60, deadline=None)
@given(names, kinds, stacks, counts, sizes)
def test_a_faster_link_is_never_slower(name: str, kind: str, stack: str, n: int, size: int) -> None:
    spec = gpu(name)
    columns = {"kind": kind, "message_bytes": size, "n_gpus": n, "stack": stack}
    faster = dataclasses.replace(spec, nvlink_bytes_per_s=spec.nvlink_bytes_per_s * 1.5, pcie_bytes_per_s=spec.pcie_bytes_per_s * 1.5)
    slow, fast = model(spec, columns), model(faster, columns)
    assume((slow.algorithm[0], slow.protocol[0]) == (fast.algorithm[0], fast.protocol[0]))
    assert fast.latency_s[0] <= slow.latency_s[0] * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SWITCHED), st.sampled_from(("all_reduce", "all_gather", "reduce_scatter")), st.integers(26, 32).map(lambda e: 2**e))
def test_more_gpus_never_take_less_in_a_ring(name: str, kind: str, size: int) -> None:
    terms = model(
        gpu(name), {"kind": kind, "message_bytes": float(size), "n_gpus": np.array([2.0, 4.0, 8.0]), "dtype": "int8", "topology": "auto"}
    )
    assert (terms.path == "nvswitch").all()
    same = [(a, b) for a, b in ((0, 1), (1, 2)) if terms.protocol[a] == terms.protocol[b]]
    assume(bool(same))
    assert all(terms.latency_s[b] > terms.latency_s[a] * 0.99 for a, b in same)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(kinds, counts, st.integers(256, 2**30)), min_size=2, max_size=30))
def test_a_table_answers_as_its_rows_do(rows: list[tuple[str, int, int]]) -> None:
    kind, n, size = (np.array(x, dtype=object if i == 0 else float) for i, x in enumerate(zip(*rows, strict=True)))
    together = model(gpu("h100_sxm"), {"kind": kind, "message_bytes": size, "n_gpus": n}).latency_s
    alone = [model(gpu("h100_sxm"), {"kind": k, "message_bytes": s, "n_gpus": c}).latency_s[0] for k, c, s in rows]
    np.testing.assert_allclose(together, alone, rtol=1e-9)
