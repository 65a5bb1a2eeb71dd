"""The autotune hook through Triton's own Autotuner, on a machine without a GPU."""

import gc
import importlib
import itertools
import threading
import types
import warnings

import pytest

import perfmodel as pm
from perfmodel.tune import autotuner, triton_hook
from perfmodel.tune.autotuner import race

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
from triton.runtime.autotuner import Autotuner  # noqa: E402

TILES = [(m, n, k, w, s) for m in (16, 64, 128, 256) for n in (64, 128, 256) for k in (32, 64, 128) for w in (4, 8) for s in (3, 4)]


def configs(names=("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")):
    return [
        triton.Config({**dict(zip(names, (m, n, k), strict=True)), "GROUP_SIZE_M": 8}, num_warps=w, num_stages=s) for m, n, k, w, s in TILES
    ]


def tensor(dtype="torch.bfloat16"):
    return types.SimpleNamespace(dtype=dtype)


def pruned(by, arguments, given=None):
    """What Triton's own Autotuner keeps."""
    tuner = Autotuner.__new__(Autotuner)
    tuner.configs, tuner.perf_model, tuner.configs_top_k = given or configs(), None, 1.0
    tuner.early_config_prune = by["early_config_prune"]
    tuner.nargs = arguments
    return tuner.prune_configs({})


ARGUMENTS = {"a_ptr": tensor(), "b_ptr": tensor(), "c_ptr": tensor(), "M": 4096, "N": 8192, "K": 4096, "stride_am": 4096}


def test_keeps_the_first_of_the_ranking():
    given = configs()
    kept = pruned(pm.prune(kernel="gemm", top_k=8, gpu="h200_sxm"), ARGUMENTS, given)
    assert len(kept) == 8 and all(any(c is g for g in given) for c in kept)
    best = pm.rank(pm.Gemm(4096, 8192, 4096), "h200_sxm", configs=given).top(1)[0]
    assert {**kept[0].kwargs, "num_warps": kept[0].num_warps, "num_stages": kept[0].num_stages} == best


def test_one_config_means_no_timing_and_the_choice_is_the_same_again():
    first = pruned(pm.prune(top_k=1, gpu="l20"), ARGUMENTS)
    again = pruned(pm.prune(top_k=1, gpu="l20"), ARGUMENTS)
    assert len(first) == 1 and first[0].kwargs == again[0].kwargs


def test_own_names():
    by = pm.prune(top_k=3, gpu="a100", sizes={"m": "rows_a"}, fields={"block_m": "TM", "block_n": "TN", "block_k": "TK"}, dtype="fp16")
    arguments = {"rows_a": 64, "N": 4096, "K": 4096}
    assert len(pruned(by, arguments, configs(("TM", "TN", "TK")))) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({**ARGUMENTS, "M": 0}, "m must be a whole number"),
        ({"x": 3, "a_ptr": tensor()}, "cannot tell m"),
        ({"M": 4, "N": 4, "K": 4}, "pass dtype="),
        ({**ARGUMENTS, "a_ptr": tensor("torch.complex64")}, "complex64"),
    ],
)
def test_warns_once_and_keeps_all(arguments, words):
    by = pm.prune(top_k=4, gpu="h100_sxm")
    with pytest.warns(RuntimeWarning, match=words):
        assert len(pruned(by, arguments)) == len(TILES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(pruned(by, arguments)) == len(TILES)


@pytest.mark.parametrize(
    "bad",
    [
        {"top_k": 0},
        {"top_k": 1.5},
        {"kernel": "conv"},
        {"gpu": "h999"},
        {"sizes": 5},
        {"sizes": {"q": "M"}},
        {"sizes": {"m": 5}},
        {"fields": {"blok_m": "BM"}},
        {"fields": ["block_m"]},
        {"dtype": "bf17"},
        {"dtype": "int4_wo"},
        {"dtype": "fp8", "gpu": "a100_sxm"},
        {"calibration": 5},
        {"calibration": "/nowhere/at/all"},
    ],
)
def test_bad_decoration(bad):
    with pytest.raises(pm.InputError):
        pm.prune(**bad)


def test_a_new_key_is_ranked_once(monkeypatch):
    asked = []
    rank = importlib.import_module("perfmodel.tune.rank")  # the function of that name hides it
    ranked = rank.predict_configs

    def counted(*arguments, **options):
        asked.append(arguments)
        return ranked(*arguments, **options)

    monkeypatch.setattr(rank, "predict_configs", counted)
    by = pm.prune(top_k=8, gpu="h200_sxm")
    for m in range(100, 110):
        pruned(by, {**ARGUMENTS, "M": m})
    assert len(asked) == 10


ATTENTION = {"sm_scale": 0.1, "M": tensor(), "Z": 2, "H": 16, "desc_q": tensor(), "N_CTX": 4096, "HEAD_DIM": 128, "STAGE": 3}


def test_flash_attention_of_the_tutorial_is_read_by_its_own_names():
    """Z, H, N_CTX and HEAD_DIM of Triton's fused-attention tutorial; its BLOCK_M and BLOCK_N."""
    given = [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=w, num_stages=s)
        for m in (64, 128)
        for n in (32, 64, 128)
        for w in (4, 8)
        for s in (2, 3, 4)
    ]
    kept = pruned(pm.prune(kernel="attention_prefill", top_k=4, gpu="h100"), ATTENTION, given)
    ranking = pm.rank(
        pm.Attention("prefill", 2, 4096, 4096, 16, 16, 128),
        "h100",
        configs=[{**c.kwargs, "num_warps": c.num_warps, "num_stages": c.num_stages} for c in given],
    )
    assert kept == [given[ranking.legal_positions[i]] for i in ranking.shortlist(4)] and len(kept) == 4
    grouped = {**ATTENTION, "num_kv_heads": 4, "causal": False}
    assert len(pruned(pm.prune(kernel="attention_prefill", top_k=2, gpu="a100"), grouped, given)) == 2
    with pytest.warns(RuntimeWarning, match="cannot tell batch"):
        assert pruned(pm.prune(kernel="attention_prefill", gpu="h100"), {"N_CTX": 4096, "q": tensor()}, given) == given


def test_splits_and_experts_are_read_too():
    rows = [triton.Config({"BN": n, "NS": s}, num_warps=4, num_stages=3) for n in (32, 64, 128) for s in (1, 8, 64)]
    arguments = {"q": tensor(), "batch": 1, "seq": 65536, "heads": 8, "kv_heads": 1, "D": 128}
    kept = pruned(pm.prune(kernel="attention_decode", top_k=3, gpu="h200"), arguments, rows)
    assert len(kept) == 3 and all(c.kwargs["NS"] > 1 for c in kept)
    tiles = [
        triton.Config({"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}, num_warps=4, num_stages=3)
        for m in (16, 128)
    ]
    names = {"inter": "N", "hidden": "K", "tokens": "num_tokens", "num_experts": "E", "top_k": "top_k"}
    few = {"a": tensor(), "N": 768, "K": 2048, "num_tokens": 8, "E": 64, "top_k": 6}
    kept = pruned(pm.prune(kernel="fused_moe", top_k=1, gpu="a100", sizes=names), few, tiles)
    assert [c.kwargs["BLOCK_SIZE_M"] for c in kept] == [16]


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """A tuner at a launch on a GPU that is not there: (kernel, its Autotuner with the hook, the call's keyword arguments)."""
    torch = pytest.importorskip("torch")
    from triton.backends.compiler import GPUTarget

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    here = types.SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0, get_current_stream=lambda device: 0
    )
    monkeypatch.setattr(triton.runtime.driver, "_active", here)
    given = [triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 32}, num_warps=4, num_stages=s)
             for m in (16, 32, 64) for n in (32, 64) for s in (2, 3, 4, 5, 6, 7)]  # fmt: skip
    kernel = triton.jit(product)
    tuner = triton.autotune(configs=given, key=["M", "N", "K"], prune_configs_by=pm.prune(gpu="h200_sxm", top_k=4))(kernel)
    a, b, c = (torch.zeros((64, 64), dtype=torch.bfloat16) for _ in range(3))
    tuner.nargs = dict(zip(tuner.arg_names, (a, b, c, 64, 64, 64), strict=False))
    return kernel, tuner, {"grid": (1,), "warmup": False}


def raced(monkeypatch, kernel, answers):
    """Stands in for Triton's benchmark: each config's time in turn, or the error it raises; what was compiled by then is recorded."""
    compiled = []

    def do_bench(run, warmup, rep, return_mode):
        compiled.append(list(kernel.device_caches[0][0].values()))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("triton.testing.do_bench", do_bench)
    return compiled


def test_kept_configs_are_compiled_before_any_is_raced_and_the_leaders_remain(launch, monkeypatch):
    kernel, tuner, call = launch
    there = [1.0, 0.99, RuntimeError("out of resources"), 0.98]
    compiled = raced(monkeypatch, kernel, there + there[::-1])
    kept = tuner.prune_configs(call)
    assert len(compiled) == 8 and all(len(c) == 4 and all(k.asm["cubin"] for k in c) for c in compiled)
    everyone = tuner.prune_configs({**call, "warmup": True})
    assert len(everyone) == 4 and [str(c) for c in kept] == [str(everyone[i]) for i in (3, 1, 0)]


class Driver:
    """Stands in for Triton's: `active` is what is built at its first use."""

    def __init__(self, build):
        self.build = build

    active = property(lambda self: types.SimpleNamespace(get_current_target=self.build))


def test_triton_starts_beside_the_first_ranking_and_once(monkeypatch):
    ranking, started, built = threading.Event(), threading.Event(), []

    def build():
        built.append(ranking.wait(30))
        started.set()

    def rank(*args, **named):
        ranking.set()
        assert started.wait(30)
        return pm.rank(*args, **named)

    monkeypatch.setattr(triton.runtime, "driver", Driver(build))
    monkeypatch.setattr(triton_hook, "rank", rank)
    autotuner._start_of_triton.cache_clear()
    for _ in range(2):
        assert len(pruned(pm.prune(top_k=4, gpu="h200_sxm"), ARGUMENTS)) == 4
    assert built == [True]


def test_a_triton_that_does_not_start_is_left_to_the_launch(monkeypatch):
    def build():
        raise RuntimeError("0 active drivers")

    monkeypatch.setattr(triton.runtime, "driver", Driver(build))
    autotuner._start_of_triton.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(pruned(pm.prune(top_k=2, gpu="l20"), ARGUMENTS)) == 2


def test_the_first_to_be_ready_is_launched_while_others_compile(launch, monkeypatch):
    kernel, tuner, call = launch
    launched, waited, ready = threading.Event(), [], []
    places = kernel.device_caches[0][0]
    real, turn = kernel.compile, itertools.count(1)

    def compile_or_wait(source, **named):
        if next(turn) == 4:
            waited.append(launched.wait(30))
        return real(source, **named)

    kernel.compile = compile_or_wait
    tuner.pre_hook = lambda arguments: (ready.append(len(places)), launched.set())
    raced(monkeypatch, kernel, [1.0, 1.1, 1.2, 1.3, 1.3, 1.2, 1.1, 1.0])
    tuner.prune_configs(call)
    assert waited == [True] and 1 <= ready[0] < 4 and len(places) == 4


def test_no_garbage_is_collected_while_configs_compile(launch):
    """CPython before 3.11.8 loses an `ast.parse`, and with it a config, where a collection switches threads in it."""
    kernel, tuner, call = launch
    places, real, collecting = kernel.device_caches[0][0], kernel.compile, []
    kernel.compile = lambda source, **named: (collecting.append(gc.isenabled()), real(source, **named))[1]
    autotuner.compile_together(tuner, tuner.configs[:2], call)
    assert collecting == [False, False] and gc.isenabled() and len(places) == 2


def test_a_clear_winner_remains_alone_and_without_any_all_remain(launch, monkeypatch):
    kernel, tuner, call = launch
    raced(monkeypatch, kernel, [1.0, 1.2, 1.1, 1.3, 1.3, 1.1, 1.2, 1.0, *[RuntimeError("no")] * 8])
    assert len(tuner.prune_configs(call)) == 1
    assert len(tuner.prune_configs(call)) == 4


@pytest.mark.parametrize(("name", "value"), [("cache_results", True), ("_do_bench", lambda run, quantiles: [1.0] * 3)])
def test_no_race_where_the_tuner_has_rules_of_its_own(launch, monkeypatch, name, value):
    kernel, tuner, call = launch
    raced(monkeypatch, kernel, [])
    setattr(tuner, name, value)
    assert len(tuner.prune_configs(call)) == 4


def test_a_race_launches_as_triton_does(launch, monkeypatch):
    _, tuner, call = launch
    said = []
    tuner.pre_hook = lambda arguments: said.append(("pre", arguments["BLOCK_K"]))
    tuner.post_hook = lambda arguments, exception: said.append(("post", exception))
    tuner.fn = types.SimpleNamespace(run=lambda *args, **named: said.append(("run", len(args), named["warmup"])))
    monkeypatch.setattr("triton.testing.do_bench", lambda run, **named: run() or 1.0)
    assert len(race(tuner, tuner.configs[:4], call)) == 3
    assert said == [("pre", 32), ("run", 6, False), ("post", None)] * 8


def product(a, b, c, M, N, K, BLOCK_M: "tl.constexpr", BLOCK_N: "tl.constexpr", BLOCK_K: "tl.constexpr"):
    rows, cols, inner = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        left = tl.load(a + rows[:, None] * K + start + inner[None, :])
        total = tl.dot(left, tl.load(b + (start + inner)[:, None] * N + cols[None, :]), total)
    tl.store(c + rows[:, None] * N + cols[None, :], total.to(tl.bfloat16))
