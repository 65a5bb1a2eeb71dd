"""No stack named: the usual kernel of nobody in particular."""

from __future__ import annotations

from perfmodel.library.stacks.stack import Rule, Stack, always, register
from perfmodel.library.stacks.usual import MLA_DECODE, MLA_PREFILL

SOURCE = "nobody's: what stays where no stack is named"
ANY = register(
    Stack(
        "any",
        mla_prefill=MLA_PREFILL,
        mla_decode=MLA_DECODE,
        moe=(Rule("other", always, "no stack is named", SOURCE),),
        appends_with_queries=True,
    )
)
