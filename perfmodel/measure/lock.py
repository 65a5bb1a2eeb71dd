"""One measurement at a time on a GPU: a lock file that the system frees when its holder ends, however it ends."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from perfmodel.errors import NoAnswerError

WAIT_S = 2.0


def lock_folder() -> Path:
    """One folder for all users of the machine."""
    return Path(tempfile.gettempdir()) / "perfmodel-locks"


@contextlib.contextmanager
def gpu_lock(device: str, folder: Path | None = None, wait_s: float = WAIT_S) -> Iterator[Path]:
    """Hold the lock of a GPU, named by its UUID; raises NoAnswerError naming the process that holds it after `wait_s` seconds."""
    import fcntl

    folder = folder or lock_folder()
    path = folder / f"{device}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):
            folder.chmod(0o1777)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise NoAnswerError(f"{path}: the lock of this GPU cannot be opened ({error.strerror})") from None
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
                    message = f"GPU {device} is being calibrated by process {holder}: two at once would disturb each other; wait for it"
                    raise NoAnswerError(message) from None
                time.sleep(0.1)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield path
    finally:
        os.close(handle)
