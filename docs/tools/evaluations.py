"""Stored evaluations: what each command printed, when, at which commit. Every figure of README.md and docs/ is rendered from them.

    python docs/tools/evaluations.py                       # names, commands, and where the stored rows came from
    python docs/tools/evaluations.py stacks serving        # run these commands again and store what they print
    python docs/tools/evaluations.py --all                 # all that need no GPU (some take minutes)

Four of them need Triton, and those with --external NVIDIA's heuristics: pip install '.[gpu,heuristics]'. A command prints JSON rows on
stdout with --json. `python docs/tools/render.py` then writes the tables.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "evaluations"
DIGITS = 6  # significant digits kept of a figure

_PLAIN = "evaluate ranking --gpu h200_sxm --data data/gemm/plain_h200_sxm.parquet --fit-rows 300 --external --dtype"
_OWN = "evaluate ranking --gpu h200_sxm --data data/gemm/evaluation_h200_sxm.parquet --external --dtype"
_ANY = "evaluate anykernel --gpu h200_sxm --only-shipped"
_PREFILL = "--sweep attention_prefill --data data/attention_prefill/plain_h200_sxm.parquet"
_DECODE = "--sweep attention_decode --data data/attention_decode/plain_h200_sxm.parquet"
_OPERATORS = "evaluate operators"
_LIBRARY = "--operator gemm --operator attention_prefill --operator attention_decode --operator moe"

COMMANDS = {
    "ranking_plain_bf16": f"perfmodel {_PLAIN} bf16",
    "ranking_plain_fp8": f"perfmodel {_PLAIN} fp8",
    "ranking_own_bf16": f"perfmodel {_OWN} bf16",
    "ranking_own_fp8": f"perfmodel {_OWN} fp8",
    "over_library": "python docs/tools/figures.py over-library",
    "tune": "python docs/tools/figures.py tune",
    "published_moe": "perfmodel evaluate published-moe",
    "anykernel_gemm_bf16": f"perfmodel {_ANY} --sweep gemm_bf16 --data data/gemm/plain_h200_sxm.parquet --dtype bf16",
    "anykernel_gemm_fp8": f"perfmodel {_ANY} --sweep gemm_fp8 --data data/gemm/plain_h200_sxm.parquet --dtype fp8",
    "anykernel_prefill": f"perfmodel {_ANY} {_PREFILL}",
    "anykernel_decode": f"perfmodel {_ANY} {_DECODE}",
    "anykernel_prefill_all": f"perfmodel {_ANY} {_PREFILL} --steady inf",
    "anykernel_decode_all": f"perfmodel {_ANY} {_DECODE} --steady inf",
    "operators_left_out": f"perfmodel {_OPERATORS} {_LIBRARY} --operator mla_decode --operator mla_prefill",
    "operators_stack_table": f"perfmodel {_OPERATORS} {_LIBRARY} --mode stack-table --sample 4500",
    "operators_interpolated": f"perfmodel {_OPERATORS} --operator gemm --mode interpolated --sample 4500",
    "operators_half_of_the_shapes": f"perfmodel {_OPERATORS} --operator gemm --mode stack-table --rows 20000 --sample 4500",
    "operators_memory": f"perfmodel {_OPERATORS} --operator memory",
    "operators_moe_kernel": f"perfmodel {_OPERATORS} --operator moe_kernel",
    "operators_quantised": f"perfmodel {_OPERATORS} --operator gemm_quantised --by gpu,dtype",
    "stacks": "perfmodel evaluate stacks",
    "speed": "perfmodel evaluate speed",
    "speed_stack": "perfmodel evaluate speed --stack vllm",
    "proof": "python docs/tools/figures.py proof",
    "proof_ranking": "python docs/tools/figures.py proof-ranking",
    "collectives_sizes": "perfmodel evaluate collectives --left-out sizes",
    "collectives_counts": "perfmodel evaluate collectives --left-out counts",
    "collectives_spec": "perfmodel evaluate collectives --left-out spec",
    "serving": "perfmodel evaluate serving",
    "serving_nominal": "perfmodel evaluate serving --nominal",
    "memory_logs": "python docs/tools/figures.py memory-logs",
}
ON_A_GPU = {"autotune_hook": "pytest -s -m gpu tests/gpu/test_hook_gpu.py tests/gpu/test_hook_attention_gpu.py"}
GATES = {
    "gate_ranking": ("tests/accuracy/ranking.json", "python tests/accuracy/test_ranking_gate.py"),
    "gate_operators": ("tests/accuracy/operators.json", "python tests/accuracy/test_operators_gate.py"),
    "calibration_report": ("calibration/h200_sxm/report.json", "python -m perfmodel.fit.run_models"),
}


@dataclass(frozen=True, slots=True)
class Stored:
    """Rows of one evaluation: the command that prints them, and where these came from (a run at a commit, or a README of one)."""

    command: str
    origin: str
    rows: Any


def read(name: str) -> Stored:
    """A stored evaluation, or a file that a gate or a fit keeps anyway."""
    if name in GATES:
        path, command = GATES[name]
        found = json.loads((ROOT / path).read_text(encoding="utf-8"))
        return Stored(command, path, found.get("figures", found))  # a gate may keep the reasons of accepted changes beside its figures
    found = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return Stored(found["command"], found["origin"], found["rows"])


def run(name: str) -> None:
    """Run a command and store its rows."""
    command = COMMANDS[name]
    program, *arguments = shlex.split(command)
    start = [sys.executable, "-m", "perfmodel.cli.main"] if program == "perfmodel" else [sys.executable]
    with tempfile.TemporaryDirectory() as home:  # shipped models only
        settings = {**os.environ, "PYTHONPATH": str(ROOT), "PERFMODEL_HOME": home}
        done = subprocess.run([*start, *arguments, "--json"], cwd=ROOT, env=settings, stdout=subprocess.PIPE, text=True, check=True)
    write(name, command, f"run at commit {commit()}, {datetime.datetime.now(datetime.UTC).date()}", json.loads(done.stdout))


def write(name: str, command: str, origin: str, rows: Any) -> None:
    """Store rows."""
    content = {"command": command, "origin": origin, "rows": rounded(rows)}
    (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    """The value with its floats cut to DIGITS significant digits."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def commit() -> str:
    """The last commit that changed the package or its data: what the figures are of."""
    command = ["git", "log", "-1", "--format=%h", "--", "perfmodel", "calibration", "data", "hwdb"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Run the evaluations named, or list all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*COMMANDS, []], metavar="NAME")
    parser.add_argument("--all", action="store_true", help="run all that need no GPU")
    given = parser.parse_args()
    names = list(COMMANDS) if given.all else given.names
    for name in names:
        print(f"{name}: {COMMANDS[name]}", file=sys.stderr)
        run(name)
    if not names:
        for name in (*COMMANDS, *ON_A_GPU, *GATES):
            stored = read(name)
            print(f"{name}\n    {stored.command}\n    {stored.origin}")


if __name__ == "__main__":
    main()
