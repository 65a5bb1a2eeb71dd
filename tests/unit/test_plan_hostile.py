"""Arguments of the planning calls that cannot be: one InputError, never Python's own error."""

from collections.abc import Callable
from typing import Any

import pytest

import perfmodel as pm

TRAFFIC: dict[str, Any] = {"isl": 100, "osl": 10}


@pytest.fixture(scope="module")
def plan() -> Any:
    return pm.plan("llama-3.1-8b", ["h100_sxm"], **TRAFFIC)


@pytest.mark.parametrize(
    "call",
    [
        lambda plan: pm.plan("llama-3.1-8b", None, **TRAFFIC),
        lambda plan: pm.plan("llama-3.1-8b", ["h100_sxm"], prices=[], **TRAFFIC),
        lambda plan: pm.estimate("llama-3.1-8b", "h100_sxm", arrival_times_s="a", **TRAFFIC),
        lambda plan: pm.estimate("llama-3.1-8b", "h100_sxm", arrival_times_s=0, **TRAFFIC),
        lambda plan: pm.estimate("llama-3.1-8b", "h100_sxm", concurrency=2, seed=-1, **TRAFFIC),
        lambda plan: pm.what_binds(None),
        lambda plan: pm.sensitivity(plan, 5),
        lambda plan: pm.sensitivity(plan, [None]),
        lambda plan: pm.sensitivity(plan, [{"zzz": 1}]),
        lambda plan: pm.max_concurrency("llama-3.1-8b", "h100_sxm", contexts=5),
        lambda plan: pm.rank(pm.Gemm(64, 64, 64), "h100_sxm", kernel=0),
    ],
)
def test_is_one_input_error(plan: Any, call: Callable[[Any], Any]) -> None:
    with pytest.raises(pm.InputError):
        call(plan)
