"""Runs the test suite as other machines would: other vector instructions, core counts, threads of BLAS, languages, time zones and umasks.

    make portability                               # every setting, one after the other
    python tests/portability.py --only avx2        # the settings whose name holds a word
    python tests/portability.py --list

numpy picks its inner loops by what the processor has, so that the last bit of a power or an exponential differs between machines.
NPY_DISABLE_CPU_FEATURES takes those loops away, level by level, and this machine answers as an older one. Exits 1 when a setting fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Setting:
    """One way in which a machine may differ: environment variables, cores the suite may use (None: all), and the umask."""

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: int | None = None
    umask: int = 0o022


def vector_levels() -> list[Setting]:
    """A setting for each level of vector instructions that this processor has and numpy uses, without it and all above it."""
    from numpy._core._multiarray_umath import __cpu_dispatch__ as dispatched
    from numpy._core._multiarray_umath import __cpu_features__ as has

    levels = [name for name in dispatched if has.get(name)]
    return [Setting(f"without-{levels[i].lower()}", {"NPY_DISABLE_CPU_FEATURES": " ".join(levels[i:])}) for i in range(len(levels))]


def settings() -> list[Setting]:
    """Everything that is tried, the machine as it is first."""
    return [
        Setting("as-it-is"),
        *vector_levels(),
        Setting("one-core", {"OMP_NUM_THREADS": "1"}, cores=1),
        Setting("eight-threads", {"OMP_NUM_THREADS": "8", "OPENBLAS_NUM_THREADS": "8"}),
        Setting("elsewhere", {"LC_ALL": "C", "LANG": "C", "TZ": "Pacific/Kiritimati", "COLUMNS": "60", "TERM": "dumb"}, umask=0o077),
    ]


def run(setting: Setting, arguments: list[str]) -> tuple[bool, str]:
    """(whether every test passed, pytest's last line) under one setting, in a home folder of its own."""

    def prepare() -> None:
        os.umask(setting.umask)
        if setting.cores is not None:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: setting.cores])

    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": home, **setting.environment}
        command = [sys.executable, "-m", "pytest", "--numprocesses", str(setting.cores or "auto"), "--dist", "loadfile", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, preexec_fn=prepare, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()]
    if done.returncode:
        print(done.stdout[-6000:], done.stderr[-2000:], sep="\n", file=sys.stderr)
    return done.returncode == 0, lines[-1]


def main() -> int:
    """Run the settings that were asked for and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="settings whose name holds this")
    parser.add_argument("--list", action="store_true", help="name the settings and stop")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, such as tests/unit")
    asked = parser.parse_args()
    chosen = [setting for setting in settings() if asked.only in setting.name]
    if not chosen:
        parser.error(f"no setting holds {asked.only!r}: known: {', '.join(s.name for s in settings())}")
    failed = False
    for setting in chosen:
        if asked.list:
            print(setting.name, *(f"{k}={v!r}" for k, v in setting.environment.items()))
            continue
        began = time.monotonic()
        passed, last = run(setting, asked.pytest)
        failed |= not passed
        print(f"{setting.name:24} {'passed' if passed else 'FAILED'} in {time.monotonic() - began:5.0f} s: {last}", flush=True)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
