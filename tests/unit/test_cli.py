"""The command line: only data on stdout, one clear line for every bad question, the exit codes, and what gets imported."""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import perfmodel as pm
from perfmodel.cli import main, output
from perfmodel.cli.progress import Progress
from perfmodel.learn.calibration import Calibration
from perfmodel.learn.model import FittedModel
from perfmodel.tune import environment

RANK = ["rank", "gemm", "--gpu", "h100_sxm", "-m", "512", "-n", "4096", "-k", "4096"]
Capture = pytest.CaptureFixture[str]


def run(*arguments: str) -> int:
    return main.run(list(arguments))


def fails(capsys: Capture, *arguments: str, code: int = 2) -> str:
    """The one line of a question that must fail."""
    assert run(*arguments) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("perfmodel: ") and err.count("\n") == 1, err
    return err


def as_json(capsys: Capture, *arguments: str) -> Any:
    assert run(*arguments, "--json") == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def as_csv(capsys: Capture, *arguments: str) -> list[dict[str, str]]:
    assert run(*arguments, "--csv") == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_help_names_every_verb_and_every_verb_has_a_module(capsys: Capture) -> None:
    assert run("--help") == 0
    text = capsys.readouterr().out
    for verb in main.VERBS:
        assert f"\n  {verb} " in text
        assert importlib.import_module(f"perfmodel.cli.{verb}").app
    assert run() == 0 and run("--version") == 0
    assert pm.__version__ in capsys.readouterr().out


ALONE = ("gpus", "models", "plan", "estimate", "memory", "calibrate")  # these need no further word


@pytest.mark.parametrize("verb", [v for v in main.VERBS if v not in ALONE])
def test_a_verb_alone_prints_its_help(capsys: Capture, verb: str) -> None:
    assert run(verb) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"Usage: perfmodel {verb}") and out.count("\n") > 5 and err == ""


@pytest.mark.parametrize("verb", ["rank", "tune", "predict", "store", "calibrate", "evaluate"])
def test_help_of_a_verb(capsys: Capture, verb: str) -> None:
    assert run(verb, "--help") == 0
    assert f"Usage: perfmodel {verb}" in capsys.readouterr().out


def test_rank_as_json_agrees_with_the_library(capsys: Capture) -> None:
    data = as_json(capsys, *RANK, "--top-k", "3", "--pruned")
    frame = pm.rank(pm.Gemm(512, 4096, 4096), "h100_sxm", top_k=3).frame
    assert data["op"] == {"kind": "gemm", "m": 512, "n": 4096, "k": 4096, "dtype": "bf16"} and data["gpu"] == "h100_sxm"
    columns = [c for c in frame.columns if c != "position"]
    assert [{c: row[c] for c in columns} for row in data["configs"]] == frame[columns].to_dict("records")
    assert data["tier"] in ("spec", "calibrated") and data["model_id"]
    assert all(row["reason"] for row in data["pruned"]) and len(data["pruned"]) == data["pruned_count"]


def test_rank_as_csv(capsys: Capture) -> None:
    rows = as_csv(capsys, *RANK, "--top-k", "2")
    assert len(rows) == 2 and float(rows[0]["latency_us"]) <= float(rows[1]["latency_us"]) and rows[0]["tier"]
    pruned = as_csv(capsys, *RANK, "--pruned")
    assert pruned and all(row["reason"] and int(row["block_m"]) >= 16 for row in pruned)


def test_rank_as_plain_table_says_what_it_rests_on(capsys: Capture) -> None:
    assert run(*RANK, "--top-k", "4", "--pruned", "--calibration", "none") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("gemm m=512 n=4096 k=4096 bf16 on h100_sxm:")
    assert lines[1].startswith("spec tier, model ") and lines[2].startswith("registers and shared memory: ")
    header = next(i for i, line in enumerate(lines) if line.startswith("variant"))
    for column in ("us", "80 % within", "bound by", "waves", "blocks/SM", "limited by"):
        assert column in lines[header]
    assert lines[header + 5 : header + 7] == ["", "pruned:"] and not any("\x1b" in line or "│" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '[{"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 4, "mine": "x"}]'),
        ("b.json", '\ufeff{"configs": [{"kwargs": {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64}, "num_warps": 4}]}'),
        ("c.csv", "block_m, block_n, block_k, num_warps, num_stages\n64, 128, 64, 4,\n"),
    ],
)
def test_rank_with_somebody_elses_configs(capsys: Capture, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    data = as_json(capsys, *RANK, "--configs", str(tmp_path / name))
    row = data["configs"][0]
    assert len(data["configs"]) == 1 and (row["block_m"], row["block_n"], row["num_warps"], row["num_stages"]) == (64, 128, 4, 3)
    assert "mine" in row["given"] if name == "a.json" else row["given"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("[]", "no config"),
        ('[{"block_m": 64', "half-written"),
        ('{"a": 1}', "expected a JSON list"),
        ("[1, 2]", "expected a JSON list"),
        ('[{"block_m": 64}]', "config 0 has no block_n"),
        ('[{"block_m": NaN, "block_n": 64, "block_k": 64}]', "block_m"),
        ('[{"block_m": 0, "block_n": 64, "block_k": 64}]', "whole number of 1 or more"),
    ],
)
def test_bad_config_files(capsys: Capture, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.json").write_text(text)
    assert message in fails(capsys, *RANK, "--configs", str(tmp_path / "c.json"))


def test_bad_csv_missing_and_binary_config_files(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("block_m,block_n,block_k\n1,2,3,4\n")
    assert "line 2: more cells" in fails(capsys, *RANK, "--configs", str(tmp_path / "c.csv"))
    (tmp_path / "c.csv").write_text("block_m,block_n,block_k\n")
    assert "no config" in fails(capsys, *RANK, "--configs", str(tmp_path / "c.csv"))
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00\x01")
    assert "not a text file" in fails(capsys, *RANK, "--configs", str(tmp_path / "b.json"))
    assert "cannot be read (No such file" in fails(capsys, *RANK, "--configs", str(tmp_path / "absent.json"))
    assert "a folder, expected a plain file" in fails(capsys, *RANK, "--configs", str(tmp_path))


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "nan", "inf", "1e400", "x", "", "9" * 30])
@pytest.mark.parametrize("option", ["-m", "-n", "-k", "--top-k"])
def test_bad_sizes(capsys: Capture, option: str, value: str) -> None:
    arguments = [*RANK, "--top-k", "8"]
    arguments[arguments.index(option) + 1] = value
    line = fails(capsys, *arguments)
    assert f"{option.lstrip('-').replace('-', '_')} must be a whole number" in line and value in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "unknown verb 'frobnicate'"),
        (["rank", "gemm"], "Missing option"),
        (["rank", "conv"], "No such command 'conv'"),
        ([*RANK, "--bogus"], "No such option: --bogus"),
        ([*RANK, "--json", "--csv"], "choose one"),
        ([*RANK, "--dtype", "bf17"], "bf17"),
        ([*RANK, "--dtype", "nvfp4"], "nvfp4"),
        ([*RANK[:3], "h1000", *RANK[4:]], "unknown GPU"),
        ([*RANK[:3], "h1000", *RANK[4:]], "h1000"),
        (["rank", "gemm", "--gpu", "a100_sxm", *RANK[4:], "--dtype", "fp8"], "fp8"),
        ([*RANK, "--calibration", "/nowhere/at/all"], "no calibration at /nowhere/at/all"),
        (["predict", "gemm", *RANK[2:], "--config", "block_m"], "--config"),
        (["predict", "gemm", *RANK[2:], "--config", "{"], "not JSON"),
        (["predict", "gemm", *RANK[2:], "--config", "block_m=64,block_m=32"], "gives a field twice"),
        (["predict", "gemm", *RANK[2:], "--config", "block_m=256,block_n=256,block_k=256,num_stages=6"], "cannot run on h100_sxm"),
        (["predict", "memory", "--gpu", "l20", "--kind", "rmsnorm", "--tokens", "0", "--hidden", "64"], "tokens must be a whole number"),
        (["predict", "attention", "--gpu", "l20", "--phase", "decode"], "Missing option '--batch'"),
        (["predict", "collective", "--gpu", "l20", "--kind", "gossip", "--message-bytes", "64", "--n-gpus", "8"], "gossip"),
        (["store", "show", "--store", "/nowhere/at/all"], "no store at"),
        (["store", "import", "/nowhere/at/all"], "cannot be read"),
        (["evaluate", "ranking", "--gpu", "l20", "--data", "/nowhere/at/all.csv"], "cannot be read"),
        (["evaluate", "ranking", "--gpu", "l20", "--data", "/nowhere/at/all.xls"], "unknown kind of file"),
        (["calibrate", "table", "/nowhere/at/all.csv", "--gpu", "l20"], "cannot be read"),
    ],
)
def test_bad_questions_are_one_line_and_exit_2(capsys: Capture, arguments: list[str], message: str) -> None:
    assert message in fails(capsys, *arguments)


def test_no_answer_exits_1(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_device", lambda: None)
    assert "perfmodel rank" in fails(capsys, "tune", "gemm", "-m", "16", "-n", "4096", "-k", "4096", code=1)


def test_interrupt_is_one_line_and_130_and_a_bug_keeps_its_traceback(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def bug(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("perfmodel.cli.rank.rank_configs", interrupted)
    assert run(*RANK) == 130
    assert capsys.readouterr().err.strip() == "perfmodel: interrupted"
    monkeypatch.setattr("perfmodel.cli.rank.rank_configs", bug)
    with pytest.raises(RuntimeError, match="a bug"):
        run(*RANK)


def test_interrupts_while_modules_load(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> Any:
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr("perfmodel.cli.main.importlib.import_module", load)
    assert run(*RANK) == 130
    assert capsys.readouterr().err == "perfmodel: interrupted\n"


@pytest.mark.parametrize("verb", ["predict", "rank", "evaluate", "calibrate"])
def test_control_c_is_one_line_and_leaves_nothing(tmp_path: Path, verb: str) -> None:
    """A real signal, sent while the verb waits for its file: a pipe that nobody fills."""
    os.mkfifo(tmp_path / "rows.csv")
    pipe = str(tmp_path / "rows.csv")
    arguments = {
        "predict": ["predict", "gemm", *RANK[2:]],
        "rank": [*RANK, "--configs", pipe],
        "evaluate": ["evaluate", "ranking", "--gpu", "h100_sxm", "--data", pipe],
        "calibrate": ["calibrate", "table", pipe, "--gpu", "h100_sxm", "--out", str(tmp_path / "out")],
    }[verb]
    hang = "import sys, time, perfmodel.predict.libraries; sys.modules['perfmodel.predict'].predict_one = lambda *a, **k: time.sleep(60); "
    wait = hang if verb == "predict" else ""
    code = f"{wait}import threading, os, signal; threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
    code += f"from perfmodel.cli.main import main; main({arguments!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert [line for line in done.stderr.splitlines() if ", 2 s" not in line] == ["perfmodel: interrupted"]
    assert [p.name for p in tmp_path.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize("arguments", [[*RANK, "--pruned", "--csv"], ["gpus"], ["gpus", "show", "l20"], ["gpus", "--csv"]])
def test_a_reader_that_goes_away_is_quiet(arguments: list[str]) -> None:
    code = f"from perfmodel.cli.main import main; main({arguments!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(60) == 141


@pytest.mark.parametrize(
    "arguments", [["--help"], ["rank", "--help"], [*RANK, "--csv"], ["gpus"], ["gpus", "--json"], ["gpus", "show", "l20"]]
)
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "perfmodel.cli.main", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "perfmodel: cannot write: No space left on device\n")


def test_external_baselines_are_asked_for_before_any_work(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ["--external", "--data", str(tmp_path / "absent.csv")]
    assert "nvidia-matmul-heuristics does not know h800_sxm" in fails(capsys, "evaluate", "ranking", "--gpu", "h800", *data, code=1)
    monkeypatch.setattr("perfmodel.evaluate.baselines.importlib.util.find_spec", lambda name: None)
    assert "pip install 'perfmodel[heuristics]'" in fails(capsys, "evaluate", "ranking", "--gpu", "l20", *data, code=1)


def test_attention_needs_no_query_length(capsys: Capture) -> None:
    sizes = ["--gpu", "h100_sxm", "--batch", "4", "--kv-len", "2048"]
    heads = ["--q-heads", "32", "--kv-heads", "8", "--head-dim", "128"]
    for phase, length in (("decode", 1), ("prefill", 2048)):
        data = as_json(capsys, "predict", "attention", "--phase", phase, *sizes, *heads)
        assert data["latency_us"] == pm.predict(pm.Attention(phase, 4, length, 2048, 32, 8, 128), "h100_sxm").latency_us
        data = as_json(capsys, "predict", "mla", "--phase", phase, *sizes, "--num-heads", "16")
        assert data["latency_us"] == pm.predict(pm.MLA(phase, 4, length, 2048, 16), "h100_sxm").latency_us


def test_help_says_which_verbs_need_a_gpu(capsys: Capture) -> None:
    assert run("--help") == 0
    needing = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ") and "; needs a GPU" in line]
    assert needing == ["tune"]


def test_predict_one_config(capsys: Capture) -> None:
    config = "block_m=64,block_n=128,block_k=64,num_warps=4,num_stages=3"
    data = as_json(capsys, "predict", "gemm", *RANK[2:], "--config", config)
    found = pm.predict(pm.Gemm(512, 4096, 4096), "h100_sxm", config={"block_m": 64, "block_n": 128, "block_k": 64})
    assert data["latency_us"] == found.latency_us and data["terms_us"] == dict(found.terms) and data["bound"] == found.bound
    assert as_json(capsys, "predict", "gemm", *RANK[2:], "--config", '{"BM": 64, "BN": 128, "BK": 64}') == data
    row = as_csv(capsys, "predict", "gemm", *RANK[2:], "--config", config)[0]
    assert float(row["latency_us"]) == found.latency_us and float(row["alone_DRAM_us"]) == found.terms["DRAM"]
    assert run("predict", "gemm", *RANK[2:], "--config", config) == 0
    assert f"bound by {found.bound}" in capsys.readouterr().out.splitlines()[0]


def table(path: Path) -> Path:
    """Rows of six shapes that took 1.3 times what the spec tier says, and a little more with wider tiles."""
    rows = []
    for m in (64, 128, 256, 512, 1024, 2048):
        frame = pm.rank(pm.Gemm(m, 4096, 4096), "l20", top_k=12, calibration=None).frame
        factor = 1.3 + 0.1 * (frame["block_m"] / 128)
        rows += [{"m": m, "n": 4096, "k": 4096, **row} for row in frame.assign(latency_us=frame["latency_us"] * factor).to_dict("records")]
    path.write_text(json.dumps(rows))
    return path


def fit(gpu: Any, tables: dict[str, Any], *, skip_other_gpus: bool = False) -> Calibration:
    """A stand-in for the fit, whose own tests are elsewhere: every time a third longer."""
    from perfmodel.kernels.terms import constant_values

    slower = {name: value / 1.35 for name, value in constant_values("gemm").items() if name in ("clock_share", "dram_efficiency")}
    card = {"gpu": gpu.name, "rows": len(tables["kernel:gemm"])}
    return Calibration(gpu.name, {"kernel_gemm": FittedModel("fit:1", "calibrated", slower, (-0.1, 0.1), card=card)})


def test_calibrate_then_auto_uses_it_then_evaluate(
    capsys: Capture, tmp_path: Path, _own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfmodel.cli.calibrate.calibrate_table", fit)
    data = table(tmp_path / "rows.json")
    report = as_json(capsys, "calibrate", "table", str(data), "--gpu", "l20")
    assert report[0]["rows"] == 72 and (_own_folders / "calibration" / "l20" / "kernel_gemm" / "card.json").is_file()
    l20 = ["rank", "gemm", "--gpu", "l20", *RANK[4:]]
    assert as_json(capsys, *l20)["model_id"] == report[0]["model_id"]
    assert as_json(capsys, *l20, "--calibration", "none")["tier"] == "spec"
    scores = as_csv(capsys, "evaluate", "ranking", "--gpu", "l20", "--data", str(data))
    ours = {row["method"]: float(row["error mean"]) for row in scores if row["method"].startswith("perfmodel")}
    assert ours["perfmodel, calibrated tier"] < 0.5 * ours["perfmodel, spec tier"] and len(scores) > 4
    shapes = as_json(capsys, "evaluate", "ranking", "--gpu", "l20", "--data", str(data), "--per-shape")
    assert len({row["shape"] for row in shapes}) == 6


def test_tune_and_store_verbs(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from test_tune import HERE, PROBLEM, failing, replay

    from perfmodel.tune import tune as tune_op

    monkeypatch.setattr(environment, "_device", lambda: (HERE.gpu, HERE.driver))
    tune_op(pm.Gemm(512, 4096, 4096), top_k=6, runner=replay(failing))
    sizes = [part for name in "mnk" for part in (f"-{name}", str(PROBLEM[name]))]
    data = as_json(capsys, "tune", "gemm", *sizes, "--top-k", "6")
    assert (data["source"], data["latency_us"], data["baseline_us"]) == ("store", 101.0, {"cublas": 90.0})
    assert [row["status"] for row in as_csv(capsys, "tune", "gemm", *sizes, "--top-k", "6")] == ["ok"] * 3 + [
        row["status"] for row in data["candidates"][3:]
    ]
    assert run("tune", "gemm", *sizes, "--top-k", "6") == 0
    text = capsys.readouterr().out
    assert "101 us (from the store, nothing was timed)" in text and "ours / library 1.122" in text and "relative error 0.5" in text

    assert len(as_json(capsys, "store", "show")) == 1 and len(as_csv(capsys, "store", "show", "--history")) == 7
    assert run("store", "show") == 0 and "1 answers" in capsys.readouterr().out
    copy = tmp_path / "export.json"
    assert run("store", "export", str(copy)) == 0 and "7 runs written" in capsys.readouterr().err
    assert run("store", "export", "-") == 0 and json.loads(capsys.readouterr().out) == json.loads(copy.read_text())
    assert run("store", "import", str(copy), "--store", str(tmp_path / "other")) == 0
    assert "7 new runs, 0 already there" in capsys.readouterr().err
    assert run("store", "import", str(copy)) == 0 and "0 new runs, 7 already there" in capsys.readouterr().err
    assert as_json(capsys, "store", "import", str(copy)) == [{"file": str(copy), "new": 0, "already_there": 7}]
    assert as_csv(capsys, "store", "export", str(copy)) == [{"file": str(copy), "runs": "7"}]
    assert "choose one" in fails(capsys, "store", "import", str(copy), "--json", "--csv")
    assert "export - writes JSON" in fails(capsys, "store", "export", "-", "--csv")
    copy.write_text(copy.read_text()[:100])
    assert "half-written" in fails(capsys, "store", "import", str(copy))
    assert "cannot be written" in fails(capsys, "store", "export", str(tmp_path / "absent" / "x.json"))


def test_a_stored_answer_needs_neither_gpu_nor_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """End to end in a fresh process: the driver's command says which GPU this is, the store answers."""
    from test_tune import HERE, replay

    from perfmodel.tune import tune as tune_op

    monkeypatch.setattr(environment, "_device", lambda: (HERE.gpu, HERE.driver))
    tune_op(pm.Gemm(512, 4096, 4096), top_k=4, runner=replay(), store=tmp_path / "s.sqlite")
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\necho '{HERE.gpu}, GPU-1234, {HERE.driver}'\n")
    command.chmod(0o755)
    code = (
        "import sys; sys.modules['pynvml'] = None\n"  # where the library is installed it would name a GPU that is here
        "from perfmodel.cli.main import run\n"
        "assert run(['tune', 'gemm', '-m', '512', '-n', '4096', '-k', '4096', '--top-k', '4', '--json']) == 0\n"
        "assert not {'torch', 'triton'} & set(sys.modules), 'imported torch'"
    )
    settings = os.environ | {"PERFMODEL_STORE": str(tmp_path / "s.sqlite"), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=settings, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["source"] == "store"


def test_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    output.write_table([{"a": "[b]", "n": 1.0}], head=["[head]"])
    text = capsys.readouterr().out
    assert "[head]" in text and "[b]" in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [(781.3197, "781"), (12345.6, "12346"), (0.012344, "0.0123"), (0.0, "0"), (None, "-"), (float("nan"), "-"), (True, "yes"), (3, "3")],
)
def test_cells(value: Any, expected: str) -> None:
    assert output.shown(value) == expected


def test_json_has_no_nan(capsys: Capture) -> None:
    output.write_json({"x": float("nan"), "y": [float("inf"), 1]})
    assert json.loads(capsys.readouterr().out) == {"x": None, "y": [None, 1]}


def test_progress_is_silent_for_quick_work_and_on_stderr_for_long(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with Progress("quick"):
        pass
    monkeypatch.setattr("perfmodel.cli.progress._AFTER_S", 0.01)
    with Progress("long") as step:
        step("timing", 3, 8)
        time.sleep(0.1)
    out, err = capsys.readouterr()
    assert out == "" and err == "perfmodel: timing 3/8, 0 s\n"
