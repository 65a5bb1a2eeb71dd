"""The store: every timing ever made here, in one sqlite file, and the best answer among them.

Rows are only ever added. A row belongs to a Key (problem, kernel source, GPU, driver, versions): another key is a miss, never a stale
answer. Timings are kept a config, so a longer config list asks only for what is new.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel._resources import user_folder
from perfmodel.boundary import LARGEST_TABLE_BYTES, expanded, read_json
from perfmodel.errors import InputError, shown

VERSION = 1
_APPLICATION = 0x706D6631  # "pmf1" in the file's header: whose sqlite file this is
_BUSY_S = 30.0
_KEY = ("kernel", "sizes", "dtype", "source_hash", "gpu", "driver", "triton", "torch")
_TEXT = (*_KEY, "config", "role", "status", "reason", "at", "detail")
_NUMBERS = ("latency_us", "spread", "predicted_us", "clock_mhz")
_COLUMNS = (*_TEXT, *_NUMBERS)
ROLES = ("config", "baseline")
_MOST = 1e15  # microseconds, or megahertz: above it a number is no measurement

_SCHEMA = f"""
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    {", ".join(f"{name} TEXT NOT NULL" for name in _TEXT)},
    {", ".join(f"{name} REAL" for name in _NUMBERS)}
);
CREATE INDEX runs_key ON runs ({", ".join(_KEY)});
CREATE VIEW latest AS SELECT * FROM (
    SELECT *, row_number() OVER (PARTITION BY {", ".join(_KEY)}, role, config ORDER BY at DESC, id DESC) AS age FROM runs
) WHERE age = 1;
CREATE VIEW best AS SELECT * FROM (
    SELECT *, row_number() OVER (PARTITION BY {", ".join(_KEY)} ORDER BY latency_us, config) AS place
    FROM latest WHERE role = 'config' AND status = 'ok'
) WHERE place = 1;
"""


@dataclass(frozen=True, slots=True)
class Key:
    """What must be equal for a stored timing to answer: kernel family and its sizes, dtype, kernel source, GPU, driver, versions."""

    kernel: str
    sizes: Mapping[str, int]
    dtype: str
    source_hash: str
    gpu: str
    driver: str
    triton: str
    torch: str

    def values(self) -> tuple[str, ...]:
        """Values of the key's columns, in their order."""
        return tuple(canonical(v) if isinstance(v, Mapping) else v for v in (getattr(self, name) for name in _KEY))


@dataclass(frozen=True, slots=True)
class Run:
    """One timing, or one failed attempt. Times are microseconds; `detail` is everything else that was noted (clocks, power, registers)."""

    key: Key
    config: Mapping[str, Any]
    role: str
    status: str
    reason: str
    at: str
    latency_us: float | None = None
    spread: float | None = None
    predicted_us: float | None = None
    clock_mhz: float | None = None
    detail: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Columns of the table; no number that JSON lacks."""
        values: dict[str, Any] = dict(zip(_KEY, self.key.values(), strict=True))
        values |= {"config": canonical(self.config), "detail": canonical(self.detail)}
        values |= {name: getattr(self, name) for name in ("role", "status", "reason", "at")}
        return values | {name: _finite(getattr(self, name)) for name in _NUMBERS}


def canonical(value: Mapping[str, Any]) -> str:
    """One text for equal mappings: sorted JSON."""
    clean = {str(k): _finite(v) if isinstance(v, float) else v for k, v in value.items()}
    return json.dumps(clean, sort_keys=True, separators=(",", ":"), default=str, allow_nan=False)


def _finite(value: Any) -> Any:
    return None if value is None or not math.isfinite(value) else float(value)


def store_path(path: str | Path | None = None) -> Path:
    """The file to use: `path`, else PERFMODEL_STORE, else store.sqlite in the user's data folder."""
    if path is not None:
        return expanded(path)
    named = os.environ.get("PERFMODEL_STORE")
    return expanded(named) if named else user_folder() / "store.sqlite"


class _Damaged(ValueError):
    """A row that this program did not write so."""


class Store:
    """An open store; safe to use from several processes at once. A context manager."""

    def __init__(self, path: str | Path | None = None, *, create: bool = True) -> None:
        """Open the store at `path` (see store_path) for reading and writing; without `create` an existing one, for reading.

        Raises InputError for a file that is not a store, or cannot be written; such a file is left as it is.
        """
        self.path = store_path(path)
        try:
            if create:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            elif self.path.is_dir():
                raise InputError(self._unusable("a folder"))
            elif not self.path.exists():
                raise InputError(f"no store at {self.path}: nothing was tuned here yet; name another with --store or PERFMODEL_STORE")
        except OSError as error:
            raise InputError(self._unusable(error.strerror or str(error))) from None
        with self._errors():
            self._db = self._connect(create)
        try:
            with self._errors():
                self._prepare(create)
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def add(self, runs: Iterable[Run]) -> int:
        """Append runs, all or none; returns how many were new."""
        rows = [run.row() for run in runs]
        if not rows:
            return 0
        with self._errors(), self._transaction():
            return self._insert(rows)

    def latest(self, key: Key, role: str = "config") -> list[Run]:
        """The newest run of each config (or baseline) under `key`, fastest first, failures last."""
        where = " AND ".join(f"{name} = ?" for name in _KEY)
        query = f"SELECT {', '.join(_COLUMNS)} FROM latest WHERE {where} AND role = ? ORDER BY status != 'ok', latency_us, config"
        with self._errors():
            return [_run(row) for row in self._db.execute(query, (*key.values(), role))]

    def of_kernel(self, kernel: str, source_hash: str, gpu: str) -> list[Run]:
        """The newest good run of each config of one kernel source on one GPU, whatever the driver and the versions."""
        query = (
            f"SELECT {', '.join(_COLUMNS)} FROM latest WHERE kernel = ? AND source_hash = ? AND gpu = ? AND status = 'ok' ORDER BY at, id"
        )
        with self._errors():
            return [_run(row) for row in self._db.execute(query, (kernel, source_hash, gpu))]

    def best(self) -> list[Run]:
        """The fastest config of every key, by kernel, GPU and sizes."""
        return self._select("best ORDER BY kernel, gpu, dtype, sizes, at")

    def history(self) -> list[Run]:
        """Every run, oldest first."""
        return self._select("runs ORDER BY at, id")

    def export(self) -> dict[str, Any]:
        """Everything, as what `import_rows` takes."""
        rows = []
        for run in self.history():
            row = run.row()
            rows.append({**row, **{name: json.loads(row[name]) for name in ("sizes", "config", "detail")}})
        return {"perfmodel_store": VERSION, "runs": rows}

    def import_rows(self, data: Any, source: str) -> tuple[int, int]:
        """Add the runs of an export, all or none; returns (new, already there). `source` names the file in the InputError of a bad one."""
        return self.import_all([(source, data)])[0]

    def import_all(self, exports: Sequence[tuple[str, Any]]) -> list[tuple[int, int]]:
        """Add the runs of several exports (source, data), those of all or of none; returns (new, already there) of each."""
        checked = [self._read(data, source) for source, data in exports]
        with self._errors():
            damage = str(self._db.execute("PRAGMA quick_check(1)").fetchone()[0])
        if damage != "ok":
            raise InputError(self._unusable(" ".join(damage.split())))
        with self._errors(), self._transaction():
            return [(new := self._insert(rows), len(rows) - new) for rows in checked]

    def _read(self, data: Any, source: str) -> list[dict[str, Any]]:
        if not isinstance(data, Mapping) or not isinstance(data.get("runs"), list) or "perfmodel_store" not in data:
            raise InputError(f"{source}: not an export of a perfmodel store: expected an object with perfmodel_store and runs")
        if data["perfmodel_store"] != VERSION:
            raise InputError(f"{source}: an export of version {shown(data['perfmodel_store'])}, this perfmodel reads {VERSION}")
        return [_checked(row, f"{source}: run {number}") for number, row in enumerate(data["runs"])]

    def _insert(self, rows: list[dict[str, Any]]) -> int:
        """Rows that are new, inside a transaction."""
        if not rows:
            return 0
        names = ("digest", *_COLUMNS)
        command = f"INSERT INTO runs ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) ON CONFLICT (digest) DO NOTHING"
        digests = [hashlib.sha256(json.dumps([row[n] for n in _COLUMNS]).encode()).hexdigest() for row in rows]
        values = [(digest, *(row[n] for n in _COLUMNS)) for digest, row in zip(digests, rows, strict=True)]
        before = self._db.total_changes
        self._db.executemany(command, values)
        return self._db.total_changes - before

    def _select(self, what: str) -> list[Run]:
        with self._errors():
            return [_run(row) for row in self._db.execute(f"SELECT {', '.join(_COLUMNS)} FROM {what}")]

    def _connect(self, create: bool) -> sqlite3.Connection:
        """Open the file; without `create` for reading, even in a folder where sqlite cannot make the files it shares with writers."""
        if create:
            return sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
        address = f"{self.path.absolute().as_uri()}?mode=ro"
        book = sqlite3.connect(address, uri=True, timeout=_BUSY_S, isolation_level=None)
        try:
            book.execute("PRAGMA user_version")
        except sqlite3.OperationalError:
            book.close()
            if self.path.with_name(f"{self.path.name}-wal").exists():  # the newest rows stand there
                raise
            return sqlite3.connect(f"{address}&immutable=1", uri=True, timeout=_BUSY_S, isolation_level=None)
        return book

    def _prepare(self, create: bool) -> None:
        """Check whose file this is before anything is written to it, then make the schema in a new one."""
        version = self._check()
        if not create:
            if version == 0:
                raise InputError(f"{self.path} is empty: nothing was tuned here yet")
            return
        if self._db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        with self._transaction():
            if self._check() == 0:
                for statement in _SCHEMA.split(";\n"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA application_id = {_APPLICATION}")
            self._db.execute(f"PRAGMA user_version = {VERSION}")  # always a write: says now, not after the timing, that none is possible

    def _check(self) -> int:
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        owner = int(self._db.execute("PRAGMA application_id").fetchone()[0])
        tables = int(self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
        if tables and owner != _APPLICATION:
            raise InputError(f"{self.path}: a database of another program, left as it is: name another with --store or PERFMODEL_STORE")
        if version > VERSION:
            raise InputError(f"{self.path}: a store of version {version}, this perfmodel reads {VERSION}: upgrade perfmodel")
        return version

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError:  # a bug of ours, not the file's fault
            raise
        except (sqlite3.DatabaseError, UnicodeDecodeError, json.JSONDecodeError, _Damaged) as error:
            raise InputError(self._unusable(str(error))) from None

    def _unusable(self, why: str) -> str:
        return f"{self.path}: cannot be used as a store ({why}); nothing was changed: repair it, or name another with --store"


def read_export(path: Path) -> Any:
    """The JSON of an export file; raises InputError in one line for a missing, half-written or other file."""
    return read_json(path, LARGEST_TABLE_BYTES)


def _run(row: tuple[Any, ...]) -> Run:
    values = dict(zip(_COLUMNS, row, strict=True))
    for name in ("sizes", "config", "detail"):
        if not isinstance(values[name], str):
            raise _Damaged(f"{name} of a run is no text")
        values[name] = json.loads(values[name])
    return Run(Key(**{name: values.pop(name) for name in _KEY}), **values)


def _storable(value: Any) -> bool:
    """Whether text or an object of an export can be stored and read back: no lone surrogates, and only numbers that JSON has."""
    try:
        (canonical(value) if isinstance(value, Mapping) else value).encode()
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def _checked(row: Any, where: str) -> dict[str, Any]:
    """A row of an export as table columns; raises InputError naming the field that is wrong."""
    if not isinstance(row, Mapping):
        raise InputError(f"{where} is not an object")
    if missing := [name for name in _COLUMNS if name not in row]:
        raise InputError(f"{where} lacks {', '.join(missing)}")
    out: dict[str, Any] = {}
    for name in _COLUMNS:
        value = row[name]
        nested = name in ("sizes", "config", "detail")
        if name in _NUMBERS:
            good = value is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST)
        else:
            good = isinstance(value, Mapping if nested else str) and _storable(value)
        if not good:
            kind = "an object of plain values" if nested else f"a number from 0 to {_MOST:g}" if name in _NUMBERS else "Unicode text"
            raise InputError(f"{where} has {name} {shown(value)}: expected {kind}")
        out[name] = canonical(value) if nested else float(value) if name in _NUMBERS and value is not None else value
    if out["role"] not in ROLES or (out["status"] == "ok" and not out["latency_us"]):
        raise InputError(
            f"{where} has role {shown(out['role'])}, status {shown(out['status'])} and latency_us {shown(out['latency_us'])}: no such run"
        )
    return out
