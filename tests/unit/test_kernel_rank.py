"""Ranking any Triton kernel, compiled for a GPU that is not here: through pm.rank, from a file, inside the autotune hook."""

from __future__ import annotations

import json
import types
import warnings
from pathlib import Path

import numpy as np
import pytest

import perfmodel as pm
from perfmodel.cli import main
from perfmodel.tune.expressions import evaluate
from perfmodel.tune.triton_file import rank_file

triton = pytest.importorskip("triton")

from perfmodel.measure import kernel_compile  # noqa: E402
from perfmodel.measure.kernel_call import describe, jit_function  # noqa: E402
from perfmodel.measure.kernels import plain  # noqa: E402

SILU = [{"BLOCK": 256, "num_warps": 4}, {"BLOCK": 1024, "num_warps": 4}]
POINTERS = {"x_ptr": "*bf16", "g_ptr": "*bf16", "y_ptr": "*bf16"}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    """One folder of compiled configs for all tests of this file."""
    return tmp_path_factory.mktemp("compiled")


def silu(folder, gpu="l20", **changes):
    call = {"grid": "cdiv(count, BLOCK)", "arguments": POINTERS, "configs": SILU, "folder": folder, "workers": 1} | changes
    return pm.rank(call.pop("problem", {"count": 1 << 24}), gpu, kernel=call.pop("kernel", plain.silu_mul), **call)


def test_ranks_an_element_wise_kernel_at_the_speed_of_memory(compiled, monkeypatch):
    ranking = silu(compiled)
    frame = ranking.frame
    spec = pm.gpu("l20")
    least = 3 * 2 * (1 << 24) / spec.dram_bytes_per_s * 1e6
    assert len(ranking) == 2 and sorted(frame["position"]) == [0, 1] and set(frame["tier"]) == {"spec"}
    assert (frame["latency_us"] >= least).all() and frame["latency_us"].iloc[0] < 1.6 * least
    assert (frame["low_us"] < frame["latency_us"]).all() and frame["bound"].iloc[0] == "DRAM"
    assert ranking.top(1)[0] in SILU and ranking.pruned == ()
    monkeypatch.setattr(
        kernel_compile, "_workers", lambda kernel, todo, *_: [pytest.fail("the second time nothing is compiled") for _ in todo]
    )
    again = silu(compiled, grid=lambda meta: (-(-meta["count"] // meta["BLOCK"]),))
    assert again.rows() == ranking.rows()
    assert silu(compiled, problem=None, arguments={**POINTERS, "count": 1 << 24}).rows() == ranking.rows()


def test_reads_example_tensors(compiled):
    torch = pytest.importorskip("torch")
    x = torch.empty(1 << 24, dtype=torch.bfloat16, device="meta")
    found = silu(compiled, problem=None, arguments={"x_ptr": x, "g_ptr": x, "y_ptr": x, "count": x.numel()})
    assert found.rows() == silu(compiled).rows()


def test_the_compile_cache_survives_damage_and_a_read_only_folder(compiled, tmp_path):
    for file in compiled.glob("*.json.gz"):
        (tmp_path / file.name).write_bytes(b"half")
    assert silu(tmp_path).rows() == silu(compiled).rows()
    assert kernel_compile._read(next(iter(tmp_path.glob("*.json.gz")))) is not None
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert silu(blocked, configs=SILU[:1]).rows()[0]["BLOCK"] == 256


def test_timings_of_ones_own_come_first(compiled, tmp_path, monkeypatch):
    from perfmodel.tune import listener
    from perfmodel.tune.environment import Environment

    monkeypatch.setattr(listener.environment, "current", lambda: Environment("NVIDIA L20", "1", "3", "2"))
    store = tmp_path / "s.sqlite"
    predicted = {r["BLOCK"]: r["latency_us"] for r in silu(compiled).rows()}
    listener.keep(plain.silu_mul, {"count": 1 << 24}, "bfloat16", {triton.Config(kwargs={"BLOCK": 256}, num_warps=4): 2.0}, store)
    exact = silu(compiled, configs=[{**c, "num_stages": 3} for c in SILU], store=store)
    rows = {r["BLOCK"]: r for r in exact.rows()}
    assert rows[256]["tier"] == "measured" and rows[256]["latency_us"] == pytest.approx(2000)
    assert rows[1024]["latency_us"] / rows[256]["latency_us"] == pytest.approx(predicted[1024] / predicted[256], rel=0.02)
    assert {r["tier"] for r in silu(compiled, problem={"count": 1 << 20}, store=store).rows()} == {"spec"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arguments": {}}, "no value for arguments x_ptr, g_ptr, y_ptr"),
        ({"problem": {"counts": 5}}, "has no argument counts"),
        ({"arguments": {**POINTERS, "z": 1}}, "has no argument z"),
        ({"arguments": {**POINTERS, "x_ptr": "*bf17"}}, "unknown element type"),
        ({"arguments": {**POINTERS, "x_ptr": []}}, "is a list"),
        ({"configs": []}, "config list is empty"),
        ({"configs": None}, "has no @triton.autotune"),
        ({"configs": [{"BLOCKS": 4, "BLOCK": 4}]}, "has no argument BLOCKS"),
        ({"grid": "cdiv(count, BLOCKS)"}, "BLOCKS is not a known number"),
        ({"grid": "__import__('os')"}, "only numbers"),
        ({"grid": (0,)}, "a side of the grid"),
        ({"grid": (1, 1, 1, 1)}, "one to three sides"),
        ({"grid": lambda meta: meta["nothing"]}, "grid's function failed"),
        ({"kernel": len}, "@triton.jit"),
        ({"gpu": "l21"}, "unknown GPU"),
    ],
)
def test_bad_calls_are_one_line(compiled, changes, words):
    with pytest.raises(pm.InputError, match=words) as error:
        silu(compiled, **changes)
    assert "\n" not in str(error.value)


def test_calls_are_specialised_as_the_launcher_does():
    function, _, _ = jit_function(plain.gemm)
    strides = {"stride_am": 1, "stride_bn": 48, "stride_cm": 7}
    call = describe(function, {}, {"M": 1, "N": 32, "K": 2**33, **strides}, {"BM": 16, "BN": 16, "BK": 16, "GM": 1, "num_warps": 2}, "bf16")
    assert call.constants == {"stride_am": 1, "BM": 16, "BN": 16, "BK": 16, "GM": 1}
    names = [function.arg_names[i] for i in call.aligned]
    assert names == ["a_ptr", "b_ptr", "c_ptr", "N", "K", "stride_bn"] and call.signature["K"] == "i64" and call.signature["M"] == "i32"
    assert call.options == {"num_warps": 2} and call.values["M"] == 1


def test_what_a_config_cannot_do_is_a_reason_and_not_a_crash(compiled):
    bad = {"BLOCK": 300, "num_warps": 4}  # not a power of two
    ranking = silu(compiled, configs=[bad, SILU[0]])
    ((config, reason),) = ranking.pruned
    assert config == bad and "power of 2" in reason
    with pytest.raises(pm.NoAnswerError, match=r"no config of silu_mul can run on l20: .*power of 2"):
        silu(compiled, configs=[bad])


def test_a_slow_compilation_becomes_a_reason(tmp_path):
    with pytest.raises(pm.NoAnswerError, match="took over 0 s"):
        silu(tmp_path, timeout_s=0.0)


def test_attention_and_gathered_rows(compiled):
    """Trip counts that depend on the program, and addresses that depend on given data."""
    op = {"seq": 2048, "heads": 8, "group": 2, "scale": 0.1, "dtype": "fp16"}
    config = {"D": 64, "CAUSAL": True, "BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2}
    causal = pm.rank(op, "a100", kernel=plain.attention, configs=[config], grid="cdiv(seq, BM), heads", folder=compiled, workers=1)
    full = pm.rank(op, "a100", kernel=plain.attention, configs=[{**config, "CAUSAL": False}], grid="cdiv(seq, BM), heads", folder=compiled)
    assert 0.45 < causal.ranked[0].latency_us / full.ranked[0].latency_us < 0.95
    owners = np.repeat(np.arange(4, dtype=np.int32), 2)
    tiles = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}
    moe = {"N": 4096, "K": 4096, "padded": 128, "valid": 128, "top_k": 2, "ids_ptr": np.arange(128, dtype=np.int32)}
    few = {**moe, "experts_ptr": np.zeros(8, dtype=np.int32)}
    times = [
        pm.rank({"dtype": "bf16"}, "a100", kernel=plain.fused_moe, configs=[tiles], grid=(8 * 64,), arguments=a, folder=compiled).ranked[0]
        for a in ({**moe, "experts_ptr": owners}, few)
    ]
    assert times[0].estimate.seconds["DRAM"] > 3 * times[1].estimate.seconds["DRAM"]


FILE = """
import triton
import triton.language as tl

@triton.autotune(configs=[triton.Config({"B": 512}, num_warps=4)], key=["n"])
@triton.jit
def double(x, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

print("side effect")
"""


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def ask(path, *more, name="double"):
    return [
        "rank",
        "--triton-file",
        f"{path}:{name}",
        "--gpu",
        "l20",
        "--arg",
        "n=1000000",
        "--arg",
        "x=*fp32",
        "--grid",
        "cdiv(n, B)",
        *more,
    ]


def test_ranks_a_kernel_in_a_file_only_when_asked_to_run_it(file, capsys):
    assert main.run(ask(file)) == 2
    assert "add --run-file" in capsys.readouterr().err
    assert main.run(ask(file, "--run-file", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kernel"] == "double" and found["gpu"] == "l20" and found["configs"][0]["B"] == 512 and found["pruned_count"] == 0
    assert found["configs"][0]["latency_us"] > 2 * 4e6 / pm.gpu("l20").dram_bytes_per_s * 1e6


@pytest.mark.parametrize(
    ("text", "name", "words", "code"),
    [
        (FILE + "\nif", "double", "line 13: invalid syntax", 2),
        (FILE, "triple", "no function triple: its kernels: double", 2),
        ("import nothing_like_it", "f", "cannot be run: ModuleNotFoundError", 2),
        ("def f(): pass", "f", "decorated with @triton.jit", 2),
        ("raise SystemExit(3)", "f", "exits when it is run", 2),
        ("import os; os._exit(3)", "f", "ended without an answer", 1),
        (FILE.replace("2 * tl", "missing * tl"), "double", "no config of double can run on l20", 1),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path, capsys, text, name, words, code):
    path = tmp_path / "mine.py"
    path.write_text(text)
    assert main.run(ask(path, "--run-file", name=name)) == code
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if "compiling, " not in line]  # progress of slow machines
    assert out == "" and len(lines) == 1 and words in lines[0], err


def test_a_file_that_never_ends_is_ended(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("while True: pass")
    with pytest.raises(pm.NoAnswerError, match="not done within 2 s"):
        rank_file(f"{path}:f", "l20", run=True, grid="1", arguments={}, limit_s=2.0)
    for bad in ("mine.py", f"{path}:", f"{path}:a b", "/nowhere/f.py:g"):
        with pytest.raises(pm.InputError):
            rank_file(bad, "l20", run=True, grid="1", arguments={})


def test_the_hook_ranks_any_kernel(compiled, monkeypatch):
    from perfmodel.tune import kernel_rank

    monkeypatch.setattr(
        kernel_rank, "compile_calls", lambda *a, **k: kernel_compile.compile_calls(*a, **{**k, "folder": compiled, "workers": 1})
    )
    configs = [triton.Config({"BLOCK": c["BLOCK"]}, num_warps=4) for c in SILU]
    tensor = types.SimpleNamespace(dtype="torch.bfloat16")

    class Tuner:
        fn, keys, nargs = plain.silu_mul, ["count"], None

        def __init__(self):
            self.configs = configs

        def prune_configs(self, by, arguments, **launch):
            return by["early_config_prune"](self.configs, arguments, **launch)

    arguments = {"x_ptr": tensor, "g_ptr": tensor, "y_ptr": tensor, "count": 1 << 24}
    grid = lambda meta: (triton.cdiv(meta["count"], meta["BLOCK"]),)  # noqa: E731
    by = pm.prune(kernel="auto", top_k=1, gpu="l20")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = Tuner().prune_configs(by, arguments, grid=grid, warmup=False)
        assert pm.prune(kernel=plain.silu_mul, gpu="l20")["early_config_prune"](configs, arguments, grid=grid, unknown=3) is not None
    assert len(kept) == 1 and kept[0].kwargs["BLOCK"] == silu(compiled).top(1)[0]["BLOCK"]
    with pytest.warns(RuntimeWarning, match="keeps all 2 configs: cannot tell which kernel"):
        assert by["early_config_prune"](configs, arguments, grid=grid) == configs


def test_expressions():
    names = {"M": 100, "B": 16, "flag": True}
    assert evaluate("cdiv(M, B) * 2 + min(M, 3) % 2", names, "grid") == 15
    assert evaluate("M if B > 4 else 0", names, "grid") == 100
    assert evaluate("triton.cdiv(M, B)", names, "grid") == 7
    for bad in ("M.__class__", "(lambda: 1)()", "M / 0", "open('x')", "[M]", "M" * 2000, "2 **"):
        with pytest.raises(pm.InputError, match="known names: B, M"):
            evaluate(bad, names, "grid")
