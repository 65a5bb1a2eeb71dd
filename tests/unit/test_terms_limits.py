"""Limits and defaults that a docstring states, each at its last allowed and its first refused value, and terms of rare cases by hand."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fictional import US, card, close
from test_terms_plan import BASE, EXPERTS

import perfmodel as pm
from perfmodel.analytic.bound import beats
from perfmodel.errors import InputError
from perfmodel.kernels import attention_decode, attention_prefill
from perfmodel.kernels.anykernel import law
from perfmodel.kernels.anykernel.facts import Code
from perfmodel.kernels.anykernel.work import Dot, Segment
from perfmodel.library.attention_kernels import PrefillKernel, prefill_kernels
from perfmodel.library.attention_splits import full_waves
from perfmodel.library.attention_tiles import tiles
from perfmodel.library.collective import _custom, _least_s
from perfmodel.library.collective_question import Question
from perfmodel.library.collective_stacks import from_python
from perfmodel.library.registry import parts
from perfmodel.ops import OperatorTable
from perfmodel.plan import confirm, prices
from perfmodel.plan.candidates import shapes
from perfmodel.plan.disagg import Pool
from perfmodel.plan.engine_flags import VLLM
from perfmodel.plan.estimate import cache_tokens
from perfmodel.plan.families import FAMILIES
from perfmodel.plan.goal import Goal, goal
from perfmodel.plan.hf_config import _seeing_params
from perfmodel.plan.memory import memory_ledger
from perfmodel.plan.model import load_model
from perfmodel.plan.overhead import checked_version
from perfmodel.plan.parallel import Parallel, refusals
from perfmodel.plan.quantisation import common
from perfmodel.plan.scheduler import default_scheduler
from perfmodel.plan.simulate import simulate
from perfmodel.plan.tensors import active_parameters
from perfmodel.plan.traffic import Lognormal
from perfmodel.plan.weights import weight_bytes


def test_a_row_may_beat_the_bound_by_three_per_cent() -> None:
    assert beats([0.969, 0.971, 1.0], 1.0).tolist() == [True, False, False]


def test_limits_of_numbers_that_users_give() -> None:
    assert goal(10, 10, total_gpus=100_000).total_gpus == 100_000
    with pytest.raises(InputError, match="total_gpus"):
        goal(10, 10, total_gpus=100_001)
    assert Lognormal(10, 10.0).cv == 10.0
    with pytest.raises(InputError, match="cv"):
        Lognormal(10, 10.5)
    many = {"h100_sxm": 1.0, **{f"gpu{i}": 1.0 for i in range(prices.MOST_PRICES)}}
    with pytest.raises(InputError, match=r"10,?000"):
        prices.prices(many)


@pytest.mark.parametrize(("length", "allowed"), [(40, True), (41, False)])
def test_a_version_has_at_most_40_characters(length: int, allowed: bool) -> None:
    version = "1.0.post" + "1" * (length - 8)
    if allowed:
        assert checked_version(version) == version
    else:
        with pytest.raises(InputError, match="framework_version"):
            checked_version(version)


def test_defaults_that_nobody_states() -> None:
    assert Pool().engines == 1 and goal(10, 10).accepted_tokens_per_step == 1.0 and Goal(10, 10).prefix_cache_hit_rate == 0.0
    one = memory_ledger("Llama-3.1-8B", "h100_sxm")
    assert one.parallel == Parallel(1, 1, 1, 1)
    assert {"--enforce-eager", "--no-enable-prefix-caching"} <= VLLM.unmodelled and "-O3" in VLLM.unmodelled
    assert FAMILIES["gemma2"].defaults["head_dim"] == 256


def test_lengths_may_be_an_array() -> None:
    found = pm.max_concurrency("Llama-3.1-8B", "h100_sxm", np.array([2048, 8192]), tensor_parallel_sizes=[1])
    assert found["context_tokens"].tolist() == [2048, 8192]
    with pytest.raises(InputError, match="expected a list"):
        pm.max_concurrency("Llama-3.1-8B", "h100_sxm", np.array([[2048]]))  # type: ignore[arg-type]


def test_groups_of_weights_that_share_a_scale() -> None:
    found = {name: load_model(BASE, name).group_size for name in ("fp8_block", "int4_wo", "nvfp4", "mxfp4", "nf4", "fp8")}
    assert found == {"fp8_block": 128, "int4_wo": 128, "nvfp4": 16, "mxfp4": 32, "nf4": 64, "fp8": 0}


def test_a_price_may_have_a_date_of_toml(tmp_path: Any) -> None:
    file = tmp_path / "prices.toml"
    file.write_text("[h100_sxm]\nusd_per_gpu_hour = 2.5\ndate = 2026-11-01\n[l40s]\nusd_per_gpu_hour = 1\ndate = 'autumn'\n")
    found = prices.prices(file)
    assert (found["h100_sxm"].date, found["l40s"].date) == ("2026-11-01", "autumn")


# Kernels


def test_work_of_the_attention_kernels() -> None:
    # 4 x 128 flop a pair and head; decode: one query, the keys and values once, and the query and its output
    decode = attention_decode.work("bf16", batch=2.0, kv_len=1000.0, q_heads=8.0, kv_heads=2.0, head_dim=128.0)
    assert float(decode.flops) == close(4 * 128 * 2 * 8 * 1000)
    assert float(decode.bytes) == close(2 * 2 * 1000 * 2 * 128 * 2 + 2 * 2 * 8 * 128 * 2)
    prefill = attention_prefill.work("bf16", batch=1.0, q_len=4.0, kv_len=4.0, q_heads=1.0, kv_heads=1.0, head_dim=64.0, causal=1.0)
    assert float(prefill.flops) == close(4 * 64 * 10)


def test_warps_that_compute_the_same_rows() -> None:
    # eight warps of mma.sync hold 16 x 8 each: a tile of 64 x 8 has half as many elements
    def segment(rows: int, cols: int) -> Segment:
        return Segment(("k",), np.array([1.0]), dots=[Dot(rows, cols, 32, 2.0, "bf16")])

    assert law._replicated(Code(), segment(64, 8), 8) and not law._replicated(Code(), segment(128, 8), 8)
    assert not law._replicated(Code(), segment(127, 8), 7) and law._replicated(Code(), segment(127, 8), 8)
    assert not law._replicated(Code(warpgroup=True), segment(8, 8), 8)


def test_a_slot_without_loops_is_even() -> None:
    assert law._unevenness(SimpleNamespace(loops=[], looked_at=4, programs=4), 2) == 1.0  # type: ignore[arg-type]
    loop = Segment(("k",), np.array([1.0, 1.0, 1.0, 5.0]))
    work = SimpleNamespace(loops=[loop], looked_at=4, programs=4)
    assert law._unevenness(work, 2) == close(6.0 / 4.0)  # type: ignore[arg-type]


# Libraries


def test_shares_that_fill_whole_waves() -> None:
    # 100 slots: 80 units are one share; 40 units 2 in the first wave (80 %: not 85), 5 in two (100 %); 17 units 5 in the first (85 %)
    assert full_waves(np.array([80.0, 79.0, 40.0, 17.0, 30.0]), 100.0).tolist() == [1.0, 3.0, 5.0, 5.0, 3.0]


def test_a_packed_group_is_no_larger_than_its_tile() -> None:
    on = pm.gpu("h100_sxm")
    table = OperatorTable.read("attention", pd.DataFrame([
        {"phase": "prefill", "batch": 1, "q_len": 512, "kv_len": 512, "q_heads": g, "kv_heads": 1, "head_dim": 600, "stack": "vllm",
         "kernel": "fa3"} for g in (2, 1024)
    ]))  # fmt: skip
    kernels = prefill_kernels(table["stack"].astype(int), table["kernel"].astype(int))
    tokens, _, heads = tiles(on, kernels, table["head_dim"], table["q_heads"] / table["kv_heads"], np.zeros(2, dtype=bool))
    assert (tokens * heads == tokens[0] * heads[0]).all() and (tokens >= 1.0).all()
    assert PrefillKernel.__dataclass_fields__["narrow_from_dim"].default > 512  # wider than any head: never, unless a record says so


def test_network_beside_the_link_of_two_nodes() -> None:
    on = pm.gpu("h100_sxm")
    k = {**_constants(), "net_rate": 0.5}
    asked = {"kind": "all_reduce", "message_bytes": 1e9, "stack": "nccl"}
    one, two = (Question(on, {**asked, "n_gpus": 8.0 * m, "nodes": m}, k) for m in (1.0, 2.0))
    assert _least_s(one, k)[0] == close(7 / 8 * 1e9 / one.links.wire[0])
    both = two.links.wire[0] + two.links.nic[0] / 0.5
    share = 15 / 16 if two.links.nvls[0] else 2 * 15 / 16
    assert _least_s(two, k)[0] == close(share * 1e9 / both)


def _constants() -> dict[str, float]:
    from test_terms_collective import constants

    return constants()


def test_steps_of_a_stacks_own_all_reduce() -> None:
    from test_terms_collective import NVLINK

    k = {**_constants(), "one_shot_start_us": 3.0, "one_shot_peer_us": 0.5, "push_start": 0.5}
    for stack, factor in (("vllm", 1.0), ("sglang", 0.5)):
        q = Question(NVLINK, {"kind": "all_reduce", "message_bytes": 1024.0, "n_gpus": 8.0, "stack": stack, "topology": "hgx_h100"}, k)
        found = {c.algorithm: c for c in _custom(NVLINK, q, k, 1.0)}["one_shot"]
        assert found.cost.steps_s[0] == close((3.0 + 6 * 0.5) * US * factor)  # six peers more than the first


def test_whose_calls_a_python_host_launches() -> None:
    assert [from_python(s) for s in ("torch", "torch_graph", "vllm", "vllm_eager", "nccl")] == [True, False, False, True, False]


def test_rows_of_experts_by_type_and_stage() -> None:
    size = {"tokens": 8, "hidden": 1024, "inter": 512, "num_experts": 8, "top_k": 2}
    rows = [{**size, "dtype": d, "weight": w} for d in ("bf16", "fp8") for w in ("both", "w13")]
    found = {name: np.arange(4)[rows].tolist() for name, rows in parts(OperatorTable.read("moe", pd.DataFrame(rows)))}
    assert found == {"moe": [0], "moe_quantised": [2], "moe_kernel": [1, 3]}


# Planning


def test_shapes_of_engines_with_experts() -> None:
    found = [(p.tp, p.pp, p.ep, p.dp) for p in shapes(load_model(EXPERTS), 4, 4)]
    assert found == [
        (1, 1, 1, 1), (2, 1, 1, 1), (2, 1, 2, 1), (1, 1, 2, 2), (1, 2, 1, 1), (4, 1, 1, 1), (4, 1, 4, 1), (2, 1, 4, 2), (1, 1, 4, 4),
        (2, 2, 1, 1), (2, 2, 2, 1), (1, 2, 2, 2), (1, 4, 1, 1),
    ]  # fmt: skip


def test_what_engines_refuse() -> None:
    experts = load_model(EXPERTS)
    assert refusals(experts, Parallel(2, 1, 2, 2), "vllm") and not refusals(experts, Parallel(2, 1, 4, 2), "vllm")
    assert any("TensorRT-LLM" in line for line in refusals(experts, Parallel(2, 1, 4, 2), "trtllm"))
    for fine in (Parallel(2, 1, 2, 1), Parallel(2, 1, 1, 2), Parallel(1, 1, 2, 2)):
        assert not any("TensorRT-LLM" in line for line in refusals(experts, fine, "trtllm"))
    linear = load_model("Qwen3-Next-80B-A3B")
    kinds = {layer.attention for layer in linear.layers}
    assert "linear" in kinds
    assert any("attention heads" in line for line in refusals(load_model(BASE), Parallel(3), "sglang"))


def test_parts_that_stay_at_16_bits() -> None:
    assert common({"attention": [True, True], "mlp": [True, False], "router": [False], "norm": []}) == ("attention", "mlp of 1 layers")


def test_parameters_of_a_vision_tower() -> None:
    def tower(**facts: int) -> Any:
        names = ("hidden_size", "embed_dim", "num_hidden_layers", "depth", "num_layers", "intermediate_size", "mlp_ratio")
        return SimpleNamespace(**{**dict.fromkeys(names), **facts})

    # four matrices of attention and two of an MLP, four times as wide where nothing is said
    assert _seeing_params(tower(hidden_size=10, depth=3)) == 3 * (4 * 100 + 2 * 10 * 40)
    assert _seeing_params(tower(embed_dim=10, num_layers=2, intermediate_size=30)) == 2 * (400 + 2 * 10 * 30)
    assert _seeing_params(tower(hidden_size=10, depth=1, mlp_ratio=3)) == 400 + 600
    assert _seeing_params(tower(hidden_size=10)) == _seeing_params(tower(depth=3)) == _seeing_params(None) == 0


def test_parameters_that_a_token_multiplies_with() -> None:
    # per layer: q, k, v, o of 16 and 4 heads of 64; three matrices of 2 of 8 experts; router; two norms; the head, and the last norm
    layer = 1024 * (1024 + 2 * 256 + 1024) + 2 * 3 * 512 * 1024 + 8 * 1024 + 2 * 1024
    experts = load_model(EXPERTS)
    extra = sum(t for t in (128,))  # norms of queries and keys, 64 each
    assert active_parameters(experts) == 8 * (layer + extra) + 32000 * 1024 + 1024


def test_bytes_of_four_bit_weights() -> None:
    # half a byte an element; a scale of a byte for 16 (nvfp4) or 32 (mxfp4), of four for 64 (nf4)
    mlp = 3 * 1024 * 4096 * 8
    nvfp4, mxfp4, nf4 = (weight_bytes(load_model(BASE, q), Parallel(1))["mlp"] for q in ("nvfp4", "mxfp4", "nf4"))
    assert nvfp4 == close(mlp * (0.5 + 1 / 16))
    assert mxfp4 == close(mlp * (0.5 + 1 / 32))
    assert nf4 == close(mlp * (0.5 + 4 / 64))


def test_tokens_of_all_replicas() -> None:
    one = memory_ledger("Qwen3-30B-A3B", "h100_sxm", tensor_parallel_size=2, expert_parallel_size=2)
    two = dataclasses.replace(one, parallel=Parallel(2, 1, 4, 2))
    assert cache_tokens(two, 1000.0) == close(2 * cache_tokens(one, 1000.0))
    assert cache_tokens(one, 1000.0) == close(one.kv_bytes / one.kv_bytes_per_token)


def test_a_request_alone_starts_at_once() -> None:
    found = simulate(
        lambda chunks, sequences, kv: 0.01, default_scheduler("vllm", card("sm_90")), np.array([100]), np.array([3]), kv_tokens=1e6,
        concurrency=1,
    )  # fmt: skip
    assert found.ttft_s.tolist() == close([0.01]) and found.e2e_s.tolist() == close([0.03])


def test_a_limit_without_a_range_counts_as_it_is() -> None:
    row = {"ttft_ms": 100.0, "ttft_high_ms": 100.0, "tpot_ms": 10.0, "tpot_high_ms": 10.0, "tightest": "GPUs", "tightest_used": 0.9}
    spread = SimpleNamespace(ttft=SimpleNamespace(p90=100.0), tpot=SimpleNamespace(p90=10.0))
    plan: Any = SimpleNamespace(goal=Goal(10, 10, percentile="p90", ttft_ms=200.0), check=lambda _: spread)
    found = confirm._simulated(plan, row)
    assert found["meets"] and found["sure"] and found["tightest"] == "GPUs"


# Defaults, constants of cards and models, and small spaces


def test_bytes_of_elements_in_kernels_text() -> None:
    from perfmodel.kernels.anykernel.ir import _BITS

    assert {name: bits // 8 for name, bits in _BITS.items()} == {
        "i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8, "index": 8,
    }  # fmt: skip


def test_one_origin_is_one_address() -> None:
    from test_terms_anykernel import access, loop

    from perfmodel.kernels.anykernel.work import Work

    work = Work(200, 200, [Segment((), np.ones(1)), loop()], np.ones(200))
    assert work._in_window(access(), 10) == 1.0
    assert work._in_window(access(origin=None), 10) == 10.0


def test_a_short_cache_is_not_split() -> None:
    found = attention_decode.space(pm.gpu("h100_sxm"), kv_len=16, dtype="bf16", batch=1, q_heads=8, kv_heads=8, head_dim=128)
    assert len(found) and set(found["num_splits"].tolist()) == {1}
    assert {b["causal"] for b in attention_prefill.binaries(90, "bf16")} == {1}


def test_boards_whose_ecc_takes_memory() -> None:
    from perfmodel.library.arch import inline_ecc

    assert [inline_ecc(pm.gpu(name)) for name in ("l40s", "l20", "a40", "rtx_6000_ada", "rtx_4090", "h100_sxm", "rtx_pro_6000")] == [
        True, True, True, False, False, False, False,
    ]  # fmt: skip


def test_switches_of_a_start_command_take_no_value() -> None:
    from perfmodel.plan import engine_flags

    assert VLLM.switches >= engine_flags._VLLM_SWITCHES_WITHOUT_BEARING | engine_flags._VLLM_SWITCHES_UNMODELLED
    assert not engine_flags._VLLM_VALUES_UNMODELLED & VLLM.switches


def test_what_configs_may_leave_out() -> None:
    assert (
        FAMILIES["gemma3_text"].defaults["vocab_size"] == 262208 and FAMILIES["gemma3_text"].defaults["max_position_embeddings"] == 131072
    )
    with pytest.raises(InputError, match="num_hidden_layers"):
        load_model({**BASE, "num_hidden_layers": 0})
    four = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    eight = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    assert [load_model({**BASE, "quantization_config": q}).group_size for q in (four, eight)] == [64, 0]


def test_parameters_of_an_mlp_without_a_gate() -> None:
    from perfmodel.plan.tensors import layer_tensors

    model = load_model(BASE)
    (layer,) = model.layers
    gated, plain = (
        sum(t.elements for t in layer_tensors(model, dataclasses.replace(layer, gated=gate)) if t.part == "mlp") for gate in (True, False)
    )
    assert (gated, plain) == (3 * 1024 * 4096, 2 * 1024 * 4096)


def test_lists_of_names_and_steps_of_a_request() -> None:
    from perfmodel.plan.search import _few
    from perfmodel.plan.simulate import LONGEST_JUMP, steps_each

    assert _few(list("abcd")) == "a, b, c, d" and _few(list("abcdefg")) == "a, b, c, d and 3 more"
    assert steps_each(1000, 0, 500) == 3.0 and steps_each(0, 100, 500) == 1.0 + 100 / LONGEST_JUMP
    assert steps_each(0, 100, 500, 4) == 1.0 + 25 / LONGEST_JUMP
