"""The attention families: laws against counts by hand, spaces and rules, facts, ranking, calibration, tuning from stored rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel._resources import shipped
from perfmodel.analytic import attention as law
from perfmodel.kernels import FAMILIES, attention_decode, attention_prefill, family_for, kernel_family
from perfmodel.kernels.configs import family_configs
from perfmodel.kernels.facts import VALUES, facts_for, read_table
from perfmodel.kernels.terms import constant_values

H200 = pm.gpu("h200_sxm")
PREFILL = {"batch": 2, "q_len": 3000, "kv_len": 3000, "q_heads": 16, "kv_heads": 4, "head_dim": 128, "causal": 1}
DECODE = {"batch": 4, "kv_len": 6000, "q_heads": 32, "kv_heads": 8, "head_dim": 128}
SIZES = {"attention_prefill": PREFILL, "attention_decode": DECODE}


def prefill(**changes: Any) -> pm.Attention:
    return pm.Attention("prefill", **{**PREFILL, "causal": True, **changes})


def decode(**changes: Any) -> pm.Attention:
    return pm.Attention("decode", **{**DECODE, "q_len": 1, **changes})


def op(family: str) -> pm.Attention:
    return prefill() if family == "attention_prefill" else decode()


# laws


def count(q: int, kv: int, bm: int, bn: int, causal: bool) -> tuple[int, int, int]:
    """Blocks that all query blocks of a head visit, the most one visits, and those that lie before every query of the block."""
    ends = [min((i + 1) * bm + kv - q, kv) if causal else kv for i in range(-(-q // bm))]
    starts = [min(i * bm + kv - q + 1, kv) if causal else kv for i in range(-(-q // bm))]
    visits = [-(-e // bn) for e in ends]
    return sum(visits), max(visits), sum(s // bn for s in starts)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 5000), st.integers(0, 3000), st.sampled_from([16, 64, 128, 256]), st.sampled_from([16, 64, 256]), st.booleans())
def test_visited_blocks_are_the_counted_ones(q: int, before: int, bm: int, bn: int, causal: bool) -> None:
    total, longest, whole = law.visited_blocks(q, q + before, np.array([float(bm)]), np.array([float(bn)]), causal)
    exact = count(q, q + before, bm, bn, causal)
    tiles = -(-q // bm)
    assert longest[0] == exact[1]
    assert abs(total[0] - exact[0]) <= tiles and 0 <= whole[0] <= total[0]
    if before % bn == 0:
        assert abs(total[0] - exact[0]) <= 1e-6
        assert abs(whole[0] - exact[2]) <= tiles


def test_makespan_by_hand() -> None:
    one = np.array([1.0])
    assert law.makespan(12 * one, 3 * one, 4 * one, True, 0.0, 1.0)[0] == 3.0  # four equal programs on four slots
    assert law.makespan(15 * one, 3 * one, 4 * one, True, 0.0, 1.0)[0] == 6.0  # a fifth takes a whole round more
    assert law.makespan(15 * one, 3 * one, 4 * one, True, 0.0, 0.0)[0] == 3.75  # or nothing, if the tail does not count
    assert law.makespan(40 * one, 4 * one, 4 * one, False, 0.5, 1.0)[0] == 12.0  # uneven: ten on average, half the longest after it
    assert law.makespan(4 * one, 3 * one, 8 * one, False, 0.1, 1.0)[0] == 3.0  # never less than the longest


def test_softmax_and_combine_by_hand() -> None:
    issue, special = law.softmax_cycles(np.array([540.0]), np.array([34.0]), np.array([4.0]), 16.0)
    assert (issue[0], special[0]) == (540.0, 272.0)  # 4 warps on 4 schedulers; 34 x 4 x 32 results, 16 a cycle
    assert law.combine_seconds(64, 8, 100.0, 132, 1e-6, 1e9, 2e-6, 8.0) == pytest.approx(3.8e-6)  # one round of 8 splits
    assert law.combine_seconds(2112, 8, 100.0, 132, 1e-6, 1e9, 2e-6, 8.0) == pytest.approx(4.6e-6)  # two rounds


# spaces, rules, facts


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("gpu", ["h200_sxm", "a100_sxm4_80gb", "l20", "rtx_4090", "b200_sxm"])
def test_every_gpu_gets_a_ranking_of_legal_configs(family: str, gpu: str) -> None:
    from perfmodel.measure.kernels import family as measured

    ranking = pm.rank(op(family), gpu, calibration=None)
    assert ranking.kernel == family and len(ranking) > 40
    latency = ranking.frame["latency_us"].to_numpy()
    assert np.all(np.diff(latency) >= 0) and np.all(np.isfinite(latency)) and latency[0] > 0
    arch = int(ranking.gpu.arch.removeprefix("sm_"))
    problem = {**SIZES[family], "dtype": "bf16"}
    assert all(measured(family).illegal(problem, config, arch) is None for config in ranking.top(len(ranking)))
    assert ("tma" in set(ranking.frame["variant"])) == (family == "attention_prefill" and arch >= 90)


@pytest.mark.parametrize("family", SIZES)
def test_facts_of_the_spaces_are_compiled_on_hopper_and_the_formula_is_near(family: str) -> None:
    module = kernel_family(family)
    sizes = SIZES[family]
    ranking = pm.rank(op(family), H200)
    assert ranking.predictions.terms.exact_facts.mean() > 0.95
    table = read_table(shipped("data") / f"compile_facts_{family}.npz", family)
    assert len(table.keys) and set(table.values) == set(VALUES) and (table.values["special"] > 0).mean() > 0.99
    space = ranking.configs
    exact, guess = facts_for(family, H200, "bf16", space, sizes), module.formula(H200, "bf16", space, sizes)
    off = np.abs(np.asarray(guess["shared_bytes"]) / exact.shared_bytes - 1.0)
    assert np.median(off) < 0.1 and np.quantile(off, 0.9) < 0.35
    assert np.mean(np.asarray(guess["warpgroup"]) == exact.warpgroup) > 0.98
    assert np.median(np.abs(np.asarray(guess["loop_instructions"]) / exact.loop_instructions - 1.0)) < 0.35


def test_reasons() -> None:
    given = [
        {"block_m": 64, "block_n": 64},
        {"block_m": 48, "block_n": 64},
        {"block_m": 8, "block_n": 64},
        {"block_m": 256, "block_n": 256},
    ]
    given.append({"block_m": 64, "block_n": 64, "variant": "tma"})
    ranking = pm.rank(prefill(), "l20", configs=[{**g, "num_warps": 4, "num_stages": 3} for g in given])
    assert ranking.top(5) == [{**given[0], "num_warps": 4, "num_stages": 3}]
    reasons = {config["block_m"]: reason for config, reason in ranking.pruned}
    assert "powers of two" in reasons[48] and "16 x 16" in reasons[8] and "shared memory" in reasons[256] and "sm_90" in reasons[64]
    splits = pm.rank(decode(kv_len=100), "h200", configs=[{"BN": 64, "NS": n, "variant": "pointer"} for n in (1, 2, 4)])
    assert [reason for _, reason in splits.pruned] == ["more splits than blocks of keys"]
    assert len(pm.rank(decode(kv_len=100), "h200", configs=[{"BN": 64, "NS": 4}])) == 1  # somebody else's launcher clips them


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pm.rank(prefill(window=128), "h200"), "has no window, got window=128"),
        (lambda: pm.rank(prefill(head_dim=80), "h200"), "power of two from 16 to 256, got 80"),
        (lambda: pm.rank(prefill(kv_dtype="fp8"), "h200"), "got kv_dtype=fp8 for bf16"),
        (lambda: pm.rank(prefill(dtype="fp8"), "h200"), "unknown dtype of the Triton attention kernels"),
        (lambda: pm.rank(decode(), "h200", kernel="attention_prefill"), "does not compute a decode attention"),
        (lambda: pm.rank(decode(), "h200", kernel="attention"), "unknown kernel"),
        (lambda: pm.rank(prefill(), "h200", configs=[{"block_m": 64}]), "config 0 has no block_n"),
        (lambda: pm.predict(prefill(), "h200", config={"block_m": 256, "block_n": 256, "num_warps": 4, "num_stages": 4}), "shared memory"),
    ],
)
def test_bad_input_is_one_line(call: Any, message: str) -> None:
    with pytest.raises(pm.InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_operators_find_their_family() -> None:
    assert {family_for(prefill()), family_for(decode()), family_for(pm.Gemm(8, 8, 8)), family_for(pm.MoE(8, 64, 64, 4, 2))} == set(FAMILIES)
    with pytest.raises(pm.InputError, match="no Triton kernel family for a rmsnorm"):
        family_for(pm.MemoryBound("rmsnorm", 8, 64))


# the law's behaviour


def terms(family: str, gpu: Any = H200, **changes: Any) -> Any:
    module = kernel_family(family)
    sizes = {**SIZES[family], **changes}
    space = module.space(gpu, dtype="bf16", **SIZES[family])
    facts = facts_for(family, gpu, "bf16", space, sizes)
    return module.terms(gpu, dtype="bf16", configs=space, facts=facts, constants=constant_values(family), **sizes)


@pytest.mark.parametrize("family", SIZES)
def test_latency_is_no_less_than_the_roofline_and_grows_with_the_problem(family: str) -> None:
    base = terms(family)
    work = op(family).work()
    peak = H200.tensor_rate("bf16") * H200.max_clock_hz / H200.boost_clock_hz
    floor = max(work.flops / peak, (work.read_bytes + work.write_bytes) / H200.dram_bytes_per_s)
    assert base.latency_s.min() > floor
    for name in ("batch", "kv_heads"):
        bigger = terms(family, **{name: 2 * SIZES[family][name], "q_heads": 2 * SIZES[family]["q_heads"]})
        assert np.all(bigger.latency_s >= base.latency_s * 0.999), name
    longer = {"kv_len": 2 * SIZES[family]["kv_len"]} | ({"q_len": 2 * PREFILL["q_len"]} if family == "attention_prefill" else {})
    assert np.all(terms(family, **longer).latency_s >= base.latency_s * 0.999)


@pytest.mark.parametrize("family", SIZES)
def test_more_bandwidth_or_a_faster_clock_never_hurts(family: str) -> None:
    base = terms(family).latency_s
    faster = dataclasses.replace(H200, dram_bytes_per_s=2 * H200.dram_bytes_per_s)
    assert np.all(terms(family, faster).latency_s <= base * 1.0001)
    quick = dataclasses.replace(H200, max_clock_hz=1.2 * H200.max_clock_hz)
    assert np.all(terms(family, quick).latency_s <= base * 1.0001)


def test_a_mask_halves_the_work_and_long_caches_want_splits() -> None:
    causal, full = (terms("attention_prefill", causal=c).latency_s for c in (1, 0))
    assert 1.4 < np.median(full / causal) < 2.1
    best = pm.rank(decode(batch=1, kv_len=100_000), H200).top(1)[0]
    assert best["num_splits"] >= 8
    assert pm.rank(decode(batch=128, kv_len=2048), H200).top(1)[0]["num_splits"] <= 2


def test_somebody_elses_combine_costs_more_for_many_splits() -> None:
    rows = [{"block_n": 64, "num_splits": s, "num_warps": 4, "num_stages": 3, "variant": v} for s in (4, 64) for v in ("pointer", "plain")]
    configs = family_configs(attention_decode, rows)
    facts = facts_for("attention_decode", H200, "bf16", configs, DECODE)
    found = attention_decode.terms(
        H200, dtype="bf16", configs=configs, facts=facts, constants=constant_values("attention_decode"), **DECODE
    )
    own, plain = found.seconds["combine"][[0, 2]], found.seconds["combine"][[1, 3]]
    assert np.all(plain > own) and plain[1] - plain[0] > 2.5e-6


# calibration, prediction, tuning


def test_shipped_calibration_answers_for_the_h200_and_the_spec_tier_for_others() -> None:
    ours = pm.rank(prefill(), "h200").predictions.model
    assert ours.tier == "calibrated" and ours.card["gpu"] == "h200_sxm"
    assert pm.rank(prefill(), "h100").predictions.model.model_id == "universal:kernel_attention_prefill_sm_90"
    assert pm.rank(prefill(), "a100_sxm4_80gb").predictions.model.model_id == "physics:kernel_attention_prefill"


@pytest.mark.parametrize("family", SIZES)
def test_predict_is_the_rankings_own_figure(family: str) -> None:
    ranking = pm.rank(op(family), "h200")
    best = ranking.top(1)[0]
    found = pm.predict(op(family), "h200", config=best)
    assert (
        found.latency_us == pytest.approx(float(ranking.predictions.latency_us.min())) and found.low_us < found.latency_us < found.high_us
    )
    assert found.tier == "calibrated" and found.terms["launch"] > 0


@pytest.mark.parametrize("family", SIZES)
def test_tuning_from_stored_rows(family: str, tmp_path: Any) -> None:
    from perfmodel.measure.kernels import family as measured
    from perfmodel.measure.replay import ReplayRunner

    kernel = measured(family)
    rows = pd.read_parquet(shipped("data") / family / "evaluation_h200_sxm.parquet").astype(object)
    rows = rows.where(rows.notna(), None).drop(columns=["gpu", "driver", "torch", "triton", "source_hash"])  # as if measured here
    runner = ReplayRunner(rows.to_dict("records"), kernel.problem_keys, kernel.config_keys)
    problem = max(runner.problems(), key=lambda p: int(p["batch"]) * int(p["kv_len"]) * int(p["q_heads"]))
    sizes = {k: int(v) for k, v in problem.items() if k != "dtype"}
    phase = family.removeprefix("attention_")
    asked = pm.Attention(phase, **{**sizes, "causal": bool(sizes.pop("causal", 1))} | ({"q_len": 1} if phase == "decode" else {}))
    of_this = rows[np.logical_and.reduce([rows[k] == v for k, v in sizes.items() if k in rows])]
    best = min(float(r.latency_us) for r in of_this.itertuples() if r.status == "ok" and r.variant != "sdpa")
    found = pm.tune(asked, gpu="h200", runner=runner, top_k=8, store=tmp_path / "store.sqlite")
    assert found.latency_us <= 1.03 * best and set(found.baseline_us) == {"sdpa"} and runner.asked <= 9
    again = pm.tune(asked, gpu="h200", runner=runner, top_k=8, store=tmp_path / "store.sqlite")
    assert again.source == "store" and again.latency_us == found.latency_us


def test_other_peoples_column_names_calibrate() -> None:
    plain = pd.read_parquet(shipped("data") / "attention_prefill" / "plain_h200_sxm.parquet")
    theirs = plain.rename(columns={"q_len": "seq", "q_heads": "heads", "block_m": "BM", "block_n": "BN"}).drop(
        columns=["kv_len", "variant"]
    )
    theirs = theirs.drop(columns=["regs", "spills", "shared"]).sample(400, random_state=1)
    fitted = pm.calibrate_table("h200", {"kernel:attention_prefill": theirs})
    model = fitted.models["kernel_attention_prefill"]
    assert model.card["variants"] == ["plain"] and model.card["rows"] == 400
    assert model.card["held_out_error"][model.card["chosen"]] < model.card["held_out_error"]["spec"]
    with pytest.raises(pm.InputError, match="lacks column kv_heads"):
        pm.calibrate_table("h200", {"kernel:attention_prefill": theirs.drop(columns=["kv_heads"])})


def test_no_shape_is_in_both_the_calibration_and_the_evaluation_rows() -> None:
    for family in ("attention_prefill", "attention_decode", "fused_moe"):
        names = list(kernel_family(family).SIZES)
        parts = []
        for part in ("calibration", "evaluation"):
            frame = pd.read_parquet(shipped("data") / family / f"{part}_h200_sxm.parquet")
            parts.append(set(frame[names].itertuples(index=False, name=None)))
        assert parts[0] and parts[1] and not parts[0] & parts[1]


def test_the_portable_space_is_the_pointer_kernel() -> None:
    sizes = {k: v for k, v in PREFILL.items()}
    assert set(attention_prefill.portable_space(H200, dtype="bf16", **sizes).variant) == {"pointer"}
