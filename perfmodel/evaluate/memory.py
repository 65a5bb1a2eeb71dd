"""How good the memory ledger is: against what public start-up logs say. `python -m perfmodel.evaluate.memory` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel._resources import measured_data
from perfmodel.plan.memory import MemoryLedger, memory_ledger
from perfmodel.units import GIB

if TYPE_CHECKING:
    import pandas as pd


def logs() -> pd.DataFrame:
    """data/memory_logs.csv."""
    import pandas as pd

    return pd.read_csv(measured_data("memory_logs.csv"))


def ledger_of(row: Any) -> MemoryLedger:
    """The ledger of one log, with the limits that the log states."""
    limits = {name: int(row[name]) for name in ("max_num_batched_tokens", "max_num_seqs") if not np.isnan(row[name])}
    return memory_ledger(
        row["model"],
        row["gpu"],
        tensor_parallel_size=int(row["tp"]),
        quantization=row["quantization"] if isinstance(row["quantization"], str) else None,
        stack=row["stack"],
        memory_fraction=row["memory_fraction"],
        **limits,  # type: ignore[arg-type]
    )


def compare_logs() -> pd.DataFrame:
    """One row a log: weights and KV cache (GiB) predicted and logged, their errors in percent, and whether the KV interval covers the log.

    weights_error_percent, kv_error_percent and covered are empty where the log does not say. kv_gib of a log that gives tokens alone is
    those tokens at full attention.
    """
    frame = logs()
    rows = []
    for row in frame.to_dict("records"):
        ledger = ledger_of(row)
        logged = row["kv_tokens"] * ledger.kv_bytes_per_token / GIB if not np.isnan(row["kv_tokens"]) else row["kv_gib"]
        weights, pool = ledger.weights_bytes / GIB, ledger.kv_bytes / GIB
        rows.append(
            {
                "role": row["role"],
                "source": row["source"],
                "model": row["model"],
                "gpu": row["gpu"],
                "tp": row["tp"],
                "stack": row["stack"],
                "weights_gib": weights,
                "logged_weights_gib": row["weights_gib"],
                "weights_error_percent": 100.0 * (weights / row["weights_gib"] - 1.0),
                "kv_gib": pool,
                "logged_kv_gib": logged,
                "kv_error_percent": 100.0 * (pool / logged - 1.0),
                "covered": np.nan if np.isnan(logged) else float(ledger.kv_low_bytes / GIB <= logged <= ledger.kv_high_bytes / GIB),
            }
        )
    import pandas as pd

    return pd.DataFrame(rows)


def main() -> None:
    """Print every log, and the errors in short."""
    found = compare_logs()
    print(found.round(2).to_string(index=False))
    for name in ("weights", "kv"):
        error = found[f"{name}_error_percent"].abs().dropna()
        print(f"{name}: {len(error)} logs, error median {error.median():.2f} %, mean {error.mean():.2f} %, worst {error.max():.1f} %")
    print(f"KV interval covers {found['covered'].sum():.0f} of {found['covered'].notna().sum()}")


if __name__ == "__main__":
    main()
