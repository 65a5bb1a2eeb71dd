"""The law of an operator as the rest of the package knows it: registered by the module that has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from perfmodel.hw.spec import GpuSpec
from perfmodel.library.terms import Floats, OperatorTerms


class TermsOf(Protocol):
    """The terms of n operators on a GPU, with the constants of the law."""

    def __call__(self, gpu: GpuSpec, columns: Mapping[str, Floats], c: Mapping[str, float], /) -> OperatorTerms:
        """Price a table."""
        ...


@dataclass(frozen=True, slots=True)
class OperatorLaw:
    """One fitted law.

    kind: the tables that it reads; law: the file of its constants in calibration/physics; shape: columns of which rows that share them are
    held out together; domain: features whose training range says whether an answer extrapolates; data: file of data/operators with its
    rows; answers: which rows of its kind it is for (None: all of them); rules: the decision list of a Stack that chooses its kernels, and
    records: the file of what those are, in calibration/physics ("" where a law knows no kernels apart).
    """

    name: str
    kind: str
    law: str
    terms: TermsOf
    shape: tuple[str, ...]
    domain: tuple[str, ...]
    data: str
    answers: Callable[[Mapping[str, Floats]], npt.NDArray[np.bool_]] | None = None
    rules: str = ""
    records: str = ""


REGISTRY: dict[str, OperatorLaw] = {}


def register(*laws: OperatorLaw) -> None:
    """Make laws known by their names."""
    REGISTRY.update({law.name: law for law in laws})
