"""Facts of the compiler: known kernels compiled here for three architectures, the table they go into, and the formula beside it."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfmodel as pm
from perfmodel._resources import shipped
from perfmodel.errors import InputError
from perfmodel.kernels import facts as facts_module
from perfmodel.kernels.configs import Configs, parse_configs
from perfmodel.kernels.facts import VALUES, facts_for, read_table, write_table
from perfmodel.kernels.gemm import BINARY, PLAIN, REQUIRED, VARIANTS, formula
from perfmodel.measure.facts_table import table_row, table_rows
from perfmodel.measure.sass import loop_facts, parse

GPUS = {80: "a100_sxm", 86: "a10", 89: "l20", 90: "h200_sxm", 100: "b200_sxm"}


def binary(variant: str, bm: int, bn: int, bk: int, warps: int, stages: int, **extra: Any) -> dict[str, Any]:
    tile = {"block_m": bm, "block_n": bn, "block_k": bk, "num_warps": warps, "num_stages": stages}
    return {"variant": variant, **tile, "split": False, "even_k": True, "align": 16, **extra}


BIG, WIDE, SMALL = ("pointer", 128, 128, 64, 8, 3), ("pointer", 64, 256, 64, 8, 4), ("pointer", 16, 64, 128, 4, 4)
SERIAL, CHAINED, BOXES = ("pointer", 128, 256, 64, 8, 3), ("pointer", 256, 128, 64, 8, 3), ("tma", 128, 128, 64, 8, 3)
KNOWN = [
    # architecture, binary, shared bytes a block, multiply
    (80, BIG, 65_536, "hmma"),
    (80, SMALL, 61_440, "hmma"),
    (89, BIG, 65_536, "hmma"),
    (89, WIDE, 122_880, "hmma"),
    (90, BIG, 98_304, "hgmma"),
    (90, WIDE, 163_840, "hgmma"),
    (90, SMALL, 61_440, "hmma"),
    (90, SERIAL, 147_456, "hgmma"),
    (90, CHAINED, 147_456, "hgmma"),
    (90, BOXES, 98_328, "hgmma"),
]


@pytest.fixture(scope="module")
def compiled() -> dict[tuple[int, Any], dict[str, Any]]:
    pytest.importorskip("triton")
    from perfmodel.measure.compile import compile_one

    return {(arch, which): compile_one("gemm", binary(*which), "bf16", arch) for arch, which, _, _ in KNOWN}


@pytest.mark.parametrize(("arch", "which", "shared", "kind"), KNOWN)
def test_known_figures(compiled: Any, arch: int, which: Any, shared: int, kind: str) -> None:
    row = compiled[arch, which]
    assert (row["status"], row["reason"]) == ("ok", "")
    assert row["shared_bytes"] == shared and row["mma_kind"] == kind
    assert row["threads"] == 32 * which[4] and 16 < row["regs"] <= 255 and row["stack_bytes"] == 0
    bm, bn, bk, warps = which[1:5]
    flops = 64 * int(row["mma_shape"].split("x")[1]) * 16 * 4 if kind == "hgmma" else 16 * 8 * 16  # a warp group's, or a warp's
    workers = warps // 4 if kind == "hgmma" else warps
    assert row["mma"] * (flops // 4 if kind == "hgmma" else flops) * workers == bm * bn * bk


@pytest.mark.parametrize(("which", "serialised"), [(SERIAL, True), (CHAINED, False), (BIG, False), (BOXES, False)])
def test_serialised_multiplies_are_seen(compiled: Any, which: Any, serialised: bool) -> None:
    row = table_row(compiled[90, which])
    assert (row["serialised"] > 0) == serialised and row["warpgroup"]
    assert row["serialised"] in (0, row["multiplies"])


def test_the_loads_of_each_kind_of_kernel(compiled: Any) -> None:
    assert compiled[90, BOXES]["utmaldg"] >= 2 and compiled[90, BOXES]["ldgsts"] == 0
    assert compiled[90, BIG]["ldgsts"] == (128 + 128) * 64 * 2 // 16 // 256 and compiled[90, BIG]["utmaldg"] == 0  # 16 bytes a thread each
    old = compiled[80, BIG]
    assert old["ldsm"] > 0 and table_row(old)["fragment_bytes"] == old["ldsm"] * 512 + old["lds"] * 128
    assert compiled[90, BIG]["ldsm"] == 0  # warp-group multiplies read shared memory themselves


def test_a_compilation_that_fails_is_a_row_with_a_reason() -> None:
    pytest.importorskip("triton")
    from perfmodel.measure.compile import compile_one

    row = compile_one("gemm", binary("pointer", 64, 64, 48, 4, 3), "bf16", 90)  # tl.arange wants powers of two
    assert row["status"] == "compile_error" and row["reason"].startswith("CompilationError") and "\n" not in row["reason"]
    assert row["arch"] == 90 and row["binary"]["block_k"] == 48 and row["compile_s"] >= 0 and "shared_bytes" not in row
    assert table_rows([row]) == []


def test_split_and_odd_binaries_stay_out_of_the_table(compiled: Any) -> None:
    row = compiled[90, BIG]
    assert len(table_rows([row])) == 1
    for odd in ({"split": True}, {"even_k": False}, {"align": 1}):
        assert table_rows([row | {"binary": row["binary"] | odd}]) == []


def test_a_persistent_loop_counts_as_the_one_tile_kernels() -> None:
    def row(variant: str, instructions: int) -> dict[str, Any]:
        counts = dict.fromkeys(("ldsm", "lds", "warpgroup"), 0)
        facts = {"shared_bytes": 1, "regs": 1, "stack_bytes": 0, "loop_instructions": instructions, "mma": 4, "mma_kind": "hgmma"}
        return {
            "status": "ok",
            "kernel": "gemm",
            "arch": 90,
            "dtype": "bf16",
            "binary": binary(variant, 128, 128, 64, 8, 3),
            **counts,
            **facts,
        }

    found = {r["variant"]: r["loop_instructions"] for r in table_rows([row("tma", 50), row("persistent", 400)])}
    assert found == {"tma": 50, "persistent": 50}
    assert table_rows([row("persistent", 400)])[0]["loop_instructions"] == 60 + 2 * 4


def test_table_round_trip(compiled: Any, tmp_path: Path) -> None:
    rows = table_rows(compiled.values())
    path = tmp_path / "t.npz"
    write_table(path, rows)
    table = read_table(path)
    assert len(table.keys) == len(KNOWN) and (np.diff(table.keys) > 0).all()
    for name in VALUES:
        assert sorted(table.values[name]) == sorted(float(r[name]) for r in rows)
    whole = path.read_bytes()
    for broken in (b"", b"junk", whole[:200], whole[:-300], whole[:300] + b"x" * 50 + whole[350:]):
        path.write_bytes(broken)
        with pytest.raises(InputError, match="cannot read the compile facts"):
            read_table(path)


@pytest.fixture
def own_table(compiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path / "compile_facts_gemm.npz", table_rows(compiled.values()))
    monkeypatch.setattr(facts_module, "shipped", lambda kind: tmp_path)
    facts_module._stored.cache_clear()
    yield
    facts_module._stored.cache_clear()


def configs(*rows: dict[str, Any]) -> Configs:
    return parse_configs(rows, required=REQUIRED, default_variant=PLAIN, variants=VARIANTS)


def test_stored_facts_answer_first_and_the_formula_after(own_table: None, compiled: Any) -> None:
    tile = {"block_m": 128, "block_n": 128, "block_k": 64, "num_warps": 8, "num_stages": 3}
    asked = configs({**tile, "variant": "pointer"}, {**tile, "variant": "plain"}, {**tile, "num_stages": 4}, {**tile, "variant": "tma"})
    found = facts_for("gemm", pm.gpu("h200_sxm"), "bf16", asked)
    assert found.exact.tolist() == [True, True, False, True]
    assert found.shared_bytes.tolist() == [98_304, 98_304, 131_072, 98_328]  # plain is the pointer kernel; four stages by the formula
    assert found.regs[0] == compiled[90, BIG]["regs"]
    assert not facts_for("gemm", pm.gpu("h200_sxm"), "fp8", asked).exact.any()
    assert not facts_for("gemm", pm.gpu("b200_sxm"), "bf16", asked).exact.any()


def test_the_callers_own_figures_come_before_all(own_table: None) -> None:
    tile = {"block_m": 128, "block_n": 128, "block_k": 64, "num_warps": 8, "num_stages": 3}
    found = facts_for("gemm", pm.gpu("h200_sxm"), "bf16", configs({**tile, "n_regs": 77, "n_spills": 8, "shared": 1234}))
    assert (found.regs[0], found.spill_bytes[0], found.shared_bytes[0]) == (77, 32, 1234)  # n_spills counts registers of 4 bytes
    assert facts_for("gemm", pm.gpu("h200_sxm"), "bf16", configs({**tile, "spill_bytes": 8})).spill_bytes[0] == 8


def stored_beside_formula(arch: int) -> dict[str, dict[str, Any]]:
    """Stored and estimated facts of every table row of an architecture."""
    with np.load(shipped("data") / "compile_facts_gemm.npz") as raw:
        columns = {name: raw[name] for name in raw.files}
    stored: dict[str, list[Any]] = {name: [] for name in VALUES}
    guess: dict[str, list[Any]] = {name: [] for name in VALUES}
    for dtype, code in facts_module._DTYPE_CODES.items():
        at = np.flatnonzero((columns["arch"] == arch) & (columns["dtype"] == code))
        tile = {name: columns[name][at].astype(np.int64) for name in BINARY}
        kinds = np.array([int(v) - 1 for v in columns["variant"][at]], dtype=np.int8)
        estimate = formula(pm.gpu(GPUS[arch]), dtype, Configs(tile, kinds, VARIANTS))
        for name in VALUES:
            stored[name].append(columns[name][at] if name in columns else np.zeros(len(at)))
            guess[name].append(np.broadcast_to(estimate.get(name, 0.0), at.shape))
    return {name: {"stored": np.concatenate(stored[name]), "guess": np.concatenate(guess[name])} for name in VALUES}


def test_the_formula_is_as_good_as_its_docstring_says() -> None:
    found = [stored_beside_formula(arch) for arch in (80, 86, 89, 90)]
    every = {n: types.SimpleNamespace(**{k: np.concatenate([f[n][k] for f in found]) for k in ("stored", "guess")}) for n in VALUES}
    off = np.abs(every["shared_bytes"].guess - every["shared_bytes"].stored)
    assert len(off) > 3000 and (off <= 64).mean() > 0.985 and (off == 0).mean() > 0.92
    assert (every["warpgroup"].guess == every["warpgroup"].stored).all()
    assert (every["multiplies"].guess == every["multiplies"].stored).all()
    assert (every["rate_share"].guess == every["rate_share"].stored).all()
    registers = np.abs(every["regs"].guess - every["regs"].stored)
    assert np.median(registers) <= 14 and np.quantile(registers, 0.9) <= 45
    serial = (every["serialised"].guess > 0) == (every["serialised"].stored > 0)
    assert serial.mean() > 0.97
    blackwell = stored_beside_formula(100)
    off = np.abs(blackwell["shared_bytes"]["guess"] - blackwell["shared_bytes"]["stored"])
    assert (off <= 64).mean() > 0.985
    assert np.median(np.abs(blackwell["regs"]["guess"] - blackwell["regs"]["stored"])) <= 20


@pytest.mark.parametrize("warps", [1, 2, 4, 8, 16, 32])
def test_the_formula_never_gives_a_block_more_registers_than_an_sm_has(warps: int) -> None:
    for name in ("a100_sxm", "h200_sxm", "rtx_pro_6000"):
        spec = pm.gpu(name)
        found = formula(spec, "bf16", configs({"block_m": 256, "block_n": 256, "block_k": 64, "num_warps": warps, "num_stages": 3}))
        assert found["regs"][0] * 32 * warps <= spec.regs_per_sm and found["regs"][0] <= spec.max_regs_per_thread
        wanted = 256 * 256 / (32 * warps)
        assert found["spill_bytes"][0] > 0 if wanted > found["regs"][0] else True


def test_wider_elements_need_wider_buffers() -> None:
    tile = {"block_m": 64, "block_n": 64, "block_k": 64, "num_warps": 4, "num_stages": 3}
    sizes = [formula(pm.gpu("l20"), dtype, configs(tile))["shared_bytes"][0] for dtype in ("int8", "fp8", "fp16", "bf16")]
    assert sizes == [2 * 128 * 64, 2 * 128 * 64, 2 * 128 * 64 * 2, 2 * 128 * 64 * 2]


LISTING = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDSM.16.M88.4 R4, [R2] ;
        /*0020*/              @!P0 HMMA.16816.F32.BF16 R8, R4, R6, R8 ;
        /*0030*/                   HMMA.16816.F32.BF16 R8, R4, R6, R8 ;
        /*0040*/                   LDGSTS.E.BYPASS.128 [R2], [R4.64] ;
        /*0050*/               @P1 BRA `(.L_x_1) ;
        /*0060*/                   STG.E [R2], R8 ;
.L_x_2:
        /*0070*/                   BRA `(.L_x_2);
"""


def test_reading_a_listing() -> None:
    facts = loop_facts(parse(LISTING))
    assert facts["mma_kind"] == "hmma" and facts["mma_shape"] == "16816"
    assert (facts["mma"], facts["mma_total"], facts["loop_instructions"], facts["mma_loops"]) == (2, 2, 5, 1)
    assert (facts["ldsm"], facts["ldgsts"], facts["stg"], facts["utmaldg"]) == (1, 1, 0, 0)
    assert loop_facts(parse(""))["mma_kind"] == ""
