"""`perfmodel rank`: the best Triton configs of a problem, what binds them, and why others were pruned. No GPU needed."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from perfmodel.cli import options, output, rank_file
from perfmodel.cli.operators import add_operator
from perfmodel.errors import unknown_name
from perfmodel.kernels import config_columns
from perfmodel.learn.model import find_model
from perfmodel.ops.operator import Operator
from perfmodel.predict.configs import op_sizes
from perfmodel.predict.kernel_domain import shows
from perfmodel.tune.rank import COLD, Ranking
from perfmodel.tune.rank import rank as rank_configs

app = options.verb("Rank Triton configs for a problem by predicted latency; needs no GPU.")
rank_file.add_to(app)

FORMS = ("table", "triton")
_SHORT = {"group_m": "group", "split_k": "split", "num_splits": "splits", "num_warps": "warps", "num_stages": "stages"}
Pruned = Annotated[bool, typer.Option("--pruned", help="List every pruned config with its reason.")]
Replayed = Annotated[
    str,
    typer.Option(
        "--replayed",
        metavar="WHAT",
        help="Launched over and over without a flush, so that L2 keeps what fits: nothing (as served), layer or projection (each alone).",
    ),
]
As = Annotated[str, typer.Option("--as", metavar="FORM", help="table, or triton: the configs as triton.Config, to paste into autotune.")]
_NOTHING_MEASURED = "nothing was ever measured on this GPU for it"  # of the model that answers


@app.command()
def gemm(
    gpu: options.Gpu,
    m: options.M,
    n: options.N,
    k: options.K,
    dtype: options.Dtype = "bf16",
    top_k: options.TopK = "8",
    configs: options.ConfigFile = None,
    pruned: Pruned = False,
    calibration: options.Calibration = "auto",
    form: As = "table",
    json_: output.Json = False,
    csv_: output.Csv = False,
) -> None:
    """C[m,n] = A[m,k] B[k,n]: the project's own kernel, or with --configs anybody's."""
    _rank(options.gemm(m, n, k, dtype), gpu, top_k, configs, pruned, calibration, form, json_, csv_)


def _rank(
    op: Operator,
    gpu: options.Gpu,
    best: options.Best = "8",
    configs: options.ConfigFile = None,
    pruned: Pruned = False,
    calibration: options.Calibration = "auto",
    form: As = "table",
    json_: output.Json = False,
    csv_: output.Csv = False,
    replayed: Replayed = COLD,
) -> None:
    output.check_format(json_, csv_)
    if form not in FORMS:
        raise unknown_name("--as", form, FORMS)
    count, cal = options.count("top_k", best), options.calibration(calibration)
    ranking = rank_configs(op, gpu, configs=options.configs(configs), top_k=count, calibration=cal, replayed=replayed)
    if form == "triton" and not json_ and not csv_:
        sys.stdout.write("".join(f"{as_triton(row, ranking.kernel)},\n" for row in rows(ranking)))
        return
    show(ranking, options.title(op, ranking.kernel), pruned=pruned, json_=json_, csv_=csv_)


def as_triton(row: dict[str, Any], kernel: str) -> str:
    """A config as Python that makes a triton.Config: meta-parameters in capitals, as kernels name them."""
    names = [name for name in config_columns(kernel)[1:] if not name.startswith("num_")]
    meta = ", ".join(f'"{name.upper()}": {row[name]}' for name in names)
    return f"triton.Config({{{meta}}}, num_warps={row['num_warps']}, num_stages={row['num_stages']})"


for _word, (_name, _what) in options.KERNEL_OPERATORS.items():
    add_operator(app, _word, _name, _what, _rank, without=() if _word == "moe" else ("replayed",))


def rows(ranking: Ranking) -> list[dict[str, Any]]:
    """The best `top_k` configs, one flat row each, as Ranking.frame has them but without pandas."""
    order = ranking.order[: ranking.top_k]
    p, t = ranking.predictions, ranking.predictions.terms
    columns: dict[str, Any] = {"variant": ranking.configs.variant[order]} | {
        name: ranking.configs[name][order] for name in config_columns(ranking.kernel)[1:]
    }
    columns |= {name: getattr(p, name)[order] for name in ("latency_us", "low_us", "high_us")}
    columns |= {"bound": t.bound()[order], "waves": t.waves[order], "blocks_per_sm": t.blocks_per_sm[order], "limiter": t.limiter[order]}
    columns |= {"in_domain": p.in_domain[order], "exact_facts": t.exact_facts[order]}
    lists = {name: values.tolist() for name, values in columns.items()}
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def show(ranking: Ranking, title: str, *, pruned: bool, json_: bool, csv_: bool) -> None:
    """Print a ranking, or with `pruned` in CSV only what was pruned."""
    best = rows(ranking)
    lost = [{**config, "reason": reason} for config, reason in ranking.pruned]
    model = ranking.predictions.model
    if json_:
        about = {
            "op": _op(ranking.op, ranking.kernel),
            "gpu": ranking.gpu.name,
            "tier": model.tier,
            "model_id": model.model_id,
            "ranked": len(ranking),
        }
        given = ranking.top(len(best)) if ranking.configs.given is not None else [None] * len(best)
        configs = [row | ({"given": own} if own is not None else {}) for row, own in zip(best, given, strict=True)]
        about |= {"pruned_count": len(lost), "configs": configs, "notes": list(ranking.notes)}
        output.write_json(about | ({"pruned": lost} if pruned else {}))
    elif csv_:
        if pruned:
            output.write_csv(lost, (*config_columns(ranking.kernel), "reason"))
        else:
            output.write_csv([row | {"tier": model.tier, "model_id": model.model_id} for row in best])
    else:
        head = [f"{title} on {ranking.gpu.name}: {len(ranking)} configs ranked, {len(lost)} pruned", *_basis(ranking, best)]
        output.write_table([_cells(row) for row in best], head=[*head, ""])
        if pruned:
            output.write_table([_tile(row) | {"reason": row["reason"]} for row in lost], head=["", "pruned:"])


def _basis(ranking: Ranking, best: list[dict[str, Any]]) -> list[str]:
    """What the figures rest on: tier, model, facts, domain."""
    model = ranking.predictions.model
    tier = f"{model.tier} tier, model {model.model_id}" + (f": {_of_gpu(ranking)}" if model.tier == "spec" else "")
    exact = sum(row["exact_facts"] for row in best)
    partly = f"compiled, exact for {exact} of {len(best)}, a formula for the others" if exact else "by formula, not compiled"
    facts = "compiled, exact" if exact == len(best) else partly
    lines = [tier, f"registers and shared memory: {facts}"]
    outside = sum(not row["in_domain"] for row in best)
    if outside:
        first = next(i for i, row in enumerate(best) if not row["in_domain"])
        lines.append(f"{outside} of {len(best)} extrapolate: {'; '.join(ranking.outside(first))}")
    return [*lines, *ranking.notes]


def _of_gpu(ranking: Ranking) -> str:
    """What is true of the GPU and this kernel where the spec tier answers."""
    known = find_model(ranking.gpu.name, f"kernel_{ranking.kernel}")
    if known is None:
        return _NOTHING_MEASURED
    if not shows(known.card, ranking.op.dtype):
        others = f"{known.card['rows']:,} rows in {', '.join(known.card['dtypes'])}"
        return f"nothing was ever measured on this GPU for it in {ranking.op.dtype}, {others}"
    return f"the {known.card['rows']:,} rows of this GPU are left out"


def _tile(row: dict[str, Any]) -> dict[str, Any]:
    tile = "x".join(str(row[side]) for side in ("block_m", "block_n", "block_k") if side in row)
    return {"variant": row["variant"], "tile": tile, **{short: row[name] for name, short in _SHORT.items() if name in row}}


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    interval = f"{output.shown(row['low_us'])}-{output.shown(row['high_us'])}"
    return _tile(row) | {
        "us": row["latency_us"],
        "80 % within": interval,
        "bound by": row["bound"],
        "waves": round(row["waves"], 2),
        "blocks/SM": row["blocks_per_sm"],
        "limited by": row["limiter"],
    }


def _op(op: Operator, kernel: str) -> dict[str, Any]:
    return {"kind": op.kind} | op_sizes(op, kernel) | {"dtype": op.dtype}
