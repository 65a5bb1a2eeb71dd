"""plan: limits kept, nothing called best that misses one, orders of preference, laws of the steady state, capacity tables, the page."""

import html.parser
import json
import math
import re
import shutil
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest

import perfmodel as pm
from perfmodel.cli.main import run
from perfmodel.errors import InputError, NoAnswerError
from perfmodel.plan.candidates import candidates
from perfmodel.plan.flags import read_command
from perfmodel.plan.operating import curves
from perfmodel.plan.parallel import Parallel
from perfmodel.plan.queue_wait import waiting_s
from perfmodel.plan.split import can_hand_over
from perfmodel.plan.traffic import Request

ASK = {"isl": 4000, "osl": 1000, "ttft_ms": 1000, "tpot_ms": 30}


@pytest.fixture(scope="module")
def rated():
    return pm.plan("Qwen3-32B", ["h100_sxm", "l20"], request_rate=5, **ASK)


@pytest.fixture(scope="module")
def filled():
    return pm.plan("Qwen3-32B", ["h100_sxm", "l20"], total_gpus=32, **ASK)


def engines(gpu="h100_sxm", model="Qwen3-32B", **options):
    defaults = {
        "quantizations": [None], "stack": "vllm", "kv_cache_dtype": None, "context_tokens": 5000, "largest_engine": 8,
        "memory_fraction": None,
    }  # fmt: skip
    return candidates(model, [gpu], **{**defaults, **options})


def test_a_default_plan_of_32_gpus_looks_at_a_thousand_deployments(filled):
    assert filled.examined >= 1000
    assert filled.frame["gpus"].max() <= 32


def test_best_meets_every_limit_and_is_preferred(rated):
    best = rated.best
    assert best["ttft_ms"] <= 1000 and best["tpot_ms"] <= 30 and best["meets"]
    assert best["requests_per_s"] == pytest.approx(5)
    assert best["gpus"] == rated.feasible["gpus"].min()
    assert all(row["why_not"] for row in rated.runners_up)
    assert {row["gpu"] for row in rated.runners_up} | {best["gpu"]} == {"h100_sxm", "l20"}


def test_safe_meets_the_limits_at_the_end_of_the_interval(rated):
    safe = rated.safe
    assert safe["ttft_high_ms"] <= 1000 and safe["tpot_high_ms"] <= 30 and safe["gpus"] >= rated.best["gpus"]


def test_every_row_is_consistent(rated, filled):
    for found in (rated, filled):
        frame = found.frame
        np.testing.assert_allclose(frame["throughput_tok_s"], frame["requests_per_s"] * 1000)
        np.testing.assert_allclose(frame["tok_s_per_user"], 1000 / frame["tpot_ms"])
        assert (frame["tpot_low_ms"] <= frame["tpot_ms"]).all() and (frame["tpot_ms"] <= frame["tpot_high_ms"]).all()
        assert (frame["kv_used_percent"] <= 100.0 + 1e-9).all()
        limits = (frame["ttft_ms"] <= 1000) & (frame["tpot_ms"] <= 30)
        assert (limits == frame["meets"]).all()
        assert set(frame["tier"]) <= {"spec", "calibrated", "measured"}


def test_cost_adds_up_and_needs_a_price(rated):
    row = rated.best
    hourly = row["usd_per_m_input_tokens"] * row["requests_per_s"] * 4000 * 3600 / 1e6
    hourly += row["usd_per_m_output_tokens"] * row["throughput_tok_s"] * 3600 / 1e6
    assert hourly == pytest.approx(row["usd_per_hour"]) == pytest.approx(2.5 * row["gpus"])
    assert all(math.isnan(r["usd_per_hour"]) for r in rated.rows if r["gpu"] == "l20")
    assert any("examples" in line for line in rated.notes()) and any("nothing was ever measured on l20" in line for line in rated.notes())


def test_prices_decide_when_given():
    cheap = pm.plan("Qwen3-8B", ["h100_sxm", "l20"], isl=1000, osl=200, request_rate=1, prices={"h100_sxm": 100.0, "l20": 0.01})
    assert cheap.best["gpu"] == "l20"
    dear = pm.plan("Qwen3-8B", ["h100_sxm", "l20"], isl=1000, osl=200, request_rate=1, prices={"h100_sxm": 0.01, "l20": 100.0})
    assert dear.best["gpu"] == "h100_sxm"
    bound = pm.plan("Qwen3-8B", "h100_sxm", isl=1000, osl=200, prices={"h100_sxm": 2.0}, budget_usd_per_hour=4, total_gpus=8)
    assert bound.best is None or bound.best["usd_per_hour"] <= 4


def test_an_impossible_limit_is_never_best():
    found = pm.plan("Llama-3.1-70B", "a100", isl=4000, osl=1000, ttft_ms=20, tpot_ms=2, request_rate=2)
    assert found.best is None and not found.frame["meets"].any()
    assert "no deployment meets the goal" in found.sentence() and "nearest" in found.sentence()
    assert found.nearest["tightest_used"] == min(r["tightest_used"] for r in found.rows) > 1
    assert found.what_binds()["used_percent"].iloc[0] > 100


def test_pareto_is_not_beaten(filled):
    front, frame = filled.pareto, filled.frame
    assert 1 < len(front) < len(frame)
    for row in front.itertuples():
        better = (frame["tok_s_per_user"] > row.tok_s_per_user) & (frame["tok_s_per_gpu"] > row.tok_s_per_gpu)
        assert not better.any()


def test_more_of_everything_needs_no_fewer_gpus():
    base = pm.plan("Qwen3-32B", "h100_sxm", request_rate=5, **ASK).best["gpus"]
    assert pm.plan("Qwen3-32B", "h100_sxm", request_rate=20, **ASK).best["gpus"] > base
    assert pm.plan("Qwen3-32B", "h100_sxm", request_rate=5, **{**ASK, "tpot_ms": 15}).best["gpus"] >= base
    assert pm.plan("Qwen3-32B", "h200_sxm", request_rate=5, **ASK).best["gpus"] <= base


def test_steady_state_laws():
    found, _ = engines()
    sizes = [[1, 4, 16, 48] if e.ledger.max_concurrency(5000) >= 48 else [1, 2] for e in found]
    for curve in curves(found, request=Request(4000, 1000), batches=sizes, stack="vllm", calibration="auto"):
        assert (np.diff(curve.tpot_s) > 0).all() and (np.diff(curve.ttft_s) >= 0).all()
        assert (curve.rate_s <= curve.concurrency / (1000 * curve.decode_s[0])).all()
        little = curve.rate_s * (curve.ttft_s + 999 * curve.tpot_s)  # Little's law: requests in flight = rate x time in the engine
        np.testing.assert_allclose(little, curve.concurrency, rtol=0.02)
        at = curve.at_rate(float(curve.rate_s[-1]) * 0.5)
        assert at is not None and curve.concurrency[0] <= at[0] <= curve.concurrency[-1]
        assert curve.at_rate(float(curve.rate_s[-1]) * 1.01) is None


@pytest.mark.parametrize(
    ("model", "gpu", "rate", "isl", "osl"),
    [("Qwen3-32B", "h100", 5, 4000, 1000), ("Llama-3.1-70B", "a100", 2, 2000, 500), ("Qwen3-8B", "l20", 4, 1000, 200)],
)
def test_the_closed_form_of_the_search_agrees_with_the_simulation(model, gpu, rate, isl, osl):
    found = pm.plan(model, gpu, isl=isl, osl=osl, ttft_ms=2000, tpot_ms=50, request_rate=rate, disaggregated=False)
    seen, best = found.check(), found.best
    assert best["tpot_ms"] == pytest.approx(seen.tpot_ms, rel=0.12)
    assert best["concurrency_per_engine"] == pytest.approx(seen.concurrency, rel=0.12)
    assert best["ttft_ms"] == pytest.approx(seen.ttft_ms, rel=0.35)


def test_the_split_agrees_with_its_simulation():
    found = pm.plan("Llama-3.1-70B", "h100", isl=4000, osl=500, ttft_ms=1500, tpot_ms=25, request_rate=4)
    assert found.best["mode"] == "disagg"
    seen = found.check()
    assert found.best["tpot_ms"] == pytest.approx(seen.tpot_ms, rel=0.12)
    assert found.best["ttft_ms"] == pytest.approx(seen.ttft_ms, rel=0.35)


def test_waiting_grows_with_load_and_shrinks_with_servers():
    assert waiting_s(1.0, 0.5) == pytest.approx(0.5)
    assert waiting_s(1.0, 0.5, 4) < waiting_s(1.0, 0.5) < waiting_s(1.0, 0.9) < waiting_s(1.0, 1.0) == math.inf


def test_rejections_have_reasons():
    _, out = engines("l20", "Llama-3.1-70B")
    assert any("leave no memory" in r.reason for r in out)
    assert engines("l20", "DeepSeek-V3", largest_engine=64)[0] == []


def test_hand_over_rules():
    found, _ = engines()
    by_tp = {e.parallel.tp: e for e in found if e.parallel.pp == 1}
    assert can_hand_over(by_tp[1], by_tp[4], "vllm") and not can_hand_over(by_tp[4], by_tp[1], "vllm")
    assert not can_hand_over(by_tp[1], by_tp[4], "sglang")


def test_experts_and_latent_attention():
    moe = pm.plan("Qwen3-30B-A3B", "h100_sxm", isl=1000, osl=300, total_gpus=8)
    assert moe.best is not None and moe.frame["ep"].max() > 1
    deep = pm.plan("DeepSeek-V3", "h200_sxm", isl=1000, osl=300, total_gpus=8, disaggregated=False)
    assert deep.best["gpus"] == 8


def test_commands_read_back(rated, filled):
    for found in (rated, filled):
        assert set(found.commands()) in ({"serve"}, {"prefill", "decode"})
        for role, line in found.commands().items():
            engine = read_command(line)
            assert engine.model == "Qwen3-32B" and engine.max_model_len == 5000
            shape = found.nearest["prefill_shape"] if role == "prefill" else Parallel(*(found.nearest[k] for k in ("tp", "pp", "ep", "dp")))
            assert engine.parallel == shape


@pytest.mark.parametrize(
    "bad",
    [
        {"isl": 0}, {"osl": -1}, {"isl": 1.5}, {"isl": 10**9}, {"ttft_ms": 0}, {"tpot_ms": -3}, {"tpot_ms": float("nan")},
        {"request_rate": 0},
        {"request_rate": 5, "concurrency": 5}, {"total_gpus": 0}, {"objective": "best"}, {"quantization": "fp3"}, {"stack": "ollama"},
        {"budget_usd_per_hour": 5, "gpus": "l20"}, {"gpus": []}, {"gpus": "h1000"}, {"model": "Qwen9-1T"}, {"isl": 41000},
    ],
    ids=str,
)  # fmt: skip
def test_bad_input_is_one_line(bad):
    with pytest.raises(InputError) as error:
        pm.plan(**{"model": "Qwen3-32B", "gpus": "h100_sxm", "isl": 100, "osl": 100, **bad})
    assert "\n" not in str(error.value)


def test_what_fits_nowhere_says_so():
    with pytest.raises(NoAnswerError, match="fits on none of l4"):
        pm.plan("DeepSeek-V3", "l4", isl=100, osl=100)
    with pytest.raises(NoAnswerError, match="carries"):
        pm.plan("Qwen3-32B", "h100_sxm", isl=4000, osl=1000, request_rate=1e9)
    with pytest.raises(NoAnswerError, match="carries"):
        pm.plan("Qwen3-32B", "h100_sxm", isl=4000, osl=1000, request_rate=1000, total_gpus=2)


def test_capacity_tables(rated):
    held = pm.max_concurrency("Llama-3.1-70B", ["a100", "l20"], (8192, 32768))
    assert (held["max_concurrency_low"] <= held["max_concurrency"]).all() and (
        held["max_concurrency"] <= held["max_concurrency_high"]
    ).all()
    assert held.query("gpu == 'l20' and tensor_parallel_size == 2")["max_concurrency"].eq(0).all()
    need = pm.gpus_for("Qwen3-32B", ["a100", "h100"], request_rate=5, **ASK)
    assert need["gpu"].iloc[0] == "h100_sxm" and need["gpus"].is_monotonic_increasing
    sides = pm.compare("Qwen3-32B", ["a100", "h100"], isl=4000, osl=1000)
    assert sides["tok_s_per_gpu_ratio"].iloc[0] == 1 and len(sides) == 2
    table = pm.sensitivity(rated, ["+20 % traffic", "fp8", "2x context", {"tpot_ms": 60}])
    assert table["change"].iloc[0] == "as planned" and table["best_requests_per_s"].iloc[1] == pytest.approx(6)
    assert pm.what_binds(rated)["used_percent"].is_monotonic_decreasing
    for bad in ("more", "2x budget", "+0 % what"):
        with pytest.raises(InputError):
            pm.sensitivity(rated, [bad])


class _Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.outside, self.tags = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.outside += [v for k, v in attrs if k in ("src", "href", "xlink:href", "data", "action") and v]


def test_the_page_is_self_contained(rated, tmp_path):
    text = rated.to_html(tmp_path / "plan.html").read_text(encoding="utf-8")
    page = _Links()
    page.feed(text)
    assert page.outside == [] and not {"script", "link", "iframe", "img"} & set(page.tags)
    assert not re.search(r"url\(|@import|https?://(?!www\.mercatus)", text)
    assert page.tags.count("svg") == 3 and page.tags.count("table") >= 4
    for words in ("Throughput against speed", "Latency against load", "Memory of one", "What binds", "vllm serve", "examples", "80 %"):
        assert words in text


def test_a_cold_command_loads_no_more_than_it_needs():
    ask = "plan --model Qwen3-32B --gpus h100_sxm,l20 --isl 4000 --osl 1000 --ttft-ms 1000 --tpot-ms 30 --total-gpus 32 --json"
    code = f"import sys; from perfmodel.cli.main import run; assert run({ask.split()!r}) == 0\n"
    code += "heavy = {'torch', 'triton', 'matplotlib', 'sklearn', 'scipy.optimize'} & set(sys.modules); assert not heavy, heavy"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["examined"] >= 1000


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium here")
def test_a_browser_draws_the_page(rated, tmp_path):
    rated.to_html(tmp_path / "plan.html")
    picture = tmp_path / "plan.png"
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--screenshot={picture}", "--window-size=1240,1900"]
    done = subprocess.run([*command, (tmp_path / "plan.html").as_uri()], capture_output=True, text=True, check=True, timeout=120)
    assert "ERROR:CONSOLE" not in done.stderr and "Uncaught" not in done.stderr
    pixels = matplotlib.image.imread(picture)[..., :3]
    assert pixels.shape == (1900, 1240, 3)
    colours = np.unique((pixels.reshape(-1, 3) * 255).astype(int), axis=0)
    wanted = [(0x1B, 0x6C, 0xA8), (0xD1, 0x49, 0x5B), (0x2E, 0x93, 0x3C)]  # lines of the first three series
    assert all((np.abs(colours - w).sum(axis=1) <= 6).any() for w in wanted)
    ink = (pixels.min(axis=2) < 0.9).mean(axis=1)
    assert (ink[:1700] > 0).mean() > 0.5  # nothing large is blank


def test_other_stacks_and_notebooks():
    found = pm.plan("Qwen3-8B", "h100", isl=500, osl=100, total_gpus=2, stack="trtllm")
    assert found.commands() == {} and "<table>" in found._repr_html_() and "best" in str(found)
    assert (
        run(["plan", "--model", "Qwen3-8B", "--gpus", "h100", "--isl", "500", "--osl", "100", "--total-gpus", "2", "--stack", "trtllm"])
        == 0
    )
    served = pm.plan("Qwen3-8B", "h100", isl=500, osl=100, total_gpus=2, stack="sglang").commands()
    assert all(read_command(line).stack == "sglang" for line in served.values())


def test_command_line(tmp_path, capsys):
    ask = [
        "plan",
        "--model",
        "Qwen3-32B",
        "--gpus",
        "h100_sxm,l20",
        "--isl",
        "4000",
        "--osl",
        "1000",
        "--ttft-ms",
        "1000",
        "--tpot-ms",
        "30",
        "--request-rate",
        "5",
    ]
    assert run([*ask, "--json", "--html", str(tmp_path / "p.html")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"]["meets"] and found["examined"] > 500 and (tmp_path / "p.html").stat().st_size > 10_000
    assert run([*ask, "--no-disagg", "--simulate"]) == 0
    assert "first token" in capsys.readouterr().out
    assert run([*ask, "--csv"]) == 0
    assert capsys.readouterr().out.count("\n") > 500
    assert run(ask) == 0
    assert "best:" in capsys.readouterr().out
    assert run([*ask[:-6], "--ttft-ms", "1", "--request-rate", "5", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["best"] is None and "binds" in err and err.count("\n") == 1
    assert run([*ask, "--html", str(tmp_path / "none" / "p.html")]) == 2
    assert run([*ask, "--isl", "x"]) == 2
    assert run(["models", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) >= 30
    assert run(["models", "Qwen3-99B"]) == 2


def test_memory_verb(capsys):
    assert run(["memory", "--gpu", "h100_sxm", "--model", "Qwen3-32B", "--tp", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] and sum(r["gib"] for r in found["ledger"]) == pytest.approx(81559 / 1024)
    assert (
        run(["memory", "--gpu", "h100", "--command", "vllm serve Qwen/Qwen3-32B -tp 2 --gpu-memory-utilization 0.5 --max-num-seqs 64"]) == 0
    )
    assert "Qwen3-32B on h100_sxm, TP2" in capsys.readouterr().out
    assert run(["memory", "--gpu", "l4", "--model", "Llama-3.1-70B"]) == 0
    assert "does not fit" in capsys.readouterr().out
    for bad in (
        "memory --gpu h100",
        "memory --gpu h100 --model Qwen3-32B --tp 0",
        "memory --gpu h100 --model Qwen3-32B --memory-fraction 2",
    ):
        assert run(bad.split()) == 2


def test_estimate_verb(capsys):
    ask = ["estimate", "--gpu", "h100_sxm", "--model", "Qwen3-32B", "--tp", "4", "--isl", "2000", "--osl", "200", "--concurrency", "16"]
    assert run([*ask, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ttft"]["p50"] <= found["ttft"]["p90"] <= found["ttft"]["p99"] and found["tpot_ms"] > 0
    low, high = found["intervals"]["tpot_ms"]
    assert low < found["tpot_ms"] < high
    assert run(ask) == 0
    assert "a token after the first" in capsys.readouterr().out
    line = "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 --max-num-seqs 16"
    assert run(["estimate", "--gpu", "h100", "--command", line, "--isl", "2000", "--osl", "200", "--request-rate", "1", "--csv"]) == 0
    assert capsys.readouterr().out.startswith("latency_ms,mean,low,high,p50,p90,p99")
    for bad in (["--isl", "0"], ["--tp", "3"], ["--request-rate", "5"], ["--prefix-cache-hit-rate", "2"]):
        assert run([*ask, *bad]) == 2
    assert run(["estimate", "--gpu", "l4", "--model", "Llama-3.1-70B", "--isl", "100", "--osl", "100", "--concurrency", "1"]) == 1


def test_a_choice_that_the_simulation_contradicts_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "--model", "llama-3.1-8b", "--gpus", "h100_sxm", "--isl", "1000", "--osl", "200", "--concurrency", "279"]
    code = run([*asked, "--total-gpus", "1", "--ttft-ms", "200", "--tpot-ms", "55", "--simulate"])
    err = capsys.readouterr().err
    assert code == 1 and "mean TTFT of" in err and err.count("\n") == 1


def test_a_prefix_cache_and_speculation_are_planned_with():
    asked = {"model": "Llama-3.1-8B", "gpus": "h100_sxm", "isl": 6000, "osl": 300, "request_rate": 4, "tpot_ms": 20, "ttft_ms": 2000}
    plain, cached, drafted = (
        pm.plan(**asked, **more).nearest for more in ({}, {"prefix_cache_hit_rate": 0.9}, {"accepted_tokens_per_step": 2.0})
    )
    assert cached["ttft_ms"] < 0.6 * plain["ttft_ms"] or cached["gpus"] < plain["gpus"]
    assert drafted["tpot_ms"] < 0.7 * plain["tpot_ms"] or drafted["gpus"] < plain["gpus"]
    seen = pm.plan(**asked, disaggregated=False, prefix_cache_hit_rate=0.9).check()
    assert seen.ttft_ms == pytest.approx(pm.plan(**asked, disaggregated=False, prefix_cache_hit_rate=0.9).nearest["ttft_ms"], rel=0.35)


@pytest.mark.parametrize("more", [{"prefix_cache_hit_rate": 1.5}, {"prefix_cache_hit_rate": math.nan}, {"accepted_tokens_per_step": 0.5}])
def test_impossible_shares_and_steps_are_refused(more):
    with pytest.raises(InputError, match=next(iter(more))):
        pm.plan("Llama-3.1-8B", "h100_sxm", isl=1000, osl=100, **more)


def test_a_limit_on_a_percentile_is_held_by_the_simulation_of_the_choice():
    asked = {"model": "Llama-3.1-8B", "gpus": "h100_sxm", "isl": 3000, "osl": 200, "request_rate": 12, "tpot_ms": 25, "ttft_ms": 180}
    mean, tail = pm.plan(**asked), pm.plan(**asked, percentile="p99")
    assert mean.best is not None and tail.best is not None
    assert tail.best["ttft_p99_ms"] <= 180 and tail.best["tpot_p99_ms"] <= 25
    assert tail.best["ttft_p99_ms"] > tail.best["ttft_ms"] and tail.best["gpus"] >= mean.best["gpus"]
    assert "p99" in tail.sentence() and any("simulated" in note for note in tail.notes())
    assert tail.check().ttft.p99 == pytest.approx(tail.best["ttft_p99_ms"])


def test_a_percentile_that_nothing_holds_is_not_called_best():
    found = pm.plan("Llama-3.1-8B", "l20", isl=8000, osl=200, request_rate=1, ttft_ms=2000, percentile="p99", total_gpus=4)
    assert found.best is None and "no deployment meets the goal" in found.sentence()
    with pytest.raises(InputError, match="percentile"):
        pm.plan("Llama-3.1-8B", "l20", isl=8000, osl=200, percentile="p95")


def test_what_a_plan_cannot_know_is_said_and_left_empty(capsys):
    words = "plan --model Llama-3.1-8B --gpus h100_sxm --isl 2000 --osl 200 --request-rate 4 --accepted-tokens-per-step 2 --json"
    assert run(words.split()) == 0
    told = json.loads(capsys.readouterr().out)
    assert any("draft" in note for note in told["notes"]) and '"nan"' not in json.dumps(told)
    with pytest.raises(NoAnswerError, match="1024 GPUs"):
        pm.plan("Llama-3.1-8B", "h100_sxm", isl=2000, osl=200, request_rate=1e9)
    with pytest.raises(InputError, match="Parallel"):
        pm.estimate_split("Llama-3.1-8B", "h100_sxm", prefill=pm.Pool(1, 1), decode=pm.Pool(), isl=1000, osl=100, request_rate=1)
    one = pm.plan("Llama-3.1-8B", "h100_sxm", isl=1, osl=1, ttft_ms=100, concurrency=1, percentile="p99")
    assert "nan" not in one.sentence().replace("TPOT nan", "")
