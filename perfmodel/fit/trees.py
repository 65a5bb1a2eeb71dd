"""Universal models and models of one GPU from thousands of rows: one tree over dimensionless features, widths from GPUs left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perfmodel.calibrate.operator_rows import Rows, card, digest, envelope, law_of, sample
from perfmodel.calibrate.operators import fit_constants, group_widths, halves, predict_log, regime_widths, shape_folds
from perfmodel.calibrate.outliers import outliers
from perfmodel.fit.margins import path_margin
from perfmodel.hw import gpu as find_gpu
from perfmodel.learn.boost import NAMED, OWN, SHARED, boost
from perfmodel.learn.calibration import PRIOR_WIDTH
from perfmodel.learn.card import MEASURED_KEY, UNCERTAINTY_KEY
from perfmodel.learn.domain import WIDER, outside
from perfmodel.learn.model import FittedModel
from perfmodel.learn.operators import (
    correction,
    non_roofline_share,
    uncertainty_factor,
)
from perfmodel.learn.transfer import (
    CARD_KEY,
    KNOWN_ARCH_GROUP,
    NEW_ARCH_GROUP,
    PATH_MARGIN,
    TREE_NAMES,
    TREE_SHARES,
    blank,
    known_pairs,
    new_kernels,
    tensor_path,
)
from perfmodel.library.registry import MODELS
from perfmodel.ops.names import STACKS
from perfmodel.predict.libraries import STACKS_KEY

if TYPE_CHECKING:
    pass

Floats = npt.NDArray[np.float64]
SHARED_ROWS, OWN_ROWS = 16_000, 40_000  # rows a GPU: shared tree, own tree
SHARED_ROUNDS, NAMED_ROUNDS, OWN_ROUNDS = 130, 120, 260  # the shared tree: rounds without names, then rounds that may use them
QUICK = {"gemm": 130}  # own rounds where tables are largest, at OWN_ROUNDS / rounds the rate: half the time, errors 1 to 2 % larger
ANY_SHARE = 0.3  # rows repeated without stack and kernel, so that the tree also answers for "any"
OWN_KERNELS = ("attention_prefill", "attention_decode", "moe", "moe_quantised", "mla_prefill", "mla_decode")
ROBUST_OWN = ("moe", "moe_quantised")
"""Models whose trees of single GPUs minimise the absolute error too: among their rows are runs of a bad tactic, several times slower than
the next. Evidence: on held-out shapes H100 15.3 -> 11.6 % and, quantised, 8.6 -> 5.9 %; other GPUs within 0.2, L40S quantised far less."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the tree that a universal model may keep
FEWEST_JUDGES = 2  # GPUs left out that must speak for a choice of their architecture's own: one alone is chance
NEW_ARCH_MARGIN = 1.1
"""Widening for an architecture that is new. GPUs left out err by amounts that scatter by a factor of exp(0.25 to 0.35): the pooled width
of two to four of them covers 79 to 80 % of the next one's rows on average, and this much of it 82 %, give or take 8 to 12 points on a
single one (simulated). Evidence, 43 pairs of GPU and operator left out in turn: 84.2 % on average, standard deviation 8.4; 25 are within
75 to 88, 7 below. Nothing tried tells which GPU will be the worse one: likeness by memory, tensor path, watts a flop or L2, nearness to
measured rows, a whole architecture left out, how far models without one more GPU disagree (it does for prefill, at ten more fits)."""
LEARNT_LOG = 0.2
"""Log correction by the tree that is as uncertain as all the rest of an answer; 0.15 to 0.3 do as well. Evidence, those 43 pairs:
interval score 1.6 % less than with a width for each regime; of the 19 of GEMM, prefill, decode and MoE 14 within 75 to 88 %, not 10. No
better: constants' spread between GPUs times sensitivities (a law evaluated for each), widths by stack, kernel, type or size."""
ONE_GPU_MARGIN = 1.15  # and one GPU of an architecture less: H100 and H200 in turn cover 66 to 84 % of each other's attention rows without
ONE_GPU_LEAST = 0.5  # nor is it trusted to make an interval less than half as wide as that of a new architecture
EQUAL_GPUS = 0.5
"""How far GPUs with few rows are lifted to the weight of ones with many in the shared tree: 0 rows count alike, 1 GPUs do. With 1, a few
hundred rows of one stack on one GPU bent the tree for all: attention decode of L40S and RTX PRO 6000, left out, 16.8 and 16.8 % against
16.3 and 15.8."""


def without_outliers(rows: Rows) -> Rows:
    """The rows without those that a passing disturbance slowed down."""
    return rows.take(~outliers(MODELS[rows.model_key].kind, rows.columns, rows.gpu, rows.log_latency))


def fit_shared(rows: Rows, robust: bool = True) -> FittedModel:
    """The universal model of `rows`: constants with every GPU alike, tree with weights by EQUAL_GPUS. `with_widths` sets its interval."""
    rows = without_outliers(rows)
    constants = fit_constants(rows)
    rows = sample(rows, SHARED_ROWS)
    unnamed = np.random.default_rng(1).random(len(rows)) < ANY_SHARE
    both = [rows, rows.take(unnamed).without_names()]
    pieces = [law_of(part, constants) for part in both]
    target = np.concatenate([part.log_latency - log_law for part, (log_law, _) in zip(both, pieces, strict=True)])
    features = {name: np.concatenate([f[name] for _, f in pieces]) for name in pieces[0][1]}
    gpu = np.concatenate([part.gpu for part in both])
    count = {name: int((gpu == name).sum()) for name in rows.gpus}
    lifted = {name: number**-EQUAL_GPUS for name, number in count.items()}
    weight = np.array([lifted[name] for name in gpu.tolist()])
    weight *= len(gpu) / weight.sum()
    nameless = blank(features)
    tree = boost(nameless, target, weight, rounds=SHARED_ROUNDS, params=SHARED, robust=robust)
    doubled = {name: np.concatenate([features[name], nameless[name]]) for name in features}
    twice = np.concatenate([target, target]), np.concatenate([weight, weight])
    tree = boost(doubled, *twice, rounds=NAMED_ROUNDS, params=NAMED, robust=robust, start=tree)
    archs = {name: find_gpu(name).arch for name in rows.gpus}
    facts = {**card(rows), CARD_KEY: known_pairs([archs[name] for name in gpu.tolist()], features)}
    return FittedModel(
        f"universal:{rows.model_key}:{digest(rows)}", "spec", constants, (-PRIOR_WIDTH, PRIOR_WIDTH), tree, envelope(rows, features), facts
    )


def fit_own(rows: Rows) -> FittedModel:
    """The calibration of one GPU from thousands of rows, with widths from shapes its folds did not see."""
    rows = sample(rows, OWN_ROWS)
    errors, held_rows = [], []
    for train, held in shape_folds(rows, 5)[:2]:
        model = fit_tree(rows.take(train))
        for part in (rows.take(held), rows.take(held).without_names()):
            errors.append(part.log_latency - predict_log(model, part))
            held_rows.append(part)
    model = fit_tree(rows)
    widths = group_widths(
        [np.concatenate([e, r.log_latency, r.columns["stack"]]).reshape(3, -1) for e, r in zip(errors, held_rows, strict=True)]
    )
    named = np.concatenate(errors[::2])
    facts = {
        **model.card,
        "half_widths": {NEW_ARCH_GROUP: widths},
        "held_out_error": float(np.mean(np.abs(np.expm1(named)))),
        "gpu": rows.gpus[0],
        **own_stacks(rows),
    }
    return FittedModel(model.model_id, "calibrated", model.constants, (-max(widths), max(widths)), model.residual, model.envelope, facts)


def own_stacks(rows: Rows) -> dict[str, Any]:
    """Card entry: where stacks bring kernels of their own, a calibration answers for those it saw; for none named if it saw several."""
    if rows.model_key not in OWN_KERNELS:
        return {}
    seen = sorted({int(code) for code in rows.columns["stack"]} - {0})
    return {STACKS_KEY: [STACKS[code] for code in ([0, *seen] if len(seen) > 1 else seen)]}


def fit_tree(rows: Rows) -> FittedModel:
    """Constants and tree of one GPU's rows; its interval is a guess until `fit_own` has measured it."""
    rows = without_outliers(rows)
    constants = fit_constants(rows, evaluations=12)
    unnamed = np.random.default_rng(2).random(len(rows)) < ANY_SHARE
    both = [rows, rows.take(unnamed).without_names()]
    pieces = [law_of(part, constants) for part in both]
    target = np.concatenate([part.log_latency - log_law for part, (log_law, _) in zip(both, pieces, strict=True)])
    features = {name: np.concatenate([f[name] for _, f in pieces]) for name in pieces[0][1]}
    rounds = QUICK.get(rows.model_key, OWN_ROUNDS)
    params = {**OWN, "eta": OWN["eta"] * OWN_ROUNDS / rounds}
    tree = boost(features, target, None, rounds=rounds, params=params, robust=rows.model_key in ROBUST_OWN)
    name, facts = f"{rows.gpus[0]}:{rows.model_key}:{digest(rows)}", card(rows)
    facts[TREE_NAMES] = facts[MEASURED_KEY]["names"]
    return FittedModel(name, "calibrated", constants, (-PRIOR_WIDTH, PRIOR_WIDTH), tree, envelope(rows, features), facts)


def left_out_errors(model: FittedModel, rows: Rows) -> Floats:
    """(error, log latency, stack, log ratio of the tree, inside, new, beyond) of rows of a GPU the model did not see, named and unnamed.

    inside: whether the row's size, types and kind are among the model's; new: whether it says that its kernel is new on the tensor path;
    beyond as `beyond_rates`.
    """
    spec, pieces = find_gpu(rows.gpus[0]), []
    named = sample(rows, 6000)
    for part in (named, named.without_names()):
        terms, learnt = correction(spec, rows.model_key, part.columns, model)
        law = np.log(terms.latency_s)
        full = law + learnt
        new = np.broadcast_to(new_kernels(model.card, spec.arch, terms.features), len(part))
        inside = (outside(model, spec, terms, part.columns) & WIDER) == 0
        beyond = non_roofline_share(terms.features)
        pieces.append(np.stack([part.log_latency - full, part.log_latency, part.columns["stack"], full - law, inside, new, beyond]))
    return np.concatenate(pieces, axis=1)


def choose_shares(errors: Mapping[str, Sequence[Floats]]) -> dict[str, float]:
    """Shares of SHARES by whether the architecture was measured, each the one that predicts such GPUs left out best.

    A group of fewer than FEWEST_JUDGES is judged by all GPUs. `errors` as `left_out_errors` gives, by group.
    """
    everything = [e for parts in errors.values() for e in parts]
    judges = {name: parts if len(parts) >= FEWEST_JUDGES else everything for name, parts in errors.items()}
    return {name: min(SHARES, key=lambda share: mean_error(parts, share)) if parts else 1.0 for name, parts in judges.items()}


def mean_error(errors: Sequence[Floats], share: float) -> float:
    """Mean |predicted / measured - 1| of named rows of GPUs left out, all GPUs alike, with this share of their models' trees."""
    return float(np.mean([np.mean(np.abs(np.expm1(-(e[0] + (1.0 - share) * e[3])[e[2] > 0]))) for e in errors]))


def with_widths(model: FittedModel, errors: Mapping[str, Floats], archs: Mapping[str, str], left_out: str | None) -> FittedModel:
    """Set the tree's shares and the interval from errors of GPUs left out in turn; `left_out` (this model's own) does not count.

    A GPU whose architecture was among the others' belongs to the `known` group, else to `new`; so do its rows, but those whose kernel is
    new count as `new`, and those outside the model's domain not at all: an interval is widened there. A GPU alone on its tensor path has
    no say in a share: on a new path half of the tree counts.
    """
    paths = {name: tensor_path(arch) for name, arch in archs.items()}
    group = {name: KNOWN_ARCH_GROUP if alike(archs, errors, name) else NEW_ARCH_GROUP for name in errors}
    others = [name for name in errors if name != left_out]
    shares = choose_shares(
        {each: [errors[n] for n in others if group[n] == each and alike(paths, errors, n)] for each in (KNOWN_ARCH_GROUP, NEW_ARCH_GROUP)}
    )
    known: list[Floats] = []
    new: list[Floats] = []
    for name in others:
        e = errors[name]
        learnt = shares[group[name]] * e[3]
        e = np.concatenate([(e[:1] + e[3] - learnt) / uncertainty_factor(learnt, e[6], e[2], LEARNT_LOG), e[1:]])
        e = e[:, e[4] > 0]
        measured = (e[5] == 0) & (group[name] == KNOWN_ARCH_GROUP)
        known += [e[:, measured]] if measured.any() else []
        new += [e[:, ~measured]] if not measured.all() else []
    widths: dict[str, list[float]] = {KNOWN_ARCH_GROUP: [], NEW_ARCH_GROUP: []}
    for one, other, apart in zip(halves(known), halves(new), (False, True), strict=True):
        judged = (regime_widths(parts, apart) for parts in (other, [*one, *other], [*known, *new]))
        far = [NEW_ARCH_MARGIN * width for width in next(filter(None, judged), [PRIOR_WIDTH] * 3)]
        near = regime_widths(one, apart) or far
        if len(one) == 1:
            near = [max(ONE_GPU_MARGIN * a, ONE_GPU_LEAST * b) for a, b in zip(near, far, strict=True)]
        widths[KNOWN_ARCH_GROUP] += [round(width, 4) for width in near]
        widths[NEW_ARCH_GROUP] += [round(width, 4) for width in far]
    widest = max(max(w) for w in widths.values())
    margin = path_margin(model.card.get(CARD_KEY, ()), paths.get(left_out or ""))
    facts = {**model.card, "half_widths": widths, UNCERTAINTY_KEY: LEARNT_LOG, TREE_SHARES: shares, PATH_MARGIN: margin}
    return replace(model, interval=(-widest, widest), card=facts)


def alike(kinds: Mapping[str, str], names: Iterable[str], name: str) -> bool:
    """Whether another of `names` is of the same kind (architecture, tensor path) as `name`."""
    return any(kinds[other] == kinds[name] for other in names if other != name)
