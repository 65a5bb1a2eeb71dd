"""No stack named: the usual kernel of nobody in particular."""

from __future__ import annotations

from perfmodel.library.stacks.stack import Stack, register

ANY = register(Stack("any", appends_with_queries=True))
