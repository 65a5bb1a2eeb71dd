"""The GPUs that torch sees in this process."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.errors import NoAnswerError


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of this machine: torch's index, the driver's UUID and the GPU's name."""

    index: int
    uuid: str
    name: str = ""


def devices_here() -> list[Device]:
    """The GPUs that torch sees, CUDA_VISIBLE_DEVICES respected. Raises NoAnswerError without torch or a GPU."""
    try:
        import torch
    except ImportError:
        raise NoAnswerError("calibrating needs torch: pip install 'perfmodel[gpu]'; --from fits stored rows without") from None
    if not torch.cuda.is_available():
        raise NoAnswerError("no CUDA device is visible to torch: run this on a machine with the GPU, or fit stored rows with --from")
    found = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        uuid = getattr(facts, "uuid", None)
        found.append(Device(index, f"GPU-{uuid}" if uuid else str(index), str(facts.name)))
    return found
