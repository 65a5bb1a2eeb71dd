"""StepTable: the time of any step of one deployment, by interpolation between priced points."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from perfmodel.plan import operators
from perfmodel.plan.deployment import Deployment
from perfmodel.plan.step import CalibrationLike, Costs, price

Floats = npt.NDArray[np.float64]
TOKENS = np.array(
    [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384]
)
SEQUENCES = np.array([1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048])
KV_LENGTHS = np.array([32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072])
PROMPTS = np.array([1, 4, 16, 64])
CHUNKS = np.array([16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768])
PASTS = np.array([0, 1024, 4096, 16384, 65536])
PARTS = ("tokens", "output", "decode", "prefill")


@dataclass(slots=True)
class StepTable:
    """Time of a step of one deployment: tokens + output + decode attention + prefill attention, each from its own grid.

    Between grid points time is linear in the size (logarithms of the sizes are the grid's only spacing); beyond the last one it goes on
    in proportion. Seconds.
    """

    deployment: Deployment
    costs: Mapping[str, Costs]
    _memo: dict[tuple[int, int, int], float] = field(default_factory=dict)
    _by_sequences: dict[int, list[float]] = field(default_factory=dict)

    def tokens_s(self, tokens: float) -> float:
        """Everything that depends on the number of tokens alone: projections, MLP or experts, norms, communication."""
        return _line(TOKENS, self.costs["tokens"].seconds, tokens)

    def output_s(self, sequences: float) -> float:
        """Language-model head and sampling."""
        return _line(SEQUENCES, self.costs["output"].seconds, sequences)

    def decode_s(self, sequences: int, kv_len: float) -> float:
        """Decode attention of `sequences` with kv_len keys each on average."""
        row = self._by_sequences.get(sequences)
        if row is None:
            grid = self.costs["decode"].seconds.reshape(len(SEQUENCES), len(KV_LENGTHS))
            row = self._by_sequences[sequences] = [_line(SEQUENCES, grid[:, i], sequences) for i in range(len(KV_LENGTHS))]
        return _line(KV_LENGTHS, row, kv_len)

    def prefill_s(self, prompts: int, q_len: float, past: float) -> float:
        """Prefill attention of `prompts` chunks of q_len tokens after `past` earlier ones."""
        key = (prompts, round(q_len), round(past))
        found = self._memo.get(key)
        if found is None:
            grid = self.costs["prefill"].seconds.reshape(len(PROMPTS), len(CHUNKS), len(PASTS))
            plane = [[_line(PROMPTS, grid[:, i, j], prompts) for j in range(len(PASTS))] for i in range(len(CHUNKS))]
            found = self._memo[key] = _line(PASTS, [_line(CHUNKS, [row[j] for row in plane], q_len) for j in range(len(PASTS))], past)
        return found


def _line(grid: npt.NDArray[np.int_], values: Sequence[float] | Floats, x: float) -> float:
    """Linear between grid points, flat below the first, in proportion to x beyond the last."""
    if x <= grid[0]:
        return float(values[0])
    if x >= grid[-1]:
        return float(values[-1]) * x / float(grid[-1])
    i = bisect_right(grid, x)
    low, high = float(grid[i - 1]), float(grid[i])
    share = (x - low) / (high - low)
    return float(values[i - 1]) * (1.0 - share) + float(values[i]) * share


def build_tables(deployments: Sequence[Deployment], calibration: CalibrationLike = "auto") -> list[StepTable]:
    """The step tables of many deployments, priced together: each distinct operator is asked once."""
    book, owners, sizes = operators.Book(), [], []
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
