"""How much of the arithmetic do the tests hold? Changes perfmodel in one place at a time and runs the tests that reach it.

    make mutation                                        300 mutants of analytic/, kernels/, library/ and plan/, the same ones every time
    python tests/mutation/run.py --sample 500 --seed 2   others
    python tests/mutation/run.py --only library/gemm     all of one module, or with --sample some
    python tests/mutation/run.py --json report.json      every mutant, and which test killed it

The first run notes which test calls which function (tests/mutation/.map.json; only test files that changed are noted again, --fresh all);
a mutant meets the tests of its function, those by hand first, then the goldens, until one fails, or until they have taken --seconds of
processor time. What lives at the level of a module (tables, constants) is imported anew, in a process of its own. Unit tests of the
laws, kernels and plans take part (UNIT), and law and golden tests: the accuracy gates would kill more. A mutant that survives is listed
with its line; survivors.json says of reviewed ones why they may (an equal program, or a choice that no stated rule fixes). Exit code 1
when fewer than --least percent are killed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
ROOT = TREE / "perfmodel"
MAP, SURVIVORS = HERE / ".map.json", HERE / "survivors.json"
UNIT = (
    "terms", "library", "kernels_attention", "kernels_gemm", "kernels_moe", "kernel_rank", "plan", "predict", "network", "occupancy",
    "anykernel", "explain", "interpolation", "one_answer",
)  # fmt: skip
LONGEST_S = 20.0  # a test that takes longer does not take part
MOST_COLD = 300  # tests of a process of its own

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(HERE), str(TREE)]

import pytest  # noqa: E402
from forked import Reports, caches, forget, in_child, observe, replace, run_items  # noqa: E402
from mutants import PACKAGES, Mutant, files, mutants, mutated, sample  # noqa: E402

Map = dict[str, dict[str, Any]]


class Session:
    """A pytest plugin that, once everything is collected, tries mutants instead of running the tests."""

    def __init__(self, options: argparse.Namespace, chosen: Sequence[Mutant]) -> None:
        self.options, self.chosen = options, chosen
        self.reports = Reports()
        self.results: list[dict[str, Any]] = []
        self.caches: list[Any] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        session.config.pluginmanager.register(self.reports)
        session.config.pluginmanager.unregister(name="terminalreporter")  # thousands of dots
        read_models()
        self.caches = caches(PACKAGES)
        items = {item.nodeid: item for item in session.items}
        known = self._map(items)
        tests = {name: test for entry in known.values() for name, test in entry["tests"].items() if name in items and test["passed"]}
        reach: dict[str, list[str]] = defaultdict(list)
        for name in sorted(tests, key=lambda name: place_of(name, tests)):
            for function in tests[name]["functions"]:
                reach[function].append(name)
        if wrong := self._fails_unchanged(items, tests):
            raise pytest.UsageError(f"{wrong} fails without any change: mutants that it kills would say nothing")
        start = time.monotonic()
        with ThreadPoolExecutor(self.options.jobs) as pool:  # each thread waits for a process
            for count, found in enumerate(pool.map(lambda mutant: self._try(mutant, items, tests, reach), self.chosen), start=1):
                self.results.append(found)
                progress(f"{count} of {len(self.chosen)}", start, found)
        return True

    def _map(self, items: dict[str, pytest.Item]) -> Map:
        known: Map = {} if self.options.fresh or not MAP.exists() else json.loads(MAP.read_text(encoding="utf-8"))
        by_file: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in items.values():
            by_file[item.nodeid.split("::")[0]].append(item)
        for file, members in by_file.items():
            digest = digest_of(TREE / file)
            if known.get(file, {}).get("digest") == digest and set(known[file]["tests"]) == {m.nodeid for m in members}:
                continue
            print(f"noting what {file} calls", file=sys.stderr, flush=True)
            with ThreadPoolExecutor(self.options.jobs) as pool:
                found = pool.map(self._noted, members)
                known[file] = {"digest": digest, "tests": dict(zip((m.nodeid for m in members), found, strict=True))}
            MAP.write_text(json.dumps(known), encoding="utf-8")
        return {file: entry for file, entry in known.items() if file in by_file}

    def _fails_unchanged(self, items: dict[str, pytest.Item], tests: Map) -> str | None:
        """A test that fails where nothing is changed, of the quickest of each file."""
        quickest: dict[str, str] = {}
        for name in sorted(tests, key=lambda name: -tests[name]["seconds"]):
            quickest[name.split("::")[0]] = name
        found = in_child(lambda: self._unchanged([items[name] for name in quickest.values()], tests))
        return "a test" if found is None else found["failed"]

    def _unchanged(self, items: Sequence[pytest.Item], tests: Map) -> dict[str, Any]:
        forget(self.caches)
        return run_items(items, self.reports, lambda name: float(tests[name]["seconds"]))

    def _noted(self, item: pytest.Item) -> dict[str, Any]:
        return in_child(lambda: self._observed(item)) or {"passed": False, "seconds": 0.0, "functions": []}

    def _observed(self, item: pytest.Item) -> dict[str, Any]:
        forget(self.caches)
        return observe(item, self.reports, ROOT)

    def _try(self, mutant: Mutant, items: dict[str, pytest.Item], tests: Map, reach: dict[str, list[str]]) -> dict[str, Any]:
        names = reach.get(f"{mutant.file} {mutant.function}", [])
        cold = not names or mutant.function.endswith((".", "<module>"))
        if cold:
            same = {name for function, found in reach.items() if function.startswith(f"{mutant.file} ") for name in found}
            if not same:  # a module of tables alone: the tests of its package
                same = {name for function, found in reach.items() if function.startswith(mutant.file.split("/")[0]) for name in found}
            names = sorted(same, key=lambda name: place_of(name, tests))
        names = list(within(names, tests, self.options.seconds))
        found: dict[str, Any] | None = {"failed": None}
        if names and not cold:
            found = in_child(lambda: self._warm(mutant, [items[name] for name in names], tests))
            cold = found is not None and bool(found.get("cold"))
        if names and cold:
            found = in_own_process(mutant, names[:MOST_COLD])
        killer = "a crash or the time limit" if found is None else found["failed"]
        return {
            "file": mutant.file, "function": mutant.function, "line": mutant.line, "operator": mutant.operator, "before": mutant.before,
            "after": mutant.after, "text": text(mutant), "tests": len(names), "killed_by": killer,
        }  # fmt: skip

    def _warm(self, mutant: Mutant, items: Sequence[pytest.Item], tests: Map) -> dict[str, Any]:
        if not replace(ROOT, mutant.file, mutant.function, mutated(ROOT, mutant.file, mutant.place)):
            return {"cold": True}
        forget(self.caches)
        return run_items(items, self.reports, lambda name: float(tests[name]["seconds"]))


def digest_of(test: Path) -> str:
    """Of a file of tests and of the figures beside it."""
    beside = sorted(test.parent.glob("*.json")) if test.parent.name == "golden" else []
    return hashlib.sha256(b"".join(path.read_bytes() for path in [test, *beside])).hexdigest()


def read_models() -> None:
    """Read the database and the shipped models once, for all children."""
    import perfmodel as pm

    for gpu in ("a100_sxm", "h100_sxm", "h200_sxm", "l20"):
        for op in (pm.Gemm(64, 64, 64), pm.Attention("decode", 1, 1, 64, 8, 8, 64), pm.Attention("prefill", 1, 64, 64, 8, 8, 64)):
            pm.predict(op, gpu)
        pm.predict(pm.MoE(8, 1024, 512, 8, 2), gpu)
        pm.predict(pm.MemoryBound("add", 8, 1024), gpu)
        pm.predict(pm.Collective("all_reduce", 1024, 2), gpu)


def suites() -> list[str]:
    """The test files that take part."""
    unit = [p.relative_to(TREE).as_posix() for p in sorted((TREE / "tests" / "unit").glob("test_*.py"))]
    return [p for p in unit if p.split("/test_")[1].startswith(UNIT)] + ["tests/laws", "tests/golden"]


def place_of(name: str, tests: Map) -> tuple[int, float]:
    """Place in the order: values worked out by hand first, then reviewed ones, then all others; the quickest of each first."""
    kind = 0 if "/test_terms_" in name else 1 if name.startswith("tests/golden") else 2
    return kind, tests[name]["seconds"]


def within(names: Sequence[str], tests: Map, seconds: float) -> Iterator[str]:
    """The quickest of them that take `seconds` together, at least one."""
    spent = 0.0
    for at, name in enumerate(names):
        each = tests[name]["seconds"]
        spent += each + 0.01
        if each > LONGEST_S or (at and spent > seconds):
            return
        yield name


def in_own_process(mutant: Mutant, names: Sequence[str]) -> dict[str, Any] | None:
    """What the tests say when the module is imported with its change."""
    env = {**os.environ, "PERFMODEL_MUTANT": f"{mutant.file}:{mutant.place}", "PYTHONPATH": os.pathsep.join([str(HERE), str(TREE)])}
    command = [sys.executable, "-m", "pytest", "-p", "import_mutated", "-p", "no:cacheprovider", "-x", "-q", *names]
    try:
        done = subprocess.run(command, cwd=TREE, env=env, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return None
    failed = next((line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), "an error on import")
    return {"failed": None if done.returncode == 0 else failed}


def text(mutant: Mutant) -> str:
    """The line of the source that a mutant changes."""
    return (ROOT / mutant.file).read_text(encoding="utf-8").splitlines()[mutant.line - 1].strip()


def progress(count: str, start: float, last: dict[str, Any]) -> None:
    """A line a survivor, and one now and then."""
    place = f"perfmodel/{last['file']}:{last['line']}"
    if last["killed_by"] is None:
        print(
            f"{count} ({time.monotonic() - start:.0f} s) survives: {place} {last['before']} -> {last['after']}", file=sys.stderr, flush=True
        )
    elif int(count.split(maxsplit=1)[0]) % 20 == 0:
        print(f"{count} ({time.monotonic() - start:.0f} s)", file=sys.stderr, flush=True)


def same_change(result: dict[str, Any], reviewed: dict[str, Any]) -> bool:
    return all(result[name] == reviewed[name] for name in ("file", "function", "before", "after", "text"))


def report(results: Sequence[dict[str, Any]], least: float) -> int:
    """Prints killed and survived by package and the survivors; the exit code."""
    reviewed = json.loads(SURVIVORS.read_text(encoding="utf-8")) if SURVIVORS.exists() else []
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        why = next((r["why"] for r in reviewed if same_change(result, r)), None)
        result["why"] = why
        state = "killed" if result["killed_by"] else "survived, reviewed" if why else "survived"
        for package in (result["file"].split("/")[0], "all"):
            counts[package][state] += 1
    for result in results:
        if not result["killed_by"]:
            print(f"perfmodel/{result['file']}:{result['line']} {result['function']} ({result['tests']} tests): {result['operator']}")
            print(f"    {result['before']} -> {result['after']}" + (f"\n    why: {result['why']}" if result["why"] else ""))
    print(f"{'':10}{'mutants':>9}{'killed':>9}{'survived':>10}{'reviewed':>10}{'killed %':>10}")
    for package, state in counts.items():
        total = sum(state.values())
        print(
            f"{package:10}{total:9}{state['killed']:9}{total - state['killed']:10}{state['survived, reviewed']:10}"
            f"{100.0 * state['killed'] / total:10.1f}"
        )
    return int(bool(results) and 100.0 * counts["all"]["killed"] / len(results) < least)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, metavar="N", help="mutants to try: 300, or with --only all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="TEXT", help="only files, or `file function`s, that hold this text")
    parser.add_argument("--seconds", type=float, default=15.0, help="processor seconds of tests that a mutant may survive")
    parser.add_argument("--least", type=float, default=0.0, metavar="PERCENT", help="exit with 1 when fewer are killed")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--again", type=Path, metavar="FILE", help="only the survivors of an earlier --json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="mutants at a time: one a core")
    parser.add_argument("--fresh", action="store_true", help="note anew what every test calls")
    parser.add_argument("--list", action="store_true", help="print the mutants and try none")
    options = parser.parse_args()
    every = [m for file in files(ROOT) for m in mutants(ROOT, file) if options.only in f"{m.file} {m.function}"]
    count = options.sample if options.sample is not None else len(every) if options.only else 300
    chosen = sample(every, count, options.seed)
    if options.again:
        earlier = [r for r in json.loads(options.again.read_text(encoding="utf-8")) if not r["killed_by"]]

        def lived(m: Mutant) -> bool:
            return any((r["file"], r["line"], r["before"], r["after"]) == (m.file, m.line, m.before, m.after) for r in earlier)

        chosen = [m for m in every if lived(m)]
    if options.list:
        for m in chosen:
            print(f"perfmodel/{m.file}:{m.line} {m.function} ({m.operator}): {m.before} -> {m.after}")
        return 0
    session = Session(options, chosen)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(TREE):
        arguments = [*suites(), "-q", "-p", "no:cacheprovider", f"--basetemp={folder}/tests"]
        code = pytest.main(arguments, plugins=[session])
    if not session.results:
        return int(code) or 1
    if options.json:
        options.json.write_text(json.dumps(session.results, indent=1) + "\n", encoding="utf-8")
    return report(session.results, options.least)


if __name__ == "__main__":
    sys.exit(main())
