"""Lint: every shipped GPU passes, and each kind of slip is caught."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from perfmodel._resources import shipped
from perfmodel.hw import gpu, gpus
from perfmodel.hw.lint import lint, lint_all
from perfmodel.hw.registry import arch_sheet


@pytest.mark.parametrize("name", gpus())
def test_shipped_gpus_are_plausible(name: str) -> None:
    assert lint(gpu(name)) == []


def test_all_wanted_gpus_are_there() -> None:
    wanted = (
        "a100_sxm4_80gb a100_pcie_80gb h100_sxm h100_pcie h200_sxm h20 l20 l40s l40 l4 a10 a40 rtx_4090 rtx_6000_ada b200_sxm rtx_pro_6000"
    )
    assert set(wanted.split()) <= set(gpus())


def rates(**new: float) -> dict[str, float]:
    return {**gpu("h100_sxm").tensor_flops, **new}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tensor_flops": {k: 2 * v for k, v in gpu("h100_sxm").tensor_flops.items()}}, "tensor_rate"),  # sparse rates
        ({"tensor_flops": rates(fp8=3957.8e12)}, "fp8 is 4.00 x bf16"),
        ({"tensor_flops": rates(fp4=3957.8e12)}, "sm_90 has no fp4"),
        ({"tensor_flops": {"fp8": 1e15}}, "no bf16 rate"),
        ({"sms": 114}, "tensor_rate"),
        ({"boost_clock_hz": 1.98e9}, "tensor_rate"),
        ({"boost_clock_hz": 1.83e6}, "range: boost_clock_hz"),
        ({"max_clock_hz": 1.7e9}, "boost_clock is above max_clock"),
        ({"fp32_flops": 133.8e12}, "fp32_rate"),
        ({"dram_bytes_per_s": 3350.0}, "range: dram_bytes_per_s"),
        ({"dram_bytes": 80}, "range: dram_bytes"),
        ({"dram_bytes_per_s": 12e12}, "DRAM is not slower than L2"),
        ({"l2_bytes_per_s": 40e12}, "l2_rate"),
        ({"l2_latency_s": 147.0}, "range: l2_latency_s"),
        ({"dram_latency_s": 100e-9}, "L2 is not closer"),
        ({"smem_per_block_bytes": 228 * 1024}, "smem"),
        ({"max_warps_per_sm": 96}, "warps"),
        ({"max_threads_per_block": 2048}, "threads"),
        ({"max_blocks_per_sm": 65}, "more blocks than warps"),
        ({"pcie_bytes_per_s": 128e9}, "both ways counted"),
        ({"pcie_generation": 9}, "pcie"),
        ({"nvlink_generation": 0}, "nvlink"),
        ({"nvlink_bytes_per_s": 0.0}, "nvlink"),
        ({"power_w": 7e5}, "range: power_w"),
        ({"sources": {}}, "sms has no source"),
        ({"sources": {**gpu("h100_sxm").sources, "allow.tensor_rate": "no reason"}}, "nothing to allow"),
    ],
)
def test_each_slip_is_caught(change: dict[str, object], says: str) -> None:
    found = lint(dataclasses.replace(gpu("h100_sxm"), **change))  # type: ignore[arg-type]
    assert any(says in line for line in found), found


def test_export_limited_part_needs_its_reason() -> None:
    h20 = gpu("h20")
    assert "1024" in h20.sources["allow.tensor_rate"]
    bare = {k: v for k, v in h20.sources.items() if not k.startswith("allow.")}
    assert any("tensor_rate" in line for line in lint(dataclasses.replace(h20, sources=bare)))


def test_lint_all_reports_broken_files_and_shared_aliases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(lint_all()) == set(gpus()) and not any(lint_all().values())
    monkeypatch.setenv("PERFMODEL_HWDB", str(tmp_path))
    (tmp_path / "broken.toml").write_text("sms = ")
    copy = (shipped("hwdb") / "l20.toml").read_text().replace('name = "l20"', 'name = "zz_l20"', 1)
    (tmp_path / "zz_l20.toml").write_text(copy)
    found = lint_all()
    assert "not valid TOML" in found["broken"][0]
    assert any("already means" in line for line in found["zz_l20"])


def test_no_source_is_left_unused() -> None:
    paths = [*shipped("hwdb").glob("*.toml"), *shipped("hwdb").glob("arch/*.toml")]
    assert len(paths) > 20
    for path in paths:
        text = path.read_text(encoding="utf-8")
        keys = [line.split(" = ")[0] for line in text.split("[sources]\n")[1].splitlines()]
        assert keys and all(f'source = "{key}"' in text for key in keys), path


def test_arch_files_hold_the_compute_capability_table() -> None:
    """Resident warps, blocks and shared memory, CUDA C++ Programming Guide, compute capability table."""
    table = {"80": (64, 32, 164), "86": (48, 16, 100), "89": (48, 24, 100), "90": (64, 32, 228), "100": (64, 32, 228), "120": (48, 24, 100)}
    for arch, (warps, blocks, smem_kib) in table.items():
        facts = arch_sheet(f"sm_{arch}", "test").facts
        assert (facts["max_warps_per_sm"], facts["max_blocks_per_sm"], facts["smem_per_sm_bytes"]) == (warps, blocks, smem_kib * 1024)
        assert facts["smem_per_block_bytes"] == (smem_kib - 1) * 1024


def test_an_arch_file_without_lint_table_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(shipped("hwdb") / "arch", tmp_path / "arch")
    path = tmp_path / "arch" / "sm_89.toml"
    path.write_text(path.read_text().replace("tensor_flop_per_clock_per_sm = [", "other = [", 1))
    monkeypatch.setenv("PERFMODEL_HWDB", str(tmp_path))
    assert any("lacks its [lint] table" in line for line in lint(gpu("l20")))
