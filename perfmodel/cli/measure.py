"""`perfmodel measure`: time what calibrations are fitted to, on this machine's GPUs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli import collectives as shared
from perfmodel.cli import options
from perfmodel.errors import InputError, NoAnswerError
from perfmodel.measure.collectives import DTYPES, LARGEST_BYTES, MODES, SMALLEST_BYTES, sizes_between
from perfmodel.ops.collective import KINDS, collective_kind

app = options.verb("Time what calibrations are fitted to, on this machine's GPUs.")


@app.callback()
def _verbs() -> None:
    """Keep `collectives` a word of its own while it is the only one."""


@app.command("collectives")
def collectives_(
    out: Annotated[Path, typer.Option("--out", help="JSON lines to append to.")],
    n_gpus: shared.NGpus,
    kinds: Annotated[list[str] | None, typer.Option("--kind", help="Only these kinds; may be given again.")] = None,
    low: Annotated[str, typer.Option("--min-bytes", metavar="SIZE", help="Smallest message.")] = str(SMALLEST_BYTES),
    high: Annotated[str, typer.Option("--max-bytes", metavar="SIZE", help="Largest message.")] = str(LARGEST_BYTES),
    dtype: Annotated[str, typer.Option("--dtype", help=f"Element type: {', '.join(DTYPES)}.")] = "bf16",
    modes: Annotated[list[str] | None, typer.Option("--mode", help="eager or graph; default both.")] = None,
) -> None:
    """Start torchrun with one process a GPU of this machine; without a GPU the processes talk over loopback (gloo).

    Several machines: run `torchrun --nnodes ... -m perfmodel.measure.collectives` on each yourself.
    """
    count = options.count("n_gpus", n_gpus)
    if not isinstance(count, int) or count < 2:
        raise InputError(f"n_gpus must be a whole number from 2, got {n_gpus}: a collective needs at least 2 GPUs")
    names = [collective_kind(k) for k in kinds or KINDS]
    limits = [shared.size_bytes(text) for text in (low, high)]
    if not all(isinstance(x, int) for x in limits):
        raise InputError(f"--min-bytes {low} and --max-bytes {high}: must be whole numbers of bytes")
    sizes_between(int(limits[0]), int(limits[1]))
    if dtype not in DTYPES or not set(modes or MODES) <= set(MODES):
        raise InputError(f"--dtype is one of {', '.join(DTYPES)}, --mode one of {', '.join(MODES)}")
    if importlib.util.find_spec("torch") is None:
        raise NoAnswerError("measuring needs torch: pip install 'perfmodel[gpu]'")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    command += ["-m", "perfmodel.measure.collectives", "--out", str(out), "--kinds", *names, "--dtype", dtype]
    command += ["--min-bytes", str(limits[0]), "--max-bytes", str(limits[1]), "--modes", *(modes or MODES)]
    if subprocess.run(command, check=False).returncode != 0:
        raise NoAnswerError("the measurement failed: torchrun's own messages are above")
    typer.echo(f"rows are in {out}; perfmodel calibrate table {out} --kind collective --gpu ... fits them", err=True)
