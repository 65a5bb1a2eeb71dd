"""Rank the configs of a kernel for one problem on one GPU, without touching a GPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from perfmodel.errors import InputError, NoAnswerError, shown
from perfmodel.hw import gpu as find_gpu
from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels import config_columns, family_for, kernel_family
from perfmodel.kernels.configs import Configs, family_configs
from perfmodel.kernels.facts import facts_for
from perfmodel.learn.calibration import CalibrationLike
from perfmodel.ops.check import size
from perfmodel.ops.operator import Operator, check_operator
from perfmodel.predict.configs import ConfigPredictions, op_sizes, predict_configs
from perfmodel.predict.kernel_domain import kernel_model, kernel_reasons

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.tune.kernel_rank import KernelRanking

COLD = "nothing"  # is replayed: every launch finds its operands in DRAM
TWIN_PENALTY = 0.05  # about the model's own error on held-out shapes


@dataclass(frozen=True, slots=True)
class Ranking:
    """Configs of one problem, best first.

    Attributes
    ----------
    frame : pandas.DataFrame
        One row a config, best first: its fields, latency_us low_us high_us, bound waves blocks_per_sm limiter, in_domain exact_facts.
    pruned : list of (dict, str)
        Every config that was pruned, and why.
    configs, predictions : Configs, ConfigPredictions
        The legal ones in the order given; `order` ranks them, `legal_positions` are their places in the whole list.
    dropped, reasons : Configs, tuple of str
        The pruned ones.
    """

    op: Operator
    kernel: str
    gpu: GpuSpec
    configs: Configs
    predictions: ConfigPredictions
    order: np.ndarray[Any, np.dtype[np.int64]]
    dropped: Configs
    reasons: tuple[str, ...]
    legal_positions: np.ndarray[Any, np.dtype[np.int64]]
    top_k: int | None = None
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.order)

    def _repr_html_(self) -> str:
        """What a notebook shows: the best configs."""
        return str(self.frame.head(10).to_html())

    @property
    def pruned(self) -> list[tuple[dict[str, Any], str]]:
        """(config, reason) of every config that was pruned."""
        return list(zip(self.dropped.rows(), self.reasons, strict=True))

    @property
    def frame(self) -> pd.DataFrame:
        """One row a config, best first: its fields, latency_us low_us high_us, bound waves blocks_per_sm limiter, in_domain exact_facts.

        `position` counts in the legal configs; `exact_facts` says whether registers and shared memory were compiled.
        """
        import pandas as pd

        order = self.order if self.top_k is None else self.order[: self.top_k]
        p, t = self.predictions, self.predictions.terms
        columns: dict[str, Any] = {"variant": self.configs.variant[order]}
        columns |= {name: self.configs[name][order] for name in config_columns(self.kernel)[1:]}
        columns |= {"latency_us": p.latency_us[order], "low_us": p.low_us[order], "high_us": p.high_us[order]}
        columns |= {
            "bound": t.bound()[order],
            "waves": t.waves[order],
            "blocks_per_sm": t.blocks_per_sm[order],
            "limiter": t.limiter[order],
        }
        columns |= {"in_domain": p.in_domain[order], "exact_facts": t.exact_facts[order], "position": order}
        return pd.DataFrame(columns)

    def shortlist(self, k: int) -> list[int]:
        """Positions (in `configs`) of the `k` configs worth timing: best predicted first, near twins held back.

        Configs of one variant and one output tile (the family's TWINS) share most of the model's error, so each one already chosen
        makes the next of its kind count TWIN_PENALTY slower. The first is always the best predicted.
        """
        twins = [self.configs[name] for name in kernel_family(self.kernel).TWINS]
        kinds = np.stack([self.configs.code.astype(np.int64), *twins], axis=1)
        kind = np.unique(kinds, axis=0, return_inverse=True)[1].ravel()
        latency = self.predictions.latency_us
        score = latency.copy()
        chosen: list[int] = []
        taken = np.zeros(kind.max() + 1)
        for _ in range(min(size("k", k), len(self.order))):
            best = int(np.argmin(score))
            chosen.append(best)
            taken[kind[best]] += 1
            same = kind == kind[best]
            score[same] = latency[same] * (1.0 + TWIN_PENALTY * taken[kind[best]])
            score[chosen] = np.inf
        return chosen

    def outside(self, place: int) -> tuple[str, ...]:
        """What no row behind the answer to the config at this place of the order shows, in words."""
        i, found = int(self.order[place]), self.predictions
        one = {name: np.broadcast_to(values, len(self.configs))[i : i + 1] for name, values in found.terms.features.items()}
        return kernel_reasons(int(found.outside[i]), self.gpu, self.kernel, self.op.dtype, str(self.configs.variant[i]), found.model, one)

    def top(self, k: int) -> list[dict[str, Any]]:
        """The best `k` configs as plain dicts: the caller's own rows where a list was given, else the kernel's fields."""
        count = size("k", k)
        best = self.order[:count]
        if self.configs.given is not None:
            return [dict(self.configs.given[i]) for i in best]
        return self.configs.take(best).rows()


@overload
def rank(
    op: Operator,
    gpu: str | GpuSpec,
    *,
    kernel: str | None = None,
    configs: Any = None,
    top_k: int | None = None,
    calibration: CalibrationLike = "auto",
    replayed: str = COLD,
) -> Ranking: ...


@overload
def rank(op: Any, gpu: str | GpuSpec, *, kernel: Callable[..., Any] | object, configs: Any = None, **call: Any) -> KernelRanking: ...


def rank(
    op: Any,
    gpu: str | GpuSpec,
    *,
    kernel: Any = None,
    configs: Any = None,
    top_k: int | None = None,
    calibration: CalibrationLike = "auto",
    replayed: str = COLD,
    **call: Any,
) -> Ranking | KernelRanking:
    """Rank Triton configs for an operator on a GPU by predicted latency; no GPU is needed.

    Parameters
    ----------
    op : Gemm, Attention, MoE ... or mapping
        What is computed; for a kernel of your own, an operator or argument names and numbers.
    gpu : str or GpuSpec
        On which GPU.
    kernel : str or triton.JITFunction, optional
        A kernel family; None: the one that computes `op`. Any @triton.jit function: its configs are compiled for the GPU and ranked from
        their machine code, for one call described by `op`, grid=, arguments= and trip_count= (tune/kernel_rank.py).
    configs : list, DataFrame, optional
        Mappings, rows or triton.Config of somebody else's kernel of that kind, under any usual spelling; None: the kernel's own space.
    top_k : int, optional
        How many the result shows; None: all.
    calibration : "auto", None, str, Path or Calibration
        As in `predict`.
    replayed : str
        What is launched over and over without a flush between: "nothing" (operands are cold, as in a served model), or for an MoE "layer"
        or "projection".

    Returns
    -------
    Ranking or KernelRanking
        Configs, best first, in `.frame`; what was pruned, and why, in `.pruned`; never empty while one config can run.

    Raises
    ------
    InputError
        For an unknown GPU or kernel, an operator that the kernel does not compute, and configs that cannot be read.
    NoAnswerError
        When no config can run on the GPU.

    Examples
    --------
    >>> import perfmodel as pm
    >>> best = pm.rank(pm.Gemm(4096, 14336, 4096), "h100_sxm", top_k=8)
    >>> len(best.frame)
    8
    """
    if kernel is not None and not isinstance(kernel, str):
        if not callable(getattr(kernel, "fn", kernel)):
            raise InputError(f"kernel is {shown(kernel)}: expected the name of a family, or a @triton.jit function")
        from perfmodel.measure.kernel_call import jit_function
        from perfmodel.tune.kernel_rank import rank_kernel

        jit_function(kernel)
        if call.get("grid") is None:
            raise InputError("a kernel of your own needs grid: a tuple, a function, or text like 'cdiv(M, BLOCK_M)'")
        if unknown := sorted(set(call) - set(inspect.signature(rank_kernel).parameters)):
            raise InputError(f"rank knows no {unknown[0]}: a call of a kernel of your own has grid, arguments and trip_count")
        _replay_code("a kernel of your own", (COLD,), replayed)
        return rank_kernel(op, gpu, kernel, configs=configs, top_k=top_k, **call)
    if call:
        raise InputError(f"{', '.join(call)} describe a call of a kernel of your own: give that kernel as kernel=")
    check_operator(op)
    spec = gpu if isinstance(gpu, GpuSpec) else find_gpu(gpu)
    limit = None if top_k is None else size("top_k", top_k)
    name = kernel or family_for(op)
    family = kernel_family(name)
    again = _replay_code(f"kernel {name}", getattr(family, "REPLAYED", (COLD,)), replayed)
    sizes = op_sizes(op, name)
    spec.tensor_rate(family.rate_of(op.dtype))
    candidates = family.space(spec, **sizes, dtype=op.dtype) if configs is None else family_configs(family, configs)
    facts = facts_for(name, spec, op.dtype, candidates, sizes)
    checks = family.rules(spec, **sizes, dtype=op.dtype, configs=candidates, facts=facts)
    keep = np.ones(len(candidates), dtype=bool)
    reason = np.full(len(candidates), -1)
    for hard_only in (False, True):
        keep[:] = True
        reason[:] = -1
        for i, rule in enumerate(checks):
            if rule.hard or not hard_only:
                reason[keep & rule.mask] = i
                keep &= ~rule.mask
        if keep.any():
            break
    if not keep.any():
        raise NoAnswerError(f"no config can run on {spec.name}: {checks[int(reason[0])].reason}")
    reasons = tuple(checks[i].reason for i in reason[~keep])
    dropped = candidates.take(~keep)
    positions = np.flatnonzero(keep)
    legal = candidates if keep.all() else candidates.take(positions)
    legal_facts = facts if keep.all() else facts.take(positions)
    model = kernel_model(spec, name, op.dtype, calibration)
    predictions = predict_configs(name, spec, sizes | again, op.dtype, legal, legal_facts, model)
    order = np.argsort(predictions.latency_us, kind="stable").astype(np.int64)
    notes = (f"a {replayed} replayed without a flush: what fits stays in L2; every fit and interval is of a cold one",) if again else ()
    return Ranking(op, name, spec, legal, predictions, order, dropped, reasons, positions, limit, notes)


def _replay_code(kernel: str, known: Sequence[str], replayed: str) -> dict[str, int]:
    """The size that says what is replayed, none where that is nothing; raises InputError for what the kernel's law does not know."""
    if not isinstance(replayed, str) or replayed not in known:
        raise InputError(f"replayed is {shown(replayed)}: expected {' or '.join(known)} for {kernel}")
    return {} if replayed == COLD else {"replayed": known.index(replayed)}
