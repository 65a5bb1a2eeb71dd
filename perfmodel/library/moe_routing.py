"""How many rows the experts of one GPU get: balanced routing, or the busiest GPU under a power law."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.library.terms import Floats

GROUPS = 12  # expert groups by load, beside the busiest expert


@dataclass(frozen=True, slots=True)
class Loads:
    """Experts of the GPU that finishes last, by load: `rows` of an expert of each group and `experts` in it, both (n, GROUPS + 1).

    `copies`, (n,): rows of this GPU's tiles for each row routed to it; 1 but in tables that send whole tokens (ops/moe_table.py).
    """

    rows: Floats
    experts: Floats
    copies: Floats

    @property
    def touched(self) -> Floats:
        """Experts with any row, shape (n,)."""
        found: Floats = (self.experts * np.minimum(self.rows, 1.0)).sum(axis=-1)
        return found

    @property
    def total(self) -> Floats:
        """Rows in all, shape (n,)."""
        found: Floats = np.maximum(self.copies * (self.experts * self.rows).sum(axis=-1), 1.0)
        return found

    def tiles(self, block: Floats) -> Floats:
        """Tiles of `block` rows (n,) that cover every touched expert's rows, shape (n,)."""
        each = np.minimum(self.rows, 1.0) * np.ceil(np.maximum(self.copies[..., None] * self.rows, 1.0) / block[..., None])
        found: Floats = (self.experts * each).sum(axis=-1)
        return found


def loads(columns: Mapping[str, Floats]) -> Loads:
    """Expected loads of n layers.

    Balanced: tokens x top_k / E rows an expert. Skewed with exponent a: weights w of density w^-a on [1, 0.8 tokens] (on [0.01, 2] when
    there are fewer routed rows than experts), shared out, at most `tokens` an expert; the GPU that counts holds the busiest expert and
    average others. Quantiles of w: w(u)^(1-a) is linear in u; mean over a range of u in closed form.
    Source: the sampling of AIConfigurator's public MoE tables (power_law_<a>, busiest rank first). Valid: a other than 1 and 2.
    """
    experts, top_k, tokens = columns["num_experts"], columns["top_k"], columns["tokens"]
    local = experts / columns["ep"]
    mean = tokens * top_k / experts
    skew = np.where(columns["skew"] > 0, columns["skew"], 1.5)
    skew = np.where(np.abs(skew - 1.0) < 1e-3, 1.001, np.where(np.abs(skew - 2.0) < 1e-3, 2.001, skew))
    many = tokens * top_k > experts
    low, high = np.where(many, 1.0, 0.01), np.where(many, np.maximum(0.8 * tokens, 2.0), 2.0)
    p = 1.0 / (1.0 - skew)
    start, slope = np.power(low, 1.0 / p), np.power(high, 1.0 / p) - np.power(low, 1.0 / p)

    def integral(u: Floats) -> Floats:
        """Integral of w from 0 to u, (n, len(u))."""
        base = start[..., None] + slope[..., None] * u
        area: Floats = (np.power(base, p[..., None] + 1.0) - np.power(start, p + 1.0)[..., None]) / ((p + 1.0) * slope)[..., None]
        return area

    top = 1.0 - 1.0 / experts
    edges = np.concatenate([top[..., None] * np.linspace(0.0, 1.0, GROUPS + 1), np.ones_like(experts)[..., None]], axis=-1)
    mass = np.diff(integral(edges), axis=-1)
    share = mass / mass.sum(axis=-1, keepdims=True)  # of all rows, by group; the last is the busiest expert alone
    peak = np.minimum(share[..., -1], 1.0 / top_k)  # a token picks an expert once
    rest = share[..., :-1] * ((1.0 - peak) / np.maximum(1.0 - share[..., -1], 1e-12))[..., None]
    routed = (tokens * top_k)[..., None]
    others = np.maximum(experts - 1.0, 1.0)[..., None] / GROUPS
    skewed = np.concatenate([rest / others, peak[..., None]], axis=-1) * routed
    groups = np.concatenate([np.broadcast_to((local - 1.0)[..., None] / GROUPS, rest.shape), np.ones_like(experts)[..., None]], axis=-1)
    each = np.floor(mean + 1e-9)  # dealt out in turn, some experts get one row more than others
    more = np.maximum(mean - each, 0.0)
    even = np.concatenate([np.broadcast_to(each[..., None], rest.shape), each[..., None] + 1.0], axis=-1)
    dealt = np.concatenate([np.broadcast_to((local * (1.0 - more))[..., None] / GROUPS, rest.shape), (local * more)[..., None]], axis=-1)
    routed_unevenly = columns["skew"][..., None] > 0
    rows, held = np.where(routed_unevenly, skewed, even), np.where(routed_unevenly, groups, dealt)
    most = tokens * top_k / np.maximum((rows * held).sum(axis=-1), 1e-9)
    return Loads(rows, held, np.where(columns["whole_tokens"] > 0, np.maximum(np.minimum(top_k, most), 1.0), 1.0))
