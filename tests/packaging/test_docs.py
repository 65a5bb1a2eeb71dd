"""The book is true: tables are what the stored evaluations say, blocks run as pasted, and every public name has its place."""

from __future__ import annotations

import importlib
import math
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import perfmodel
from perfmodel.cli.main import VERBS, run

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "docs" / "tools"
PAGES = [ROOT / "README.md", *(p for p in sorted((ROOT / "docs").glob("*.md")) if p.name != "README.md")]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = [(page, found[1], found[2]) for page in PAGES for found in BLOCK.finditer(page.read_text(encoding="utf-8"))]
README_WORDS = 900
FIGURE = re.compile(r"\d+\.\d+ ?%|\b\d\.\d{3}\b")
TOLD = re.compile(r"[^\s|]+")
RELATIVE = 0.02  # of a figure that a command prints, between two machines: it may be rounded at its last digit of two


def tool(name: str) -> ModuleType:
    """A script of docs/tools as a module."""
    sys.path.insert(0, str(TOOLS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(TOOLS))


def same(shown: str, now: str) -> bool:
    """Whether two texts have the same words, and figures that are equal but for rounding."""
    old, new = TOLD.findall(shown), TOLD.findall(now)
    return len(old) == len(new) and all(a == b or close(a, b) for a, b in zip(old, new, strict=True))


def close(one: str, other: str) -> bool:
    """Whether two words differ in nothing but the last digits of their figures."""
    number = re.compile(r"\d+(?:\.\d+)?")
    if number.sub("#", one) != number.sub("#", other):
        return False
    pairs = zip(number.findall(one), number.findall(other), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=RELATIVE) for a, b in pairs)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_tables_are_what_is_stored(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert tool("render").with_tables(text) == text, "a stored evaluation changed: python docs/tools/render.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_table_is_shown_once_and_known(page: Path) -> None:
    names = re.findall(r"<!-- table: ([\w-]+) -->", page.read_text(encoding="utf-8"))
    assert len(names) == len(set(names)) and set(names) <= set(tool("tables").TABLES)


def test_no_table_is_left_out() -> None:
    shown = {name for page in PAGES for name in re.findall(r"<!-- table: ([\w-]+) -->", page.read_text(encoding="utf-8"))}
    assert shown == set(tool("tables").TABLES)


def test_no_figure_of_accuracy_is_typed() -> None:
    """Outside of rendered tables the page of accuracy has no measured figure: shares in whole percent and sizes only."""
    text = tool("render").TABLE.sub("", (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8"))
    assert [line for line in text.splitlines() if FIGURE.search(line)] == []


@pytest.mark.parametrize("name", [*tool("evaluations").COMMANDS, *tool("evaluations").ON_A_GPU, *tool("evaluations").GATES])
def test_a_stored_evaluation_names_its_command(name: str) -> None:
    module = tool("evaluations")
    stored = module.read(name)
    assert stored.rows and stored.origin
    assert stored.command == {**module.COMMANDS, **module.ON_A_GPU}.get(name, stored.command)


def test_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= README_WORDS
    links = re.findall(r"\]\((?!http)([^)#]+)", text)
    assert len(links) > 5 and [link for link in links if not (ROOT / link).is_file()] == []


def test_blocks_are_there() -> None:
    kinds = [(page.name, language) for page, language, _ in BLOCKS]
    assert kinds.count(("README.md", "python")) == 2 and ("README.md", "console") in kinds and len(kinds) >= 12


@pytest.mark.parametrize("at", [i for i, block in enumerate(BLOCKS) if block[1] == "python"], ids=lambda i: f"{BLOCKS[i][0].stem}-{i}")
def test_python_runs_as_pasted(at: int, tmp_path: Path) -> None:
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "PERFMODEL_HOME": str(tmp_path)}
    code = [sys.executable, "-c", BLOCKS[at][2]]
    done = subprocess.run(code, cwd=ROOT, env=settings, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("page", [p for p in PAGES if any(b[0] == p and b[1] == "console" for b in BLOCKS)], ids=lambda p: p.name)
def test_commands_print_what_is_shown(page: Path, tmp_path: Path) -> None:
    """All commands of a page in order, in one user folder: the same words, and figures equal but for rounding."""
    module, text = tool("render"), page.read_text(encoding="utf-8")
    now = module.with_outputs(text, module.console(tmp_path))
    shown = zip(BLOCK.finditer(text), BLOCK.finditer(now), strict=True)
    stale = [old[2].splitlines()[0] for old, new in shown if not same(old[2], new[2])]
    assert not stale, f"{stale}: print something else now: python docs/tools/render.py"


def test_words_and_figures_are_compared() -> None:
    assert same("a 602.4 us (1.10)", "a  602.5 us (1.11)") and not same("a 602.4", "b 602.4") and not same("a 602", "a 802")
    assert not same("a b", "a") and not same("481.9-753.0", "481.9-853.0")


def test_the_recipe_for_a_gpu_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    block = re.search(r"^```toml\n(.*?)^```$", (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert block
    name = tomllib.loads(block[1])["name"]
    (tmp_path / f"{name}.toml").write_text(block[1], encoding="utf-8")
    monkeypatch.setenv("PERFMODEL_HWDB", str(tmp_path))
    assert run(["gpus", "lint", name]) == 0
    assert run(["predict", "gemm", "--gpu", name, "-m", "64", "-n", "5120", "-k", "5120"]) == 0
    assert "spec tier" in capsys.readouterr().out


def test_reference_pages_have_every_name_and_verb() -> None:
    reference = tool("reference")
    page = reference.python()
    assert [name for name in perfmodel.__all__ if name != "__version__" and f"heading: pm.{name}\n" not in page] == []
    commands = reference.command_line()
    assert [verb for verb in VERBS if f"## perfmodel {verb} {{" not in commands] == []
    assert "| `--gpu GPU` |" in commands and "required |" in commands
