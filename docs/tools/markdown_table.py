"""A table of figures as Markdown, and how its cells are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evaluations import read

EMPTY = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Head and cells, and the stored evaluations that they come from."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    sources: Sequence[str]

    def markdown(self) -> str:
        """The table, and under it the command and origin of each source."""
        align = ["---", *["---:" if self.is_number(column) else "---" for column in range(1, len(self.head))]]
        lines = ["| " + " | ".join(cells) + " |" for cells in (self.head, align, *self.rows)]
        return "\n".join([*lines, "", *self.notes()] if self.sources else lines)

    def is_number(self, column: int) -> bool:
        """Whether a column holds figures."""
        return all(not row[column] or (row[column][0].isdigit() and " x " not in row[column]) for row in self.rows)

    def notes(self) -> list[str]:
        """One line a command: where its rows are from."""
        found = [read(name) for name in self.sources]
        return ["<small>" + "<br>".join(f"<code>{one.command}</code> ({one.origin})" for one in found) + "</small>"]


def number(value: Any, digits: int = 3) -> str:
    """A figure with that many decimals; empty for none."""
    return EMPTY if value is None or (isinstance(value, float) and math.isnan(value)) else f"{value:.{digits}f}"


def percent(share: Any, digits: int = 1) -> str:
    """A share as percent; empty for none."""
    return EMPTY if share is None else f"{100 * share:.{digits}f} %"
