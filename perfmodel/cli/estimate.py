"""`perfmodel estimate`: how one deployment serves given traffic."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from perfmodel.cli import options
from perfmodel.cli.memory import Text, engine_of, fraction_of
from perfmodel.cli.output import Csv, Json, check_format, write_csv, write_json, write_table
from perfmodel.cli.wording import ENGINE, TRAFFIC, as_options
from perfmodel.errors import InputError
from perfmodel.plan import evidence
from perfmodel.plan.disagg import SplitEstimate
from perfmodel.plan.estimate import ServingEstimate, estimate
from perfmodel.plan.flags import Engine

app = options.single("Latency with percentiles, throughput and memory of one deployment under given traffic.")


@app.command()
def main(
    gpu: options.Gpu,
    isl: Annotated[str, typer.Option("--isl", metavar="TOKENS", help="Tokens of a prompt.")],
    osl: Annotated[str, typer.Option("--osl", metavar="TOKENS", help="Tokens of an answer.")],
    model: Annotated[
        Text, typer.Option("--model", help="A bundled name, a config.json, its folder, or a hub id in the local cache.")
    ] = None,
    command: Annotated[Text, typer.Option("--command", help="A `vllm serve` or SGLang start command to read instead of options.")] = None,
    concurrency: Annotated[Text, typer.Option("--concurrency", help="Requests always in flight; this or --request-rate.")] = None,
    request_rate: Annotated[Text, typer.Option("--request-rate", help="Poisson arrivals a second.")] = None,
    tp: Annotated[Text, typer.Option("--tp", help="Tensor parallel size.")] = None,
    pp: Annotated[Text, typer.Option("--pp", help="Pipeline parallel size.")] = None,
    ep: Annotated[Text, typer.Option("--ep", help="Expert parallel size.")] = None,
    dp: Annotated[Text, typer.Option("--dp", help="Data parallel size: of attention with experts, else separate engines.")] = None,
    quantization: Annotated[Text, typer.Option("--quantization", help="As published without it.")] = None,
    kv_cache_dtype: Annotated[Text, typer.Option("--kv-cache-dtype", help="auto, fp8 ...")] = None,
    stack: Annotated[str, typer.Option("--stack", help="vllm, sglang or trtllm.")] = "vllm",
    memory_fraction: Annotated[Text, typer.Option("--memory-fraction", help="gpu_memory_utilization, mem_fraction_static ...")] = None,
    prefix_cache_hit_rate: Annotated[str, typer.Option("--prefix-cache-hit-rate", help="Share of each prompt already cached.")] = "0",
    accepted_tokens_per_step: Annotated[str, typer.Option("--accepted-tokens-per-step", help="With speculative decoding.")] = "1",
    calibration: options.Calibration = "auto",
    json_: Json = False,
    csv_: Csv = False,
) -> None:
    """Simulate the traffic and show what requests see. TPOT leaves out the first token."""
    check_format(json_, csv_)
    with as_options(ENGINE | TRAFFIC):
        if (concurrency is None) == (request_rate is None):
            raise InputError("which traffic? give one of --concurrency and --request-rate")
        engine = engine_of(model, command, stack, (tp, pp, ep, dp), quantization, kv_cache_dtype)
        number: Any = options.number
        _within(engine, number(isl), number(osl))
        found = estimate(
            engine.model,
            gpu,
            tensor_parallel_size=engine.parallel.tp,
            pipeline_parallel_size=engine.parallel.pp,
            expert_parallel_size=engine.parallel.ep,
            data_parallel_size=engine.parallel.dp,
            isl=number(isl),
            osl=number(osl),
            concurrency=number(concurrency),
            request_rate=number(request_rate),
            quantization=engine.quantization,
            kv_cache_dtype=engine.kv_cache_dtype,
            stack=engine.stack,
            memory_fraction=fraction_of(engine, memory_fraction),
            max_num_batched_tokens=engine.max_num_batched_tokens,
            max_num_seqs=engine.max_num_seqs,
            prefix_cache_hit_rate=number(prefix_cache_hit_rate),
            accepted_tokens_per_step=number(accepted_tokens_per_step),
            calibration=options.calibration(calibration),
        )
    rows = latencies(found)
    if json_:
        write_json(document(found))
    elif csv_:
        write_csv(rows)
    else:
        memory = found.memory
        low, high = found.intervals["throughput_tok_s"]
        head = [
            f"{memory.model.name} on {found.gpus} x {memory.gpu.name}, {memory.parallel}, {memory.stack}; {found.tier} tier",
            f"{found.throughput_tok_s:.0f} output tokens/s ({low:.0f} to {high:.0f}), {found.requests_per_s:.3g} requests/s, "
            + (f"{found.user_tok_s:.1f} tokens/s a user; " if found.user_tok_s > 0 else "")
            + f"{found.concurrency:.3g} requests in flight, bound by {found.bound}",
            *_evidence(found, calibration),
            *found.notes,
            "",
        ]
        write_table(rows, head=head)
        terms = [{"term": name, "decode_step_ms": ms, "prompt_ms": found.prefill_terms.get(name)} for name, ms in found.terms.items()]
        terms += [{"term": n, "decode_step_ms": None, "prompt_ms": ms} for n, ms in found.prefill_terms.items() if n not in found.terms]
        write_table(terms, head=[""])


def _within(engine: Engine, isl: Any, osl: Any) -> None:
    """Raise InputError for requests that the engine of a start command would refuse."""
    limit = engine.max_model_len
    if limit is not None and isinstance(isl, int) and isinstance(osl, int) and isl + osl > limit:
        raise InputError(f"--isl {isl} and --osl {osl} are more than the command's limit of {limit} tokens a request")


def _evidence(found: ServingEstimate, calibration: str) -> list[str]:
    """What spec-tier figures rest on."""
    if found.tier != "spec":
        return []
    return evidence.notes([(found.memory.model, found.memory.gpu, found.gpus)], options.calibration(calibration))


def latencies(found: ServingEstimate | SplitEstimate) -> list[dict[str, Any]]:
    """One row a quantity, milliseconds: mean, its 80 % interval, percentiles."""
    rows = []
    for name, what in (("ttft", "first token"), ("tpot", "a token after the first"), ("itl", "between tokens"), ("e2e", "whole request")):
        spread = getattr(found, name, None)
        if spread is None:
            continue
        low, high = getattr(found, "intervals", {}).get(f"{name}_ms", (None, None))
        rows.append(
            {
                "latency_ms": f"{name}, {what}",
                "mean": spread.mean,
                "low": low,
                "high": high,
                "p50": spread.p50,
                "p90": spread.p90,
                "p99": spread.p99,
            }
        )
    return rows


def document(found: ServingEstimate | SplitEstimate) -> dict[str, Any]:
    """An estimate as plain data; the memory as its ledger."""
    plain = {f.name: getattr(found, f.name) for f in dataclasses.fields(found) if f.name != "memory"}
    plain = {name: dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value for name, value in plain.items()}  # type: ignore[arg-type]
    ledger = found.memory
    return {
        "model": ledger.model.name,
        "gpu": ledger.gpu.name,
        "parallel": str(ledger.parallel),
        "stack": ledger.stack,
        **plain,
        "memory": ledger.frame.to_dict("records"),
        "kv_tokens": ledger.kv_tokens,
    }
