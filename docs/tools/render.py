"""Writes what README.md and docs/ show but nobody types: tables between markers, and the output of the commands in console blocks.

    python docs/tools/render.py            # write
    python docs/tools/render.py --check    # only say what is out of date; exit 1 if anything is

A table stands between `<!-- table: NAME -->` and `<!-- end -->` and comes from tables.py. A block fenced as `console` holds commands after
`$ ` and what they print; one fenced as `bash` is for the reader and never run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import tables
from evaluations import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
CONSOLE = re.compile(r"(^```console\n)(.*?)(^```$)", re.DOTALL | re.MULTILINE)
COLUMNS = "100"
HOME = "/home/you/.local/share/perfmodel"  # what pages show for the user folder


def with_tables(text: str) -> str:
    """The page with its tables rendered again."""
    return TABLE.sub(lambda found: f"{found[1]}\n{tables.render(found[2])}\n{found[3]}", text)


def with_outputs(text: str, run: Callable[[str], str]) -> str:
    """The page with the output of its commands as `run` gives it."""

    def block(found: re.Match[str]) -> str:
        commands = [line for line in found[2].splitlines() if line.startswith("$ ")]
        shown = (f"{command}\n{run(command.removeprefix('$ '))}" for command in commands)
        return found[1] + "".join(shown) + found[3]

    return CONSOLE.sub(block, text)


def console(home: Path) -> Callable[[str], str]:
    """A runner of command lines: in the checkout, with `perfmodel` being this checkout's, and a user folder of its own."""
    bin_folder = home / "bin"
    bin_folder.mkdir(exist_ok=True)
    script = bin_folder / "perfmodel"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m perfmodel.cli.main "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    path = os.pathsep.join((str(bin_folder), os.environ.get("PATH", "")))
    settings = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PERFMODEL_HOME": str(home), "COLUMNS": COLUMNS}

    def run(command: str) -> str:
        shell = ["bash", "-o", "pipefail", "-c", command]
        done = subprocess.run(shell, cwd=ROOT, env=settings, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            raise RuntimeError(f"{command}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout.replace(str(home), HOME)

    return run


def rendered(path: Path) -> str:
    """The page as it should be."""
    with tempfile.TemporaryDirectory() as home:
        return with_outputs(with_tables(path.read_text(encoding="utf-8")), console(Path(home)))


def main() -> None:
    """Render every page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = [(path, text) for path in PAGES if (text := rendered(path)) != path.read_text(encoding="utf-8")]
    for path, text in stale:
        print(f"{path.relative_to(ROOT)}: {'out of date' if check else 'written'}")
        if not check:
            path.write_text(text, encoding="utf-8")
    sys.exit(int(check and bool(stale)))


if __name__ == "__main__":
    main()
