"""The wheel, installed in an environment of its own and used from another folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

import perfmodel as pm

ROOT = Path(__file__).resolve().parents[2]
RANK = ["rank", "gemm", "--gpu", "h100_sxm", "-m", "4096", "-n", "14336", "-k", "4096", "--json"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("perfmodel-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a new environment: the wheel is its own, the dependencies are looked up in this one's."""
    home = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=120)
    python = home / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet", str(wheel)]
    subprocess.run(command, check=True, timeout=120)
    site = next((home / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def output(command: list[str], folder: Path) -> Any:
    settings = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=settings, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_wheel_holds_the_data_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for path in (ROOT / "hwdb").rglob("*.toml"):
        assert f"perfmodel/_data/{path.relative_to(ROOT)}" in names
    assert "perfmodel/_data/calibration/physics/gemm.toml" in names and "perfmodel/py.typed" in names
    assert "perfmodel/_data/data/models/deepseek_v3.json" in names and any(n.endswith("licenses/LICENSE") for n in names)
    assert not [n for n in names if "_without_" in n or n.endswith(".parquet")]  # of fits and scores alone
    assert not any(n.startswith(("tests/", "notebooks/", "docs/")) or "__pycache__" in n for n in names)
    assert wheel.stat().st_size < 10e6


def test_installed_wheel_answers_as_the_checkout_does(installed: Path, tmp_path: Path) -> None:
    where = output([str(installed / "python"), "-c", "import json, perfmodel; print(json.dumps(perfmodel.__file__))"], tmp_path)
    assert Path(where).is_relative_to(installed.parent)
    assert [row["name"] for row in output([str(installed / "perfmodel"), "gpus", "--json"], tmp_path)] == pm.gpus()
    here = output([sys.executable, "-m", "perfmodel.cli.main", *RANK], ROOT)
    assert output([str(installed / "perfmodel"), *RANK], tmp_path) == here and here["configs"]


def test_installed_wheel_plans(installed: Path, tmp_path: Path) -> None:
    command = ["memory", "--gpu", "l20", "--model", "Qwen3-32B", "--tp", "4", "--json"]
    assert output([str(installed / "perfmodel"), *command], tmp_path) == output(
        [sys.executable, "-m", "perfmodel.cli.main", *command], ROOT
    )
    ask = "plan --model Qwen3-8B --gpus h100_sxm --isl 1000 --osl 200 --request-rate 2 --json"
    assert output([str(installed / "perfmodel"), *ask.split()], tmp_path)["best"]["meets"]


@pytest.fixture
def without_pyarrow(tmp_path: Path) -> dict[str, str]:
    """An environment in which the package of the extra `parquet` is not installed."""
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "pyarrow.py").write_text("raise ImportError('not installed')\n")
    return {**os.environ, "PYTHONPATH": str(tmp_path / "shim")}


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("predict gemm --gpu h100_sxm -m 64 -n 4096 -k 4096 --json", 0, ""),
        ("predict gemm --gpu h100_sxm -m 64 -n 4096 -k 4096 --dtype int4_wo --json", 0, ""),
        ("calibrate table rows.csv --kind gemm --gpu b200_sxm --out here --json", 0, ""),
        ("calibrate table rows.parquet --kind gemm --gpu b200_sxm --out here", 2, "pip install 'perfmodel[parquet]'"),
        ("predict gemm --gpu h100_sxm -m 64 -n 4096 -k 4096 --calibration none", 1, "no wheel holds those"),
        ("evaluate serving", 1, "run this in a checkout of perfmodel"),
        ("evaluate operators --operator gemm", 1, "run this in a checkout of perfmodel"),
    ],
)  # fmt: skip
def test_the_core_alone(installed: Path, tmp_path: Path, without_pyarrow: dict[str, str], command: str, code: int, said: str) -> None:
    rows = (ROOT / "docs" / "examples" / "b200_gemm.csv").read_text()
    (tmp_path / "rows.csv").write_text(rows)
    (tmp_path / "rows.parquet").write_text(rows)
    asked = [str(installed / "perfmodel"), *command.split()]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, env=without_pyarrow, check=False, timeout=120)
    lines = [line for line in done.stderr.splitlines() if not re.search(r", \d+ s$", line)]
    assert done.returncode == code, done.stderr
    assert not said or (len(lines) == 1 and said in lines[0]), done.stderr
