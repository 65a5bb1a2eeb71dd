"""What loads what: the package, its help and a ranking start without the heavy libraries (`perfmodel evaluate speed` has the times)."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "sklearn", "matplotlib", "pandas", "pyarrow")
EVERY = (*HEAVY, "pydantic", "xgboost", "scipy", "typer", "rich", "numpy")
RANK = "run(['rank', 'gemm', '--gpu', 'h100_sxm', '-m', '4096', '-n', '14336', '-k', '4096', '--json', '--calibration', 'none'])"


@pytest.mark.parametrize(
    ("code", "banned"),
    [
        ("import perfmodel", EVERY),
        ("import perfmodel as pm; pm.Gemm; pm.NoAnswerError", ("scipy", "typer", *HEAVY)),
        ("from perfmodel.cli.main import run; run(['--help'])", EVERY),
        (f"from perfmodel.cli.main import run; {RANK}", HEAVY),
    ],
)
def test_loads_none_of(code: str, banned: tuple[str, ...]) -> None:
    check = f"{code}\nimport sys; bad = sorted(set({banned!r}) & set(sys.modules)); assert not bad, bad"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
