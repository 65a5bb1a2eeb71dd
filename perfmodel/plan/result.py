"""Plan: what a search found, as tables and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.errors import NoAnswerError
from perfmodel.plan import evidence
from perfmodel.plan.candidates import NO_ROOM, Candidate, Rejected
from perfmodel.plan.flags import WRITTEN, Engine, command
from perfmodel.plan.goal import MOST_GPUS, PERCENTILES, Goal
from perfmodel.plan.memory import MemoryLedger
from perfmodel.plan.model import ModelSpec
from perfmodel.plan.operating import Curve
from perfmodel.plan.operators import widened
from perfmodel.plan.parallel import Parallel
from perfmodel.plan.prices import Price

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.plan.disagg import SplitEstimate
    from perfmodel.plan.estimate import ServingEstimate

Row = dict[str, Any]
RUNNERS_UP = 6


@dataclass(frozen=True, repr=False)
class Plan:
    """Every deployment that was looked at, and the choice among them.

    Attributes
    ----------
    rows : sequence of Row
        One deployment each, units in the names; ttft and tpot are means, TPOT leaves out the first token; low and high bound the 80 %
        interval.
    best, nearest : Row or None
        The choice; where none meets the goal, the one that misses it least.
    frame : pandas.DataFrame
        The rows as a table.
    """

    model: ModelSpec
    goal: Goal
    stack: str
    rows: Sequence[Row]
    engines: Sequence[tuple[Candidate, Curve]]
    rejected: Sequence[Rejected]
    prices: Mapping[str, Price]
    asked: Mapping[str, Any]  # the arguments of plan

    @classmethod
    def of(
        cls,
        model: ModelSpec,
        wanted: Goal,
        stack: str,
        rows: Sequence[Row],
        engines: Sequence[tuple[Candidate, Curve]],
        rejected: Sequence[Rejected],
        prices: Mapping[str, Price],
        asked: Mapping[str, Any],
    ) -> Plan:
        """A plan with its rows in order of preference."""
        if not rows:
            need = f"{wanted.request_rate:g} requests/s" if wanted.request_rate else f"{wanted.concurrency or ''} requests in flight"
            limit = wanted.total_gpus or MOST_GPUS
            more = "allow more GPUs" if wanted.total_gpus else "give total_gpus (--total-gpus) to look further"
            raise NoAnswerError(f"no deployment of {model.name} within {limit} GPUs carries {need}: {more}, or ask for less")
        return cls(model, wanted, stack, sorted(rows, key=lambda row: order(row, wanted)), engines, rejected, prices, asked)

    @property
    def examined(self) -> int:
        """Deployments that were looked at: those priced, and those ruled out before."""
        return len(self.rows) + len(self.rejected)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """All priced deployments, the preferred first."""
        import pandas as pd

        return pd.DataFrame(list(self.rows))

    @property
    def feasible(self) -> pd.DataFrame:
        """Those that meet the goal."""
        return self.frame[self.frame["meets"]].reset_index(drop=True)

    @property
    def best(self) -> Row | None:
        """The preferred deployment that meets the goal, None where there is none."""
        return next((row for row in self.rows if row["meets"]), None)

    @property
    def safe(self) -> Row | None:
        """The preferred deployment that meets the goal also at the upper end of the 80 % interval, None where there is none."""
        return next((row for row in self.rows if row["meets"] and row["sure"]), None)

    @property
    def nearest(self) -> Row:
        """The deployment that comes nearest to the goal: the best, or the one whose worst limit is missed least."""
        return self.best or min(self.rows, key=lambda row: row["tightest_used"])

    @property
    def best_each(self) -> list[Row]:
        """The preferred deployment of each GPU, mode, parallelism and quantisation, in order."""
        seen: dict[tuple[Any, ...], Row] = {}
        for row in self.rows:
            seen.setdefault(kind_of(row), row)
        return list(seen.values())

    @property
    def runners_up(self) -> list[Row]:
        """The next ones, each with `why_not`; at least one of each GPU, and of each mode on the chosen one."""
        chosen = self.nearest
        others = [row for row in self.best_each if row is not chosen]
        first = others[:RUNNERS_UP]
        for row in others:  # one of each GPU, and of each mode on the chosen one
            if not any(r["gpu"] == row["gpu"] and (r["mode"] == row["mode"] or r["gpu"] != chosen["gpu"]) for r in (*first, chosen)):
                first.append(row)
        return [{**row, "why_not": why_not(row, chosen, self.goal)} for row in first]

    @property
    def pareto(self) -> pd.DataFrame:
        """Deployments that no other beats in both tokens a second and user, and tokens a second and GPU; of all kinds of GPU together."""
        return front(self.frame)

    @property
    def ledger(self) -> MemoryLedger:
        """Memory of one GPU of the chosen deployment (of the decode side, where the two are apart)."""
        return self.engine_of(self.nearest)[0].ledger

    def engine_of(self, row: Row) -> tuple[Candidate, Curve]:
        """The engine behind a row, and its curve."""
        parallel = Parallel(row["tp"], row["pp"], row["ep"], row["dp"])
        return next(
            (engine, curve)
            for engine, curve in self.engines
            if engine.gpu.name == row["gpu"]
            and engine.parallel == parallel
            and (engine.quantization or engine.model.weight_dtype) == row["quantization"]
        )

    def what_binds(self) -> pd.DataFrame:
        """The limits of the chosen deployment and how much of each is used, the tightest first; over 100 % is missed."""
        import pandas as pd

        row = self.nearest
        engine, curve = self.engine_of(row)
        used = {f"{name} <= {limit:g} ms": 100.0 * x for name, x, limit in self._limits(row)}
        used["KV cache"] = row["kv_used_percent"]
        if row["mode"] == "agg":
            used["requests/s the engines finish"] = 100.0 * row["requests_per_s"] / row["replicas"] / float(curve.rate_s.max())
        if self.goal.total_gpus:
            used[f"GPUs <= {self.goal.total_gpus}"] = 100.0 * row["gpus"] / self.goal.total_gpus
        if self.goal.budget_usd_per_hour:
            used[f"budget <= {self.goal.budget_usd_per_hour:g} USD/h"] = 100.0 * row["usd_per_hour"] / self.goal.budget_usd_per_hour
        used["memory of the card"] = 100.0 * (1.0 - engine.ledger.entries["left free"] / engine.ledger.total_bytes)
        rows = sorted(used.items(), key=lambda item: -item[1])
        return pd.DataFrame(rows, columns=["limit", "used_percent"])

    def _limits(self, row: Row) -> list[tuple[str, float, float]]:
        limits = {"ttft": self.goal.ttft_ms, "tpot": self.goal.tpot_ms}
        return [(name, x, float(limits[name] or 0)) for name, x in self.goal.misses(row["ttft_ms"], row["tpot_ms"]).items()]

    def commands(self, model: str | None = None) -> dict[str, str]:
        """The start command of one engine of each role ("serve", or "prefill" and "decode") of the chosen deployment; none for trtllm."""
        if self.stack not in WRITTEN:
            return {}
        row = self.nearest
        engine, _ = self.engine_of(row)
        seqs = max(1, math.ceil(row["concurrency_per_engine"] / engine.parallel.dp))
        if row["mode"] == "agg":
            return {"serve": self._command(engine, seqs, model)}
        prefill = next(e for e, _ in self.engines if _same_kind(e, engine) and e.parallel == row["prefill_shape"])
        return {"prefill": self._command(prefill, None, model), "decode": self._command(engine, seqs, model)}

    def _command(self, engine: Candidate, seqs: int | None, model: str | None) -> str:
        return command(
            Engine(
                model or self.model.name,
                self.stack,
                engine.parallel,
                engine.quantization if engine.quantization == "fp8" else None,  # the rest are checkpoints of their own
                engine.ledger.kv_dtype if engine.ledger.kv_dtype == "fp8" else None,
                seqs,
                engine.ledger.chunk_tokens,
                self.goal.isl + self.goal.osl,
                engine.ledger.fraction,
            )
        )

    def check(self, row: Row | None = None) -> ServingEstimate | SplitEstimate:
        """One engine of the choice, or of `row`, simulated under its share of the traffic (one group where prefill and decode are apart).

        Gives percentiles, and a cross-check of the closed form that the search uses.
        """
        row = row or self.nearest
        engine, _ = self.engine_of(row)
        rate = self.goal.request_rate
        in_flight = row["concurrency_per_engine"] * row.get("decode_engines", 1)
        same: dict[str, Any] = {
            "isl": self.goal.isl,
            "osl": self.goal.osl,
            "concurrency": None if rate else round(in_flight),
            "request_rate": rate / row["replicas"] if rate else None,
            "kv_cache_dtype": engine.ledger.kv_dtype,
            "stack": self.stack,
            "prefix_cache_hit_rate": self.goal.prefix_cache_hit_rate,
            "accepted_tokens_per_step": self.goal.accepted_tokens_per_step,
            "calibration": self.asked["calibration"],
        }
        if row["mode"] == "disagg":
            from perfmodel.plan.disagg import Pool, estimate_split

            pools = Pool(row["prefill_engines"], row["prefill_shape"]), Pool(row["decode_engines"], engine.parallel)
            return estimate_split(engine.model, engine.gpu, prefill=pools[0], decode=pools[1], **same)
        from perfmodel.plan.estimate import estimate

        return estimate(
            engine.model,
            engine.gpu,
            tensor_parallel_size=row["tp"],
            pipeline_parallel_size=row["pp"],
            expert_parallel_size=row["ep"],
            data_parallel_size=row["dp"],
            memory_fraction=engine.ledger.fraction,
            **same,
        )

    def sentence(self) -> str:
        """The answer in one line."""
        row = self.nearest
        what = _words(row)
        if self.best is not None:
            sure = "" if row["sure"] else " (within the interval it may miss a limit)"
            return f"best: {what}{sure}"
        binds = f"{row['tightest']} binds ({100 * row['tightest_used']:.0f} % of its limit)"
        return f"no deployment meets the goal: {binds}; the nearest is {what}"

    def notes(self) -> list[str]:
        """What the reader must know of the figures."""
        lines = ["TTFT and TPOT are means; TPOT leaves out the first token; ranges are 80 % intervals"]
        if self.goal.percentile != "mean":
            lines.append(
                f"limits are on the {self.goal.percentile} of a simulation; only the choice and what came before it were simulated"
            )
        if self.goal.accepted_tokens_per_step > 1.0:
            lines.append("speculative decoding: the draft's own time is not counted, and the start command leaves it to you")
        if self.best is not None and not self.best["sure"]:
            safe = _words(self.safe) if self.safe else "none that was looked at"
            lines.append(f"meets the limits at the upper end of the interval too: {safe}")
        spec = [(engine.model, engine.gpu, engine.parallel.gpus) for engine, curve in self.engines if curve.tier == "spec"]
        lines += evidence.notes(spec, self.asked.get("calibration", "auto"))
        wide = sorted({(e.gpu.name, e.model.weight_dtype) for e, _ in self.engines if widened(e.model.weight_dtype, e.gpu)})
        lines += [f"{gpu} has no tensor cores for {kind}: weights are widened on the way in, as Marlin kernels do" for gpu, kind in wide]
        lines += self._absent()
        used = sorted(name for name, price in self.prices.items() if price.example)
        if used:
            lines.append(
                f"prices of {', '.join(used)} are examples ({self.prices[used[0]].date}), not quotes: pass your own with prices (--prices)"
            )
        return lines

    def _absent(self) -> list[str]:
        """A line for each kind of GPU that was asked about and of which no deployment is left, with the reason."""
        priced = {row["gpu"] for row in self.rows}
        fits = {engine.gpu.name for engine, _ in self.engines}
        lines = []
        for gpu in dict.fromkeys([*sorted(fits), *(rejected.gpu for rejected in self.rejected)]):
            if gpu in priced:
                continue
            if gpu in fits:
                lines.append(f"{gpu}: no deployment within {self.goal.total_gpus or MOST_GPUS} GPUs carries the traffic")
                continue
            largest = max((r for r in self.rejected if r.gpu == gpu), key=lambda r: (r.reason.startswith(NO_ROOM), r.parallel.gpus))
            lines.append(
                f"{gpu}: no engine of up to {largest.parallel.gpus} GPUs: {largest.reason}; max_engine_gpus (--max-engine-gpus) allows more"
            )
        return lines

    def to_html(self, path: str | Path) -> Path:
        """Write one self-contained page: the choice, runners-up, Pareto, latency against load, memory ledger, what binds.

        Raises InputError where the file cannot be written.
        """
        from perfmodel.plan.page import write_page

        return write_page(self, Path(path))

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, and the choice beside its runners-up."""
        from perfmodel.plan.page import summary

        return summary(self)

    def __repr__(self) -> str:
        return f"<Plan of {self.model.name}: {self.sentence()}>"

    def __str__(self) -> str:
        return self.sentence()


def _words(row: Row) -> str:
    shape = row["parallel"] if row["mode"] == "agg" else f"({row['parallel']})"
    return (
        f"{row['gpus']} x {row['gpu']}: {row['replicas']} x {shape}, {row['quantization']} weights, "
        f"TTFT {row['ttft_ms']:.0f} ms, TPOT {row['tpot_ms']:.1f} ms{_tail(row)}, {row['requests_per_s']:.3g} requests/s"
    )


def _tail(row: Row) -> str:
    """The percentiles of a simulated row, in brackets."""
    found = [(p, row.get(f"ttft_{p}_ms"), row.get(f"tpot_{p}_ms")) for p in PERCENTILES]
    known = [(p, ttft, tpot) for p, ttft, tpot in found if ttft is not None and tpot is not None]
    return "".join(f" ({p} {ttft:.0f}{f' and {tpot:.1f}' if math.isfinite(tpot) else ''} ms)" for p, ttft, tpot in known)


def kind_of(row: Row) -> tuple[Any, ...]:
    """What makes a deployment one of its kind, however many of it there are: GPU, mode, parallelism and quantisation."""
    return tuple(row[name] for name in ("gpu", "mode", "parallel", "quantization"))


def _same_kind(a: Candidate, b: Candidate) -> bool:
    return a.gpu.name == b.gpu.name and a.quantization == b.quantization


def order(row: Row, wanted: Goal) -> tuple[float, ...]:
    """Key of preference: first those that meet the goal, then by objective; ties by fewer GPUs, then by more tokens a second and user."""
    primary = {
        "gpus": float(row["gpus"]),
        "cost": _cost(row, wanted),
        "throughput": -float(row[_most(wanted)]),
    }[wanted.objective]
    return (float(not row["meets"]), primary, float(row["gpus"]), -float(row["tok_s_per_user"]))


def _most(wanted: Goal) -> str:
    """What the objective throughput counts: all tokens of the GPUs that are there, or a GPU's."""
    return "throughput_tok_s" if wanted.total_gpus else "tok_s_per_gpu"


def _cost(row: Row, wanted: Goal) -> float:
    """Dollars an hour where the traffic is given, else dollars a token; a GPU without a price comes last."""
    fixed = wanted.request_rate is not None or wanted.concurrency is not None
    value = row["usd_per_hour"] if fixed else row["usd_per_hour"] / row["throughput_tok_s"]
    return float(value) if np.isfinite(value) else np.inf


def front(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of deployments that no other row beats in both tokens a second and user, and tokens a second and GPU."""
    ordered = frame.sort_values(["tok_s_per_user", "tok_s_per_gpu"], ascending=False)
    best = ordered["tok_s_per_gpu"].cummax().shift(fill_value=-np.inf)
    return ordered[ordered["tok_s_per_gpu"] > best].reset_index(drop=True)


def why_not(row: Row, chosen: Row, wanted: Goal) -> str:
    """Why the chosen deployment is preferred to this one."""
    if not row["meets"]:
        return f"misses {row['tightest']}: {100 * row['tightest_used']:.0f} % of the limit"
    if wanted.objective == "gpus" and row["gpus"] != chosen["gpus"]:
        return f"needs {row['gpus']} GPUs against {chosen['gpus']}"
    if wanted.objective == "cost":
        if not np.isfinite(row["usd_per_hour"]):
            return f"no price for {row['gpu']}"
        return f"costs {row['usd_per_hour']:.2f} USD/h against {chosen['usd_per_hour']:.2f}"
    if wanted.objective == "throughput":
        fewer = 100 * (1 - row[_most(wanted)] / chosen[_most(wanted)])
        return f"{fewer:.0f} % fewer tokens a second{'' if wanted.total_gpus else ' and GPU'}"
    return f"as many GPUs, but {row['tok_s_per_user']:.0f} tokens a second and user against {chosen['tok_s_per_user']:.0f}"
