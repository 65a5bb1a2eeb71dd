"""`python -m tests.hostile --cases 20000`: ask that many hostile questions, print what came of them, and fail where any went wrong."""

from __future__ import annotations

import argparse
import os
import sys

from .cases import generators, tried
from .values import FOLDER


def main() -> int:
    """Ask and report."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    os.environ["PERFMODEL_HOME"] = str(FOLDER / "home")
    os.chdir(FOLDER)  # some of the cases write files
    for name in ("PERFMODEL_STORE", "PERFMODEL_HWDB", "PERFMODEL_CALIBRATION"):
        os.environ.pop(name, None)
    tally = tried(generators(), asked.cases, asked.seed)
    print("\n".join(tally.lines()))
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
