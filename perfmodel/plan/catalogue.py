"""Find a model: bundled by name or alias, a config file or folder, a hub id in the local cache, or a dict."""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from perfmodel._resources import shipped, user_folder
from perfmodel.boundary import path_shown, read_json, validated
from perfmodel.errors import InputError, plain, shown
from perfmodel.plan.config_schema import Bundled
from perfmodel.plan.hf_config import parse_config
from perfmodel.plan.model import ModelSpec

LONGEST_NAME = 1024  # characters of a name or path
Entry = tuple[Path, Bundled]


def models() -> list[str]:
    """Names of the bundled models, and of one's own (a folder `models` in the user's data folder).

    Returns
    -------
    list of str
        Names that `load_model` takes, sorted.

    Examples
    --------
    >>> import perfmodel as pm
    >>> "Llama-3.1-8B" in pm.models()
    True
    """
    return sorted({entry.name for _, entry in _entries().values()}, key=str.lower)


def find(model: str | Path | Mapping[str, Any] | ModelSpec, quantization: str | None = None, assume_dense: bool = False) -> ModelSpec:
    """See load_model."""
    if isinstance(model, ModelSpec):
        if quantization is not None:
            raise InputError("quantization: a ModelSpec already says its types; load the model with quantization= instead")
        return model
    options: dict[str, Any] = {"quantization": quantization, "assume_dense": assume_dense}
    if isinstance(model, Mapping):
        name = next((v for key in ("_name_or_path", "model_type") if isinstance(v := model.get(key), str) and v), "model")
        return parse_config(model, plain(name), **options, where="config")
    if not isinstance(model, str | Path) or not str(model).strip():
        raise InputError(f"a model is a name, a path or a config, not {type(model).__name__} {shown(model)}")
    if len(str(model)) > LONGEST_NAME or "\0" in str(model):
        raise InputError(f"model {shown(str(model))}: a name or path has at most {LONGEST_NAME} characters, none of them NUL")
    path = _expanded(Path(model))
    if _looks_like_path(str(model), path):
        file = path / "config.json" if _is_folder(path) else path
        config = _read(file)
        return replace(parse_config(config, file.parent.name or file.stem, **options, where=path_shown(file)), source=str(file))
    entry = _entries().get(normalise(str(model)))
    if entry is not None:
        return _bundled(*entry, options)
    cached = _cached(str(model))
    if cached is not None:
        return replace(parse_config(_read(cached), str(model), **options, where=path_shown(cached)), source=str(cached))
    raise _unknown(str(model))


def normalise(name: str) -> str:
    """Reduce a name to what tells models apart: no organisation, lower case, letters, digits and dots."""
    text = name.strip().lower().rsplit("/", 1)[-1]
    text = re.sub(r"^meta-", "", text)
    text = re.sub(r"[-_ ](instruct|it|chat|hf|base)(?=$|[-_ ])", "", text)
    return re.sub(r"[^a-z0-9.]", "", text)


def _looks_like_path(text: str, path: Path) -> bool:
    return text.endswith(".json") or text.startswith((".", "/", "~")) or _is_folder(path)


def _expanded(path: Path) -> Path:
    """With ~ as the user's home, where there is one."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def _is_folder(path: Path) -> bool:
    """Path.is_dir; no where the system does not take the name."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _read(file: Path) -> dict[str, Any]:
    if not _exists(file):
        raise InputError(
            f"{path_shown(file)}: no such file: give a config.json, a folder that holds one, or a name `perfmodel models` lists"
        )
    config = read_json(file)
    if not isinstance(config, dict):
        raise InputError(f"{path_shown(file)}: expected one JSON object, the model's config")
    return config


def _entries() -> dict[str, Entry]:
    """Normalised name or alias -> bundled entry; the user's own replace the shipped."""
    folders = [shipped("data") / "models", user_folder() / "models"]
    return _load(tuple((folder, folder.stat().st_mtime_ns) for folder in folders if folder.is_dir()))


@lru_cache(maxsize=4)
def _load(folders: tuple[tuple[Path, int], ...]) -> dict[str, Entry]:
    index: dict[str, Entry] = {}
    for folder, _ in folders:
        for file in sorted(folder.glob("*.json")):
            try:
                entry = validated(Bundled, _read(file), path_shown(file))
            except InputError as error:  # the others are none the worse for it
                warnings.warn(f"{error}: correct or delete the file; it is left out", stacklevel=2)
                continue
            for name in (entry.name, *entry.aliases):
                index[normalise(name)] = file, entry
    return index


def _bundled(file: Path, entry: Bundled, options: Mapping[str, Any]) -> ModelSpec:
    spec = parse_config(entry.config, entry.name, **options, where=path_shown(file))
    return replace(
        spec,
        other_params=spec.other_params if entry.other_params is None else entry.other_params,
        published_params=entry.published_params or 0.0,
        source=entry.source,
        licence=entry.licence,
    )


def _cached(name: str) -> Path | None:
    """config.json of a hub id ("org/model") in the local Hugging Face cache; nothing is downloaded."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return None
    home = _expanded(Path(os.environ.get("HF_HOME", "~/.cache/huggingface")))
    hub = _expanded(Path(os.environ.get("HF_HUB_CACHE", str(home / "hub"))))
    found = sorted((hub / f"models--{name.replace('/', '--')}" / "snapshots").glob("*/config.json"), key=lambda p: p.stat().st_mtime)
    return found[-1] if found else None


def _unknown(name: str) -> InputError:
    by_norm = {normalised: entry.name for normalised, (_, entry) in _entries().items()}
    near = list(dict.fromkeys(by_norm[n] for n in difflib.get_close_matches(normalise(name), by_norm, n=5, cutoff=0.5)))[:3]
    hint = f"did you mean {', '.join(near)}? " if near else ""
    bundled = len(set(by_norm.values()))
    return InputError(
        f"unknown model {shown(name)}: {hint}`perfmodel models` lists the {bundled} bundled ones; any other one by its config.json, "
        "the folder that holds it, or a hub id in the local Hugging Face cache"
    )
