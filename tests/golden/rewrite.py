"""Writes the reviewed figures anew and prints every difference: all files, or those that are named (laws, operators, kernels ...)."""

from __future__ import annotations

import sys
from pathlib import Path

from goldens import rewrite, shipped_only

HERE = Path(__file__).parent


def main(names: list[str]) -> int:
    shipped_only()
    sys.path.insert(0, str(HERE))
    import test_anykernel_golden
    import test_collective_golden
    import test_golden
    import test_kernels_golden
    import test_laws_golden
    import test_operators_golden
    import test_plan_golden
    import test_planning_golden

    files = {
        "predictions": test_golden.figures, "collective": test_collective_golden.answers, "operators": test_operators_golden.figures,
        "laws": test_laws_golden.figures, "kernels": test_kernels_golden.figures, "plan": test_plan_golden.figures,
        "anykernel": test_anykernel_golden.figures, "planning": test_planning_golden.figures,
    }  # fmt: skip
    for unknown in set(names) - set(files):
        print(f"no golden file {unknown}: there are {', '.join(files)}")
        return 2
    for name in names or files:
        lines = rewrite(HERE / f"{name}.json", files[name]())
        print("\n".join(lines) or f"{name}: no change")
        print(f"{name}: {len(lines)} figures changed", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
