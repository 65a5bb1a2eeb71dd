"""StepTable: the time of any step of one deployment, by interpolation between priced points."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from perfmodel.learn.calibration import CalibrationLike
from perfmodel.plan import operators
from perfmodel.plan.deployment import Deployment
from perfmodel.plan.step import TIERS, Costs, price

Floats = npt.NDArray[np.float64]
TOKENS = np.array(
    [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384]
)
SEQUENCES = np.array([1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048])
KV_LENGTHS = np.array([32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072])
PROMPTS = np.array([1, 4, 16, 64])
CHUNKS = np.array([16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768])
PASTS = np.array([0, 1024, 4096, 16384, 65536])
_TOKENS, _SEQUENCES, _KV_LENGTHS, _PROMPTS, _CHUNKS, _PASTS = (
    [float(x) for x in grid] for grid in (TOKENS, SEQUENCES, KV_LENGTHS, PROMPTS, CHUNKS, PASTS)
)
PARTS = ("tokens", "output", "decode", "prefill")


@dataclass(slots=True)
class StepTable:
    """Time of a step of one deployment: tokens + output + decode attention + prefill attention, each from its own grid.

    Between grid points time is linear in the size; below the first it is flat, beyond the last it goes on in proportion. Seconds.
    """

    deployment: Deployment
    costs: Mapping[str, Costs]
    _tokens: list[float] = field(init=False, repr=False)
    _output: list[float] = field(init=False, repr=False)
    _decode: dict[int, list[float]] = field(default_factory=dict, repr=False)
    _prefill: dict[int, list[list[float]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._tokens = self.costs["tokens"].seconds.tolist()
        self._output = self.costs["output"].seconds.tolist()

    def tokens_s(self, tokens: float) -> float:
        """Everything that depends on the number of tokens alone: projections, MLP or experts, norms, communication."""
        return _line(_TOKENS, self._tokens, tokens)

    def output_s(self, sequences: float) -> float:
        """Language-model head and sampling."""
        return _line(_SEQUENCES, self._output, sequences)

    def decode_s(self, sequences: int, kv_len: float) -> float:
        """Decode attention of `sequences` with kv_len keys each on average."""
        row = self._decode.get(sequences)
        if row is None:
            grid = self.costs["decode"].seconds.reshape(len(SEQUENCES), len(KV_LENGTHS)).T.tolist()
            row = self._decode[sequences] = [_line(_SEQUENCES, values, sequences) for values in grid]
        return _line(_KV_LENGTHS, row, kv_len)

    def prefill_s(self, prompts: int, q_len: float, past: float) -> float:
        """Prefill attention of `prompts` chunks of q_len tokens after `past` earlier ones."""
        plane = self._prefill.get(prompts)
        if plane is None:
            grid = self.costs["prefill"].seconds.reshape(len(PROMPTS), len(CHUNKS), len(PASTS)).transpose(2, 1, 0).tolist()
            plane = self._prefill[prompts] = [[_line(_PROMPTS, values, prompts) for values in rows] for rows in grid]
        if past <= 0:
            return _line(_CHUNKS, plane[0], q_len)
        return _line(_PASTS, [_line(_CHUNKS, row, q_len) for row in plane], past)

    @property
    def tier(self) -> str:
        """The weakest tier of the operators."""
        return min((cost.tier for cost in self.costs.values()), key=TIERS.index)

    def terms_s(self, sequences: int, kv_len: float) -> dict[str, float]:
        """Seconds of a decode step by operator group."""
        found = _terms(self.costs["tokens"], _TOKENS, sequences)
        for name, value in _terms(self.costs["output"], _SEQUENCES, sequences).items():
            found[name] = found.get(name, 0.0) + value
        found["attention"] = self.decode_s(sequences, kv_len)
        return found

    def prompt_terms_s(self, tokens: float) -> dict[str, float]:
        """Seconds of one prompt by operator group."""
        found = _terms(self.costs["tokens"], _TOKENS, tokens)
        found["attention"] = self.prefill_s(1, tokens, 0)
        return found

    def width(self, sequences: int, kv_len: float) -> tuple[float, float]:
        """Factors that bound a decode step at 80 %: widths of its parts in quadrature, relative to their sum."""
        parts = (("tokens", TOKENS, self.tokens_s(sequences)), ("output", SEQUENCES, self.output_s(sequences)))
        total, low, high = 0.0, 0.0, 0.0
        for name, grid, seconds in parts:
            cost, i = self.costs[name], min(int(np.searchsorted(grid, sequences)), len(grid) - 1)
            total += seconds
            low += (seconds * (1.0 - cost.low_s[i] / cost.seconds[i])) ** 2
            high += (seconds * (cost.high_s[i] / cost.seconds[i] - 1.0)) ** 2
        cost, seconds, i = self.costs["decode"], self.decode_s(sequences, kv_len), self._decode_point(sequences, kv_len)
        low += (seconds * (1.0 - cost.low_s[i] / cost.seconds[i])) ** 2
        high += (seconds * (cost.high_s[i] / cost.seconds[i] - 1.0)) ** 2
        total += seconds
        return float(max(1.0 - np.sqrt(low) / total, 0.05)), float(1.0 + np.sqrt(high) / total)

    def inside(self, sequences: int, kv_len: float) -> float:
        """Share of a decode step's time that lies within what the operators were fitted on."""
        tokens, attention = self.tokens_s(sequences), self.decode_s(sequences, kv_len)
        i = min(int(np.searchsorted(TOKENS, sequences)), len(TOKENS) - 1)
        shares = self.costs["tokens"].in_domain[i], self.costs["decode"].in_domain[self._decode_point(sequences, kv_len)]
        return float((tokens * shares[0] + attention * shares[1]) / (tokens + attention))

    def _decode_point(self, sequences: int, kv_len: float) -> int:
        row = min(int(np.searchsorted(SEQUENCES, sequences)), len(SEQUENCES) - 1)
        return row * len(KV_LENGTHS) + min(int(np.searchsorted(KV_LENGTHS, kv_len)), len(KV_LENGTHS) - 1)


def _terms(cost: Costs, grid: list[float], x: float) -> dict[str, float]:
    return {name: _line(grid, values.tolist(), x) for name, values in cost.terms.items()}


def _line(grid: list[float], values: list[float], x: float) -> float:
    """Linear between grid points, flat below the first, in proportion to x beyond the last."""
    i = bisect_right(grid, x)
    if i == 0:
        return values[0]
    if i == len(grid):
        return values[-1] * x / grid[-1]
    low = grid[i - 1]
    share = (x - low) / (grid[i] - low)
    return values[i - 1] + (values[i] - values[i - 1]) * share


def build_tables(deployments: Sequence[Deployment], calibration: CalibrationLike = "auto") -> list[StepTable]:
    """The step tables of many deployments, priced together: each distinct operator is asked once."""
    book = operators.Book()
    owners: list[Deployment] = []
    sizes: list[int] = []
    b, kv = (x.ravel().astype(np.float64) for x in np.meshgrid(SEQUENCES, KV_LENGTHS, indexing="ij"))
    n, q, past = (x.ravel().astype(np.float64) for x in np.meshgrid(PROMPTS, CHUNKS, PASTS, indexing="ij"))
    tokens, sequences = TOKENS.astype(np.float64), SEQUENCES.astype(np.float64)
    for d in deployments:
        first = len(owners)
        owners += [d] * len(PARTS)
        sizes += [len(tokens), len(sequences), len(b), len(n)]
        operators.token_operators(book, first, d, tokens)
        operators.output_operators(book, first + 1, d, sequences)
        operators.decode_operators(book, first + 2, d, b, kv)
        operators.prefill_operators(book, first + 3, d, n, q, q + past)
    found = price(book, owners, sizes, calibration)
    return [StepTable(d, dict(zip(PARTS, found[i * len(PARTS) : (i + 1) * len(PARTS)], strict=True))) for i, d in enumerate(deployments)]
