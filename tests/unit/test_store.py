"""The store: append-only, keyed, shared by processes, exported and imported; unusable files are one clear line and stay as they are."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfmodel.errors import InputError
from perfmodel.tune.store import Key, Run, Store, read_export, store_path

KEY = Key("gemm", {"m": 16, "n": 32, "k": 64}, "bf16", "0123456789abcdef", "NVIDIA H200", "570.1", "3.6.0", "2.13.0")


def run(latency_us: float | None, block: int = 64, *, at: str = "2026-01-01T00:00:00", key: Key = KEY, **more: Any) -> Run:
    status = "ok" if latency_us else "compile_error"
    fields: dict[str, Any] = {"role": "config", "status": status, "reason": "" if latency_us else "no", **more}
    return Run(key=key, config={"block_m": block, "variant": "tma"}, at=at, latency_us=latency_us, **fields)


def test_latest_and_best_are_per_config_and_history_keeps_all(tmp_path: Path) -> None:
    with Store(tmp_path / "s") as store:
        assert store.add([run(10.0), run(5.0, 128), run(None, 256)]) == 3
        assert store.add([run(4.0, at="2026-01-02T00:00:00"), run(7.0, 128, at="2026-01-03T00:00:00")]) == 2
        assert [(r.config["block_m"], r.latency_us) for r in store.latest(KEY)] == [(64, 4.0), (128, 7.0), (256, None)]
        assert [r.latency_us for r in store.best()] == [4.0]
        assert [r.latency_us for r in store.history()] == [10.0, 5.0, None, 4.0, 7.0]


def test_an_older_import_does_not_replace_a_newer_timing(tmp_path: Path) -> None:
    with Store(tmp_path / "s") as store:
        store.add([run(10.0, at="2026-02-01T00:00:00")])
        store.add([run(3.0, at="2025-02-01T00:00:00")])
        assert [r.latency_us for r in store.latest(KEY)] == [10.0]


@pytest.mark.parametrize(
    "other",
    [
        {"sizes": {"m": 17, "n": 32, "k": 64}},
        *({name: "other"} for name in ("kernel", "dtype", "source_hash", "gpu", "driver", "triton", "torch")),
    ],
)
def test_any_other_key_is_a_miss(tmp_path: Path, other: dict[str, Any]) -> None:
    with Store(tmp_path / "s") as store:
        store.add([run(10.0)])
        assert store.latest(replace(KEY, **other)) == []
        assert len(store.latest(replace(KEY, sizes={"k": 64, "n": 32, "m": 16}))) == 1  # the order of sizes says nothing


def test_baselines_are_not_configs(tmp_path: Path) -> None:
    with Store(tmp_path / "s") as store:
        store.add([run(1.0, role="baseline"), run(2.0, 128)])
        assert [r.latency_us for r in store.latest(KEY)] == [2.0]
        assert [r.latency_us for r in store.latest(KEY, "baseline")] == [1.0]
        assert [r.latency_us for r in store.best()] == [2.0]


def test_a_failed_batch_leaves_nothing(tmp_path: Path) -> None:
    with Store(tmp_path / "s") as store:
        with pytest.raises(InputError, match="NOT NULL"):
            store.add([run(1.0), run(2.0, 128, status=None)])
        assert store.history() == []


def test_export_import_round_trip_ignores_duplicates(tmp_path: Path) -> None:
    with Store(tmp_path / "a") as a, Store(tmp_path / "b") as b:
        a.add([run(10.0, spread=0.01, detail={"power_w": 300.5, "bad": float("nan")}), run(None, 128)])
        data = json.loads(json.dumps(a.export(), allow_nan=False))
        assert b.import_rows(data, "x.json") == (2, 0)
        assert b.import_rows(data, "x.json") == (0, 2)
        assert b.export() == a.export()
        assert b.latest(KEY)[0].detail == {"power_w": 300.5, "bad": None}
        again = json.loads(json.dumps(data))
        again["runs"][0]["at"] = "2027-01-01T00:00:00"
        assert b.import_rows(again, "x.json") == (1, 1)


def broken(data: dict[str, Any], **changes: Any) -> dict[str, Any]:
    out: dict[str, Any] = json.loads(json.dumps(data))
    out["runs"][-1].update(changes)
    return out


def test_a_bad_import_adds_nothing_and_says_where(tmp_path: Path) -> None:
    with Store(tmp_path / "a") as a, Store(tmp_path / "b") as b:
        a.add([run(10.0), run(11.0, 128)])
        data = a.export()
        cases = [
            ([], "not an export"),
            ({"runs": []}, "not an export"),
            ({**data, "perfmodel_store": 99}, "version 99"),
            (broken(data, latency_us=-1.0), "run 1 has latency_us -1.0: expected a number"),
            (broken(data, latency_us=True), "run 1 has latency_us True"),
            (broken(data, config="x"), "run 1 has config 'x': expected an object"),
            (broken(data, gpu=None), "run 1 has gpu None: expected Unicode text"),
            (broken(data, gpu="\ud800"), "run 1 has gpu .* expected Unicode text"),
            (broken(data, latency_us=10**400), "run 1 has latency_us 10000.*\\.\\.\\.: expected a number from 0 to"),
            (broken(data, spread=float("inf")), "run 1 has spread inf"),
            (broken(data, config={"a": [float("nan")]}), "run 1 has config .*: expected an object of plain values"),
            (broken(data, latency_us=None), "run 1 has role 'config', status 'ok' and latency_us None"),
            ({**data, "runs": [*data["runs"], {"gpu": "x"}]}, "run 2 lacks kernel"),
            ({**data, "runs": [3]}, "run 0 is not an object"),
        ]
        for bad, message in cases:
            with pytest.raises(InputError, match=message) as error:
                b.import_rows(bad, "x.json")
            assert "x.json" in str(error.value)
        assert b.history() == []


def test_read_export_of_bad_files(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"perfmodel_store": 1, "runs": [')
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for name in ("half.json", "binary.json", "absent.json", "deep.json"):
        with pytest.raises(InputError, match=name):
            read_export(tmp_path / name)


@pytest.mark.parametrize("content", [b"this is not a database, not even nearly" * 40, b"SQLite format 3\x00" + b"\x07" * 5000])
def test_corrupt_file_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.sqlite"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"s\.sqlite: cannot be used as a store") as error:
        Store(path)
    assert "\n" not in str(error.value) and path.read_bytes() == content


def test_truncated_store_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        store.add([run(float(i), i) for i in range(1, 400)])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cannot be used as a store"), Store(path) as store:
        store.history()
    assert path.read_bytes() == whole[: len(whole) // 2]


def test_a_store_with_a_damaged_page_takes_no_import(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with Store(path) as store, Store(tmp_path / "new") as other:
        store.add([run(float(i), i) for i in range(1, 400)])
        other.add([run(1.0, 1000)])
        data = other.export()
    whole = bytearray(path.read_bytes())
    middle = len(whole) // 2 // 4096 * 4096
    whole[middle : middle + 4096] = b"\x07" * 4096
    path.write_bytes(whole)
    with pytest.raises(InputError, match=r"s\.sqlite: cannot be used as a store") as error, Store(path) as store:
        store.import_rows(data, "x.json")
    assert "\n" not in str(error.value)


def test_a_store_in_a_folder_that_cannot_be_written_is_read() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s #1.sqlite"
        with Store(path) as store:
            store.add([run(1.0)])
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        owner = os.geteuid()
        try:
            os.seteuid(65534 if owner == 0 else owner)  # root may write anywhere
            with Store(path, create=False) as store:
                assert len(store.history()) == 1
            with pytest.raises(InputError, match="cannot be used as a store"):
                Store(path)
        finally:
            os.seteuid(owner)
        Path(folder).chmod(0o755)


def test_another_programs_database_and_a_newer_store_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE precious (x)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="another program"):
        Store(path)
    assert path.read_bytes() == before
    Store(tmp_path / "new").close()
    with sqlite3.connect(tmp_path / "new") as newer:
        newer.execute("PRAGMA user_version = 9")
    newer.close()
    with pytest.raises(InputError, match="version 9"):
        Store(tmp_path / "new")


def test_unusable_places_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "below" / "s"):
        with pytest.raises(InputError, match="cannot be used as a store"):
            Store(path)
    with pytest.raises(InputError, match="nothing was tuned here yet"):
        Store(tmp_path / "absent", create=False)
    assert not (tmp_path / "absent").exists()
    with pytest.raises(InputError, match=r"cannot be used as a store \(a folder\)"):
        Store(tmp_path, create=False)


def test_read_only_store_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        store.add([run(1.0)])
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda p, **k: connect(f"file:{p}?mode=ro", uri=True, **k))  # root may write anywhere
    with pytest.raises(InputError, match="readonly database"):
        Store(path)


def test_path_from_argument_then_environment_then_user_folder(monkeypatch: pytest.MonkeyPatch, _own_folders: Path) -> None:
    assert store_path() == _own_folders / "store.sqlite"
    monkeypatch.setenv("PERFMODEL_STORE", "~/there.sqlite")
    assert store_path() == Path.home() / "there.sqlite"
    assert store_path("here") == Path("here")


_WRITER = """
import sys
from perfmodel.tune.store import Key, Run, Store
key = Key("gemm", {"m": 1}, "bf16", "h", "g", "d", "t", "p")
for i in range(40):
    with Store(sys.argv[1]) as store:
        store.add([Run(key, {"block": i, "by": sys.argv[2]}, "config", "ok", "", f"2026-01-01T00:00:{i:02}", 1.0 + i)])
"""


def test_two_processes_make_and_fill_one_store(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(path), name], stderr=subprocess.PIPE) for name in "abc"]
    for writer in writers:
        assert writer.communicate(timeout=60)[1] == b""
    with Store(path) as store:
        assert len(store.history()) == 120


def test_rows_written_before_a_kill_survive(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    code = _WRITER + "store = Store(sys.argv[1]); store.add([Run(key, {}, 'config', 'ok', '', 'z', 1.0)]); import os; os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code, str(path), "a"], check=False, timeout=60).returncode == 9
    with Store(path) as store:
        assert len(store.history()) == 41
