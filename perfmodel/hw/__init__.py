"""Hardware facts: GpuSpec, and the registry that finds one by name."""

from perfmodel.hw.registry import gpu, gpus
from perfmodel.hw.spec import GpuSpec

__all__ = ["GpuSpec", "gpu", "gpus"]
