"""The calibrated tier judged honestly: fit on a few rows of some shapes of a sweep, predict the whole of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from perfmodel.calibrate.design import PLAUSIBLE
from perfmodel.calibrate.kernel import fit_kernel
from perfmodel.errors import InputError
from perfmodel.evaluate.ranking import Predictor, Sweep
from perfmodel.hw import GpuSpec
from perfmodel.kernels.facts import facts_for
from perfmodel.learn.calibration import spec_model
from perfmodel.learn.intervals import group_folds
from perfmodel.learn.model import FittedModel
from perfmodel.predict.configs import predict_configs

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
FAVOURITES = 3  # of each shape's rows, how many are the spec tier's first choices; the rest are random plausible ones


def predictor(family: str, gpu: GpuSpec, model: FittedModel) -> Predictor:
    """What evaluate_ranking asks: latency, low and high of a sweep's configs by one model."""

    def predict(sweep: Sweep) -> tuple[Floats, Floats, Floats]:
        facts = facts_for(family, gpu, sweep.dtype, sweep.configs, sweep.sizes)
        found = predict_configs(family, gpu, sweep.sizes, sweep.dtype, sweep.configs, facts, model)
        return found.latency_us, found.low_us, found.high_us

    return predict


def cross_validate(
    family: str, gpu: GpuSpec, sweeps: Sequence[Sweep], *, rows: int, shapes: int = 30, folds: int = 3, seed: int = 0
) -> Predictor:
    """A predictor whose answer for each sweep comes from a model fitted on `rows` rows of at most `shapes` other shapes.

    Every fold holds out whole shapes of each dtype; the rows of a training shape are chosen without looking at a latency (the spec
    tier's favourites and random plausible configs). Raises InputError with fewer than 8 shapes.
    """
    import pandas as pd

    if len(sweeps) < 8:
        raise InputError(f"fitting and judging on different shapes needs 8 or more shapes, got {len(sweeps)}")
    base = spec_model(gpu, f"kernel_{family}")
    answers = {}
    for train, held in group_folds(np.arange(len(sweeps)), folds, seed):
        rng = np.random.default_rng([seed, int(np.flatnonzero(held)[0])])
        known = []
        for dtype in sorted({s.dtype for s in sweeps}):
            mine = [sweeps[i] for i in rng.permutation(np.flatnonzero(train)).tolist() if sweeps[i].dtype == dtype][:shapes]
            known.append(_sample(mine, family, gpu, base, rows // max(1, len(mine)), rng))
        fitted = predictor(family, gpu, fit_kernel(family, gpu, pd.concat(known, ignore_index=True)))
        for s in (sweeps[i] for i in np.flatnonzero(held).tolist()):
            answers[s.label] = fitted(s)
    return lambda sweep: answers[sweep.label]


def _sample(sweeps: Sequence[Sweep], family: str, gpu: GpuSpec, base: FittedModel, each: int, rng: np.random.Generator) -> pd.DataFrame:
    """`each` rows of every sweep, as a table that fit_kernel reads."""
    import pandas as pd

    frames = []
    first = predictor(family, gpu, base)
    for s in sweeps:
        guess, _, _ = first(s)
        order = np.argsort(guess, kind="stable")
        pool = order[FAVOURITES:][guess[order[FAVOURITES:]] <= PLAUSIBLE * guess.min()]
        chosen = np.concatenate([order[:FAVOURITES], rng.choice(pool, size=min(max(each - FAVOURITES, 0), len(pool)), replace=False)])
        frame = pd.DataFrame(s.configs.take(chosen).rows())
        frames.append(frame.assign(**s.sizes, dtype=s.dtype, latency_us=s.latency_us[chosen]))
    return pd.concat(frames, ignore_index=True)
