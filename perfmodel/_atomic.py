"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from perfmodel.errors import InputError


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path`, or what it links to, by a file with `content`, never a half-written one; InputError for a device or folder."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise InputError(f"cannot write {path}: it is not a plain file")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content.encode() if isinstance(content, str) else content)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
