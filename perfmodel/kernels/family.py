"""What a family of Triton kernels is to the rest: a module of this package that has every name of KernelFamily and registers itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from perfmodel.hw.spec import GpuSpec
from perfmodel.kernels.configs import Configs
from perfmodel.kernels.facts import Facts
from perfmodel.kernels.terms import Rule, Terms
from perfmodel.ops.operator import Operator
from perfmodel.ops.work import Work


class KernelFamily(Protocol):
    """One family; its modules have these names at their top level. `sizes` are those of SIZES, scalars or arrays beside the configs."""

    @property
    def NAME(self) -> str:
        """Name in questions; calibration/physics/<name>.toml has the constants, models are of kernel_<name>."""
        ...

    @property
    def SIZES(self) -> Sequence[str]:
        """Sizes of its problem."""
        ...

    @property
    def FLAGS(self) -> Sequence[str]:
        """Those among them that may be 0."""
        ...

    @property
    def ALIASES(self) -> Mapping[str, Sequence[str]]:
        """By size: columns of other people's tables."""
        ...

    @property
    def DEFAULTS(self) -> Mapping[str, int]:
        """Sizes that a table may leave out."""
        ...

    @property
    def ARGUMENTS(self) -> Mapping[str, Sequence[str]]:
        """By size: arguments of other people's kernels, the likeliest first."""
        ...

    @property
    def VARIANTS(self) -> Sequence[str]:
        """Variants of its code, the ordinary one first."""
        ...

    @property
    def PLAIN(self) -> str:
        """The variant that stands for somebody else's kernel of that form."""
        ...

    @property
    def COLUMNS(self) -> Sequence[str]:
        """Columns of a config, in the order they are shown."""
        ...

    @property
    def REQUIRED(self) -> Sequence[str]:
        """Those without which there is no config."""
        ...

    @property
    def TWINS(self) -> Sequence[str]:
        """Those whose equality makes two configs near twins."""
        ...

    @property
    def BINARY(self) -> Sequence[str]:
        """What decides the machine code."""
        ...

    @property
    def FIXED(self) -> Mapping[str, Any]:
        """What else the compiler is told."""
        ...

    def computes(self, op: Any, /) -> bool:
        """Whether its kernels compute an operator."""
        ...

    def operator(self, dtype: str, **sizes: Any) -> Operator:
        """The operator of these sizes."""
        ...

    def sizes_of(self, op: Any, /) -> dict[str, int]:
        """SIZES of an operator; raises InputError for one that the kernels cannot run."""
        ...

    def rate_of(self, dtype: str, /) -> str:
        """The tensor-core rate that a dtype needs; raises InputError for one the kernels do not have."""
        ...

    def work(self, dtype: str, **sizes: Any) -> Work:
        """Flops and compulsory bytes of a problem."""
        ...

    def space(self, gpu: GpuSpec, dtype: str, **sizes: Any) -> Configs:
        """Every config worth asking about, before the rules."""
        ...

    def portable_space(self, gpu: GpuSpec, dtype: str, **sizes: Any) -> Configs:
        """What other people's kernels usually offer."""
        ...

    def binaries(self, arch: int, dtype: str, /) -> list[dict[str, Any]]:
        """What measure.compile has to compile, so that every config has its facts."""
        ...

    def code_of(self, configs: Configs, sizes: Mapping[str, Any] | None, /) -> Mapping[str, Any]:
        """The BINARY columns."""
        ...

    def formula(self, gpu: GpuSpec, dtype: str, configs: Configs, sizes: Mapping[str, Any] | None, /) -> Mapping[str, Any]:
        """Facts without compiling, by the names of facts.VALUES."""
        ...

    def rules(self, gpu: GpuSpec, dtype: str, configs: Configs, facts: Facts, **sizes: Any) -> list[Rule]:
        """Configs to prune, with reasons."""
        ...

    def terms(self, gpu: GpuSpec, dtype: str, configs: Configs, facts: Facts, constants: Mapping[str, float], **sizes: Any) -> Terms:
        """Physical terms of each config."""
        ...


REGISTRY: dict[str, KernelFamily] = {}


def register(family: KernelFamily) -> None:
    """Make a family known by its NAME."""
    REGISTRY[family.NAME] = family
