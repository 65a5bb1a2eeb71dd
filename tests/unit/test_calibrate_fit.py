"""From rows to a calibration: what is adopted, what is refused, what other stacks get of it, the cards, the report and the command line."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfmodel as pm
from perfmodel._resources import shipped
from perfmodel.calibrate.ceilings import datasheet, fit_ceilings, measured_ceilings
from perfmodel.calibrate.fit import Outcome, fit_run
from perfmodel.calibrate.report import html, markdown, summarise
from perfmodel.calibrate.transfer_report import explain
from perfmodel.calibrate.workers import tasks
from perfmodel.cli.main import run
from perfmodel.errors import InputError
from perfmodel.hw import gpu
from perfmodel.learn.boost import CORRECTION, OWN_DRAWS, boost
from perfmodel.learn.calibration import Calibration, load_calibration
from perfmodel.measure.rows import read

H200 = gpu("h200_sxm")
SHAPES = [(n, k) for n in (768, 1536, 3072, 6144, 12288) for k in (896, 2304, 4608, 9216)][
    :19
]  # 57 rows: too few for the constants to move, and quick


def products(factor: float, noise: float = 0.0) -> list[dict[str, Any]]:
    """Rows of torch products whose latency is the spec tier's times a factor."""
    import pandas as pd

    frame = pd.DataFrame([{"m": m, "n": n, "k": k, "dtype": "bf16", "stack": "torch"} for n, k in SHAPES for m in (1, 100, 2000)])
    spec = pm.predict_table("gemm", frame, "h200_sxm", calibration=None)["latency_us"].to_numpy()
    wobble = np.exp(noise * np.random.default_rng(0).standard_normal(len(frame)))
    return [
        {**row, "what": "gemm", "status": "ok", "latency_us": us, "gpu_name": "NVIDIA H200", "time_s": 1000.0 + i, "wall_s": 0.01}
        for i, (row, us) in enumerate(zip(frame.to_dict("records"), (spec * factor * wobble).tolist(), strict=True))
    ]


def ceilings() -> list[dict[str, Any]]:
    found = {"dram_copy": 4.25e12, "dram_read": 4.6e12, "l2_read": 8.8e12, "launch_graph": 5e-7, "tensor_bf16": 8.0e14}
    rows = [{"what": "ceiling", "name": name, "status": "ok", "value": value, "spread": 0.01, "reps": 9} for name, value in found.items()]
    return [{**row, "sustained": 6.9e14} if row["name"] == "tensor_bf16" else row for row in rows]


@pytest.fixture(scope="module")
def fitted() -> tuple[Calibration, list[Outcome]]:
    return fit_run(H200, products(1.3, noise=0.02) + ceilings())


def test_rows_that_differ_from_the_universal_model_correct_it(fitted: tuple[Calibration, list[Outcome]]) -> None:
    calibration, (outcome,) = fitted
    assert (outcome.what, outcome.rows, outcome.shapes, outcome.failed, outcome.adopted) == ("gemm", 57, 19, 0, True)
    assert outcome.before == pytest.approx(1 - 1 / 1.3, rel=0.03)
    assert outcome.after is not None and outcome.after < 0.04
    assert set(calibration.models) == {"ceilings", "gemm"}
    card = calibration.models["gemm"].card
    assert card["held_out_error"] == {"prior": outcome.before, "corrected": outcome.after}
    assert card["only_stacks"] == ["torch"] and card["other_stacks_share"] == 0.5


def test_other_stacks_get_half_of_a_correction_of_products(fitted: tuple[Calibration, list[Outcome]]) -> None:
    op = pm.Gemm(128, 4096, 4096)
    model = fitted[0].models["gemm"]
    of_all = dataclasses.replace(model, card={k: v for k, v in model.card.items() if k != "only_stacks"})  # as if it spoke for every stack
    for stack, share in (("torch", 1.0), ("vllm", 0.5), ("sglang", 0.5), ("trtllm", 0.5), (None, 0.5)):
        chosen = (None, fitted[0], Calibration("h200_sxm", {"gemm": of_all}))
        before, after, whole = (pm.predict(op, "h200_sxm", stack=stack, calibration=c) for c in chosen)
        assert after.latency_us / before.latency_us == pytest.approx((whole.latency_us / before.latency_us) ** share), stack
        assert 1.03 < after.latency_us / before.latency_us < 1.35
        assert stack != "torch" or after.latency_us / before.latency_us == pytest.approx(1.3, rel=0.05)
        assert after.tier == "calibrated" and after.low_us < after.latency_us < after.high_us
    frame = _table([("torch", 64), ("vllm", 64), ("torch", 2048)])
    found = pm.predict_table("gemm", frame, "h200_sxm", calibration=fitted[0])
    for i, stack in enumerate(frame["stack"]):  # row by row and all at once say the same
        one = pm.predict(pm.Gemm(int(frame["m"][i]), 4096, 1024), "h200_sxm", stack=stack, calibration=fitted[0])
        assert found["latency_us"][i] == pytest.approx(one.latency_us, rel=1e-6)


def _table(rows: Sequence[tuple[str, int]]) -> Any:
    import pandas as pd

    return pd.DataFrame([{"m": m, "n": 4096, "k": 1024, "dtype": "bf16", "stack": stack} for stack, m in rows])


def test_other_stacks_get_nothing_of_a_correction_of_attention() -> None:
    calibration = Calibration(
        "h200_sxm", {"attention_decode": load_calibration(shipped("calibration") / "h200_sxm").models["attention_decode"]}
    )
    op = pm.Attention("decode", 32, 1, 4096, 32, 8, 128)
    for stack in ("vllm", "sglang", "trtllm"):
        before, after = (pm.predict(op, "h200_sxm", stack=stack, calibration=c) for c in (None, calibration))
        assert (after.latency_us, after.low_us, after.tier) == (before.latency_us, before.low_us, "spec")
    assert pm.predict(op, "h200_sxm", stack="torch", calibration=calibration).tier == "calibrated"


def test_a_fit_that_does_not_beat_the_universal_model_is_refused_with_the_figures() -> None:
    calibration, (outcome,) = fit_run(H200, products(1.0, noise=0.05))
    assert not outcome.adopted and not calibration.models
    assert outcome.reason.startswith("refused: the fit does not beat universal:gemm") and "% before" in outcome.reason


def test_too_few_rows_and_failures_are_said() -> None:
    failed = [{**row, "status": "error", "latency_us": None} for row in products(1.3)[:5]]
    calibration, (outcome,) = fit_run(H200, products(1.3)[:10] + failed)
    assert (outcome.rows, outcome.failed, outcome.adopted) == (10, 5, False) and "needs 16" in outcome.reason
    assert not calibration.models
    with pytest.raises(InputError, match="nothing to fit"):
        fit_run(H200, [])


def test_a_run_leaves_out_what_no_gpu_does_and_counts_it_as_failed() -> None:
    rows = products(1.3, noise=0.02)
    rows[7] = {**rows[7], "m": 8192, "n": 8192, "k": 8192, "latency_us": 100.0}  # 1.1e12 flops at 989e12 flop/s take 1,111 us
    with pytest.warns(UserWarning, match="1 of 57 gemm rows are faster than h200_sxm can be and are left out: rows 7$"):
        calibration, (outcome,) = fit_run(H200, rows)
    assert (outcome.rows, outcome.failed, outcome.adopted) == (56, 1, True)
    assert outcome.points is not None and len(outcome.points) == 56 and outcome.points["measured_us"].min() > 0
    assert "gemm" in calibration.models


def test_parts_fitted_side_by_side_give_the_same() -> None:
    """In one process after the other or in two, and each step is said."""
    memory = [r for r in read(shipped("data") / "runs" / "h200_sxm.parquet") if r["what"] == "memory"][:40]
    said: list[tuple[str, int, int]] = []
    one = fit_run(H200, products(1.3, noise=0.02) + memory, progress=lambda *step: said.append(step))
    two = fit_run(H200, products(1.3, noise=0.02) + memory, workers=2)
    assert [o.after for o in one[1]] == pytest.approx([o.after for o in two[1]], rel=1e-6)
    assert [o.what for o in one[1]] == ["gemm", "memory"]
    assert said[0] == ("gemm, shapes held out, 1 of 4", 0, 10)
    assert ("gemm, all rows", 4, 10) in said and ("memory, shapes held out, 4 of 4", 8, 10) in said
    assert [done for _, done, _ in said] == sorted(done for _, done, _ in said)
    assert not multiprocessing.active_children()


def test_rounds_on_top_of_a_tree_do_not_hang_on_what_was_fitted_before() -> None:
    rng = np.random.default_rng(0)
    features = {"a": rng.random(400), "b": rng.random(400)}
    target = np.sin(6 * features["a"]) + features["b"]

    def corrected() -> Any:
        start = boost(features, target, None, rounds=3, params=CORRECTION, robust=False)
        boost(features, target, None, rounds=between, params=CORRECTION, robust=False)
        more = boost(features, target, None, rounds=5, params={**CORRECTION, **OWN_DRAWS}, robust=False, start=start)
        return more.log_ratio(features, 400)

    between = 1
    first = corrected()
    between = 8
    assert corrected() == pytest.approx(first, rel=1e-9)


def test_a_fit_that_is_stopped_ends_its_workers() -> None:
    others = set(multiprocessing.active_children())  # of other tests
    with pytest.raises(KeyboardInterrupt), tasks(2, None) as work:
        for i in range(4):
            work.submit(f"{i}", time.sleep, 60)
        raise KeyboardInterrupt
    mine = set(multiprocessing.active_children()) - others
    for process in mine:
        process.join(30)
    assert not [process for process in mine if process.is_alive()]


def test_control_c_while_fitting_says_how_to_fit_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("perfmodel.calibrate.fit.fit_run", stopped)
    path = tmp_path / "my rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in products(1.3)))
    assert run(["calibrate", "--from", str(path), "--gpu", "h200"]) == 130
    lines = capsys.readouterr().err.split("\n")
    again = f"perfmodel calibrate --gpu h200_sxm --from '{path}'"
    assert lines == ["", f"perfmodel: the fit was stopped, the rows are kept: {again} fits them", "perfmodel: interrupted", ""]
    assert len(path.read_text().splitlines()) == 57


def test_ceilings_are_a_card_and_hwdb_keeps_the_datasheet(tmp_path: Path) -> None:
    model = fit_ceilings(H200, ceilings())
    assert model is not None and model.constants["dram_copy"] == 4.25e12 and model.constants["tensor_bf16_sustained"] == 6.9e14
    assert model.card["of_datasheet"]["dram_copy"] == pytest.approx(4.25 / 4.8, abs=1e-4)
    assert "launch_graph" not in model.card["of_datasheet"] and gpu("h200_sxm").dram_bytes_per_s == 4.8e12
    Calibration("h200_sxm", {"ceilings": model}).save(tmp_path / "c")
    again = measured_ceilings(H200, tmp_path / "c")
    assert again is not None and dict(again.constants) == dict(model.constants)
    assert fit_ceilings(H200, []) is None
    with pytest.raises(InputError, match="unknown ceiling 'speed'"):
        fit_ceilings(H200, [{"what": "ceiling", "name": "speed", "status": "ok", "value": 1.0}])


def test_the_median_of_several_gpus_counts() -> None:
    rows = [{"what": "ceiling", "name": "dram_copy", "status": "ok", "value": v} for v in (4e12, 1e12, 4.2e12)]
    model = fit_ceilings(H200, rows)
    assert model is not None and model.constants["dram_copy"] == 4e12 and model.card["rows"] == 3


def test_the_shipped_h200_calibration_reaches_its_figures() -> None:
    """Figures of shapes held out, from the run that is shipped; the copy and the product agree with what the card is known to do."""
    models = load_calibration(shipped("calibration") / "h200_sxm").models
    limits = {"gemm": 0.055, "attention_prefill": 0.09, "attention_decode": 0.095, "memory": 0.11}
    for what, limit in limits.items():
        held_out = models[what].card["held_out_error"]
        assert held_out["corrected"] < min(limit, 0.9 * held_out["prior"]), what
        assert 0.75 < models[what].card["held_out_coverage"] < 0.88, what
    known = models["ceilings"].constants
    assert known["dram_copy"] == pytest.approx(4.3e12, rel=0.05)
    assert 770e12 / 1.05 < known["tensor_bf16"] < 800e12 * 1.05
    assert known["tensor_bf16_sustained"] < known["tensor_bf16"] < datasheet(H200)["tensor_bf16"]


def test_the_stored_run_is_one_of_120_seconds_on_shapes_of_its_own() -> None:
    rows = read(shipped("data") / "runs" / "h200_sxm.parquet")
    side = json.loads((shipped("data") / "runs" / "h200_sxm.json").read_text(encoding="utf-8"))
    assert len(rows) == side["rows"] and sum(float(r["wall_s"]) for r in rows) <= 120.0
    assert set(side["columns"]) == set(rows[0])
    assert all(r["status"] == "ok" or r["reason"] for r in rows)


# the report


@pytest.fixture
def summary(fitted: tuple[Calibration, list[Outcome]]) -> dict[str, Any]:
    return summarised(fitted, bad=False)


def summarised(fitted: tuple[Calibration, list[Outcome]], bad: bool) -> dict[str, Any]:
    state = {"time_s": 0.0, "clock_mhz": 1200.0 if bad else 1980.0, "max_clock_mhz": 1980.0, "power_w": 600.0, "temperature_c": 60.0}
    states = [{**state, "time_s": float(t), "reasons": []} for t in range(20)]
    return summarise(H200, products(1.3) + ceilings(), fitted[1], states=states, budget_s=120.0)


def test_the_report_says_what_was_run_and_what_it_changed(summary: dict[str, Any]) -> None:
    found, text = summary, markdown(summary)
    for piece in ("# Calibration of NVIDIA H200", "dram_copy | 4,250 GB/s | 4,800 GB/s | 0.89", "tensor_bf16_sustained | 690 TFLOP/s"):
        assert piece in text
    assert "| gemm | 57 | 19 | 2" in text and "state was good" in text and "WARNING" not in text
    assert sum(r["rows"] for p in found["parts"] for r in p["regimes"]) == 57
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_bad_state_is_loud_in_the_report(fitted: tuple[Calibration, list[Outcome]]) -> None:
    found = summarised(fitted, bad=True)
    assert found["bad_state"] == ["clocks capped: never above 1200 MHz of 1980"]
    assert "WARNING: clocks capped" in markdown(found)
    assert 'class="bad">WARNING: clocks capped' in html(found, {})


def test_the_page_needs_nothing_else_and_has_the_plots(summary: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    from perfmodel.plot.calibration import figures

    pictures = figures(summary, dpi=40)
    assert len(pictures) == 5 and all(png.startswith(b"\x89PNG") for png in pictures.values())
    page = html(summary, pictures)
    assert page.count("data:image/png;base64,") == 5 and "http" not in page and "<script" not in page


def test_names_in_the_page_are_escaped(summary: dict[str, Any]) -> None:
    assert "<b>GPU" not in html({**summary, "full_name": "<b>GPU"}, {})


# what carries over


def test_what_an_h100_says_of_an_h200() -> None:
    rows = {r["what"]: r for r in explain(gpu("h100_sxm"), H200)}
    assert rows["binaries, registers, shared memory, legal configs"]["carries"] == "yes"
    assert "3.35e+12 there, 4.8e+12 here" in rows["dram_bytes_per_s"]["why"]
    assert rows["gemm"]["carries"] == "yes" and "has seen h100_sxm" in rows["gemm"]["why"]


def test_what_an_h200_says_of_an_h100_and_of_an_l40s() -> None:
    rows = {r["what"]: r for r in explain(H200, gpu("h100_sxm"))}
    copy = rows["ceiling dram_copy"]
    assert copy["carries"] == "scaled" and "88 %" in copy["why"] and f"about {4247934002488.5 / 4.8e12 * 3.35e12:.4g}" in copy["why"]
    assert rows["kernel_gemm"]["carries"] == "yes"
    other = {r["what"]: r for r in explain(H200, gpu("l40s"))}
    assert other["which kernels a library runs"]["carries"] == "no" and other["kernel_gemm"]["carries"] == "no"
    with pytest.raises(InputError, match="both h200_sxm"):
        explain(H200, H200)


# the command line


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_stored_rows_are_fitted_loaded_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str], _own_folders: Path) -> None:
    rows = write(tmp_path / "rows.jsonl", products(1.3) + ceilings())
    assert run(["calibrate", "--from", str(rows), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [p["part"] for p in answer["parts"]] == ["gemm"] and answer["parts"][0]["adopted"]
    folder = _own_folders / "calibration" / "h200_sxm"
    assert Path(answer["folder"]) == folder
    op = pm.Gemm(64, 4096, 4096)
    ratio = pm.predict(op, "h200_sxm", stack="torch").latency_us / pm.predict(op, "h200_sxm", stack="torch", calibration=None).latency_us
    assert ratio == pytest.approx(1.3, rel=0.05)  # found without being named
    assert run(["calibrate", "report", "--gpu", "h200_sxm", "--out", str(tmp_path / "out"), "--csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"report.html", "report.md", "report.json"}


def test_the_shipped_report_can_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "report", "--gpu", "H200", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "report.md").read_text() == (shipped("calibration") / "h200_sxm" / "report.md").read_text()
    assert capsys.readouterr().out.startswith("file")


def test_a_dry_run_prints_the_plan_and_measures_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], _own_folders: Path
) -> None:
    from perfmodel.calibrate import plan

    small = {"ceilings": {"use": 1.0}, "memory": {"use": 0.1, "longest_us": 500.0, "tokens": list(range(1, 900)), "hidden": [1024, 4096]}}
    monkeypatch.setattr(plan, "read_recipe", lambda: small)
    assert run(["calibrate", "--dry-run", "--gpu", "h200_sxm", "--budget", "15", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert sum(p["seconds"] for p in answer["parts"]) <= 15 and answer["points"][0]["id"] == "what=ceiling name=dram_copy"
    assert not (_own_folders / "runs").exists()
    assert run(["calibrate", "--dry-run", "--gpu", "h200_sxm", "--budget", "15"]) == 0
    assert "of a budget of 15 s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--from", "nothing.jsonl"], 2, "nothing.jsonl: there is no such file"),
        (["--from-gpu", "h100"], 2, "--from-gpu and --to-gpu go together"),
        (["--from-gpu", "h100", "--to-gpu", "h9000"], 2, "unknown GPU 'h9000'"),
        (["--dry-run", "--gpu", "h200_sxm", "--budget", "1"], 2, "budget must be 10 to 3600 seconds, got 1"),
        (["--dry-run", "--gpu", "h200_sxm", "--json", "--csv"], 2, "choose one"),
        (["report"], 2, "report needs --gpu NAME or --calibration FOLDER"),
        (["report", "--gpu", "l20"], 1, "l20 has no calibration report"),
        (["report", "--calibration", "/nowhere"], 1, "no report.json in /nowhere"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", *arguments]) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_an_unknown_device_is_drafted_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], _own_folders: Path) -> None:
    from perfmodel.cli import calibrate_run

    draft = dataclasses.replace(H200, name="b999", full_name="NVIDIA B999", aliases=())
    assert calibrate_run._known(draft).name == "b999"
    assert "NVIDIA B999 is not in hwdb: drafted as" in capsys.readouterr().err
    assert (_own_folders / "hwdb" / "b999.toml").is_file()
    assert calibrate_run._known(draft).full_name == "NVIDIA B999" and capsys.readouterr().err == ""
    assert calibrate_run._known(H200) == H200


def test_several_gpus_are_asked_for_one_way_at_a_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from perfmodel.measure import devices

    monkeypatch.setattr(devices, "devices_here", lambda: [devices.Device(0, "GPU-a", H200.full_name)])
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "0"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    assert run(["calibrate", "--gpu", "h200_sxm", "--fresh", "--folder", "nowhere"]) == 2
    assert "under torchrun name another --folder" in capsys.readouterr().err
    assert run(["calibrate", "--ray", "auto", "--devices", "0"]) == 2
    assert "--ray takes all GPUs of its cluster" in capsys.readouterr().err


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert run(["calibrate"]) == 1
    assert "no CUDA device is visible to torch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}\n', "lack what or status"),
        ("{\n{}\n", "is not JSON"),
        ('{"what": "gemm", "status": "ok"}\n', "pass --gpu"),
    ],
)
def test_files_that_are_no_rows_are_refused(tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text(text)
    assert run(["calibrate", "--from", str(tmp_path / "rows.jsonl")]) == 2
    assert message in capsys.readouterr().err


def test_a_corrupt_report_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.json").write_text('{"gpu": "h200_sxm"}')
    assert run(["calibrate", "report", "--calibration", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "no report of this version" in capsys.readouterr().err


def test_transfer_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "--from-gpu", "h100_sxm", "--to-gpu", "h200_sxm"]) == 0
    assert "what h100_sxm says of h200_sxm" in capsys.readouterr().out
    assert run(["calibrate", "--from-gpu", "h200", "--to-gpu", "h100", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(set(r) == {"what", "carries", "why"} for r in rows)
