"""Find a model: bundled by name or alias, a config file or folder, a hub id in the local cache, or a dict."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from perfmodel._resources import shipped, user_folder
from perfmodel.errors import InputError
from perfmodel.plan.hf_config import parse_config
from perfmodel.plan.model import ModelSpec


def models() -> list[str]:
    """Names of the bundled models, and of the user's own (a folder `models` in the user's data folder), sorted."""
    return sorted({str(entry["name"]) for entry in _entries().values()}, key=str.lower)


def find(model: str | Path | Mapping[str, Any] | ModelSpec, quantization: str | None = None, assume_dense: bool = False) -> ModelSpec:
    """See load_model."""
    if isinstance(model, ModelSpec):
        if quantization is not None:
            raise InputError("quantization: a ModelSpec already says its types; load the model with quantization= instead")
        return model
    options: dict[str, Any] = {"quantization": quantization, "assume_dense": assume_dense}
    if isinstance(model, Mapping):
        return parse_config(model, str(model.get("_name_or_path") or model.get("model_type") or "model"), **options, where="config")
    if not isinstance(model, str | Path) or not str(model).strip():
        raise InputError(f"a model is a name, a path or a config, not {type(model).__name__} {model!r}")
    path = Path(model).expanduser()
    if _looks_like_path(str(model), path):
        file = path / "config.json" if path.is_dir() else path
        config = _read(file)
        return replace(parse_config(config, file.parent.name or file.stem, **options, where=str(file)), source=str(file))
    entry = _entries().get(normalise(str(model)))
    if entry is not None:
        return _bundled(entry, options)
    cached = _cached(str(model))
    if cached is not None:
        return replace(parse_config(_read(cached), str(model), **options, where=str(cached)), source=str(cached))
    raise _unknown(str(model))


def normalise(name: str) -> str:
    """Reduce a name to what tells models apart: no organisation, lower case, letters, digits and dots."""
    text = name.strip().lower().rsplit("/", 1)[-1]
    text = re.sub(r"^meta-", "", text)
    text = re.sub(r"[-_ ](instruct|it|chat|hf|base)(?=$|[-_ ])", "", text)
    return re.sub(r"[^a-z0-9.]", "", text)


def _looks_like_path(text: str, path: Path) -> bool:
    return text.endswith(".json") or text.startswith((".", "/", "~")) or path.is_dir()


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"{file}: no such file: give a config.json, a folder that holds one, or a name `perfmodel models` lists") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise InputError(f"{file}: not a text file: give the model's config.json") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not JSON, perhaps half-written ({error})") from None
    if not isinstance(config, dict):
        raise InputError(f"{file}: expected one JSON object, the model's config")
    return config


def _entries() -> dict[str, dict[str, Any]]:
    """Normalised name or alias -> bundled entry; the user's own replace the shipped."""
    folders = [shipped("data") / "models", user_folder() / "models"]
    return _load(tuple((folder, folder.stat().st_mtime_ns) for folder in folders if folder.is_dir()))


@lru_cache(maxsize=4)
def _load(folders: tuple[tuple[Path, int], ...]) -> dict[str, dict[str, Any]]:
    index: dict[str, dict[str, Any]] = {}
    for folder, _ in folders:
        for file in sorted(folder.glob("*.json")):
            entry = _read(file)
            missing = [key for key in ("name", "aliases", "source", "licence", "config") if key not in entry]
            if missing:
                raise InputError(f"{file}: missing {', '.join(missing)}: correct it or delete it")
            for name in (entry["name"], *entry["aliases"]):
                index[normalise(str(name))] = {**entry, "file": str(file)}
    return index


def _bundled(entry: Mapping[str, Any], options: Mapping[str, Any]) -> ModelSpec:
    spec = parse_config(entry["config"], str(entry["name"]), **options, where=entry["file"])
    return replace(
        spec,
        other_params=int(entry.get("other_params", spec.other_params)),
        published_params=float(entry.get("published_params", 0)),
        source=str(entry["source"]),
        licence=str(entry["licence"]),
    )


def _cached(name: str) -> Path | None:
    """config.json of a hub id ("org/model") in the local Hugging Face cache; nothing is downloaded."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return None
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", str(home / "hub"))).expanduser()
    found = sorted((hub / f"models--{name.replace('/', '--')}" / "snapshots").glob("*/config.json"), key=lambda p: p.stat().st_mtime)
    return found[-1] if found else None


def _unknown(name: str) -> InputError:
    known = {str(entry["name"]): normalised for normalised, entry in _entries().items()}
    by_norm = {normalised: str(entry["name"]) for normalised, entry in _entries().items()}
    near = list(dict.fromkeys(by_norm[n] for n in difflib.get_close_matches(normalise(name), by_norm, n=5, cutoff=0.5)))[:3]
    hint = f"did you mean {', '.join(near)}? " if near else ""
    return InputError(
        f"unknown model {name!r}: {hint}`perfmodel models` lists the {len(known)} bundled ones; any other one by its config.json, "
        "the folder that holds it, or a hub id in the local Hugging Face cache"
    )
