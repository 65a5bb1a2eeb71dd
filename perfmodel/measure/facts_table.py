"""From fact rows of the compiler to the table that ranking reads: `python -m perfmodel.measure.facts_table --kernel gemm ...`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perfmodel.kernels import FAMILIES, kernel_family
from perfmodel.kernels.facts import LATER, write_table

_WARPGROUP = ("hgmma", "qgmma", "igmma")
_SIXTEEN_BIT = ("hmma", "hgmma", "utchmma")


def table_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row of the table from a fact row of `measure.compile` whose status is ok.

    A warp-group multiply counts as serialised when the loop fences every one of them (two WARPGROUP instructions each) instead of
    the whole chain. fp8 and int8 operands on a 16-bit multiply run at half their own rate. A fragment load (LDSM) reads 512 bytes a
    warp, an LDS 128.
    """
    binary, kind, multiplies = row["binary"], row["mma_kind"], int(row["mma"])
    warpgroup = kind in _WARPGROUP
    narrow = row["dtype"] in ("fp8", "int8")
    return {
        "arch": row["arch"],
        "dtype": row["dtype"],
        "variant": binary["variant"],
        **{k: binary[k] for k in kernel_family(row["kernel"]).BINARY},
        "shared_bytes": row["shared_bytes"],
        "regs": row["regs"],
        "spill_bytes": row["stack_bytes"],
        "loop_instructions": row["loop_instructions"],
        "multiplies": multiplies,
        "warpgroup": warpgroup or kind.startswith("utc"),
        "rate_share": 0.5 if narrow and kind in _SIXTEEN_BIT else 1.0,
        "serialised": multiplies if warpgroup and row["warpgroup"] >= 2 * multiplies else 0,
        "fragment_bytes": row["ldsm"] * 512 + row["lds"] * 128,
        **{name: row.get(name, 0) for name in LATER},
    }


def table_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Table rows of the fact rows that compiled, under the family's FIXED conditions (aligned, with even k and without split k ...)."""
    kept, tiles = [], []
    for r in rows:
        module = kernel_family(r["kernel"])
        if r["status"] == "ok" and r.get("mma") and all(r["binary"][k] == v for k, v in module.FIXED.items()):
            kept.append(table_row(r))
            tiles.append(tuple(kept[-1][name] for name in ("arch", "dtype", *module.BINARY)))
    one_tile = {tile: row["loop_instructions"] for tile, row in zip(tiles, kept, strict=True) if row["variant"] == "tma"}
    for tile, row in zip(tiles, kept, strict=True):
        if row["variant"] == "persistent":  # its flattened loop holds its epilogue too: its K loop is that of the one-tile kernel
            row["loop_instructions"] = one_tile.get(tile, 60 + 2 * row["multiplies"])
    return kept


def main() -> None:
    """Compile the kernel's space for the given targets (no GPU needed), resumable, and write the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kernel", default="gemm", choices=FAMILIES)
    parser.add_argument("--arch", type=int, nargs="+", default=[80, 89, 90, 100], help="compute capabilities, 90 for 9.0")
    parser.add_argument("--dtype", nargs="+", default=["bf16", "fp8"])
    parser.add_argument("--rows", type=Path, required=True, help="JSONL file of fact rows; those already there are not compiled again")
    parser.add_argument("--out", type=Path, help="table to write (.npz)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds")
    arguments = parser.parse_args()
    compile_space(arguments)
    if arguments.out:
        from perfmodel.measure.rows import read

        write_table(arguments.out, table_rows(read(arguments.rows)), arguments.kernel)


def compile_space(arguments: argparse.Namespace) -> None:
    """Compile what `arguments.rows` lacks of the kernel's space on each target and dtype, appending as rows come."""
    import time

    from perfmodel.measure.compile import compile_many, fact_key
    from perfmodel.measure.rows import Appender, read

    deadline = time.monotonic() + arguments.budget
    known = {fact_key(row) for row in read(arguments.rows)}
    out = Appender(arguments.rows)
    try:
        for arch in arguments.arch:
            jobs = [(b, d) for d in arguments.dtype for b in kernel_family(arguments.kernel).binaries(arch, d)]
            todo = [j for j in jobs if fact_key(_question(arguments.kernel, j, arch)) not in known]
            print(f"sm_{arch}: {len(todo)} of {len(jobs)} binaries to compile", flush=True)
            for row in compile_many(arguments.kernel, todo, arch, workers=arguments.workers, deadline=deadline):
                out.add(row)
    finally:
        out.close()


def _question(kernel: str, job: tuple[Mapping[str, Any], str], arch: int) -> dict[str, Any]:
    from perfmodel.measure.compile import blank

    return blank(kernel, job[0], job[1], arch)


if __name__ == "__main__":
    main()
