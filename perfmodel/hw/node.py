"""NodeSpec and LinkSpec: how the GPUs of one machine, and one machine to the next, are joined. Data in hwdb/nodes/*.toml."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from perfmodel._resources import layers, stamped
from perfmodel.errors import InputError, unknown_name
from perfmodel.hw.registry import Stamp, left_out, normalise, stamp_of
from perfmodel.hw.schema import UNITS
from perfmodel.hw.spec import GpuSpec

PATHS = ("nvswitch", "nvlink_pair", "pcie_switch", "pcie_root", "pcie_sockets")
"""What the slowest hop between the GPUs of a group crosses."""
NVLINK = ("nvswitch", "nvlink_pair")
FACTS = ("gpus", "nvls", "nic_bytes_per_s", "nic_s")
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """The path that groups of up to `up_to_gpus` GPUs of a node use: one of PATHS."""

    up_to_gpus: int
    path: str

    def wire_bytes_per_s(self, gpu: GpuSpec) -> float:
        """Datasheet rate of the link under this path, bytes/s each way and GPU; raises InputError where the GPU has no such link."""
        rate = gpu.nvlink_bytes_per_s if self.path in NVLINK else gpu.pcie_bytes_per_s
        if rate <= 0:
            raise InputError(f"{gpu.name} has no NVLink, so no {self.path} path: use topology {', '.join(PATHS[2:])}")
        return rate


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One machine: its GPU slots, links by group size, in-switch reduction, and network adapters (per GPU, each way; 0 = none)."""

    name: str
    full_name: str
    aliases: tuple[str, ...]
    default_for: tuple[str, ...]
    links: tuple[LinkSpec, ...]
    gpus: int
    nvls: bool
    nic_bytes_per_s: float
    nic_s: float
    sources: Mapping[str, str] = field(default_factory=dict)

    def link(self, gpus: int) -> LinkSpec:
        """The path of a group of `gpus` GPUs; raises InputError when the machine has fewer."""
        for link in self.links:
            if gpus <= link.up_to_gpus:
                return link
        way = (
            f"give nodes={math.ceil(gpus / self.gpus)}"
            if self.nic_bytes_per_s > 0
            else "it has no network to a second one, so use fewer GPUs"
        )
        raise InputError(f"{gpus} GPUs do not fit in one {self.name}, which holds {self.gpus}: {way}")


def nodes() -> list[str]:
    """Canonical names of all known machines, sorted."""
    return sorted(_files())


def node(name: str | NodeSpec, gpu: GpuSpec | None = None) -> NodeSpec:
    """The machine of that name or alias; "auto" is the usual one of `gpu`.

    Raises InputError for an unknown name, and for "auto" when no machine names the GPU and it has NVLink (bridge or switch: the
    datasheet does not say). A GPU without NVLink that no machine names is taken to sit in a host with peer access (pcie_8gpu).
    """
    if isinstance(name, NodeSpec):
        return name
    files = _files()
    if str(name).strip().lower() == AUTO:
        if gpu is None:
            raise InputError(f"topology 'auto' needs a GPU: name one of {', '.join(sorted(files))}")
        return _default(gpu, files)
    wanted = normalise(str(name))
    if wanted == "nvswitch" and gpu is not None and gpu.nvlink_bytes_per_s > 0:
        return _default(gpu, files)  # what a measurement reports: the path, not which machine
    for stem, path in files.items():
        if normalise(stem) == wanted:
            return _load(path, stamp_of(path))
    for spec in _readable(files):
        if wanted in map(normalise, spec.aliases):
            return spec
    raise unknown_name("topology", name, [AUTO, *files])


def _readable(files: Mapping[str, Path]) -> Iterator[NodeSpec]:
    """Every machine whose file can be read; one that cannot hides no other."""
    for path in files.values():
        try:
            spec = _load(path, stamp_of(path))
        except InputError as error:
            left_out(error)
            continue
        yield spec


def _default(gpu: GpuSpec, files: Mapping[str, Path]) -> NodeSpec:
    for spec in _readable(files):
        if gpu.name in spec.default_for:
            return spec
    if gpu.nvlink_bytes_per_s > 0:
        raise InputError(f"{gpu.name} has NVLink but no machine in hwdb/nodes names it: give topology, one of {', '.join(sorted(files))}")
    return node("pcie_8gpu")


def _files() -> dict[str, Path]:
    return _listing(stamped(_nodes_of(folder) for folder in reversed(layers("hwdb"))))


@lru_cache(maxsize=64)
def _nodes_of(folder: Path) -> Path:
    return folder / "nodes"


@lru_cache(maxsize=16)
def _listing(folders: tuple[tuple[Path, int], ...]) -> dict[str, Path]:
    return {p.stem: p for folder, _ in folders for p in sorted(folder.glob("*.toml"))}


@lru_cache(maxsize=64)
def _load(path: Path, stamp: Stamp) -> NodeSpec:
    return read_node(path)


def read_node(path: Path) -> NodeSpec:
    """Read and check one TOML of hwdb/nodes; any defect is one InputError line naming file and fix."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        spec = _node(raw)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{path}: {reason[:100]}: correct it or delete it") from None
    if spec.name != path.stem:
        raise InputError(f"{path}: name = {spec.name!r}: must be the file's name, {path.stem!r}")
    return spec


def _node(raw: dict[str, Any]) -> NodeSpec:
    text = [str(raw.pop(key)) for key in ("name", "full_name")]
    aliases, default_for = (tuple(str(x) for x in raw.pop(key)) for key in ("aliases", "default_for"))
    links = tuple(LinkSpec(int(entry["up_to_gpus"]), str(entry["path"])) for entry in raw.pop("links"))
    for link in links:
        if link.path not in PATHS:
            raise ValueError(f"path = {link.path!r}: use one of {', '.join(PATHS)}")
    if list(links) != sorted(links, key=lambda x: x.up_to_gpus) or not links:
        raise ValueError("links: write at least one, in rising up_to_gpus")
    citations = raw.pop("sources")
    facts: dict[str, float] = {}
    sources: dict[str, str] = {}
    for key, fact in raw.items():
        name, factor = _fact(key)
        value = fact["value"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise ValueError(f"{key} = {value!r}: write a number of 0 or more")
        if fact["source"] not in citations:
            raise ValueError(f"{key}: source {fact['source']!r} has no citation: add it to [sources]")
        facts[name] = float(value) * factor
        sources[name] = "; ".join(filter(None, (str(citations[fact["source"]]), str(fact.get("note", "")))))
    if missing := [name for name in FACTS if name not in facts]:
        raise ValueError(f"missing {', '.join(missing)}: add with a source")
    if links[-1].up_to_gpus != int(facts["gpus"]):
        raise ValueError(f"links reach {links[-1].up_to_gpus} GPUs, gpus says {int(facts['gpus'])}: make them equal")
    return NodeSpec(
        text[0],
        text[1],
        aliases,
        default_for,
        links,
        int(facts["gpus"]),
        facts["nvls"] > 0,
        facts["nic_bytes_per_s"],
        facts["nic_s"],
        sources,
    )


def _fact(key: str) -> tuple[str, float]:
    if key in FACTS:
        return key, 1.0
    for ending in sorted(UNITS, key=len, reverse=True):
        name = key.removesuffix(ending) + UNITS[ending][0]
        if key.endswith(ending) and name in FACTS:
            return name, UNITS[ending][1]
    raise ValueError(f"{key}: no such fact: use one of {', '.join(FACTS)}")
