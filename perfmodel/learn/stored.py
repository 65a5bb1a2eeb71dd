"""The calibrations that are stored: the user's own and the shipped ones, what each rests on, and removing one's own."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel._resources import folders, forget
from perfmodel.errors import InputError, PerfModelError, unknown_name
from perfmodel.hw import gpu as find_gpu
from perfmodel.learn.model import TREE

CARD = "card.json"
OTHERS = ("universal", "physics", "recipes")  # folders beside those of the GPUs
REPORTS = ("report.html", "report.md", "report.json")
OWN, SHIPPED = "own", "shipped"


@dataclass(frozen=True, slots=True)
class Stored:
    """One fitted model of one GPU on disk; `error` and `coverage` are of shapes held out, None where the card does not say."""

    gpu: str
    part: str
    whose: str  # OWN or SHIPPED
    answers: bool  # whether calibration "auto" asks it
    tier: str
    rows: int | None
    shapes: int | None
    error: float | None
    coverage: float | None
    made: str  # the day, of one's own
    path: str
    card: Mapping[str, Any]

    @property
    def name(self) -> str:
        """GPU and part, as `calibrate show` and `remove` take it."""
        return f"{self.gpu}/{self.part}"


def stored() -> list[Stored]:
    """Every stored calibration, by GPU and part, one's own first. A card that cannot be read is listed with tier "unreadable"."""
    own, shipped = folders("calibration")
    mine = list(_of(own, OWN, set()))
    theirs = list(_of(shipped, SHIPPED, {(one.gpu, one.part) for one in mine})) if shipped != own else []
    return sorted([*mine, *theirs], key=lambda one: (one.gpu, one.part, one.whose))


def _of(folder: Path, whose: str, covered: set[tuple[str, str]]) -> Iterator[Stored]:
    for path in sorted(folder.glob(f"*/*/{CARD}")):
        gpu, part = path.parent.parent.name, path.parent.name
        if gpu in OTHERS:
            continue
        try:
            card = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            card = None
        if not isinstance(card, dict):
            card = {"tier": "unreadable"}
        yield Stored(
            gpu, part, whose, (gpu, part) not in covered, str(card.get("tier", "?")), _whole(card.get("rows")), _whole(card.get("shapes")),
            _error(card), _share(card.get("held_out_coverage")), _made(path, whose), str(path.parent), card,
        )  # fmt: skip


def _error(card: Mapping[str, Any]) -> float | None:
    """The held-out error of a card, in whichever form its fit wrote it."""
    found = card.get("held_out_error")
    if isinstance(found, Mapping):
        found = next((found[key] for key in (card.get("chosen"), "corrected", "mean") if key in found), None)
    return _share(found)


def _made(path: Path, whose: str) -> str:
    """The day that one's own was written; nothing of a shipped one, whose file is as old as its installation."""
    return datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).strftime("%Y-%m-%d") if whose == OWN else ""


def _share(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def find(name: str) -> list[Stored]:
    """Those of a GPU ("h100_sxm", any of its names) or one part of it ("h100_sxm/gemm"); raises InputError with the nearest names."""
    known = stored()
    asked, _, part = name.strip().rpartition("/") if "/" in name else (name.strip(), "", "")
    gpus = {one.gpu for one in known}
    gpu = asked
    if asked not in gpus:
        try:
            gpu = find_gpu(asked).name
        except PerfModelError:
            raise _unknown("calibration", asked, gpus) from None
    if gpu not in gpus:
        raise InputError(f"nothing is stored for {gpu}: calibrations are of {', '.join(sorted(gpus))[:100]}")
    found = [one for one in known if one.gpu == gpu and part in ("", one.part)]
    if not found:
        raise _unknown(f"part of the calibration of {gpu}", part, {one.part for one in known if one.gpu == gpu})
    return found


def _unknown(what: str, name: str, known: set[str]) -> InputError:
    return unknown_name(what, name[:60], known)


def remove(name: str) -> list[str]:
    """Delete one's own calibrations of a GPU, or one part, with the reports of a whole GPU; returns the paths that are gone.

    Raises InputError for a name that is not there, and where only a shipped one is.
    """
    found = find(name)
    mine = [one for one in found if one.whose == OWN]
    if not mine:
        raise InputError(f"{found[0].gpu if len(found) > 1 else found[0].name} is shipped with perfmodel: only your own can be removed")
    root = Path(mine[0].path).parent
    gone = [file for one in mine for file in (Path(one.path) / CARD, Path(one.path) / TREE)]
    if "/" not in name:
        gone += [root / report for report in REPORTS]
    gone = [path for path in gone if path.is_file()]
    try:
        for path in gone:  # the card first: a model without one is never read
            path.unlink()
            forget(path.resolve())
        for folder in {path.parent for path in gone}:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        if root.is_dir() and not any(root.iterdir()):
            root.rmdir()
    except OSError as error:
        raise InputError(f"{root}: cannot be removed ({error.strerror})") from None
    return [str(path) for path in gone]
