"""Nodes, collectives and their model: values worked out by hand, switch points, and one clear line for every bad question."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from perfmodel.analytic.constants import constant_values, physics
from perfmodel.analytic.network import fill, nvls, one_shot, ring, two_shot
from perfmodel.errors import InputError
from perfmodel.hw import gpu
from perfmodel.hw.node import node, nodes, read_node
from perfmodel.library.collective import model
from perfmodel.library.collective_stacks import limits, parse_stack, version_key
from perfmodel.ops import OperatorTable
from perfmodel.ops.collective import Collective, bus_factor, collective_kind

H100, A100, L40S = gpu("h100_sxm"), gpu("a100_sxm4_80gb"), gpu("l40s")


def ask(kind: str, size: int, n: int, stack: str = "nccl", on: object = None, **more: object):  # type: ignore[no-untyped-def]
    return model(on or H100, {"kind": kind, "message_bytes": size, "n_gpus": n, "stack": stack, **more})  # type: ignore[arg-type]


# --- laws by hand ---------------------------------------------------------------------------------------------------------


def test_ring_by_hand() -> None:
    one = np.ones(1)
    cost = ring(8e6 * one, 8 * one, one, 2 * one, 1.75 * one, 100e9 * one, 10e-6 * one, 1e-6 * one, 5e-6, 0 * one)
    assert cost.steps_s[0] == pytest.approx(10e-6 + 14e-6)
    assert cost.bandwidth_s[0] == pytest.approx(140e-6)
    two_nodes = ring(8e6 * one, 8 * one, 2 * one, 2 * one, 1.75 * one, 100e9 * one, 10e-6 * one, 1e-6 * one, 5e-6, 0 * one)
    assert two_nodes.steps_s[0] == pytest.approx(10e-6 + 12e-6 + 2 * 5e-6)


def test_one_and_two_shot_by_hand() -> None:
    one = np.ones(1)
    assert one_shot(1e6 * one, 8 * one, 100e9 * one, 5e-6, 1e-6).total_s[0] == pytest.approx(5e-6 + 6e-6 + 70e-6)
    assert two_shot(1e6 * one, 8 * one, 100e9 * one, 5e-6, 1e-6).total_s[0] == pytest.approx(5e-6 + 6e-6 + 17.5e-6)
    assert nvls(1e6 * one, 100e9 * one, 5e-6 * one, 0.0, 1.0).total_s[0] == pytest.approx(15e-6)


def test_what_fits_into_the_first_chunks_has_no_pipeline_to_fill() -> None:
    one = np.ones(1)
    assert fill(4e-6 * one, 9e-6 * one, 1.0, 1e3)[0] == pytest.approx(12e-6)
    assert fill(4e-6 * one, 18e-6 * one, 1.0, 1e3, 18e-6)[0] == pytest.approx(12e-6)  # half of 18 us is beyond
    assert fill(4e-6 * one, 1e-9 * one, 1.0, 1e3, 1e-5)[0] < 1e-8 and fill(4e-6 * one, 0 * one, 1.0, 1e3)[0] == 0.0


def test_a_small_send_rides_on_one_channel_a_peer_whatever_the_link() -> None:
    per_byte = 1e-9 / constant_values("collective")["direct_ll_gb_per_s"]
    for n in (2, 8):
        grown = ask("all_to_all", 16384 * n, n).latency_s[0] - ask("all_to_all", 4096 * n, n).latency_s[0]
        own = 12288 / (450e9 * constant_values("collective")["direct_own_rate"])  # its own block, copied beside
        assert grown == pytest.approx(12288 * per_byte + own, rel=1e-6)


def test_recent_nccl_is_flat_where_the_old_one_grew() -> None:
    """Two H100, all_to_all of 256 KiB and 1 MiB: 8.8 and 13.8 us by NCCL 2.23, 14.3 and 14.8 by 2.27.3."""
    old, new = ([ask("all_to_all", s, 2, version=v).latency_s[0] for s in (2**18, 2**20)] for v in ("2.23", "2.27.3"))
    assert old[0] < new[0] and new[1] / new[0] < 1.25 < old[1] / old[0]


def test_bus_factor_is_that_of_nccl_tests() -> None:
    assert bus_factor("all_reduce", 8) == pytest.approx(1.75)
    assert bus_factor("all_gather", 8) == pytest.approx(0.875)
    assert bus_factor("broadcast", 8) == 1.0
    # H100, 2.29.2, reduce_scatter, 8 GPUs, 512 MiB: 1399.36 us is 335.7 GB/s in nccl-tests' column, so the size is the whole input
    assert float(bus_factor("reduce_scatter", 8)) * 536870912 / 1399.36e-6 == pytest.approx(335.7e9, rel=1e-3)


# --- what runs ------------------------------------------------------------------------------------------------------------


def test_the_library_changes_algorithm_with_size_and_count() -> None:
    assert (ask("all_reduce", 8192, 8).algorithm[0], ask("all_reduce", 8192, 8).protocol[0]) == ("ring", "LL")
    assert ask("all_reduce", 2**28, 8).algorithm[0] == "nvls"
    assert ask("all_reduce", 2**28, 4).algorithm[0] == "ring"
    assert ask("all_reduce", 2**28, 8, dtype="int8").algorithm[0] == "ring"  # the switch adds no one-byte integers
    assert ask("all_reduce", 2**28, 8, on=A100).algorithm[0] == "ring"  # NVLink 3 has no in-switch reduction
    assert ask("alltoall", 2**20, 8).algorithm[0] == "direct"
    assert [ask("all_to_all", s, 2).protocol[0] for s in (32768, 65536)] == ["LL", "Simple"]  # 16 KiB a peer
    assert ask("all_reduce", 2**20, 2, on=A100).protocol[0] == "Simple"  # A100, 2 GPUs: 19 us at 512 KiB, 41 at 1 MiB
    assert ask("all_reduce", 2**19, 2, on=A100).protocol[0] == "LL"
    assert ask("all_reduce", 8192, 8, on=L40S, topology="pcie_root").protocol[0] in ("LL", "Simple")  # no LL128 without NVLink


def test_stacks_switch_where_they_say() -> None:
    assert [ask("all_reduce", s, 8, "sglang", version="0.5.9").algorithm[0] for s in (131072, 262144, 2**23, 2**23 + 2)] == [
        "one_shot", "two_shot", "two_shot", "nvls",
    ]  # fmt: skip
    assert ask("all_reduce", 2**24, 8, "vllm", version="0.19.0").algorithm[0] == "multicast"
    assert ask("all_reduce", 2**24, 8, "vllm", version="0.14.0").algorithm[0] == "nvls"
    assert ask("all_reduce", 65536, 8, "vllm", on=L40S).algorithm[0] == "ring"  # no peer kernels for eight GPUs on PCIe
    assert ask("all_reduce", 65536, 2, "vllm", on=L40S).algorithm[0] == "one_shot"
    assert ask("all_gather", 65536, 8, "vllm").algorithm[0] == "ring"
    assert (
        ask("all_reduce", 8192, 8, "sglang", version="0.5.14").latency_s[0]
        < ask("all_reduce", 8192, 8, "sglang", version="0.5.9").latency_s[0]
    )


def test_eager_waits_for_the_host_and_copies() -> None:
    graph, eager = ask("all_reduce", 8192, 8, "vllm_graph"), ask("all_reduce", 8192, 8, "vllm_eager")
    assert eager.latency_s[0] == pytest.approx(constant_values("collective")["eager_us"] * 1e-6)
    assert eager.bound()[0] == "launch"
    large = [ask("all_reduce", 2**30, 8, s).latency_s[0] for s in ("vllm_graph", "vllm_eager")]
    copy = 2 * 2**30 / (H100.dram_bytes_per_s * constant_values("collective")["copy_rate"])
    assert large[1] - large[0] == pytest.approx(copy, rel=1e-6)
    assert graph.latency_s[0] < 10e-6


def test_torch_waits_for_its_host_and_pays_more_in_a_graph() -> None:
    k = constant_values("collective")
    plain, eager, graph = (ask("all_reduce", 4096, 2, s) for s in ("nccl_graph", "torch", "torch_graph"))
    assert eager.latency_s[0] == pytest.approx(k["torch_eager_us"] * 1e-6)
    assert graph.latency_s[0] - plain.latency_s[0] == pytest.approx(k["torch_graph_us"] * 1e-6)
    large = [ask("all_reduce", 2**30, 2, s).latency_s[0] for s in ("nccl", "torch")]
    assert large[0] == pytest.approx(large[1])  # the host is hidden behind the transfer
    assert eager.log_sigma[0] == pytest.approx(k["sigma_eager"], rel=0.01)


def test_one_way_streams_share_one_rate() -> None:
    k = constant_values("collective")
    for kind in ("broadcast", "p2p"):
        assert ask(kind, 2**34, 2).latency_s[0] == pytest.approx(2**34 / (450e9 * k["stream_rate"]), rel=0.01)


def test_old_nccl_is_slower_for_small_messages_and_unknown_counts_as_new() -> None:
    for kind in ("all_gather", "all_to_all"):
        old, new, unknown = (ask(kind, 65536, 8, "nccl", version=v).latency_s[0] for v in ("2.23", "2.29.2", ""))
        assert old > new == unknown
    assert ask("all_gather", 65536, 8, "vllm", version="0.14.0").latency_s[0] == ask("all_gather", 65536, 8, "vllm").latency_s[0]


def test_versions_and_stack_names() -> None:
    assert version_key("0.5.6.post2") == (0, 5, 6) < version_key("0.5.14") < version_key("")
    assert parse_stack("SGLang_eager") == ("sglang", True, False)
    assert parse_stack("TRTLLM") == ("trtllm", False, True)
    assert parse_stack("NCCL") == ("nccl", False, False)
    assert limits("trtllm", "", H100, 8, "nvswitch").custom == 524288
    assert limits("vllm", "", L40S, 2, "pcie_sockets").custom == 0
    with pytest.raises(InputError, match="unknown stack"):
        parse_stack("megatron")


# --- topologies -----------------------------------------------------------------------------------------------------------


def test_every_shipped_node_reads_and_names_its_sources() -> None:
    assert {"hgx_a100", "hgx_h100", "hgx_h200", "hgx_b200", "nvlink_pair", "pcie_switch", "pcie_root", "pcie_sockets"} <= set(nodes())
    for name in nodes():
        spec = node(name)
        assert set(spec.sources) == {"gpus", "nvls", "nic_bytes_per_s", "nic_s"}
        assert spec.nvls in (True, False) and spec.gpus == spec.links[-1].up_to_gpus
    assert node("auto", H100).name == "hgx_h100" and node("DGX A100").nic_bytes_per_s == 25e9
    assert node("nvswitch", A100).name == "hgx_a100"


def test_three_classes_of_pcie_host_are_far_apart() -> None:
    times = [ask("all_reduce", 2**26, 8, on=L40S, topology=t).latency_s[0] for t in ("pcie_switch", "pcie_root", "pcie_sockets")]
    assert times[0] < times[1] < times[2] / 4
    assert ask("all_reduce", 2**26, 2, on=L40S).path[0] == "pcie_switch" and ask("all_reduce", 2**26, 4, on=L40S).path[0] == "pcie_sockets"


def test_two_nodes_cost_more_than_one() -> None:
    inside, across = ask("all_reduce", 2**20, 8), ask("all_reduce", 2**20, 8, nodes=2)
    assert across.latency_s[0] > inside.latency_s[0]
    assert ask("all_reduce", 2**20, 16, nodes=2).in_domain[0]
    assert ask("p2p", 2**30, 2, nodes=2).latency_s[0] == pytest.approx(2**30 / (50e9 * 0.92), rel=0.05)


def test_a_broken_node_file_is_one_line(tmp_path: Path) -> None:
    good = (Path(__file__).parents[2] / "hwdb" / "nodes" / "pcie_root.toml").read_text()
    for text, word in (
        (good.replace("pcie_root", "bus"), "path"),
        (good.replace('source = "layout"', 'source = "x"', 1), "citation"),
        ("name =", "TOML|Invalid"),
    ):
        path = tmp_path / "pcie_root.toml"
        path.write_text(text)
        with pytest.raises(InputError, match=word) as caught:
            read_node(path)
        assert "\n" not in str(caught.value)


# --- bad questions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"message_bytes": 0}, "message_bytes"), ({"n_gpus": 1}, "at least 2 GPUs"),
        ({"n_gpus": 0}, "n_gpus"), ({"kind": "gossip"}, "kind"),
        ({"nodes": 3}, "evenly"),
        ({"dtype": "fp5"}, "dtype"),
        ({"message_bytes": float("nan")}, "message_bytes"), ({"message_bytes": 1.5}, "whole"),
    ],
)  # fmt: skip
def test_bad_operators(arguments: dict[str, object], word: str) -> None:
    with pytest.raises(InputError, match=word) as caught:
        Collective(**{"kind": "all_reduce", "message_bytes": 1024, "n_gpus": 8, **arguments})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("columns_", "on", "word"),
    [
        ({"message_bytes": 0.0}, H100, "row 0: message_bytes"), ({"n_gpus": 1.0}, H100, "at least 2 GPUs"),
        ({"n_gpus": 16.0}, H100, "nodes=2"),
        ({"topology": "moon"}, H100, "unknown topology"),
        ({"n_gpus": 16.0, "nodes": 2.0}, L40S, "no network"), ({"n_gpus": 16.0}, L40S, "holds 8"),
        ({"topology": "hgx_h100"}, L40S, "no NVLink"),
        ({"kind": "gossip"}, H100, "kind"), ({"nodes": 3.0}, H100, "evenly"),
    ],
)  # fmt: skip
def test_bad_tables(columns_: dict[str, object], on: object, word: str) -> None:
    with pytest.raises(InputError, match=word) as caught:
        model(on, {"kind": "all_reduce", "message_bytes": 1024.0, "n_gpus": 8.0, **columns_})  # type: ignore[arg-type, dict-item]
    assert "\n" not in str(caught.value)


def test_spellings_and_table_columns() -> None:
    assert [collective_kind(x) for x in ("alltoall", "send_recv", "AllReduce", "reduce-scatter")] == [
        "all_to_all",
        "p2p",
        "all_reduce",
        "reduce_scatter",
    ]
    frame = pd.DataFrame(
        {"op": ["alltoall"], "num_gpus": [8], "message_bytes": [4096], "impl": ["NCCL"], "framework_version": ["2.29"], "dtype": ["half"]}
    )
    found = OperatorTable.read("collective", frame)
    assert set(found) == {"kind", "n_gpus", "message_bytes", "version", "dtype", "stack"} and found["stack"][0] == "NCCL"
    assert model(H100, found).latency_s[0] > 0
    with pytest.raises(InputError, match="n_gpus"):
        OperatorTable.read("collective", frame.drop(columns="num_gpus"))


def test_one_operator_and_a_table_agree() -> None:
    op = Collective("all_gather", 2**20, 8, dtype="fp16")
    assert model(H100, OperatorTable.of(op)).latency_s[0] == ask("all_gather", 2**20, 8, dtype="half").latency_s[0]
    assert op.work().read_bytes == pytest.approx(2**20 * 7 / 8)


def test_constants_have_sources_and_lie_in_their_ranges() -> None:
    for name, constant in physics("collective").items():
        assert constant.low <= constant.value <= constant.high, name
        assert len(constant.source) > 10, name


def test_fit_recovers_the_link_rate_it_was_given() -> None:
    from perfmodel.learn.collective_fit import fit_constants, read_rows

    truth = {"nvlink_rate": 0.7, "launch_us": 7.0}
    sizes = np.tile(2.0 ** np.arange(8, 30, 2), 8)
    kinds = np.repeat(["all_reduce", "all_gather"], len(sizes) // 2)
    frame = pd.DataFrame({"kind": kinds, "message_bytes": sizes, "n_gpus": np.tile(np.repeat([2, 8], 11), 4)})
    found = OperatorTable.read("collective", frame)
    frame["latency_us"] = model(A100, found, truth).latency_s * 1e6
    fitted = fit_constants([read_rows(A100, frame)])
    assert fitted["nvlink_rate"] == pytest.approx(0.7, rel=0.03)
    assert np.abs(read_rows(A100, frame).errors(fitted)).max() < 0.06


@pytest.mark.parametrize(("change", "word"), [({"latency_us": [0.0]}, "positive"), ({"latency_us": [1e9]}, "microseconds")])
def test_bad_measurements(change: dict[str, list[float]], word: str) -> None:
    from perfmodel.learn.collective_fit import read_rows

    with pytest.raises(InputError, match=word):
        read_rows(H100, pd.DataFrame({"kind": ["all_reduce"], "message_bytes": [4096], "n_gpus": [8], **change}))


def test_shipped_calibrations_hold_what_they_promise() -> None:
    """Rows the calibrations were fitted to: a floor that a change of law or constants must not fall through."""
    from perfmodel.fit.collective_models import shipped_rows
    from perfmodel.learn.collective_fit import read_rows
    from perfmodel.learn.model import find_model

    for name, frame in shipped_rows().items():
        found = find_model(name, "collective")
        assert found is not None and found.tier == "calibrated"
        rows = read_rows(gpu(name), frame[frame["stack"].isin(["nccl", "torch", "torch_graph"])])
        error = np.abs(np.expm1(-rows.errors(found.constants)))
        limits = {"a100_sxm4_80gb": 0.05, "h100_sxm": 0.055, "l40s": 0.10, "rtx_pro_6000": 0.07, "h200_sxm": 0.08}  # hosts differ by more
        assert error.mean() < limits[name], name


def test_plots_draw_both() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    from perfmodel.plot.collective import bus_bandwidth, latency

    points = pd.DataFrame({"kind": ["all_reduce"], "n_gpus": [8], "message_bytes": [2**20], "latency_us": [25.0], "stack": ["nccl"]})
    ax = latency("h100_sxm", "all_reduce", 8, measured=points)
    assert ax.get_ylabel() == "latency (us)" and len(ax.lines) >= 3
    assert bus_bandwidth("h100_sxm", "all_reduce", 8, measured=points).lines[1].get_ydata()[0] == pytest.approx(1.75 * 2**20 / 25e-6 / 1e9)
