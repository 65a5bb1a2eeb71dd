"""`perfmodel plan`: which GPU, how many, which parallelism and batch, at what cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from perfmodel.cli import estimate as estimates
from perfmodel.cli import options
from perfmodel.cli.memory import entries
from perfmodel.cli.output import Csv, Json, check_format, write_csv, write_json, write_table
from perfmodel.cli.wording import ENGINE, GOAL, TRAFFIC, as_options
from perfmodel.errors import InputError, NoAnswerError
from perfmodel.plan.parallel import Parallel
from perfmodel.plan.result import Plan
from perfmodel.plan.search import plan

app = options.single("Choose GPUs, parallelism and batch for a model and its traffic; needs no GPU.")
_COLUMNS = (
    "gpus", "gpu", "replicas", "parallel", "quantization", "concurrency", "ttft_ms", "tpot_ms", "tpot_80_percent", "requests_per_s",
    "tok_s_per_gpu", "usd_per_hour", "tier", "why_not",
)  # fmt: skip
Text = str | None


@app.command()
def main(
    model: Annotated[str, typer.Option("--model", help="A bundled name, a config.json, its folder, or a hub id in the local cache.")],
    gpus: Annotated[str, typer.Option("--gpus", help="Kinds of GPU to choose from, comma-separated.")],
    isl: Annotated[str, typer.Option("--isl", metavar="TOKENS", help="Tokens of a prompt.")],
    osl: Annotated[str, typer.Option("--osl", metavar="TOKENS", help="Tokens of an answer.")],
    ttft_ms: Annotated[Text, typer.Option("--ttft-ms", help="Limit on the time to first token.")] = None,
    tpot_ms: Annotated[Text, typer.Option("--tpot-ms", help="Limit on the time per output token after the first.")] = None,
    request_rate: Annotated[Text, typer.Option("--request-rate", help="Requests a second, of all engines together.")] = None,
    concurrency: Annotated[Text, typer.Option("--concurrency", help="Requests in flight, of all engines together.")] = None,
    total_gpus: Annotated[Text, typer.Option("--total-gpus", help="At most so many GPUs of one kind.")] = None,
    budget: Annotated[Text, typer.Option("--budget-usd-per-hour", help="At most so much an hour; needs prices.")] = None,
    objective: Annotated[str, typer.Option("--objective", help="auto, gpus (fewest), cost (cheapest), throughput (a GPU's).")] = "auto",
    prefix_cache_hit_rate: Annotated[str, typer.Option("--prefix-cache-hit-rate", help="Share of each prompt already cached.")] = "0",
    accepted_tokens_per_step: Annotated[str, typer.Option("--accepted-tokens-per-step", help="With speculative decoding.")] = "1",
    percentile: Annotated[str, typer.Option("--percentile", help="What the limits are on: mean, p50, p90 or p99 (simulated).")] = "mean",
    quantization: Annotated[Text, typer.Option("--quantization", help="As published without it; fp8, int4_wo ... or auto.")] = None,
    kv_cache_dtype: Annotated[Text, typer.Option("--kv-cache-dtype", help="auto, fp8 ...")] = None,
    stack: Annotated[str, typer.Option("--stack", help="vllm, sglang or trtllm.")] = "vllm",
    memory_fraction: Annotated[Text, typer.Option("--memory-fraction", help="gpu_memory_utilization, mem_fraction_static ...")] = None,
    prices: Annotated[Path | None, typer.Option("--prices", help="TOML, usd_per_gpu_hour a GPU; shipped: examples.")] = None,
    max_engine_gpus: Annotated[Text, typer.Option("--max-engine-gpus", help="Largest engine to look at.")] = None,
    disagg: Annotated[bool, typer.Option("--disagg/--no-disagg", help="Also look at prefill and decode on engines of their own.")] = True,
    assume_dense: Annotated[bool, typer.Option("--assume-dense", help="Read an unknown architecture as a plain dense one.")] = False,
    calibration: options.Calibration = "auto",
    simulate: Annotated[bool, typer.Option("--simulate", help="Also simulate one engine of the choice: percentiles.")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write one self-contained page.")] = None,
    json_: Json = False,
    csv_: Csv = False,
) -> None:
    """Choose a deployment; exit 1 where none meets the limits."""
    check_format(json_, csv_)
    with as_options(ENGINE | TRAFFIC | GOAL):
        found = plan(
            model,
            [name.strip() for name in gpus.split(",") if name.strip()],
            isl=options.number(isl),
            osl=options.number(osl),
            ttft_ms=options.number(ttft_ms),
            tpot_ms=options.number(tpot_ms),
            request_rate=options.number(request_rate),
            concurrency=options.number(concurrency),
            total_gpus=options.number(total_gpus),
            budget_usd_per_hour=options.number(budget),
            objective=objective,
            prefix_cache_hit_rate=options.number(prefix_cache_hit_rate),
            accepted_tokens_per_step=options.number(accepted_tokens_per_step),
            percentile=percentile,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
            stack=stack,
            memory_fraction=options.number(memory_fraction),
            prices=prices,
            max_engine_gpus=options.number(max_engine_gpus),
            disaggregated=disagg,
            assume_dense=assume_dense,
            calibration=options.calibration(calibration),
        )
    if html is not None:
        try:
            found.to_html(html)
        except InputError as error:
            raise InputError(f"--html {error}") from None
    seen = found.check() if simulate else None
    if json_:
        write_json({**document(found), "simulated": estimates.document(seen) if seen else None})
    elif csv_:
        write_csv([_plain(row) for row in found.rows], list(_plain(found.rows[0])))
    else:
        _show(found)
        if seen is not None:
            write_table(estimates.latencies(seen), head=["", "one engine simulated under its share:", *getattr(seen, "notes", ())])
    if found.best is None:
        raise NoAnswerError(found.sentence())
    if seen is not None and (missed := _missed(found, seen)):
        raise NoAnswerError(f"the simulation of this choice {missed}, which the closed form did not see: lower the load or add GPUs")


def _missed(found: Plan, seen: Any) -> str:
    """Which limits on means the simulated choice misses, in words; empty where it meets them."""
    limits = (("TTFT", seen.ttft_ms, found.goal.ttft_ms), ("TPOT", seen.tpot_ms, found.goal.tpot_ms))
    return " and ".join(
        f"has a mean {name} of {value:.4g} ms against {limit:g}" for name, value, limit in limits if limit and value > limit
    )


def document(found: Plan) -> dict[str, Any]:
    """A plan as plain data."""
    best = found.best
    return {
        "model": found.model.name,
        "goal": {name: getattr(found.goal, name) for name in found.goal.__slots__},
        "stack": found.stack,
        "tpot": "mean time per output token after the first",
        "examined": found.examined,
        "best": _plain(best) if best else None,
        "nearest": _plain(found.nearest),
        "safe": _plain(found.safe) if found.safe else None,
        "sentence": found.sentence(),
        "runners_up": [_plain(row) for row in found.runners_up],
        "what_binds": _records(found.what_binds()),
        "memory": _records(found.ledger.frame),
        "pareto": [_plain(row) for row in _records(found.pareto)],
        "commands": found.commands(),
        "notes": found.notes(),
        "rejected": _reasons(found),
    }


def _show(found: Plan) -> None:
    head = [f"{found.model.name}, {found.goal.isl} tokens in, {found.goal.osl} out, {found.stack}: {found.examined} deployments examined"]
    head += [found.sentence(), *found.notes(), ""]
    chosen = {**found.nearest, "why_not": "" if found.best else "nearest"}
    write_table([_shown(row) for row in (chosen, *found.runners_up)], _COLUMNS, head=head)
    write_table(_records(found.what_binds()), head=["", "what binds:"])
    write_table(entries(found.ledger), head=["", f"memory of one {found.nearest['gpu']}:"])
    write_table([], head=["", *(f"{role}: {line}" for role, line in found.commands().items())])


def _records(frame: Any) -> list[dict[str, Any]]:
    return list(frame.to_dict("records"))


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "tpot_80_percent": f"{row['tpot_low_ms']:.1f}-{row['tpot_high_ms']:.1f}"}


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """The row as plain data: a shape as text, nothing where a table of both modes had to leave it empty."""
    return {name: (str(v) if isinstance(v, Parallel) else None) if name == "prefill_shape" else v for name, v in row.items()}


def _reasons(found: Plan) -> dict[str, int]:
    counts: dict[str, int] = {}
    for rejected in found.rejected:
        counts[rejected.reason] = counts.get(rejected.reason, 0) + 1
    return counts
