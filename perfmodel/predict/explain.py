"""Explanation: why a predicted latency is what it is: terms as shares, what a better GPU would change, the rows and papers behind it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.hw.spec import GpuSpec
from perfmodel.learn.domain import of_gpu
from perfmodel.learn.measured_rows import counted, rows_of
from perfmodel.learn.transfer import PATH_MARGIN
from perfmodel.predict.dispatch import Dispatch
from perfmodel.predict.prediction import Prediction
from perfmodel.references import references_of

BETTER = 1.1
WORTH = 0.002  # a change that saves less is not told
FACTS: Mapping[str, tuple[str, ...]] = {
    "DRAM bandwidth": ("dram_bytes_per_s",),
    "tensor rate": ("tensor_flops",),
    "L2 bandwidth": ("l2_bytes_per_s",),
    "L2 size": ("l2_bytes",),
    "SM clock": ("boost_clock_hz", "max_clock_hz", "fp32_flops", "tensor_flops"),
    "special-function rate": ("sfu_per_clock_per_sm",),
    "power limit": ("power_w",),
    "link bandwidth": ("nvlink_bytes_per_s", "pcie_bytes_per_s"),
}
LATENCIES: Mapping[str, tuple[str, ...]] = {"memory latency": ("dram_latency_s", "l2_latency_s")}
LAUNCH = ("launch", "launch and routing")
BAR = 40  # characters of the longest bar


@dataclass(frozen=True, slots=True)
class Explanation:
    """What binds a prediction, what would change it, and what it rests on.

    `terms`: rows of term, alone_us (what that resource alone would take, by the law) and share (of `law_us`, the law's latency); terms
    overlap, so shares may add to more than 1. The answer is law_us times `learnt`, what measured rows make of it. `changes`: rows of
    change (one fact of the GPU made a tenth better) and faster (share of the latency saved).
    `basis`: sentences; `references`: rows of title and where. `dispatch`: which kernel runs and why, with the source of that rule
    ("" where no stack is named or it has no rule).
    """

    title: str
    verdict: str
    terms: Sequence[Mapping[str, Any]]
    changes: Sequence[Mapping[str, Any]]
    basis: Sequence[str]
    references: Sequence[Mapping[str, str]]
    law_us: float
    learnt: float
    dispatch: str = ""
    dispatch_source: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain lists and mappings, for JSON."""
        lists = {name: [dict(row) for row in getattr(self, name)] for name in ("terms", "changes", "references")}
        law = {"law_us": self.law_us, "learnt": self.learnt}
        runs = {"dispatch": self.dispatch, "dispatch_source": self.dispatch_source}
        return {"title": self.title, "verdict": self.verdict, **runs, **law, **lists, "basis": list(self.basis)}

    def __str__(self) -> str:
        longest = max((float(row["alone_us"]) for row in self.terms), default=0.0) or 1.0
        width = max((len(str(row["term"])) for row in self.terms), default=0)
        runs = [f"{self.dispatch} ({self.dispatch_source})."] if self.dispatch else []
        lines = [self.title, self.verdict, *runs, "", f"what each resource alone would take, of {self.law_us:.4g} us by the law:"]
        for row in self.terms:
            us = float(row["alone_us"])
            bar = "#" * max(round(BAR * us / longest), 1 if us > 0 else 0)
            lines.append(f"  {row['term']:{width}}  {us:12.3f} us  {100 * row['share']:5.1f} %  {bar}")
        lines += ["", "what would have to change (each a tenth better, by the law):"]
        lines += [f"  {row['change']:28}  {100 * row['faster']:4.1f} % faster" for row in self.changes] or [
            "  nothing of the GPU: see the launches"
        ]
        lines += ["", "what the number rests on:", *(f"  {line}" for line in self.basis)]
        lines += ["", "references:", *(f"  {row['title']}: {row['where']}" for row in self.references)] if self.references else []
        return "\n".join(lines)


def better(gpu: GpuSpec, fields: tuple[str, ...], factor: float) -> GpuSpec:
    """The same GPU with some facts scaled."""
    new: dict[str, Any] = {}
    for name in fields:
        value = getattr(gpu, name)
        new[name] = {rate: flops * factor for rate, flops in value.items()} if isinstance(value, Mapping) else type(value)(value * factor)
    return dataclasses.replace(gpu, **new)


def explanation(
    found: Prediction,
    *,
    what: str,
    gpu: GpuSpec,
    law: str,
    latency_of: Callable[[GpuSpec], float],
    card: Mapping[str, Any],
    named: bool,
    runs: Dispatch | None = None,
) -> Explanation:
    """Explain `found`. `latency_of(gpu)` is the law's latency on a changed GPU (any unit); `card` is the model's; `named`: stack given."""
    total = found.latency_us
    law_us = float(found.detail.get("law_us", total))
    terms: list[dict[str, Any]] = [
        {"term": t, "alone_us": us, "share": us / law_us} for t, us in sorted(found.terms.items(), key=lambda item: -item[1]) if us > 0
    ]
    now = latency_of(gpu)
    saved = {name: 1.0 - latency_of(better(gpu, fields, BETTER)) / now for name, fields in FACTS.items()}
    saved |= {name: 1.0 - latency_of(better(gpu, fields, 1.0 / BETTER)) / now for name, fields in LATENCIES.items()}
    changes: list[dict[str, Any]] = [{"change": n, "faster": s} for n, s in sorted(saved.items(), key=lambda item: -item[1]) if s > WORTH]
    second = f"; next is {terms[1]['term']} at {100 * terms[1]['share'] / terms[0]['share']:.0f} % of it" if terms[1:] else ""
    verdict = f"bound by {found.bound}{second}."
    if found.bound in LAUNCH:
        verdict += " Launches bind: fewer or fused kernels help, a faster GPU hardly."
    return Explanation(
        title=f"{what} on {gpu.name}: {total:.4g} us, 80 % within {found.low_us:.4g} .. {found.high_us:.4g}",
        verdict=verdict,
        terms=terms,
        changes=changes,
        basis=_basis(found, card, gpu, named),
        references=[{"title": r.title, "where": r.where} for r in references_of(law)],
        law_us=law_us,
        learnt=total / law_us,
        dispatch=runs.sentence if runs else "",
        dispatch_source=runs.source if runs else "",
    )


def _basis(found: Prediction, card: Mapping[str, Any], gpu: GpuSpec, named: bool) -> list[str]:
    lines = [f"{found.tier} tier, model {found.model_id}"]
    gpus = [str(name) for name in card.get("gpus", ())]
    own = rows_of(card, gpu.name)
    if gpus:
        rows = f"{card['rows']} measured rows" if "rows" in card else "measured rows"
        seen = "this GPU's own" if gpus == [gpu.name] else "this GPU's among them" if gpu.name in gpus else "none of this GPU"
        seen = f"{seen}: {counted(own)}" if own else seen
        lines.append(f"{rows} of {', '.join(gpus)} ({seen}), data {card.get('data_hash', 'unknown')}")
    else:
        lines.append("no measured rows: the law with its stated constants alone")
    if found.detail.get("law_us"):
        law_us = found.detail["law_us"]
        law, learnt = (
            ("the law", "what was learnt from rows") if named else ("the nearest stack's law", "what was learnt and the other stacks")
        )
        lines.append(f"{law} says {law_us:.4g} us, {learnt} times {found.latency_us / law_us:.3f}")
    lines.append("inside what those rows show" if found.in_domain else f"outside: {'; '.join(found.outside) or 'it extrapolates'}")
    factor = f"{found.high_us / found.latency_us:.2f}"
    guess = found.tier == "spec" and not card.get("half_widths")
    how = "a stated guess" if guess else "which covered 80 % of the rows that the model had not seen"
    if not guess and gpus and of_gpu(card, gpu):
        how = "the interval of architectures left out" if PATH_MARGIN in card else how
    lines.append(f"interval: within a factor {factor}, {how}")
    if not named:
        lines.append("no stack named: the interval covers how much vLLM, SGLang, TensorRT-LLM and torch differ")
    return lines
