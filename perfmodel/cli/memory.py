"""`perfmodel memory`: where the memory of one GPU goes, and how many requests it holds."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perfmodel.cli import options
from perfmodel.cli.output import Csv, Json, check_format, write_csv, write_json, write_table
from perfmodel.cli.wording import ENGINE, as_options
from perfmodel.errors import InputError
from perfmodel.plan.flags import Engine, read_command
from perfmodel.plan.memory import MemoryLedger, memory_ledger
from perfmodel.plan.parallel import Parallel
from perfmodel.units import GIB, MIB

app = options.single("Memory of one GPU of an engine, line by line, and its KV cache; needs no GPU.")
CONTEXTS = (2048, 8192, 32768, 131072)
Text = str | None


@app.command()
def main(
    gpu: options.Gpu,
    model: Annotated[
        Text, typer.Option("--model", help="A bundled name, a config.json, its folder, or a hub id in the local cache.")
    ] = None,
    command: Annotated[Text, typer.Option("--command", help="A `vllm serve` or SGLang start command to read instead of options.")] = None,
    tp: Annotated[Text, typer.Option("--tp", help="Tensor parallel size.")] = None,
    pp: Annotated[Text, typer.Option("--pp", help="Pipeline parallel size.")] = None,
    ep: Annotated[Text, typer.Option("--ep", help="Expert parallel size.")] = None,
    dp: Annotated[Text, typer.Option("--dp", help="Data parallel size of attention.")] = None,
    quantization: Annotated[Text, typer.Option("--quantization", help="As published without it.")] = None,
    kv_cache_dtype: Annotated[Text, typer.Option("--kv-cache-dtype", help="auto, fp8 ...")] = None,
    stack: Annotated[str, typer.Option("--stack", help="vllm, sglang or trtllm.")] = "vllm",
    memory_fraction: Annotated[Text, typer.Option("--memory-fraction", help="gpu_memory_utilization, mem_fraction_static ...")] = None,
    json_: Json = False,
    csv_: Csv = False,
) -> None:
    """Show the ledger and the KV cache; exit 0 also where the model does not fit (`fits` says so)."""
    check_format(json_, csv_)
    with as_options(ENGINE):
        engine = engine_of(model, command, stack, (tp, pp, ep, dp), quantization, kv_cache_dtype)
        ledger = memory_ledger(
            engine.model,
            gpu,
            tensor_parallel_size=engine.parallel.tp,
            pipeline_parallel_size=engine.parallel.pp,
            expert_parallel_size=engine.parallel.ep,
            data_parallel_size=engine.parallel.dp,
            quantization=engine.quantization,
            kv_cache_dtype=engine.kv_cache_dtype,
            stack=engine.stack,
            memory_fraction=fraction_of(engine, memory_fraction),
            max_num_batched_tokens=engine.max_num_batched_tokens,
            max_num_seqs=engine.max_num_seqs,
        )
    rows: list[Any] = list(ledger.frame.to_dict("records"))
    held = [{"context_tokens": c, "max_concurrency": ledger.max_concurrency(c)} for c in CONTEXTS if c <= ledger.model.max_context]
    if json_:
        tokens = {"value": ledger.kv_tokens, "low": ledger.kv_tokens_low, "high": ledger.kv_tokens_high}
        write_json({"fits": ledger.fits, "kv_tokens": tokens, "ledger": rows, "max_concurrency": held})
    elif csv_:
        write_csv(rows)
    else:
        fits = (
            f"{ledger.kv_tokens:,} tokens of KV cache ({ledger.kv_tokens_low:,} to {ledger.kv_tokens_high:,})"
            if ledger.fits
            else "does not fit"
        )
        write_table(entries(ledger), head=[f"{ledger.model.name} on {ledger.gpu.name}, {ledger.parallel}, {ledger.stack}: {fits}", ""])
        write_table(held, head=[""])


def entries(ledger: MemoryLedger) -> list[dict[str, Any]]:
    """The ledger's lines for people: GiB to two places, MiB where that would be less than a tenth of one."""
    sizes = ((name, value) for name, value in ledger.entries.items())
    return [{"entry": name, "memory": _size(value), "share_percent": f"{100.0 * value / ledger.total_bytes:.2f}"} for name, value in sizes]


def _size(value_bytes: float) -> str:
    return f"{value_bytes / GIB:.2f} GiB" if abs(value_bytes) >= 0.1 * GIB else f"{value_bytes / MIB:.1f} MiB"


def fraction_of(engine: Engine, text: Text) -> Any:
    """The memory fraction of --command, else of --memory-fraction."""
    if engine.memory_fraction is not None and text is not None:
        raise InputError("--command says the memory fraction: leave --memory-fraction out, or write it into the command")
    return engine.memory_fraction if engine.memory_fraction is not None else options.number(text)


def engine_of(
    model: Text, command: Text, stack: str, sizes: tuple[Text, Text, Text, Text], quantization: Text, kv_cache_dtype: Text
) -> Engine:
    """The engine of --command, or of --model with its --tp, --pp, --ep and --dp."""
    if (model is None) == (command is None):
        raise InputError("give --model or --command, one of the two")
    if model is not None and not model.strip():
        raise InputError("--model is empty: give a bundled name, a config.json, its folder, or a hub id in the local cache")
    if command is not None:
        given = [f"--{n}" for n, v in zip(("tp", "pp", "ep", "dp"), sizes, strict=True) if v is not None]
        given += [f"--{n}" for n, v in (("quantization", quantization), ("kv-cache-dtype", kv_cache_dtype)) if v is not None]
        if given:
            raise InputError(f"--command says what the engine is: write {', '.join(given)} into the command")
        return read_command(command)
    shape = [
        options.count(name, text) if text is not None else 1 for name, text in zip(("--tp", "--pp", "--ep", "--dp"), sizes, strict=True)
    ]
    return Engine(str(model), stack, Parallel(*shape), quantization, kv_cache_dtype)
