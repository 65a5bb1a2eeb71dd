"""Files of tuned configs that serving engines load: their names, their keys, and how to read and write them.

vLLM (vllm-project/vllm, layers/fused_moe/fused_moe.py get_config_file_name, quantization/utils/fp8_utils.py) and SGLang
(sgl-project/sglang, fused_moe_triton/fused_moe_triton_config.py, quantization/fp8_kernel.py), both Apache-2.0, map a number of tokens M to
a Triton config in one JSON file a (device, shape, dtype). Checked against their sources of 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel._atomic import write_atomically
from perfmodel.boundary import expanded, read_json
from perfmodel.errors import InputError, plain, unknown_name

FIELDS = {
    "block_m": "BLOCK_SIZE_M", "block_n": "BLOCK_SIZE_N", "block_k": "BLOCK_SIZE_K", "group_m": "GROUP_SIZE_M",
    "num_warps": "num_warps", "num_stages": "num_stages",
}  # fmt: skip
"""perfmodel's name of each field to the engines', in the order the engines write them."""

STYLES = ("vllm", "sglang")
TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""Token counts of the files that vLLM ships."""

MOE_DTYPES = ("", "fp8_w8a8", "int8_w8a8", "int8_w8a16", "int4_w4a16")
_NAME = re.compile(r"(?:E=(?P<e>\d+),)?N=(?P<n>\d+)(?:,K=(?P<k>\d+))?,device_name=(?P<device>[^,]+)(?P<rest>(?:,.*)?)\.json$")
_REST = re.compile(r"dtype=(?P<dtype>[\w]+)|block_shape=(?P<block>\[\s*\d+,\s*\d+\])")


@dataclass(frozen=True, slots=True)
class TunedFile:
    """One file: num_experts and n of a fused MoE (n: the expert's intermediate size on one GPU), or n and k of a block-scaled GEMM.

    device: the driver's name with spaces; dtype: the engines' word ("" for 16 bit, "fp8_w8a8"); configs: tokens to the engines' own
    fields; triton: the version written into the file or the folder's name, "" for none.
    """

    n: int
    device: str
    configs: Mapping[int, Mapping[str, Any]]
    num_experts: int | None = None
    k: int | None = None
    dtype: str = ""
    block_shape: tuple[int, int] | None = None
    triton: str = ""
    style: str = "vllm"

    @property
    def name(self) -> str:
        """The file's name as the engine looks for it."""
        if self.style not in STYLES:
            raise unknown_name("style of tuned files", self.style, STYLES)
        head = f"E={self.num_experts},N={self.n}" if self.num_experts is not None else f"N={self.n},K={self.k}"
        dtype = f",dtype={self.dtype}" if self.dtype else ""
        block = ""
        if self.block_shape is not None:
            comma = "," if self.style == "vllm" else ", "
            block = f",block_shape=[{self.block_shape[0]}{comma}{self.block_shape[1]}]"
        return f"{head},device_name={device_label(self.device, self.style)}{dtype}{block}.json"

    @property
    def folder(self) -> str:
        """The folder inside the engine's configs: SGLang keeps fused-MoE files by Triton version."""
        by_version = self.style == "sglang" and self.num_experts is not None and self.triton
        return f"triton_{self.triton.replace('.', '_')}" if by_version else ""

    @property
    def text(self) -> str:
        """The file's text, byte for byte as the engines' own tuning scripts write it."""
        head = {"triton_version": self.triton} if self.triton and self.style == "vllm" else {}
        return json.dumps(head | {str(m): dict(c) for m, c in self.configs.items()}, indent=4) + "\n"

    def write(self, folder: str | Path) -> Path:
        """Write it under `folder`, whole or not at all; returns the path. Raises InputError where that cannot be."""
        path = expanded(folder) / self.folder / self.name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, self.text)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
        return path

    def rows(self) -> list[dict[str, Any]]:
        """One row a token count under perfmodel's names: m, the shape, and the config; ready for rank(configs=...)."""
        back = {theirs: ours for ours, theirs in FIELDS.items()}
        shape = {"num_experts": self.num_experts, "n": self.n, "k": self.k, "device": self.device, "dtype": self.dtype}
        known = {k: v for k, v in shape.items() if v is not None}
        return [{"m": m, **known, **{back.get(k, k): v for k, v in config.items()}} for m, config in self.configs.items()]


def device_label(name: str, style: str = "vllm") -> str:
    """The driver's name of a GPU as it stands in a file's name: no spaces; vLLM calls every H200 NVIDIA_H200."""
    label = re.sub(r"[\s/]+" if style == "vllm" else " ", "_", name)
    return "NVIDIA_H200" if style == "vllm" and "H200" in label.split("_") else label


def engine_config(config: Mapping[str, Any]) -> dict[str, int]:
    """A config under perfmodel's names as the engines write it."""
    return {theirs: int(config.get(ours, 1) if ours == "group_m" else config[ours]) for ours, theirs in FIELDS.items()}


def read(path: str | Path) -> TunedFile:
    """Read a file of either engine; raises InputError in one line for another kind of name or content."""
    path = Path(path)
    named = _NAME.match(path.name)
    if named is None or (named["e"] is None) == (named["k"] is None):
        raise InputError(
            f"{path.name}: not the name of a tuned file: expected E=..,N=..,device_name=...json or N=..,K=..,device_name=...json"
        )
    rest: dict[str, str] = {}
    for found in _REST.finditer(named["rest"]):
        rest |= {k: v for k, v in found.groupdict().items() if v is not None}
    try:
        data = read_json(path)
        version = data.pop("triton_version", "")
        configs = {int(m): dict(config) for m, config in data.items()}
    except InputError:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{plain(path.name)}: not a map from token counts to configs ({plain(error)})") from None
    if not configs:
        raise InputError(f"{path.name} holds no config")
    inside = re.fullmatch(r"triton_(\d+_\d+_\d+)", path.parent.name)
    block = rest.get("block")
    return TunedFile(
        n=int(named["n"]),
        device=named["device"].replace("_", " "),
        configs=configs,
        num_experts=None if named["e"] is None else int(named["e"]),
        k=None if named["k"] is None else int(named["k"]),
        dtype=rest.get("dtype", ""),
        block_shape=None if block is None else _pair(block),
        triton=version or (inside[1].replace("_", ".") if inside else ""),
        style="sglang" if inside or (block is not None and ", " in block) else "vllm",
    )


def _pair(text: str) -> tuple[int, int]:
    first, second = (int(part) for part in text.strip("[] ").split(","))
    return first, second
