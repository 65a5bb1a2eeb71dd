"""`perfmodel models`: the bundled models, or one of any kind with its sizes."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.cli import options
from perfmodel.cli.output import Csv, Json, check_format, write_csv, write_json, write_table
from perfmodel.cli.wording import as_options
from perfmodel.plan.catalogue import models
from perfmodel.plan.memory import kv_bytes_per_request
from perfmodel.plan.model import ModelSpec, load_model
from perfmodel.plan.parallel import Parallel
from perfmodel.plan.tensors import active_parameters, parameters

app = options.single("The bundled models, or any one: a name, a config.json or its folder, a hub id.")


@app.command()
def main(
    model: Annotated[str | None, typer.Argument(help="One model; all bundled ones without it.")] = None,
    assume_dense: Annotated[bool, typer.Option("--assume-dense", help="Read an unknown architecture as a plain dense one.")] = False,
    json_: Json = False,
    csv_: Csv = False,
) -> None:
    """List models with their parameters, context and KV cache a token."""
    check_format(json_, csv_)
    with as_options({"assume_dense": "--assume-dense"}):
        found = [load_model(name, None, assume_dense) for name in (models() if model is None else [model])]
    rows = [_row(spec) for spec in found]
    if json_:
        write_json(rows)
    elif csv_:
        write_csv(rows)
    else:
        write_table(rows)


def _row(spec: ModelSpec) -> dict[str, object]:
    kinds = {layer.attention + (f" window {layer.window}" if layer.window else "") for layer in spec.layers}
    return {
        "name": spec.name,
        "parameters_b": parameters(spec) / 1e9,
        "active_b": active_parameters(spec) / 1e9,
        "layers": spec.num_layers,
        "attention": ", ".join(sorted(kinds)),
        "experts": max((layer.num_experts for layer in spec.layers), default=0),
        "weights": spec.weight_dtype,
        "max_context": spec.max_context,
        "kv_kib_per_token": float(kv_bytes_per_request(spec, 2, Parallel(), "bf16") - kv_bytes_per_request(spec, 1, Parallel(), "bf16"))
        / 1024,
        "source": spec.source,
    }
