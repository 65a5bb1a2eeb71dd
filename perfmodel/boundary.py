"""Where outside data comes in: files are read with a limit, and whatever is wrong with them or their content is one InputError line.

text = read_text(path)                       # a plain file, UTF-8, of at most LARGEST_BYTES
data = parse_json(text, path)                # or parse_toml
card = validated(CardModel, data, path)      # a pydantic model; its first fault names field, value and what is allowed
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from perfmodel.errors import InputError, plain, shown

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    Model = TypeVar("Model", bound=BaseModel)

LARGEST_BYTES = 64 * 2**20
"""Of a text that is read whole: configs, cards, prices, exports. Tables of rows may be larger, see LARGEST_TABLE_BYTES."""
LARGEST_TABLE_BYTES = 2**30
PLAIN_WORDS = {
    "dict_type": "an object", "model_type": "an object", "model_attributes_type": "an object", "list_type": "a list",
    "string_type": "text", "bool_type": "true or false", "bool_parsing": "true or false",
    "int_type": "a whole number", "int_parsing": "a whole number", "int_from_float": "a whole number",
    "float_type": "a number", "float_parsing": "a number", "finite_number": "a finite number",
}  # fmt: skip
"""What is allowed, by pydantic's type of a fault, where its own sentence speaks of Python."""
_LONGEST_PATH = 120
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def path_shown(path: object) -> str:
    """A path as a message shows it: its end, which tells files apart."""
    text = plain(os.fspath(path) if isinstance(path, os.PathLike) else path, 4096)
    return text if len(text) <= _LONGEST_PATH else f"...{text[3 - _LONGEST_PATH :]}"


def expanded(path: str | Path) -> Path:
    """A path with ~ replaced by a home folder; raises InputError where there is no such home, and for what is no path."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"{path_shown(path)}: there is no such home folder: name the path in full") from None
    except TypeError:
        raise InputError(f"{shown(path)} is no path: expected a text or a Path") from None


def readable(path: str | Path, limit: int = LARGEST_BYTES) -> Path:
    """The path, once it is known to be a plain file of at most `limit` bytes; raises InputError in one line otherwise."""
    where = path_shown(path)
    try:
        state = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError(f"{where}: cannot be read ({_reason(error)})") from None
    for is_kind, name in _KINDS:
        if is_kind(state.st_mode):
            raise InputError(f"{where}: {name}, expected a plain file")
    if state.st_size > limit:
        raise InputError(f"{where}: {state.st_size / 2**20:.0f} MiB, expected a file of at most {limit / 2**20:.0f} MiB")
    return Path(path)


def read_bytes(path: str | Path, limit: int = LARGEST_BYTES) -> bytes:
    """Content of a plain file of at most `limit` bytes; raises InputError in one line otherwise."""
    found = readable(path, limit)
    try:
        with found.open("rb") as handle:
            content = handle.read(limit + 1)  # files of /proc say that they are empty
    except OSError as error:
        raise InputError(f"{path_shown(path)}: cannot be read ({_reason(error)})") from None
    if len(content) > limit:
        raise InputError(f"{path_shown(path)}: expected a file of at most {limit / 2**20:.0f} MiB")
    return content


def read_text(path: str | Path, limit: int = LARGEST_BYTES) -> str:
    """Text of a plain UTF-8 file, without its byte order mark; raises InputError in one line otherwise."""
    try:
        return read_bytes(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path_shown(path)}: not a text file (byte {error.start} is not UTF-8)") from None


def parse_json(text: str, where: object) -> Any:
    """What a JSON text says; raises InputError in one line for one that is broken, half-written or nested too deep. `where` names it."""
    import json

    try:
        return json.loads(text)
    except RecursionError:
        raise InputError(f"{path_shown(where)}: nested too deep") from None
    except ValueError as error:
        raise InputError(f"{path_shown(where)}: not JSON, perhaps half-written ({plain(error, 120)})") from None


def parse_toml(text: str, where: object) -> dict[str, Any]:
    """What a TOML text says; raises InputError in one line for a broken one. `where` names it."""
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise InputError(f"{path_shown(where)}: nested too deep") from None
    except ValueError as error:  # TOMLDecodeError, and a date or number that Python cannot hold
        raise InputError(f"{path_shown(where)}: not valid TOML ({plain(error, 120)}): correct it or delete it") from None


def read_json(path: str | Path, limit: int = LARGEST_BYTES) -> Any:
    """What a JSON file says; raises InputError in one line."""
    return parse_json(read_text(path, limit), path)


def read_toml(path: str | Path, limit: int = LARGEST_BYTES) -> dict[str, Any]:
    """What a TOML file says; raises InputError in one line."""
    return parse_toml(read_text(path, limit), path)


def validated(model: type[Model], data: Any, where: object = "", names: Mapping[str, str] | None = None) -> Model:
    """`data` as a pydantic model; raises InputError for its first fault. `names`: field to what the user's interface calls it."""
    from pydantic import ValidationError

    try:
        return model.model_validate(data)
    except ValidationError as error:
        line = fault(error, names)
    except RecursionError:
        line = "nested too deep"
    raise InputError(f"{path_shown(where)}: {line}" if where else line)


def fault(error: ValidationError, names: Mapping[str, str] | None = None) -> str:
    """The first fault of a pydantic error as one line: field, value, what is allowed."""
    first, *others = error.errors(include_url=False, include_context=False)
    names = names or {}
    place = [part for part in first["loc"] if not (isinstance(part, str) and part.endswith("]"))]  # tags such as function-after[...]
    field = ".".join(names.get(str(part), plain(part)) for part in place) or "the whole"
    more = f" (and {len(others)} more)" if others else ""
    if first["type"] == "missing":
        return f"{field} is missing{more}"
    if first["type"] == "extra_forbidden":
        return f"{field} is not known here{more}"
    allowed = PLAIN_WORDS.get(first["type"]) or first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    allowed = allowed.removeprefix("Input should be ").removeprefix("a valid ")
    return f"{field} is {shown(first['input'])}: expected {plain(allowed.removeprefix('expected '), 120)}{more}"


def _reason(error: OSError | ValueError) -> str:
    if not isinstance(error, OSError):
        return "no such name of a file"
    return error.strerror or str(error)


@contextlib.contextmanager
def parquet() -> Iterator[None]:
    """Around what reads or writes parquet, which is an extra: raises InputError with the next step where its package is missing."""
    try:
        yield
    except ImportError:
        raise InputError("parquet needs one package more: pip install 'perfmodel[parquet]', or give CSV or JSON lines") from None
