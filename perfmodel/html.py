"""What a notebook shows of a result: a line, and a table of a few facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any


def summary(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """HTML of a title and a table with a column for each key of the first row; floats to three figures."""
    columns = list(rows[0]) if rows else []
    head = "".join(f"<th>{escape(str(name))}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(_cell(row[name]))}</td>' for name in columns)}</tr>" for row in rows)
    return f"<p><b>{escape(title)}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
