"""What a measured GPU says of another one: which ceilings scale, which models speak for both, and what has to be measured."""

from __future__ import annotations

from typing import Any

from perfmodel.calibrate.ceilings import WHAT, datasheet, measured_ceilings
from perfmodel.errors import InputError
from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.calibration import prior_model
from perfmodel.learn.model import find_model
from perfmodel.learn.transfer import tensor_path
from perfmodel.library.registry import MODELS

_FACTS = ("sms", "max_clock_hz", "dram_bytes_per_s", "l2_bytes", "l2_bytes_per_s", "smem_per_sm_bytes", "power_w", "nvlink_bytes_per_s")


def explain(source: GpuSpec, target: GpuSpec) -> list[dict[str, Any]]:
    """Rows of what, carries (yes, scaled, in part, no) and why. Raises InputError for one GPU on both sides."""
    if source.name == target.name:
        raise InputError(f"--from-gpu and --to-gpu are both {source.name}: name two GPUs")
    return [*_chip(source, target), *_ceilings(source, target), *_models(source, target)]


def _chip(source: GpuSpec, target: GpuSpec) -> list[dict[str, Any]]:
    same = source.arch == target.arch
    why = f"both {source.arch}" if same else f"{source.arch} and {target.arch}"
    rows = [{"what": "binaries, registers, shared memory, legal configs", "carries": "yes" if same else "no", "why": why}]
    paths = tensor_path(source.arch), tensor_path(target.arch)
    kernels = f"both multiply with {paths[0]}" if paths[0] == paths[1] else f"{paths[0]} there, {paths[1]} here: other library kernels"
    rows.append({"what": "which kernels a library runs", "carries": "yes" if paths[0] == paths[1] else "no", "why": kernels})
    for fact in _FACTS:
        a, b = float(getattr(source, fact)), float(getattr(target, fact))
        if a != b:
            rows.append({"what": fact, "carries": "no", "why": f"{a:.4g} there, {b:.4g} here: the laws take {target.name}'s own"})
    return rows


def _ceilings(source: GpuSpec, target: GpuSpec) -> list[dict[str, Any]]:
    measured = measured_ceilings(source)
    if measured is None:
        return [
            {"what": WHAT, "carries": "no", "why": f"nobody measured the ceilings of {source.name} here: run perfmodel calibrate there"}
        ]
    ours, theirs = datasheet(target), datasheet(source)
    rows = []
    for name, value in measured.constants.items():
        if not theirs.get(name) or not ours.get(name):
            rows.append(
                {"what": f"ceiling {name}", "carries": "yes" if name.startswith(("launch", "host")) else "no", "why": f"{value:.4g} there"}
            )
            continue
        share = value / theirs[name]
        why = f"{100 * share:.0f} % of hwdb's figure there, so about {share * ours[name]:.4g} here"
        rows.append({"what": f"ceiling {name}", "carries": "scaled", "why": why})
    return rows


def _models(source: GpuSpec, target: GpuSpec) -> list[dict[str, Any]]:
    rows = []
    for what in MODELS:
        own = find_model(source.name, what)
        shared = prior_model(target, what)
        if own is None and source.name not in shared.card.get("gpus", ()):
            continue
        seen = source.name in shared.card.get("gpus", ())
        same_arch = target.arch in shared.card.get("archs", ())
        why = f"{shared.model_id} answers for {target.name}" + (
            f" and has seen {source.name}" if seen else f"; it has not seen {source.name}"
        )
        why += ", the same architecture" if same_arch else ""
        if own is not None and not seen:
            why += f". The calibration of {source.name} stays its own: its corrections are of one card"
        rows.append({"what": what, "carries": "yes" if seen and same_arch else "in part" if seen else "no", "why": why})
    for what in ("kernel_gemm",):
        model = prior_model(target, what)
        seen = source.name in model.card.get("gpus", ())
        why = f"{model.model_id} answers for {target.name}" + (f", fitted on {source.name}" if seen else "; no row of another GPU is in it")
        rows.append({"what": what, "carries": "yes" if seen else "no", "why": why})
    return rows
