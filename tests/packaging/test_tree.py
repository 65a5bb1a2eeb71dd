"""Every folder says what it is for, and the module rules of the house hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 420


def folders() -> Iterator[Path]:
    for top in ("perfmodel", "hwdb", "calibration", "data", "docs", "notebooks", "tests"):
        for folder in (ROOT / top, *(p for p in (ROOT / top).rglob("*") if p.is_dir())):
            hidden = any(part.startswith((".", "__pycache__")) for part in folder.relative_to(ROOT).parts)
            if not hidden and folder.is_dir() and any(p.is_file() for p in folder.iterdir()):
                yield folder


def says_what_for(folder: Path) -> bool:
    """A README of its own or a parent's that names it, a model's card, a package docstring, or (tests) a docstring in every module."""
    if (folder / "README.md").is_file() or (folder / "card.json").is_file():
        return True
    for parent in folder.relative_to(ROOT).parents:
        readme = ROOT / parent / "README.md"
        if parent != Path() and readme.is_file() and folder.name in readme.read_text(encoding="utf-8"):
            return True
    package = "perfmodel" in folder.relative_to(ROOT).parts
    modules = [m for m in [folder / "__init__.py"] if m.is_file()] if package else sorted(folder.glob("*.py"))
    return bool(modules) and all(ast.get_docstring(ast.parse(m.read_text(encoding="utf-8"))) for m in modules)


@pytest.mark.parametrize("folder", [str(f.relative_to(ROOT)) for f in folders()])
def test_folder_says_what_it_is_for(folder: str) -> None:
    assert says_what_for(ROOT / folder), f"{folder}: add a README.md, or a docstring to its __init__.py"


@pytest.mark.parametrize("module", [str(p.relative_to(ROOT)) for p in sorted((ROOT / "perfmodel").rglob("*.py"))])
def test_module_has_a_docstring_and_a_readable_length(module: str) -> None:
    text = (ROOT / module).read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), f"{module} has no docstring"
    assert text.count("\n") <= MAX_LINES, f"{module} has {text.count(chr(10))} lines: split it"


@pytest.mark.parametrize(
    "path", [p for p in sorted((ROOT / "data").rglob("*")) if p.suffix in (".parquet", ".npz", ".csv")], ids=lambda p: p.name
)
def test_a_data_file_has_a_sidecar_with_a_licence(path: Path) -> None:
    text = path.with_suffix(".json").read_text(encoding="utf-8")
    assert any(licence in text for licence in ("Apache-2.0", "MIT", "none stated")), f"{path.name}: its sidecar names no licence"
