"""`perfmodel gpus`: only data on stdout, in the format asked for."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perfmodel._resources import shipped
from perfmodel.cli.gpus import app
from perfmodel.cli.main import run as command
from perfmodel.errors import InputError, InputWarning
from perfmodel.hw import gpu, gpus

run = CliRunner().invoke
TEXT = (shipped("hwdb") / "l20.toml").read_text(encoding="utf-8").replace('name = "l20"', 'name = "mine"', 1)


@pytest.mark.parametrize("args", [["--json"], ["list", "--json"]])
def test_list_as_json(args: list[str]) -> None:
    rows = json.loads(run(app, args).stdout)
    assert [row["name"] for row in rows] == gpus()
    assert next(row for row in rows if row["name"] == "a10")["fp8_tflops"] is None


def test_list_as_csv_and_table() -> None:
    rows = list(csv.DictReader(io.StringIO(run(app, ["list", "--csv"]).stdout)))
    assert [row["name"] for row in rows] == gpus()
    table = run(app, [])
    assert table.exit_code == 0 and all(name in table.stdout for name in gpus())


def test_show_gives_every_number_with_its_source() -> None:
    rows = list(csv.DictReader(io.StringIO(run(app, ["show", "L20", "--csv"]).stdout)))
    numbers = {row["field"]: (row["value"], row["unit"]) for row in rows}
    assert numbers["sms"] == ("92", "") and numbers["tensor_flops.bf16"] == ("119.5", "TFLOP/s")
    assert numbers["smem_per_block_bytes"] == ("99", "KiB") and numbers["dram_bytes_per_s"] == ("864", "GB/s")
    assert all(row["source"] for row in rows)
    table = run(app, ["show", "l20"]).stdout
    assert "119.5" in table and "estimate: 14.7 B per clock" in table
    spec = json.loads(run(app, ["show", "NVIDIA H200", "--json"]).stdout)
    assert spec["name"] == "h200_sxm" and spec["dram_bytes_per_s"] == 4.8e12 and spec["sources"]["sms"]


def test_the_format_may_stand_before_the_subcommand() -> None:
    for args in (["show", "l20"], ["list"], ["lint"]):
        for flag in ("--json", "--csv"):
            assert run(app, [flag, *args]).stdout == run(app, [*args, flag]).stdout
    assert isinstance(run(app, ["--json", "show", "l20", "--csv"]).exception, InputError)
    assert json.loads(run(app, ["--json", "show", "l20"]).stdout)["name"] == "l20"


def test_zero_is_a_number() -> None:
    line = next(line for line in run(app, ["show", "l20"]).stdout.splitlines() if line.startswith("nvlink_bytes_per_s"))
    assert line.split()[1] == "0"


def test_bad_questions_are_input_errors() -> None:
    assert isinstance(run(app, ["show", "h1000"]).exception, InputError)
    assert isinstance(run(app, ["show", "l20", "--json", "--csv"]).exception, InputError)


def test_lint_exit_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean = run(app, ["lint"])
    assert (clean.exit_code, clean.stdout) == (0, "")
    assert json.loads(run(app, ["lint", "h20", "--json"]).stdout) == []
    bad = tmp_path / "bad.toml"
    bad.write_text("sms = ")
    monkeypatch.setenv("PERFMODEL_HWDB", str(tmp_path))
    found = run(app, ["lint", "--json"])
    assert found.exit_code == 1 and json.loads(found.stdout)[0]["name"] == "bad"
    with pytest.warns(InputWarning, match=f"left out: {bad}: not valid TOML") as said:
        listed = run(app, ["list", "--json"])
    assert listed.exit_code == 0 and len(json.loads(listed.stdout)) == len(gpus()) - 1 and len(said) == 1
    assert gpu("l20").sms == 92


def test_a_broken_file_is_one_line_on_stderr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text(TEXT.replace("value = 864,", "value = 864000,"))
    monkeypatch.setenv("PERFMODEL_HWDB", str(tmp_path))
    assert command(["predict", "gemm", "--gpu", "L20 48GB", "-m", "64", "-n", "64", "-k", "64", "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == f"perfmodel: left out: {tmp_path}/mine.toml: dram_gb_per_s = 864000: expected 100 to 40000\n"
    assert json.loads(shown.out)
    assert command(["predict", "gemm", "--gpu", "mine", "-m", "64", "-n", "64", "-k", "64", "--json"]) == 2
    assert capsys.readouterr().err == f"perfmodel: {tmp_path}/mine.toml: dram_gb_per_s = 864000: expected 100 to 40000\n"


def test_add_writes_a_draft_that_lint_completes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFMODEL_HWDB", str(tmp_path))
    path = tmp_path / "mine.toml"
    assert json.loads(run(app, ["add", "mine", "--arch", "sm_89", "--json"]).stdout) == [{"name": "mine", "file": str(path)}]
    text = path.read_text()
    assert "memory bandwidth of the datasheet" in text and "halve them" in text
    problems = [row["problem"] for row in json.loads(run(app, ["lint", "mine", "--json"]).stdout)]
    assert len(problems) == 15 and any("dram_gb_per_s = 0: expected 100 to 40000" in line for line in problems)
    assert isinstance(run(app, ["add", "mine", "--arch", "sm_89"]).exception, InputError) and path.read_text() == text
    assert run(app, ["add", "mine", "--like", "L20", "--force", "--json"]).exit_code == 0
    assert run(app, ["lint", "mine"]).exit_code == 0
    mine, l20 = gpu("mine"), gpu("l20")
    assert mine.tensor_flops == l20.tensor_flops and mine.dram_bytes == l20.dram_bytes and mine.l2_latency_s == l20.l2_latency_s
    assert mine.sources["sms"] == "draft: as NVIDIA L20, to be replaced"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["add", "l20", "--arch", "sm_89"], "l20.toml describes l20 already: --force replaces it"),
        (["add", "My GPU", "--arch", "sm_89"], "GPU name 'My GPU': use lower case letters"),
        (["add", "mine"], "a draft needs --arch"),
        (["add", "mine", "--arch", "sm_42"], "unknown arch 'sm_42'"),
        (["add", "mine", "--like", "h1000"], "unknown GPU 'h1000'"),
        (["add", "mine", "--like", "l20", "--from-device"], "without --arch and --like"),
    ],
)
def test_add_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], says: str) -> None:
    monkeypatch.setenv("PERFMODEL_HWDB", str(tmp_path))
    error = run(app, args).exception
    assert isinstance(error, InputError) and says in str(error) and "\n" not in str(error)
    assert not list(tmp_path.iterdir())
