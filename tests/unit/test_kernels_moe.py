"""The fused-MoE family: how rows fall to experts, spaces and rules, the law's behaviour, ranking on several GPUs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import perfmodel as pm
from perfmodel.analytic import moe as law
from perfmodel.evaluate import published_moe
from perfmodel.kernels import fused_moe
from perfmodel.kernels.facts import facts_for
from perfmodel.kernels.terms import constant_values, physics
from perfmodel.tune.rank import COLD

H200 = pm.gpu("h200_sxm")
SIZES = {"tokens": 96, "hidden": 2048, "inter": 768, "num_experts": 64, "top_k": 6, "random": 1}


@pytest.mark.parametrize("block_m", [16, 64, 128])
@pytest.mark.parametrize(("tokens", "top_k", "experts"), [(1, 2, 8), (4, 8, 64), (37, 2, 8), (128, 8, 128), (500, 1, 4), (4096, 6, 60)])
def test_padded_tiles_are_those_of_drawn_routings(tokens: int, top_k: int, experts: int, block_m: int) -> None:
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(60):
        chosen = np.argsort(rng.random((tokens, experts)), axis=1)[:, :top_k]
        counts = np.bincount(chosen.ravel(), minlength=experts)
        drawn.append(np.ceil(counts / block_m).sum())
    expected = float(law.padded_tiles(tokens, top_k, experts, block_m))
    assert expected == pytest.approx(np.mean(drawn), rel=0.03)


def test_padding_by_hand() -> None:
    assert law.padded_tiles(1, 2, 8, 16) == pytest.approx(2.0)  # one token, two experts, a tile each
    assert law.padded_tiles(1000, 4, 4, 16) == pytest.approx(4 * 63.0, rel=0.01)  # every expert gets every token
    assert law.rows_of_busiest(1, 2, 8) == 1.0 and law.rows_of_busiest(800, 4, 4) == 800.0


def test_even_tiles_by_hand() -> None:
    assert law.even_tiles(8, 8, 64, 16) == 64.0  # one row each
    assert law.even_tiles(1, 2, 8, 16) == 2.0  # two experts with a row, six without
    assert law.even_tiles(10, 2, 8, 2) == 4 * 2 + 4 * 1  # 20 rows: four experts have 3, four have 2
    routed = [float(f(256, 2, 16, 32)) for f in (law.even_tiles, law.padded_tiles)]
    assert routed[0] == 16.0 and routed[1] > 20  # dealt out, 32 rows fill a tile; drawn, half of the experts need a second


def test_streams_by_hand() -> None:
    assert law.stream_share(512.0, 3, 16, 1, 16.0, 0.015, 0.01, 0.01) == pytest.approx(1024 / 1040)
    assert law.stream_share(512.0, 2, 16, 1, 16.0, 0.015, 0.01, 0.01) == pytest.approx(512 / 528)
    assert law.stream_share(512.0, 3, 64, 4, 0.0, 0.015, 0.01, 0.01) == pytest.approx(1 / 1.03 / 1.02)
    assert law.stream_share(512.0, 5, 16, 1, 0.0, 0.015, 0.01, 0.01) == pytest.approx(1 / 1.02)


def test_constants_are_the_gemms_and_its_own() -> None:
    own = set(physics("fused_moe")) - set(physics("gemm"))
    caches = {"usable_cache", "partition_share", "cache_sharpness", "partition_sharpness"}
    assert own == {"next_launch_s", "elementwise_l2_share", "lost_bytes", "stream_loss", "band_loss", "deep_loss"} | caches
    assert set(physics("gemm")) < set(physics("fused_moe"))


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("gpu", ["h200_sxm", "a100_sxm4_80gb", "l40", "rtx_4090"])
@pytest.mark.parametrize("tokens", [1, 64, 4096])
def test_every_gpu_gets_a_ranking(gpu: str, dtype: str, tokens: int) -> None:
    if dtype == "fp8" and gpu == "a100_sxm4_80gb":
        with pytest.raises(pm.InputError, match="no fp8 tensor cores"):
            pm.rank(pm.MoE(tokens, 2048, 768, 64, 6, dtype=dtype), gpu)
        return
    ranking = pm.rank(pm.MoE(tokens, 2048, 768, 64, 6, dtype=dtype), gpu, calibration=None)
    latency = ranking.frame["latency_us"].to_numpy()
    assert len(ranking) > 100 and np.all(np.diff(latency) >= 0) and np.all(np.isfinite(latency)) and latency[0] > 0
    best = ranking.top(1)[0]
    assert best["block_m"] == 16 if tokens == 1 else best["block_m"] >= 64 if tokens == 4096 else True


def test_parallel_shares() -> None:
    whole = fused_moe.sizes_of(pm.MoE(64, 2048, 768, 64, 6))
    assert whole == {"tokens": 64, "hidden": 2048, "inter": 768, "num_experts": 64, "top_k": 6, "random": 0}
    assert fused_moe.sizes_of(pm.MoE(64, 2048, 768, 64, 6, distribution="random"))["random"] == 1
    assert fused_moe.sizes_of(pm.MoE(64, 2048, 768, 64, 6, tp=4))["inter"] == 192
    shared = fused_moe.sizes_of(pm.MoE(64, 2048, 768, 64, 6, ep=4))
    assert shared["num_experts"] == 16 and shared["tokens"] * shared["top_k"] == 64 * 6 // 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: pm.rank(pm.MoE(8, 2048, 768, 64, 6, distribution="power_law_1.2"), "h200"),
            "for balanced and for random routing",
        ),
        (lambda: pm.rank(pm.MoE(8, 2048, 120, 64, 6), "h200"), "needs inter a multiple of 16 on each GPU, got 120"),
        (lambda: pm.rank(pm.MoE(8, 2048, 768, 64, 6, dtype="int4_wo"), "h200"), "unknown dtype of the Triton fused-MoE kernels"),
        (lambda: pm.rank(pm.MoE(8, 2048, 768, 64, 6), "h200", configs=[{"BLOCK_SIZE_M": 16}]), "config 0 has no block_n"),
    ],
)
def test_bad_input_is_one_line(call: Any, message: str) -> None:
    with pytest.raises(pm.InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_other_peoples_spelling_comes_back_as_given() -> None:
    given = [
        {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3} for m in (16, 64)
    ]
    ranking = pm.rank(pm.MoE(2, 2048, 768, 64, 6), "a100", configs=given)
    assert ranking.top(1) == [given[0]] and len(ranking) == 2


def terms(gpu: Any = H200, **changes: Any) -> Any:
    sizes = {**SIZES, **changes}
    space = fused_moe.space(gpu, dtype="bf16", **sizes)
    facts = facts_for("fused_moe", gpu, "bf16", space, sizes)
    return fused_moe.terms(gpu, dtype="bf16", configs=space, facts=facts, constants=constant_values("fused_moe"), **sizes)


def test_latency_is_no_less_than_the_roofline_and_grows_with_the_problem() -> None:
    base = terms().latency_s
    work = pm.MoE(**{k: v for k, v in SIZES.items() if k != "random"}, distribution="random").work()
    peak = H200.tensor_rate("bf16") * H200.max_clock_hz / H200.boost_clock_hz
    assert base.min() > max(work.flops / peak, (work.read_bytes + work.write_bytes) / H200.dram_bytes_per_s)
    for name in ("tokens", "hidden", "inter"):
        assert np.all(terms(**{name: 2 * SIZES[name]}).latency_s >= base * 0.999), name
    faster = dataclasses.replace(H200, dram_bytes_per_s=2 * H200.dram_bytes_per_s)
    assert np.all(terms(faster).latency_s <= base * 1.0001)


def test_what_is_replayed_stays_in_l2_as_far_as_it_fits() -> None:
    l40 = pm.gpu("l40")
    assert fused_moe.REPLAYED[0] == COLD
    for sizes, first, fits in (
        ({"tokens": 8, "hidden": 1536, "inter": 768, "num_experts": 8, "top_k": 2}, 1.6, True),  # 57 MB of weights in 96 MiB
        ({"tokens": 512, "hidden": 4096, "inter": 2048, "num_experts": 64, "top_k": 8}, 1.0, False),  # 3.2 GB
    ):
        took = [terms(l40, **sizes, replayed=i) for i in range(3)]
        cold, layer, projection = (t.latency_s for t in took)
        assert cold == pytest.approx(terms(l40, **sizes).latency_s, rel=1e-9)
        assert np.all(projection <= layer) and np.all(layer <= cold)
        assert (cold.min() / projection.min() > first) if fits else np.allclose(projection, cold, rtol=1e-3)
    between = {"tokens": 64, "hidden": 1536, "inter": 768, "num_experts": 16, "top_k": 2}  # 113 MB in all, 76 of the first projection
    cold, layer, projection = (terms(l40, **between, replayed=i).latency_s.min() for i in range(3))
    assert projection < 0.8 * layer and layer < cold


def test_a_ranking_says_what_is_replayed_and_refuses_what_it_does_not_know() -> None:
    op = pm.MoE(8, 1536, 768, 16, 2)
    asked, cold = (pm.rank(op, "l40", calibration=None, replayed=what) for what in ("projection", "nothing"))
    assert "replayed without a flush" in asked.notes[0] and cold.notes == ()
    assert cold.predictions.latency_us == pytest.approx(pm.rank(op, "l40", calibration=None).predictions.latency_us, rel=1e-9)
    assert asked.top(1) != cold.top(1)
    with pytest.raises(pm.InputError, match=r"replayed is 'expert': expected nothing or layer or projection for kernel fused_moe"):
        pm.rank(op, "l40", replayed="expert")
    with pytest.raises(pm.InputError, match=r"replayed is 'layer': expected nothing for kernel gemm"):
        pm.rank(pm.Gemm(64, 64, 64), "l40", replayed="layer")


def test_a_shortlist_is_of_different_code_before_other_orders_of_tiles() -> None:
    ranking = pm.rank(pm.MoE(64, 2048, 768, 128, 8), "a100")
    rows = ranking.configs.take(np.array(ranking.shortlist(8))).rows()
    codes = [tuple(r[name] for name in ("block_m", "block_n", "block_k", "num_warps", "num_stages")) for r in rows]
    first = [tuple(r[name] for name in ("block_m", "block_n", "block_k", "num_warps", "num_stages")) for r in ranking.top(8)]
    assert len(set(codes)) >= len(set(first)) and len(set(codes)) >= 6


def test_published_configs_are_placed_in_the_ranking() -> None:
    problems, configs = published_moe.near_best(every=60), published_moe.tuned(every=200)
    assert len(problems) == 9 and problems["place"].dropna().between(1, 2500).all()
    assert (problems["hit"] == (problems["place"] <= published_moe.FIRST)).all()
    assert configs["place"].between(0, 1).all() and (configs["slower"].dropna() >= 0).all()
    rows = published_moe.summary({"projection": problems, "nothing": problems}, configs)
    assert rows[-1]["table"] == "tuned" and sum(r["count"] for r in rows if r["table"] == "near-best") == 4 * len(problems)
