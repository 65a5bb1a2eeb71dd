"""Explanation: why a predicted latency is what it is, as rows that print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BAR = 40  # characters of the longest bar


@dataclass(frozen=True, slots=True)
class Explanation:
    """What binds a prediction, what would change it, and what it rests on.

    `terms`: rows of term, alone_us (what that resource alone would take, by the law) and share (of `law_us`, the law's latency); terms
    overlap, so shares may add to more than 1. The answer is law_us times `learnt`, what measured rows make of it. `changes`: rows of
    change (one fact of the GPU made a tenth better) and faster (share of the latency saved).
    `basis`: sentences; `references`: rows of title and where.
    """

    title: str
    verdict: str
    terms: Sequence[Mapping[str, Any]]
    changes: Sequence[Mapping[str, Any]]
    basis: Sequence[str]
    references: Sequence[Mapping[str, str]]
    law_us: float
    learnt: float

    def as_dict(self) -> dict[str, Any]:
        """Plain lists and mappings, for JSON."""
        lists = {name: [dict(row) for row in getattr(self, name)] for name in ("terms", "changes", "references")}
        law = {"law_us": self.law_us, "learnt": self.learnt}
        return {"title": self.title, "verdict": self.verdict, **law, **lists, "basis": list(self.basis)}

    def __str__(self) -> str:
        longest = max((float(row["alone_us"]) for row in self.terms), default=0.0) or 1.0
        width = max((len(str(row["term"])) for row in self.terms), default=0)
        lines = [self.title, self.verdict, "", f"what each resource alone would take, of {self.law_us:.4g} us by the law:"]
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
