"""The recipes of CONTRIBUTING.md, each followed with something that does not exist, up to an answer of the public interface."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfmodel as pm
from perfmodel.cli.main import run
from perfmodel.errors import InputError
from perfmodel.kernels import FAMILIES, family, kernel_family
from perfmodel.library import law
from perfmodel.library.stacks import stack as stacks
from perfmodel.library.stacks import stack_of
from perfmodel.ops import kinds, names

Load = Callable[[str, str], ModuleType]
OPERATOR = '''
"""A transposition: every element read once and written once, where whole cache lines can be read but not written."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from perfmodel.analytic.roofline import cache, dram_seconds, miss_share, overlap
from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.library.arch import dram_efficiency
from perfmodel.library.launch import launch_floor_s
from perfmodel.library.law import OperatorLaw
from perfmodel.library.law import register as register_law
from perfmodel.library.terms import OperatorTerms
from perfmodel.ops import names
from perfmodel.ops.check import size
from perfmodel.ops.kinds import DTYPE, KERNEL, STACK, Field, OperatorKind, named, register
from perfmodel.ops.work import Work


@dataclass(frozen=True, slots=True)
class Transpose:
    """A matrix of `rows` x `columns`, transposed."""

    rows: int
    columns: int
    dtype: str = "bf16"

    operator: ClassVar[str] = "transpose"
    kind: ClassVar[str] = "transpose"

    def __post_init__(self):
        for name in ("rows", "columns"):
            object.__setattr__(self, name, size(name, getattr(self, name)))

    def work(self):
        return transpose_work(self.rows, self.columns, parse_dtype(self.dtype).a_bytes)


def transpose_work(rows, columns, element_bytes):
    moved = 1.0 * rows * columns * element_bytes
    return Work(0.0 * moved, moved, moved)


def terms(gpu, columns, c):
    each = names.A_BYTES[columns["dtype"].astype(np.intp)]
    moved = transpose_work(columns["rows"], columns["columns"], each).bytes
    cold = miss_share(moved, *cache(gpu, c))
    rate, active = gpu.dram_bytes_per_s, float(gpu.sms)
    dram = dram_seconds(moved * cold, rate, dram_efficiency(gpu, c), 2.0 * gpu.dram_latency_s, active, c["bytes_in_flight"])
    l2 = moved / (gpu.l2_bytes_per_s * c["l2_rate_factor"])
    floor = launch_floor_s(gpu, c) * np.ones_like(dram)
    latency = floor + overlap(c["overlap_power"], dram, l2)
    features = {
        "dram": np.log(dram / latency), "l2": np.log(l2 / latency), "log2_rows": np.log2(columns["rows"]), "stack": columns["stack"],
    }
    return OperatorTerms(latency, {"dram": dram, "l2": l2, "launch": floor}, features)


_FIELDS = (Field("rows", "rows", "rows of the matrix", also=("m",)), Field("columns", "columns", "columns of it"), DTYPE, STACK, KERNEL)
register(
    OperatorKind(
        "transpose",
        _FIELDS,
        lambda columns: transpose_work(columns["rows"], columns["columns"], names.widths(columns)[0]),
        partial(named, _FIELDS),
    )
)
register_law(OperatorLaw("transpose", "transpose", "library_memory", terms, ("rows", "columns"), ("log2_rows",), "transpose"))
'''
FAMILY = '''
"""A Triton softmax of whole rows: a program a row, its elements in one block."""

import sys

import numpy as np

from perfmodel.analytic import tile
from perfmodel.analytic.occupancy import LIMITERS, blocks_per_sm
from perfmodel.dtypes import dtype as parse_dtype
from perfmodel.errors import InputError
from perfmodel.kernels.configs import Configs
from perfmodel.kernels.family import register
from perfmodel.kernels.terms import Rule, Terms
from perfmodel.ops import MemoryBound
from perfmodel.ops.memory import TRAFFIC, memory_work

NAME, PLAIN = "row_softmax", "plain"
VARIANTS = ("pointer", PLAIN)
SIZES = ("tokens", "hidden")
FLAGS, ALIASES, DEFAULTS, FIXED = (), {"tokens": ("rows",)}, {}, {}
ARGUMENTS = {"tokens": ("tokens", "n_rows"), "hidden": ("hidden", "n_cols")}
REQUIRED = ("block_n",)
COLUMNS = ("block_n", "num_warps")
TWINS = BINARY = COLUMNS


def computes(op):
    return op.kind == "softmax"


def operator(dtype, **sizes):
    return MemoryBound("softmax", **sizes, dtype=dtype)


def sizes_of(op):
    return {name: int(getattr(op, name)) for name in SIZES}


def rate_of(dtype):
    if dtype not in ("bf16", "fp16"):
        raise InputError(f"row_softmax has no {dtype}")
    return parse_dtype(dtype).rate


def work(dtype, **sizes):
    return memory_work(*TRAFFIC["softmax"], sizes["tokens"], sizes["hidden"], parse_dtype(dtype).a_bytes)


def space(gpu, dtype, **sizes):
    rows = np.array([(block, warps) for block in (1024, 2048, 4096, 8192) for warps in (1, 4, 8, 16)], dtype=np.int64)
    return Configs({name: rows[:, i] for i, name in enumerate(COLUMNS)}, np.zeros(len(rows), dtype=np.int8), VARIANTS)


portable_space = space


def binaries(arch, dtype):
    return []


def code_of(configs, sizes):
    return {name: configs[name] for name in BINARY}


def formula(gpu, dtype, configs, sizes):
    elements = configs["block_n"] / (32.0 * configs["num_warps"])
    return {"regs": 24.0 + elements, "spill_bytes": 4.0 * np.maximum(24.0 + elements - 255.0, 0.0), "loop_instructions": 12.0 * elements}


def rules(gpu, dtype, configs, facts, **sizes):
    return [
        Rule(configs["block_n"] < sizes["hidden"], "a row does not fit the block"),
        Rule(facts.spill_bytes > 0, "spills", hard=False),
    ]


def terms(gpu, dtype, configs, facts, constants, **sizes):
    occupancy = blocks_per_sm(gpu, 32.0 * configs["num_warps"], facts.regs, facts.shared_bytes)
    resident = np.maximum(occupancy.blocks_per_sm, 1).astype(float)
    rounds = np.ceil(sizes["tokens"] / (gpu.sms * resident))
    issue = rounds * resident * facts.loop_instructions * configs["num_warps"] / 4.0 / gpu.max_clock_hz
    dram = np.full(len(configs), work(dtype, **sizes).bytes / (gpu.dram_bytes_per_s * constants["dram_efficiency"]))
    latency = constants["launch_s"] + tile.smooth_max2(issue, dram)
    seconds = {"issue": issue, "DRAM": dram, "launch": np.full_like(latency, constants["launch_s"])}
    features = {"log_issue": np.log(issue / latency)}
    return Terms(latency, seconds, rounds, occupancy.blocks_per_sm, np.array(LIMITERS)[occupancy.limiter], features, facts.exact)


register(sys.modules[__name__])
'''
STACK = '''
"""A stack that pages its cache as vLLM does and runs FlashInfer on everything but sm_90."""

from perfmodel.library.stacks.stack import Communication, Rule, Stack, always, register

register(
    Stack(
        "example_engine",
        release="2.1",
        like="vllm",
        attention=(
            Rule("fa3", lambda arch, fp8: arch == (9, 0) and not fp8, "sm_90 has FlashAttention-3", "example_engine, backends.py"),
            Rule("flashinfer", always, "FlashInfer runs everywhere", "example_engine, backends.py"),
        ),
        communication=Communication(rules="vllm", without_nvlink=True),
    )
)
'''


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Imports a file of a contributor; what it registers is gone after the test."""
    for name in FAMILIES:
        kernel_family(name)  # they register when they are first asked for
    registries: tuple[dict[str, Any], ...] = (kinds.KINDS, law.REGISTRY, family.REGISTRY, stacks.REGISTRY)
    before, codes = [dict(registry) for registry in registries], list(names.STACKS)

    def loaded(name: str, text: str) -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    yield loaded
    for registry, kept in zip(registries, before, strict=True):
        registry.clear()
        registry.update(kept)
    names.STACKS[:] = codes
    stacks.register(stack_of("any"))  # tables over all stacks are made anew


def test_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PERFMODEL_HWDB", str(tmp_path))
    assert run(["gpus", "add", "example_card", "--like", "l40s", "--json"]) == 0
    path = Path(json.loads(capsys.readouterr().out)[0]["file"])
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("864", "1728"), encoding="utf-8")  # twice the DRAM rate of the L40S
    assert path.parent == tmp_path and run(["gpus", "lint", "example_card"]) in (0, 1)
    assert pm.gpu("example_card").dram_bytes_per_s == 2 * pm.gpu("l40s").dram_bytes_per_s
    few = pm.Gemm(16, 14336, 8192)
    faster, slower = (pm.predict(few, name, stack="vllm", calibration=None) for name in ("example_card", "l40s"))
    assert faster.tier == "spec" and faster.latency_us < slower.latency_us


def test_an_operator(load: Load) -> None:
    transpose = load("example_operator", OPERATOR).Transpose
    found = pm.predict(transpose(8192, 8192), "h100_sxm", stack="torch")
    assert found.tier == "spec" and found.bound == "dram" and found.low_us <= found.latency_us <= found.high_us
    assert found.latency_us > 2 * 8192 * 8192 * 2 / pm.gpu("h100_sxm").dram_bytes_per_s * 1e6 * 0.5  # half of it may stay in L2
    assert not found.in_domain and "no measured row for transpose" in found.outside[0]
    assert "dram" in str(found.explain())
    frame = pd.DataFrame({"m": [1024, 8192], "columns": 8192, "dtype": "bf16", "stack": ["torch", "vllm"]})
    table = pm.predict_table("transpose", frame, "h100_sxm")
    assert table["latency_us"].iloc[1] == pytest.approx(found.latency_us) and table["latency_us"].iloc[0] < found.latency_us
    with pytest.raises(InputError, match="lacks column rows"):
        pm.predict_table("transpose", frame.drop(columns="m"), "h100_sxm")


def test_a_family_of_triton_kernels(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "physics").mkdir()
    (tmp_path / "physics" / "row_softmax.toml").write_text(
        "[launch_s]\nvalue = 4e-6\nlow = 2e-6\nhigh = 8e-6\nsource = 'estimate'\n"
        "[dram_efficiency]\nvalue = 0.9\nlow = 0.7\nhigh = 1.0\nsource = 'copy kernels'\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PERFMODEL_CALIBRATION", str(tmp_path))
    load("example_family", FAMILY)
    op = pm.MemoryBound("softmax", 4096, 4000)
    ranking = pm.rank(op, "h100_sxm", kernel="row_softmax")
    assert set(ranking.frame["block_n"]) <= {4096, 8192} and any("does not fit" in str(row) for row in ranking.pruned)
    best = ranking.top(1)[0]
    assert best["block_n"] == 4096
    one = pm.predict(op, "h100_sxm", config={"block_n": int(best["block_n"]), "num_warps": int(best["num_warps"])})
    assert one.latency_us == pytest.approx(ranking.frame["latency_us"].iloc[0]) and one.tier == "spec"
    assert pm.rank(op, "h100_sxm").kernel == "row_softmax"  # it is the one that computes a softmax
    with pytest.raises(InputError, match="block"):
        pm.predict(op, "h100_sxm", config={"num_warps": 4})


def test_a_serving_stack(load: Load) -> None:
    load("example_stack", STACK)
    decode = pm.Attention("decode", 8, 1, 4096, 32, 8, 128)
    found = pm.predict(decode, "l40s", stack="example_engine", calibration=None)
    assert "example_engine 2.1 on sm_89 with a bf16 cache runs FlashInfer because FlashInfer runs everywhere" in str(found.explain())
    assert any("stack example_engine" in reason for reason in found.outside)
    sizes = {"phase": "decode", "batch": 8, "kv_len": 4096, "q_heads": 32, "kv_heads": 8, "head_dim": 128}
    frame = pd.DataFrame([{**sizes, "stack": name} for name in ("example_engine", "vllm")])
    table = pm.predict_table("attention", frame, "l40s", calibration=None)
    assert table["latency_us"].iloc[0] == pytest.approx(found.latency_us)
    for op in (
        pm.Gemm(64, 4096, 4096),
        pm.MoE(512, 4096, 1536, 64, 4),
        pm.MLA("decode", 8, 1, 4096, 16),
        pm.MemoryBound("rmsnorm", 64, 4096),
    ):
        both = [pm.predict(op, "h100_sxm", stack=name, calibration=None).detail["law_us"] for name in ("example_engine", "vllm")]
        assert both[0] > 0 and both[0] == pytest.approx(both[1], rel=0.5), op  # as the stack that it is like, but for what it says itself
    gathered = pm.predict(pm.Collective("all_reduce", 2**20, 8), "h100_sxm", stack="example_engine")
    assert gathered.detail["algorithm"] == pm.predict(pm.Collective("all_reduce", 2**20, 8), "h100_sxm", stack="vllm").detail["algorithm"]
    with pytest.raises(InputError, match="example_engine"):
        pm.predict(decode, "l40s", stack="exampl_engine")


def test_a_model_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    from perfmodel.plan import families, hf_config

    config = {
        "model_type": "example_lm", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
    }  # fmt: skip
    with pytest.raises(InputError, match="example_lm"):
        pm.estimate(config, "h100_sxm", isl=1000, osl=100, concurrency=4)
    known = {**families.FAMILIES, "example_lm": families.Family(qkv_bias=True, qk_norm=True)}
    for module in (families, hf_config):
        monkeypatch.setattr(module, "FAMILIES", known)
    found = pm.estimate(config, "h100_sxm", isl=1000, osl=100, concurrency=4)
    plain = pm.estimate({**config, "model_type": "llama"}, "h100_sxm", isl=1000, osl=100, concurrency=4)
    assert found.tpot_ms > 0 and found.ttft_ms > 0
    assert np.isclose(found.tpot_ms, plain.tpot_ms, rtol=0.2)
