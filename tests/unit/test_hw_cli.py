"""`perfmodel gpus`: only data on stdout, in the format asked for."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perfmodel.cli.gpus import app
from perfmodel.errors import InputError
from perfmodel.hw import gpu, gpus

run = CliRunner().invoke


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
    listed = run(app, ["list", "--json"])
    assert listed.exit_code == 2 and len(json.loads(listed.stdout)) == len(gpus()) - 1
    assert listed.stderr.startswith(f"perfmodel: {bad}: not valid TOML") and listed.stderr.count("\n") == 1
    assert gpu("l20").sms == 92
