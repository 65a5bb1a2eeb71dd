"""NCCL: called from C, as nccl-tests does; collectives alone."""

from __future__ import annotations

from perfmodel.library.stacks.stack import Communication, Stack, register

NCCL = register(Stack("nccl", communication=Communication(graphs=False), runs_operators=False))
