"""What other tools tuned, as rows: Triton's own autotune cache, Inductor's lookup table. (vLLM's and SGLang's files: tuned_files.read.)"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel.boundary import read_json
from perfmodel.errors import InputError
from perfmodel.hw import gpu as find_gpu
from perfmodel.measure.kernel_call import OPTIONS
from perfmodel.tune.store import Key, Run

_US_PER_MS = 1e3
_OPERAND = re.compile(r"\((torch\.\w+), \[([\d, ]+)\], \[([\d, ]+)\]\)")


def read_autotune(path: str | Path, *, gpu: str, keys: Sequence[str] = (), kernel: str | None = None) -> list[Run]:
    """Runs for the store from a `<kernel>.autotune.json` of Triton's cache (cache_results=True or TRITON_CACHE_AUTOTUNING=1).

    The file names neither the GPU nor the arguments of its key: `gpu` says the one, `keys` the others (["M", "N", "K"]), in the order of
    the decorator. Its times are milliseconds. Configs that failed there (infinite time) become runs with a reason.
    Raises InputError in one line for another file.
    """
    path = Path(path)
    spec = find_gpu(gpu)
    data = read_json(path)
    try:
        key, timings = list(data["key"]), [(dict(c), t) for c, t in data["configs_timings"]]
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{path.name}: not an autotune cache of Triton: expected key and configs_timings") from None
    values = [int(k) for k in key if re.fullmatch(r"-?\d+", str(k))]
    names = list(keys) or [f"key{i}" for i in range(len(values))]
    if len(names) != len(values):
        raise InputError(f"{path.name}: its key has {len(values)} numbers ({', '.join(map(str, values))}), {len(names)} names were given")
    dtype = next((str(k).removeprefix("torch.") for k in key if str(k).startswith("torch.")), "")
    name = kernel or path.name.removesuffix(".autotune.json").removesuffix(".json")
    place = Key(name, dict(zip(names, values, strict=True)), dtype, "", spec.full_name, "", "", "")
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
    return [_run(place, config, timing, now, path.name) for config, timing in timings]


def _run(key: Key, config: Mapping[str, Any], timing: Any, at: str, source: str) -> Run:
    try:
        times = [float(t) for t in (timing if isinstance(timing, list) else [timing])]
        flat = {
            **config["kwargs"],
            **{o: config[o] for o in OPTIONS if config.get(o) is not None and not (o == "num_ctas" and config[o] == 1)},
        }
    except (TypeError, ValueError, KeyError):
        raise InputError(f"{source}: a config or its time cannot be read: {str(config)[:80]}") from None
    good = bool(times) and math.isfinite(times[0]) and times[0] > 0
    spread = (times[2] - times[1]) / times[0] if good and len(times) >= 3 else None
    return Run(
        key=key,
        config=flat,
        role="config",
        status="ok" if good else "error",
        reason="" if good else "the autotuner could not run it",
        at=at,
        latency_us=times[0] * _US_PER_MS if good else None,
        spread=spread,
        detail={"from": source},
    )


def read_inductor(path: str | Path) -> list[dict[str, Any]]:
    """Rows of an Inductor lookup table in JSON: m, n, k, dtype, device ("" for any), op, template and the config, one a choice of an mm.

    Entries of other operations and templates without a tile are left out. Raises InputError in one line for another file.
    """
    path = Path(path)
    data = read_json(path)
    if not isinstance(data, Mapping) or not all(isinstance(v, list) for v in data.values()):
        raise InputError(f"{path.name}: not a lookup table of Inductor: expected a map from keys to lists of configs")
    names = {"BLOCK_M": "block_m", "BLOCK_N": "block_n", "BLOCK_K": "block_k", "GROUP_M": "group_m"}
    rows = []
    for key, choices in data.items():
        operands = _OPERAND.findall(key)
        op = key.rpartition("+")[2]
        if op not in ("mm", "addmm") or len(operands) < 2:
            continue
        (dtype, a, _), (_, b, _) = operands[-2:]
        (m, k), (_, n) = ([int(v) for v in shape.split(",")] for shape in (a, b))
        device = key.split("+((", 1)[0] if "+((" in key and not key.startswith("((") else ""
        problem = {"device": device, "op": op, "dtype": dtype.removeprefix("torch."), "m": m, "n": n, "k": k}
        for choice in choices:
            if isinstance(choice, Mapping) and "BLOCK_M" in choice:
                config = {ours: choice[theirs] for theirs, ours in names.items() if theirs in choice}
                config |= {o: choice[o] for o in ("num_warps", "num_stages") if o in choice}
                rows.append({**problem, "template": str(choice.get("template_id", "")), **config})
    return rows
