"""Names, layers, units and bad files of the GPU database."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from perfmodel._resources import shipped
from perfmodel.errors import InputError, InputWarning
from perfmodel.hw import gpu, gpus
from perfmodel.hw.document import faults
from perfmodel.hw.node import node
from perfmodel.hw.registry import normalise
from perfmodel.hw.schema import read_toml

H100 = (shipped("hwdb") / "h100_sxm.toml").read_text(encoding="utf-8")


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user folder, layered over the shipped database."""
    monkeypatch.setenv("PERFMODEL_HWDB", str(tmp_path))
    return tmp_path


def put(folder: Path, name: str, old: str = "", new: str = "", text: str = H100) -> Path:
    """Write a variant of the H100's file under another name."""
    assert old in text
    path = folder / f"{name}.toml"
    body = text.replace('name = "h100_sxm"', f'name = "{name}"', 1).replace(old, new, 1)
    path.write_text(body.replace("aliases = [", f'aliases = ["{name} alias", ', 1).replace('"H100", ', ""), encoding="utf-8")
    return path


def test_values_of_the_datasheets_in_si() -> None:
    h200 = gpu("h200_sxm")
    assert (h200.sms, h200.arch, h200.capability) == (132, "sm_90", (9, 0))
    assert h200.l2_bytes == 60 * 1024**2 and h200.smem_per_block_bytes == 227 * 1024
    assert h200.dram_bytes_per_s == 4.8e12 and h200.nvlink_bytes_per_s == 450e9
    assert h200.tensor_flops["bf16"] == 989.4e12 and h200.fp32_flops == 66.9e12
    assert (h200.boost_clock_hz, h200.max_clock_hz) == (1.83e9, 1.98e9)
    assert gpu("l20").tensor_flops["fp8"] == 239e12 and gpu("l20").nvlink_bytes_per_s == 0
    assert isinstance(h200.l2_bytes, int) and isinstance(h200.sms, int)
    assert "fp8" not in gpu("a100").tensor_flops
    with pytest.raises(InputError, match="has no fp8 tensor cores"):
        gpu("a100").tensor_rate("fp8")


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("H100", "h100_sxm"),
        ("nvidia h100 80gb hbm3", "h100_sxm"),
        ("H100-SXM", "h100_sxm"),
        ("  h100 sxm5 ", "h100_sxm"),
        ("NVIDIA H100 PCIe", "h100_pcie"),
        ("A100", "a100_sxm4_80gb"),
        ("a100_sxm", "a100_sxm4_80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100_sxm4_80gb"),
        ("NVIDIA A100 80GB PCIe", "a100_pcie_80gb"),
        ("NVIDIA H200", "h200_sxm"),
        ("NVIDIA H20", "h20"),
        ("b200", "b200_sxm"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx_6000_ada"),
        ("rtx_pro_6000_server", "rtx_pro_6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000"),
        ("Tesla L4", "l4"),
    ],
)
def test_aliases(name: str, canonical: str) -> None:
    assert gpu(name).name == canonical


def test_every_name_finds_its_own_gpu() -> None:
    assert gpus() == sorted(gpus())
    for name in gpus():
        spec = gpu(name)
        assert spec.name == name
        assert {gpu(alias).name for alias in (spec.full_name, *spec.aliases, name.upper().replace("_", "-"))} == {name}


def test_a_spec_is_its_own_name_and_loading_is_cached() -> None:
    assert gpu(gpu("l20")) is gpu("l20")


@pytest.mark.parametrize("name", ["H1000", "", "MI300X", "h100 nvl"])
def test_unknown_name_says_what_is_known(name: str) -> None:
    with pytest.raises(InputError, match="unknown GPU") as caught:
        gpu(name)
    assert "h100_sxm" in str(caught.value) and "\n" not in str(caught.value)


def test_name_of_the_wrong_type() -> None:
    with pytest.raises(InputError, match="not int 100"):
        gpu(100)  # type: ignore[arg-type]


def test_user_file_adds_and_replaces(user: Path) -> None:
    put(user, "my_gpu", "value = 132", "value = 100")
    put(user, "l20", "value = 132", "value = 70")
    with pytest.warns(InputWarning, match=r"my_gpu\.toml: tensor_rate: bf16 is 5407 flop per clock and SM, sm_90 has 4096 \(2 in all"):
        assert gpu("my gpu").sms == 100
    assert gpu("My GPU alias").sms == 100
    assert gpu("l20").sms == 70
    assert "my_gpu" in gpus() and "h100_sxm" in gpus()
    assert gpu("h100").name == "h100_sxm"


def test_an_edited_file_is_read_again(user: Path) -> None:
    put(user, "mine", "value = 132", "value = 100")
    assert gpu("mine").sms == 100
    put(user, "mine", "value = 132", "value = 101")
    os.utime(user / "mine.toml", ns=(1, 1))  # whatever the clock's resolution
    assert gpu("mine").sms == 101


def test_an_arch_fact_can_be_overridden(user: Path) -> None:
    put(user, "mine", "[sources]", 'max_blocks_per_sm = { value = 8, source = "as I say" }\n[sources]')
    assert gpu("mine").max_blocks_per_sm == 8 and gpu("mine").sources["max_blocks_per_sm"] == "as I say"
    assert gpu("h100").max_blocks_per_sm == 32


def test_units_are_converted(user: Path) -> None:
    put(user, "mine", "dram_gb_per_s = { value = 3350", "dram_tb_per_s = { value = 3.35")
    assert gpu("mine").dram_bytes_per_s == 3.35e12
    put(user, "mine", "dram_mib = { value = 81559", "dram_gb = { value = 80")
    assert gpu("mine").dram_bytes == 80 * 10**9
    put(user, "mine", "dram_mib = { value = 81559", "dram_gib = { value = 80")
    assert gpu("mine").dram_bytes == 80 * 2**30
    put(user, "mine", "l2_latency_ns = { value = 147", "l2_latency_s = { value = 147e-9")
    assert gpu("mine").l2_latency_s == pytest.approx(147e-9)


BAD = [
    ("value = 132", "value = -1", "sms = -1: expected 4 to 400"),
    ("value = 132", "value = 0", "sms = 0: expected 4 to 400"),
    ("value = 132", "value = nan", "sms = nan: expected a finite number"),
    ("value = 132", "value = inf", "sms = inf: expected a finite number"),
    ("value = 132", "value = true", "sms = True: expected a number"),
    ("value = 132", 'value = "132"', "sms = '132': expected a number"),
    ("value = 132", "value = 132.5", "sms = 132.5: expected a whole number"),
    ("value = 132", f"value = {10**400}", "sms = 1000"),
    ("dram_gb_per_s = { value = 3350", "dram_gb_per_s = { value = 3350000", "dram_gb_per_s = 3.35e+06: expected 100 to 40000"),
    ("boost_clock_mhz = { value = 1830", "boost_clock_mhz = { value = 2.5", "boost_clock_mhz = 2.5: expected 700 to 4000"),
    ("nvlink_gb_per_s = { value = 450", "nvlink_gb_per_s = { value = 0.45", "nvlink_gb_per_s = 0.45: expected 10 to 10000, or 0 for none"),
    ("sms = {", "smz = {", "smz: no such fact: did you mean sms?"),
    ("l2_mib", "l2_furlongs", "l2_furlongs: no such fact"),
    ("[sources]", 'sms_mib = { value = 1, source = "a b" }\n[sources]', "sms_mib: no such fact"),
    ("[sources]", 'l2_bytes = { value = 5e7, source = "a b" }\n[sources]', "l2_bytes: l2_mib says the same: keep one"),
    ("bf16 = 989.4", "bf17 = 989.4", "expected a rate of bf16, fp16"),
    ("bf16 = 989.4", "bf16 = 0", "tensor_tflops.bf16 = 0: expected 1 to 100000"),
    ('sms = { value = 132, source = "whitepaper" }', "sms = 132", "sms = 132: expected { value = ..., source ="),
    ('sms = { value = 132, source = "whitepaper" }', "sms = { value = 132 }", "source is missing: write { value"),
    ('sms = { value = 132, source = "whitepaper" }', 'sms = { value = 132, source = "whitepaper", unit = "" }', "sms.unit: no such entry"),
    ('sms = { value = 132, source = "whitepaper" }', "", "missing sms: add it with a source"),
    ('sms = { value = 132, source = "whitepaper" }', 'sms = { value = 132, source = "whitepapr" }', "'whitepapr' has no citation"),
    (
        'sms = { value = 132, source = "whitepaper" }',
        'sms = { value = 132, source = " " }',
        "sms.source = ' ': expected a text that is not empty",
    ),
    ('arch = "sm_90"', 'arch = "sm_42"', "unknown arch 'sm_42'"),
    ('arch = "sm_90"', 'arch = "../h20"', "unknown arch"),
    ('arch = "sm_90"', "arch = 90", "arch = 90: expected a text in quotes"),
    ('full_name = "NVIDIA H100 80GB HBM3"', 'full_name = ""', "full_name is missing"),
    ('name = "mine"', 'name = "other"', "must be the file's name, 'mine'"),
    ("aliases = [", "aliases = [1, ", "aliases.0 = 1: expected a text in quotes"),
    ("[sources]", "[allow", "not valid TOML"),
]


@pytest.mark.parametrize(("old", "new", "says"), BAD)
def test_a_bad_file_is_one_line_naming_it(user: Path, old: str, new: str, says: str) -> None:
    text = H100.replace('name = "h100_sxm"', 'name = "mine"', 1)
    assert old in text
    path = user / "mine.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        gpu("mine")
    message = str(caught.value)
    assert message.startswith(str(path)) and says in message and "\n" not in message
    assert len(message) - len(str(path)) < 200


@pytest.mark.parametrize("keep", [0, 30, 200, 700, 1500])
def test_a_half_written_file_is_one_line_naming_it(user: Path, keep: int) -> None:
    path = put(user, "mine")
    path.write_text(path.read_text()[:keep])
    with pytest.raises(InputError) as caught:
        gpu("mine")
    assert str(path) in str(caught.value)


def test_unreadable_files_are_one_line(user: Path) -> None:
    (user / "folder.toml").mkdir()
    (user / "dangling.toml").symlink_to(user / "nowhere")
    (user / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    for name in ("folder", "dangling", "bytes"):
        with pytest.raises(InputError, match=f"{name}.toml: ") as caught:
            gpu(name)
        assert "delete it" in str(caught.value)


def test_a_broken_file_hides_no_other(user: Path) -> None:
    (user / "broken.toml").write_text("sms = {")
    assert gpu("h100_sxm").sms == 132
    with pytest.warns(InputWarning, match=r"left out: .*broken\.toml: not valid TOML") as said:
        assert gpu("H100").sms == 132
    assert len(said) == 1 and "\n" not in str(said[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert gpu("H100").sms == 132
    with pytest.raises(InputError, match=r"broken\.toml: not valid TOML"):
        gpu("broken")
    with pytest.raises(InputError, match=r"broken\.toml"):  # it may be the one that has this alias
        gpu("some other alias")


def test_an_endless_file_is_one_line(user: Path) -> None:
    (user / "zero.toml").symlink_to("/dev/zero")
    with pytest.raises(InputError, match=r"zero\.toml: larger than 1048576 bytes"):
        gpu("zero")


def test_a_shipped_file_needs_no_pydantic_and_passes_it(user: Path) -> None:
    for path in shipped("hwdb").glob("**/*.toml"):
        if path.parent.name != "nodes":
            assert faults(read_toml(path)) == [], path


def test_a_broken_machine_hides_no_other(user: Path) -> None:
    (user / "nodes").mkdir()
    (user / "nodes" / "aa_broken.toml").write_text("gpus = ")
    with pytest.warns(InputWarning, match=r"left out: .*aa_broken\.toml"):
        assert node("auto", dataclasses.replace(gpu("l20"), name="mine")).name == "pcie_8gpu"
    assert node("auto", gpu("h100_sxm")).name == "hgx_h100" and node("hgx_h100").gpus == 8
    with pytest.raises(InputError, match=r"aa_broken\.toml"):
        node("aa_broken")


def test_normalise() -> None:
    assert normalise("NVIDIA GeForce RTX-4090") == normalise("rtx_4090") == "rtx4090"
    assert normalise("NVIDIA H20") != normalise("NVIDIA H200")


def test_loading_is_light_and_reads_each_file_once() -> None:
    code = (
        "import sys; from perfmodel.hw import gpu, registry; read, seen = registry.read_sheet, []\n"
        "registry.read_sheet = lambda path: seen.append(path.name) or read(path)\n"
        "gpu('h100_sxm'); print(*sorted(seen)); seen.clear(); gpu('h100_sxm'); print(*seen); gpu('NVIDIA H100 80GB HBM3'); seen.clear()\n"
        "gpu('NVIDIA H100 80GB HBM3'); gpu('H100'); print(*seen); print(*({'pydantic', 'torch', 'typer', 'rich'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parents[2]
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root).stdout.split("\n")
    assert out == ["h100_sxm.toml sm_90.toml", "", "", "", ""]
