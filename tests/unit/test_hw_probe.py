"""The draft of a live GPU, from fakes of torch and NVML."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfmodel.errors import InputError, NoAnswerError
from perfmodel.hw import gpu
from perfmodel.hw.lint import lint
from perfmodel.hw.probe import FAMILY, QUERY, probe_device, write_draft


def properties(**change: object) -> SimpleNamespace:
    """What torch.cuda.get_device_properties gives for a card the database does not have."""
    return SimpleNamespace(
        **{
            "name": "NVIDIA H100 NVL",
            "major": 9,
            "minor": 0,
            "multi_processor_count": 132,
            "total_memory": 99_949_740_032,
            "L2_cache_size": 62_914_560,
            "max_threads_per_multi_processor": 2048,
            "regs_per_multiprocessor": 65536,
            "shared_memory_per_multiprocessor": 233_472,
            "shared_memory_per_block_optin": 232_448,
            "uuid": "7f3a",
            **change,
        }
    )


def nvml(**change: object) -> SimpleNamespace:
    clocks = {1: 1785, 2: 2619}

    def link_state(handle: object, link: int) -> int:
        if link >= 12:
            raise RuntimeError("invalid link")
        return 1

    return SimpleNamespace(
        **{
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
            "nvmlDeviceGetMaxClockInfo": lambda handle, kind: clocks[kind],
            "nvmlDeviceGetMemoryBusWidth": lambda handle: 6144,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda handle: 5,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda handle: 16,
            "nvmlDeviceGetPowerManagementDefaultLimit": lambda handle: 400_000,
            "nvmlDeviceGetNvLinkState": link_state,
            "nvmlDeviceGetNvLinkVersion": lambda handle, link: 4,
            **change,
        }
    )


def install(monkeypatch: pytest.MonkeyPatch, props: SimpleNamespace, fake_nvml: SimpleNamespace | None) -> None:
    cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1, get_device_properties=lambda index: props)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml)


def test_draft_from_torch_and_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, properties(), nvml())
    spec = probe_device()
    assert (spec.name, spec.full_name, spec.arch) == ("h100_nvl", "NVIDIA H100 NVL", "sm_90")
    assert spec.sms == 132 and spec.dram_bytes == 99_949_740_032 and spec.l2_bytes == 62_914_560
    assert spec.max_clock_hz == 1785e6 and spec.power_w == 400
    assert spec.dram_bytes_per_s == pytest.approx(4022.8e9, rel=1e-4)  # 2619 MHz x 2 x 6144 bit / 8
    assert spec.pcie_bytes_per_s == 63e9 and (spec.nvlink_bytes_per_s, spec.nvlink_generation) == (300e9, 4)
    assert spec.tensor_flops["bf16"] == pytest.approx(132 * 4096 * 1785e6)
    assert spec.sources["sms"] == spec.sources["power_w"] == QUERY
    assert spec.sources["tensor_flops"] == spec.sources["l2_bytes_per_s"] == FAMILY
    assert lint(spec) == []


def test_torch_alone_is_enough_where_it_reports_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, properties(clock_rate=1_785_000, memory_clock_rate=2_619_000, memory_bus_width=6144), None)
    spec = probe_device()
    assert spec.max_clock_hz == 1785e6 and spec.dram_bytes_per_s == pytest.approx(4022.8e9, rel=1e-4)
    assert spec.sources["power_w"] == spec.sources["nvlink_bytes_per_s"] == FAMILY


def test_missing_clocks_are_an_error_not_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, properties(), None)
    with pytest.raises(NoAnswerError, match=r"boost_clock_hz.*install nvidia-ml-py"):
        probe_device()


def test_unsupported_queries_fall_to_the_family_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("not supported")

    install(monkeypatch, properties(), nvml(nvmlDeviceGetPowerManagementDefaultLimit=refuse, nvmlDeviceGetNvLinkState=refuse))
    spec = probe_device()
    assert spec.sources["power_w"] == FAMILY and spec.nvlink_generation == 0


def test_no_gpu_says_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(NoAnswerError, match="needs torch"):
        probe_device()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))
    with pytest.raises(NoAnswerError, match="no CUDA device"):
        probe_device()
    install(monkeypatch, properties(), None)
    with pytest.raises(InputError, match="device 3: this machine has devices 0 to 0"):
        probe_device(3)
    install(monkeypatch, properties(major=7, minor=0), None)
    with pytest.raises(InputError, match="unknown arch 'sm_70'"):
        probe_device()


def test_draft_loads_back_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, properties(name='NVIDIA "Odd"\\ name\n'), nvml())
    (tmp_path / "new").mkdir()
    monkeypatch.setenv("PERFMODEL_HWDB", str(tmp_path / "new"))
    spec = probe_device()
    path = write_draft(spec, tmp_path / "new")
    assert path.name == "odd_name.toml" and [p.name for p in path.parent.iterdir()] == [path.name]
    assert gpu("odd_name") == spec
    with pytest.raises(InputError, match="pass overwrite=True"):
        write_draft(spec, tmp_path / "new")
    assert write_draft(spec, tmp_path / "new", overwrite=True) == path


def test_draft_does_not_shadow_a_known_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, properties(name="NVIDIA H200"), nvml())
    with pytest.raises(InputError, match=r"h200_sxm\.toml describes NVIDIA H200 already"):
        write_draft(probe_device(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_failed_write_leaves_the_old_file_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, properties(), nvml())
    old = tmp_path / "h100_nvl.toml"
    old.write_text("# mine\n")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("perfmodel._atomic.os.replace", full)
    with pytest.raises(InputError, match="No space left"):
        write_draft(probe_device(), tmp_path, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == [old.name] and old.read_text() == "# mine\n"


def test_draft_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, properties(), nvml())
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_draft(probe_device(), tmp_path / "file")
