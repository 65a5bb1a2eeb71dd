"""NCCL: called from C, as nccl-tests does; collectives alone."""

from __future__ import annotations

from perfmodel.library.stacks.stack import Communication, Stack, register

NCCL = register(Stack("nccl", communication=Communication(host="c", version_of_nccl=True), runs_operators=False))
