"""Reader of UBJSON, the format in which boosted trees are stored (ubjson.org, draft 12)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

_NUMBERS = {"i": ">b", "U": ">B", "I": ">h", "l": ">i", "L": ">q", "d": ">f", "D": ">d"}
_PACKED = {mark: struct.Struct(kind) for mark, kind in _NUMBERS.items()}
_WORDS = {"Z": None, "T": True, "F": False}


def read_ubjson(data: bytes) -> Any:
    """The value that the bytes hold, arrays of one type of numbers as numpy's. Raises ValueError for what is no UBJSON."""
    try:
        return _Reader(data).value()
    except (IndexError, KeyError, RecursionError, struct.error, TypeError) as error:
        raise ValueError("not UBJSON") from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def mark(self) -> str:
        self.at += 1
        return chr(self.data[self.at - 1])

    def count(self) -> int:
        found: int = self.value()
        if not 0 <= found <= len(self.data) - self.at:  # whatever is counted takes a byte or more
            raise ValueError("not UBJSON")
        return found

    def text(self) -> str:
        length = self.count()
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def value(self, mark: str = "") -> Any:
        mark = mark or self.mark()
        if mark in _PACKED:
            kind = _PACKED[mark]
            self.at += kind.size
            return kind.unpack_from(self.data, self.at - kind.size)[0]
        if mark == "{":
            found = {}
            while chr(self.data[self.at]) != "}":
                name = self.text()
                found[name] = self.value()
            self.at += 1
            return found
        if mark == "[":
            return self.array()
        return self.text() if mark == "S" else _WORDS[mark]

    def array(self) -> Any:
        kind = ""
        if chr(self.data[self.at]) == "$":
            kind, self.at = chr(self.data[self.at + 1]), self.at + 2
        if chr(self.data[self.at]) != "#":
            found = []
            while chr(self.data[self.at]) != "]":
                found.append(self.value())
            self.at += 1
            return found
        self.at += 1
        count = self.count()
        if kind not in _NUMBERS:
            return [self.value(kind) for _ in range(count)]
        values = np.frombuffer(self.data, _NUMBERS[kind], count, self.at)
        self.at += values.nbytes
        return values
